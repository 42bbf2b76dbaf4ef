"""The table of trained models: a row for each whole file of a model, and the way from a row to an adapter."""

from pathlib import Path

import torch

import equipoise as eq
from equipoise.research.experiment.trained_model import COLUMNS, load_source_model, models_table

from .toy import SMALL, Toy, go, toy_images, toy_recipe


def test_each_trained_model_has_a_row_and_loads(tmp_path: Path) -> None:
    go(toy_recipe(methods={"source": {"batch_size": 16}}, **SMALL), tmp_path, targets=["dark", "noisy"])
    (tmp_path / "out" / "models" / "torn.safetensors").write_bytes(b"torn")
    table = models_table(tmp_path / "out")
    assert list(table.columns) == list(COLUMNS)
    assert table["targets"].tolist() == ["noisy", "dark"]
    assert table["trained_on"].tolist() == ["plain + dark", "plain + noisy"]
    assert set(table["backbone"]) == {"smallcnn"}
    trained = load_source_model(table["file"][1], "cpu")
    assert trained.info.classes == Toy.classes
    adapter = eq.create("tent", trained.model, trained.source)
    assert adapter(toy_images("dark").pixels[:8].float()).shape == torch.Size([8, 3])


def test_a_folder_without_models_gives_an_empty_table(tmp_path: Path) -> None:
    assert models_table(tmp_path).empty
