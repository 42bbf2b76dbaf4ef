"""`equipoise demo`: a recipe run by the bench and shown by the report."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from typer.testing import CliRunner

from equipoise.cli import experiments
from equipoise.cli.app import app
from equipoise.research.experiment.recipe import RehearsalRecipe
from equipoise.research.experiment.store import RESULTS
from equipoise.research.experiment.workers import InProcess
from tests.support.waiting import HANG, wait_until

if TYPE_CHECKING:
    from equipoise.research.experiment.recipe import Recipe

runner = CliRunner()


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo of seconds: one worker, no training to speak of, few images."""
    recipe = experiments.demo_recipe(seed=0, quick=True)
    changes = {"rehearsal": RehearsalRecipe(images=100, shifts=8)}
    tiny: Recipe = recipe.narrowed(epochs=1).model_copy(update=changes)
    monkeypatch.setattr(experiments, "demo_recipe", lambda seed, quick: tiny)
    monkeypatch.setattr(experiments, "QUICK_IMAGES", 240)
    monkeypatch.setattr(
        "equipoise.research.experiment.trained_model.ONE_IN", 2
    )  # 120 of them are enough to rehearse with
    monkeypatch.setattr(experiments, "make_workers", lambda **_: InProcess())


def test_a_page_and_a_story_and_the_second_time_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    console = Console(record=True, width=200, file=io.StringIO())
    index = experiments.run_demo(tmp_path / "demo", quick=True, console=console)
    told = console.export_text()
    assert "the plain model says" in told
    assert "day again" in told
    page = index.read_text()
    assert page.count("<svg") == 5  # over time for wide and narrow screens, and three reliability diagrams
    assert "http" not in page.replace("http://www.w3.org", "")
    assert (tmp_path / "demo" / "picture.png").stat().st_size > 10_000
    lines = (tmp_path / "demo" / "quick" / RESULTS).read_bytes()
    monkeypatch.setattr("equipoise.research.experiment.sweep.run_cells", None)
    experiments.run_demo(tmp_path / "demo", quick=True, console=Console(quiet=True))
    assert (tmp_path / "demo" / "quick" / RESULTS).read_bytes() == lines


def test_a_folder_that_cannot_be_made_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = runner.invoke(app, ["demo", "--quick", "--out", str(tmp_path / "file" / "demo")])
    assert result.exit_code == 1
    assert "Not a directory" in result.output
    assert "Traceback" not in result.output


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "equipoise", "demo", "--quick", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(out.exists, "the folder of the demo")
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert "the same command goes on from there" in errors
    assert "Traceback" not in errors
