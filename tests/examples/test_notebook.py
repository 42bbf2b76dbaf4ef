"""The notebook: runs from top to bottom, and the outputs that it is stored with are those of these cells."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.waiting import HANG

EXAMPLES = Path(__file__).parents[2] / "examples"


def read() -> Any:
    reader: Any = nbformat  # has no annotations
    return reader.read(EXAMPLES / "drifting_camera.ipynb", as_version=4)


def printed(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of jupyter's packages
def test_the_notebook_runs_from_top_to_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = read()
    NotebookClient(notebook, timeout=HANG, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    text = printed(notebook)
    assert "reset (runaway)" in text
    assert "equal to those of the stream: True" in text
    said = next(line for line in text.splitlines() if line.startswith("right: plain model"))
    plain, adapted = (float(part.split()[-1]) for part in said.split(","))
    assert adapted > plain + 0.02


def test_the_notebook_is_stored_with_its_outputs_and_pictures() -> None:
    notebook = read()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    pictures = [out for cell in cells for out in cell.outputs if "image/png" in out.get("data", {})]
    assert len(pictures) == 3
    assert not any(out.output_type == "error" for cell in cells for out in cell.outputs)
    assert (EXAMPLES / "drifting_camera.ipynb").stat().st_size < 300_000
    assert str(EXAMPLES.parent) not in (EXAMPLES / "drifting_camera.ipynb").read_text()
