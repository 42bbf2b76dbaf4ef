"""`equipoise doctor`: a model and a folder of images, before they are rehearsed."""

import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from equipoise.cli.app import app

MODEL = """
import torch
from torch import nn

class Red(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 3)
        nn.init.eye_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        red = self.norm(x)[:, :1].mean((2, 3)) * 255 / 80
        return self.head(-6 * (red - torch.arange(3).to(x)) ** 2)

def load():
    return Red()

def soft():
    return nn.Sequential(Red(), nn.Softmax(1))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with the model in red_model.py and images of its three classes in held_out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(entry for entry in sys.path if entry)])
    monkeypatch.delitem(sys.modules, "red_model", raising=False)
    (tmp_path / "red_model.py").write_text(MODEL)
    for place, name in enumerate(("a", "b", "c")):
        folder = tmp_path / "held_out" / name
        folder.mkdir(parents=True)
        for number in range(40):
            Image.new("RGB", (8, 8), (80 * place, number, 90)).save(folder / f"{number}.png")
    return tmp_path


def doctor(*arguments: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(app, ["doctor", *arguments, "--device", "cpu"])
    assert "Traceback" not in result.output
    return result.exit_code, result.output.splitlines()


def test_a_fit_model_is_told_what_to_expect_and_the_next_command(here: Path) -> None:
    status, lines = doctor("red_model:load", "held_out", "--batch-size", "20")
    assert status == 0, lines
    assert len(lines) <= 11
    assert lines[0] == "model       Red with 18 parameters, 3 classes"
    assert "1 BatchNorm2d" in lines[1]
    assert "120 held out, right in 1.000" in lines[3]
    assert "a forward of 20 samples" in lines[4]
    assert lines[-1] == "next        equipoise rehearse red_model:load held_out --batch-size 20 --device cpu"


def test_the_next_command_has_the_options_given_and_can_be_copied(here: Path) -> None:
    (here / "held_out").rename(here / "held out")
    status, lines = doctor("red_model:load", "held out", "--size", "8", "--seed", "3")
    assert status == 0, lines
    command = "equipoise rehearse red_model:load 'held out' --size 8 --seed 3 --device cpu"
    assert lines[-1] == f"next        {command}"


def test_a_model_alone_is_examined_without_images(here: Path) -> None:
    status, lines = doctor("red_model:load")
    assert status == 0
    assert lines[-1] == "next        equipoise rehearse red_model:load HELD_OUT --device cpu"


def test_what_must_be_mended_gives_status_1(here: Path) -> None:
    status, lines = doctor("red_model:soft", "held_out")
    assert status == 1
    assert "leave the softmax at its end out" in lines[-1]
    assert not [line for line in lines if line.startswith("next")]
    (here / "held_out" / "a").rename(here / "held_out" / "d")
    status, lines = doctor("red_model:load", "held_out")
    assert status == 1
    assert "    class 2: d" in lines
    assert "other classes for 3 labels fit" in lines[-1] or "one too" in lines[-1]


def test_a_folder_with_other_classes_is_told_in_a_line(here: Path) -> None:
    (here / "held_out" / "d").mkdir()
    Image.new("RGB", (8, 8)).save(here / "held_out" / "d" / "1.png")
    status, lines = doctor("red_model:load", "held_out")
    assert status == 1
    assert "each of the model's 3 classes, got 4" in " ".join(lines)
