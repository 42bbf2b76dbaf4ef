"""`equipoise recommend`: a model of the user's, a folder of images and a stream, without a line of Python."""

import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import equipoise as eq
from equipoise.cli.app import app

MODEL = """
import torch
from torch import nn

def load():
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(features, nn.Flatten(), nn.Linear(4, 2))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a model and 120 images of two classes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "recommended_model", raising=False)
    (tmp_path / "recommended_model.py").write_text(MODEL)
    for place, name in enumerate(("cat", "dog")):
        folder = tmp_path / "held_out" / name
        folder.mkdir(parents=True)
        for number in range(60):
            image = Image.new("RGB", (8, 8), (200 * place + 20, number, 90))
            image.putpixel((number % 8, number // 8), (255, 255, 255))
            image.save(folder / f"{number}.png")
    return tmp_path


def recommend(*arguments: str) -> Result:
    return CliRunner().invoke(
        app, ["recommend", "recommended_model:load", "held_out", "--no-check-held-out", *arguments]
    )


def test_a_table_is_printed_and_the_statistics_are_written(here: Path) -> None:
    result = recommend("--stream", "noisy", "--budget", "0", "--samples", "100", "--out", "it.safetensors")
    assert result.exit_code == 0, result.output
    for part in (
        "class 0: cat\n",
        "gain over source",
        "eq.create(",
        "no time",
        'SourceStatistics.load("it.safetensors")',
    ):
        assert part in result.output
    assert eq.SourceStatistics.load(here / "it.safetensors").num_classes == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stream", "sideways"], "expected stream as one of shuffled, sorted"),
        (["--out", "nowhere/it.safetensors"], "there is no folder"),
    ],
)
def test_errors_are_one_message(here: Path, arguments: list[str], message: str) -> None:
    result = recommend(*arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert not list(here.glob("*.safetensors"))
