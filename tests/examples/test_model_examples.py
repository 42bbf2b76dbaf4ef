"""The examples of models, run as they are."""

from pathlib import Path
from types import ModuleType

import pytest

import hugging_face_model
import hugging_face_pipeline
import lightning_model
import onnx_export
import timm_model

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec", "ignore:.*num_workers", "ignore:.*litlogger")


@pytest.mark.parametrize("example", [timm_model, hugging_face_model, hugging_face_pipeline])
def test_a_model_of_a_library_adapts_and_estimates_its_accuracy(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = example.main()
    assert adapter.last is not None
    assert adapter.last.updated
    said = capsys.readouterr().out.splitlines()[-1]
    assert float(said.removeprefix("right: ")[:4]) > 0.3  # three times chance, after a moment of training
    assert str(adapter.accuracy) in said


def test_a_lightning_module_is_trained_and_tested_while_it_adapts() -> None:
    scores = lightning_model.main()
    assert scores["accuracy"] > 0.7
    assert scores["ece"] < 0.2
    assert scores["estimated_accuracy_low"] < scores["estimated_accuracy_high"]


def test_onnx_runtime_gives_the_adapters_outputs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert onnx_export.main(path) < 1e-4
    assert list(tmp_path.iterdir()) == [path]
