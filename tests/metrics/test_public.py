import doctest
import importlib
import inspect
import operator
import subprocess
import sys

import pytest

from equipoise import metrics


@pytest.mark.parametrize("module", ["bins", "functional", "streaming"])
def test_examples_run(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"equipoise.metrics.{module}"))
    assert results.attempted and not results.failed


@pytest.mark.parametrize("name", metrics.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(getattr(metrics, name)) or "")


def test_torchmetrics_is_imported_when_first_needed() -> None:
    script = (
        "import sys, equipoise.metrics as m\n"
        "assert 'torchmetrics' not in sys.modules\n"
        "assert set(m.__all__) <= set(dir(m))\n"
        "m.Accuracy()\n"
        "assert 'torchmetrics' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'accuracies'"):
        operator.attrgetter("accuracies")(metrics)
