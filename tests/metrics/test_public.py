import doctest
import importlib
import inspect
import operator
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise import metrics


@pytest.mark.parametrize("module", ["bins", "functional", "risk_coverage", "stream_metrics"])
def test_examples_run(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"equipoise.metrics.{module}"))
    assert results.attempted and not results.failed


@pytest.mark.parametrize("name", metrics.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(getattr(metrics, name)) or "")


def test_type_checkers_see_a_misspelled_name(tmp_path: Path) -> None:
    user = tmp_path / "user.py"
    user.write_text("from equipoise.metrics import Accuracy, Misspelled\n")
    # Without following imports: torch alone would take a minute.
    options = ["--config-file=", "--follow-imports=skip", f"--cache-dir={tmp_path}"]
    command = [sys.executable, "-m", "mypy", *options, str(metrics.__file__), str(user)]
    report = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert 'has no attribute "Misspelled"' in report and '"Accuracy"' not in report


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'accuracies'"):
        operator.attrgetter("accuracies")(metrics)
