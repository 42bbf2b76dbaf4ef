"""The examples of README.md and CONTRIBUTING.md run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli.app import app
from equipoise.factory import options_of
from equipoise.registry import method_class
from tests.support.models import drifted, images, make

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def examples(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


EXAMPLES = examples(README)


def test_it_fits_on_two_screens() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 90
    assert len(text.split()) <= 900


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text())
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_ten_lines_are_ten() -> None:
    lines = [line for line in EXAMPLES[0].splitlines() if line.strip()]
    assert len(lines) <= 11  # ten, and the import


def balanced() -> nn.Sequential:
    """A model that answers all of its classes, so that its own answers are labels that fit it."""
    model, _ = make()
    assert isinstance(model, nn.Sequential)
    head = model[-1]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.bias.sub_(model(images(200, seed=50)).mean(0))
    return model


def test_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = balanced()
    names: dict[str, Any] = {
        "model": model,
        "held_out": [(x, model(x).argmax(1)) for x in (images(40, seed) for seed in range(3))],
        "stream": [drifted(8)],
    }
    exec(EXAMPLES[0], names)
    assert isinstance(names["adapter"], eq.Poise)
    assert names["act"].shape == (8,)
    assert (tmp_path / "today.safetensors").is_file()


def test_every_method_has_its_place() -> None:
    text = (ROOT / "docs" / "concepts" / "choosing.md").read_text()
    for name in eq.list_methods():
        assert f"`{name}`" in text


def test_the_page_of_methods_is_complete() -> None:
    text = (ROOT / "docs" / "methods.md").read_text()
    for name in eq.list_methods():
        assert f"\n### `{name}`: " in text
        assert f"\n| `{name}` |" in text.partition("## What they cost")[0]
        assert f"\n| `{name}` |" in text.partition("## What they cost")[2]


@pytest.mark.parametrize("name", eq.list_methods())
def test_every_option_is_in_the_docstring(name: str) -> None:
    """Its own, that of a base of it, or that of every adapter."""
    text = " ".join(base.__doc__ or "" for base in (*method_class(name).__mro__, eq.Adapter))
    for option in options_of(name):
        assert f" {option}: " in text, option


@pytest.mark.parametrize("place", [0, 1])
def test_the_methods_of_the_contributing_page_conform(place: int, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(examples(ROOT / "CONTRIBUTING.md")[place])
    assert len(file.read_text().splitlines()) < 60  # one screen
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 0, result.output[-3000:]
    assert "not captured" not in result.output
    assert (tmp_path / "mine.py.checked").is_file()
