"""`equipoise rehearse` and `equipoise recommend`: a user's model and images, without a line of Python."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner, Result

import equipoise as eq
from equipoise.cli.app import app
from equipoise.cli.rehearse import class_lines, in_order
from tests.support.waiting import HANG

MODEL = """
import torch
from torch import nn

def load():
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    model = nn.Sequential(features, nn.Flatten(), nn.Linear(4, CLASSES))
    return RETURNED

def transform(image):
    assert image.mode == "RGB"
    return torch.full((3, 8, 8), image.getpixel((0, 0))[0] / 255) + torch.rand(3, 8, 8) / 9

def stuck():
    raise RuntimeError("no weights here")

number = 7
"""
Write = Callable[..., str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with 120 images of two classes in held_out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))  # so that sys.path is put back afterwards
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for place, name in enumerate(("cat", "dog")):
        folder = tmp_path / "held_out" / name
        folder.mkdir(parents=True)
        for number in range(60):
            image = Image.new("RGB", (8, 8), (200 * place + 20, number, 90))
            image.putpixel((number % 8, number // 8), (255, 255, 255))
            image.save(folder / f"{number}.png")
    return tmp_path


@pytest.fixture
def write(here: Path, request: pytest.FixtureRequest) -> Write:
    """Writes a module of its own name for each test, as Python reads each name once."""

    def written(classes: int = 2, returned: str = "model") -> str:
        name = f"mine_{abs(hash(request.node.name))}"
        text = MODEL.replace("CLASSES", str(classes)).replace("RETURNED", returned)
        (here / f"{name}.py").write_text(text)
        return name

    return written


def rehearse(*arguments: object) -> Result:
    quick = ("--shifts", 8, "--device", "cpu", "--no-check-held-out")  # the model has learned nothing
    return CliRunner().invoke(app, ["rehearse", *map(str, (*quick, *arguments))])


def refused(result: Result, *said: str) -> None:
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    for words in said:
        assert words in result.output


def test_it_writes_what_an_adapter_is_made_with(here: Path, write: Write) -> None:
    name = write()
    out = here / "my.safetensors"
    options = ("--out", out, "--samples", 110, "--batch-size", 20, "--seed", 4, "--figure", here / "f.svg")
    result = rehearse(f"{name}:load", "held_out", *options)
    assert result.exit_code == 0, result.output
    source = eq.SourceStatistics.load(out)
    found = source.rehearsal_of("poise")
    assert (found.samples, found.batch_size, found.seed) == (110, 20, 4)
    assert len({run.shift for run in found.runs}) == 8
    assert str(found) in result.output
    assert "    class 0: cat\n    class 1: dog\n" in result.output
    assert (here / "f.svg").is_file()
    last = result.stdout.splitlines()[-3:]
    assert str(out) in last[0]
    made: dict[str, Any] = {"equipoise": eq, "model": sys.modules[name].load()}
    exec("\n".join(line.strip() for line in last[1:]), made)  # what it tells works
    assert made["adapter"](torch.rand(4, 3, 8, 8)).shape == (4, 2)
    assert made["adapter"].accuracy is not None


def test_images_are_floats_up_to_one_and_classes_in_the_order_of_folders(
    here: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def noted(model: nn.Module, loader: Any, **options: Any) -> None:
        given.update(options, batches=list(loader), length=len(loader), training=model.training)
        raise KeyboardInterrupt

    monkeypatch.setattr("equipoise.rehearsal.rehearse.rehearse", noted)
    name = write()
    rehearse(f"{name}:load", "held_out", "--method", "norm")
    batches = given.pop("batches")
    assert given.pop("length") == len(batches)
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert images.shape == (120, 3, 8, 8)
    assert labels.tolist() == [0] * 60 + [1] * 60
    assert images[0, 0, 7, 7] == pytest.approx(20 / 255)
    assert images[60, 0, 7, 7] == pytest.approx(220 / 255)
    assert given == {
        "method": "norm",
        "shifts": 8,
        "samples": 2000,
        "batch_size": 50,
        "seed": 0,
        "check_held_out": False,
        "training": False,
    }
    rehearse(f"{name}:load", "held_out", "--size", 12)
    assert given["batches"][0][0].shape[1:] == (3, 12, 12)


def test_a_transform_of_ones_own_decides(here: Path, write: Write) -> None:
    Image.new("RGB", (30, 20)).save(here / "held_out" / "cat" / "wide.png")  # it takes any size
    Image.new("LA", (30, 20)).save(here / "held_out" / "cat" / "grey.png")
    name = write(returned="model, transform")
    result = rehearse(f"{name}:load", "held_out")
    assert result.exit_code == 0, result.output
    assert (here / "model.source.safetensors").is_file()
    refused(rehearse(f"{name}:load", "held_out", "--size", 8), "leave out --size")


def test_images_of_several_sizes_need_a_size(here: Path, write: Write) -> None:
    Image.new("RGB", (30, 20)).save(here / "held_out" / "dog" / "wide.png")
    name = write()
    refused(rehearse(f"{name}:load", "held_out"), "8x8", "30x20", "wide.png", "--size SIDE")
    assert rehearse(f"{name}:load", "held_out", "--size", 8).exit_code == 0


NO_FACTORY = "expected a torch.nn.Module"


@pytest.mark.parametrize(
    ("made", "attribute", "said"),
    [
        ({}, "", ("expected module:factory",)),
        ({}, ":", ("expected module:factory",)),
        ({}, ":nothing", ("has no attribute 'nothing'",)),
        ({}, ":number", ("'int' object is not callable",)),
        ({}, ":stuck", ("RuntimeError: no weights here",)),
        ({"returned": "None"}, ":load", (NO_FACTORY, "got NoneType")),
        ({"returned": "(model, 3)"}, ":load", (NO_FACTORY, "got (Sequential, int)")),
        ({"returned": "[model]"}, ":load", (NO_FACTORY, "got list")),
        ({"returned": "nn.Sequential(nn.Conv2d(1, 4, 3), model)"}, ":load", ("return model, transform",)),
        ({"classes": 5}, ":load", ("each of the model's 5 classes, got 2 (cat, dog)",)),
    ],
)
def test_what_is_no_factory_is_told(
    made: dict[str, Any], attribute: str, said: tuple[str, ...], here: Path, write: Write
) -> None:
    refused(rehearse(f"{write(**made)}{attribute}", "held_out"), *said)
    assert not list(here.glob("*.safetensors"))


def test_other_mistakes_are_told_in_a_line(here: Path, write: Write) -> None:
    load = f"{write()}:load"
    refused(rehearse("no_such_module:load", "held_out"), "no module no_such_module", str(here))
    for arguments, said in (
        (("nowhere",), "nowhere: expected a folder"),
        (("held_out/cat",), "it has no folders"),
        (("held_out", "--method", "magic"), "no method 'magic'"),
        (("held_out", "--out", "new/file"), "there is no folder"),
        (("held_out", "--device", "toaster", "--figure", "f.png"), "toaster"),
    ):
        refused(rehearse(load, *arguments), said)
    (here / "held_out" / "dog" / "bad.png").write_bytes(b"not an image")
    refused(rehearse(load, "held_out"), "bad.png: not an image")
    (here / "held_out" / "empty").mkdir()
    refused(rehearse(load, "held_out"), "no images of this class")


RED = """
import torch
from torch import nn

class Red(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(12, 12)
        nn.init.eye_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        steps = x[:, :1].mean((2, 3)) * 255 / 20
        return self.head(-((steps - torch.arange(12).to(x)) ** 2) * 3)

def load():
    return Red()
"""


@pytest.mark.parametrize("names", ["", "0", "class "])
def test_folders_named_by_numbers_are_in_the_order_of_numbers(here: Path, names: str) -> None:
    (here / "red.py").write_text(RED)
    for number in range(12):
        folder = here / "steps" / (f"{number:02}" if names == "0" else f"{names}{number}")
        folder.mkdir(parents=True)
        for image in range(10):
            Image.new("RGB", (8, 8), (20 * number, image, 0)).save(folder / f"{image}.png")
    result = rehearse("red:load", "steps", "--method", "source", "--check-held-out")
    listed = [line.split(": ")[1] for line in result.output.splitlines() if line.startswith("    class ")]
    assert [int(name.removeprefix(names or " ")) for name in listed][:3] == (
        [0, 1, 10] if names == "class " else [0, 1, 2]
    )
    if names == "class ":
        refused(result, "an accuracy of 0.167", "names sorted as text (0, 1, 10, 11, 2, …)")
    else:
        assert result.exit_code == 0, result.output


def test_all_of_twenty_classes_are_listed_and_of_more_the_first_and_the_last() -> None:
    few, many = (class_lines([f"c{place}" for place in range(count)]) for count in (20, 200))
    assert few[0] == "the 20 folders are taken for these classes of the model:"
    assert few[1:] == [f"    class {place}: c{place}" for place in range(20)]
    assert many[1:] == [*few[1:13], "    …", "    class 199: c199"]


def test_only_names_that_are_all_numbers_are_sorted_as_numbers() -> None:
    mixed = [Path(name) for name in ("10", "2", "1a")]
    assert [path.name for path in in_order(mixed)] == ["10", "1a", "2"]
    assert [path.name for path in in_order(map(Path, ("10", "2", "01", "1")))] == ["01", "1", "2", "10"]


def test_ctrl_c_says_so_and_writes_nothing(here: Path, write: Write) -> None:
    name = write()
    words = ["rehearse", f"{name}:load", "held_out", "--batch-size", "1", "--device", "cpu"]
    words += ["--no-check-held-out"]
    command = [sys.executable, "-m", "equipoise", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=here)
    assert process.stderr is not None
    seen = b""
    while b"shuffled" not in seen:
        part = os.read(process.stderr.fileno(), 4096)
        assert part, "the command has ended"
        seen += part
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert b"Stopped; nothing was written. the rehearsal was stopped after" in errors
    assert b"Traceback" not in errors
    assert not list(here.glob("*.safetensors"))


def recommend(name: str, *arguments: str) -> Result:
    words = ["recommend", f"{name}:load", "held_out", "--no-check-held-out", *arguments]
    return CliRunner().invoke(app, words)


def test_a_table_is_printed_and_the_statistics_are_written(here: Path, write: Write) -> None:
    options = ("--stream", "noisy", "--budget", "0", "--samples", "100", "--out", "it.safetensors")
    result = recommend(write(), *options)
    assert result.exit_code == 0, result.output
    told = (
        "class 0: cat\n",
        "gain over source",
        "eq.create(",
        "no time",
        'Statistics.load("it.safetensors")',
    )
    for part in told:
        assert part in result.output
    assert eq.SourceStatistics.load(here / "it.safetensors").num_classes == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--stream", "sideways"), "expected stream as one of shuffled, sorted"),
        (("--out", "nowhere/it.safetensors"), "there is no folder"),
    ],
)
def test_a_refused_recommendation_writes_nothing(
    here: Path, write: Write, arguments: tuple[str, ...], message: str
) -> None:
    refused(recommend(write(), *arguments), message)
    assert not list(here.glob("*.safetensors"))
