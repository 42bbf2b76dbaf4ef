"""The notebooks: each runs from top to bottom, and is stored with the outputs of its cells."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.waiting import HANG

EXAMPLES = Path(__file__).parents[2] / "examples"
PICTURES = {"decisions.ipynb": 3, "drifting_camera.ipynb": 3}


def read(name: str) -> Any:
    reader: Any = nbformat  # has no annotations
    return reader.read(EXAMPLES / name, as_version=4)


def run(name: str) -> str:
    """What the cells of a notebook print, run from top to bottom."""
    notebook = read(name)
    NotebookClient(notebook, timeout=HANG, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    return printed(notebook)


def printed(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs)


def said(text: str, start: str) -> list[float]:
    """The numbers after this start of a line, the first that has it."""
    line = next(line for line in text.splitlines() if line.startswith(start))
    return [float(number) for number in re.findall(r"\d*\.\d+|\d+", line.removeprefix(start))]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of jupyter's packages
def test_the_notebook_of_a_drifting_camera_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = run("drifting_camera.ipynb")
    assert "reset (runaway)" in text
    assert "equal to those of the stream: True" in text
    plain, adapted = said(text, "right: plain model")
    assert adapted > plain + 0.02


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_notebook_of_decisions_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = run("decisions.ipynb")
    plain_coverage, coverage = said(text, "shaking camera  right")[2:4]
    assert coverage > 0.85 > plain_coverage
    share, accuracy = said(text, "adapter ")
    plain_share, _ = said(text, "plain model  acts")
    assert accuracy >= 0.95
    assert share > plain_share
    assert said(text, "batches with nothing")[0] > 0
    (truth,) = said(text, "truth, same weights")
    _, low, high = said(text, "without labels")
    _, narrow_low, narrow_high = said(text, "with 50 labels")
    assert low < truth < high
    assert narrow_high - narrow_low < high - low


@pytest.mark.parametrize("name", PICTURES)
def test_a_notebook_is_stored_with_its_outputs_and_pictures(name: str) -> None:
    notebook = read(name)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    pictures = [out for cell in cells for out in cell.outputs if "image/png" in out.get("data", {})]
    assert len(pictures) == PICTURES[name]
    assert not any(out.output_type == "error" for cell in cells for out in cell.outputs)
    assert (EXAMPLES / name).stat().st_size < 300_000
    assert str(EXAMPLES.parent) not in (EXAMPLES / name).read_text()


def test_every_notebook_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.ipynb")} == PICTURES.keys()
