"""Files that a user would write: a data set, a method and a recipe, to run as programs."""

import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from equipoise.cli.app import app
from tests.support.waiting import HANG

DATA_SET = '''
"""Bars at three heights, in two styles: a data set of one's own."""

import torch

from equipoise.research.data import DataSet, Images, Shift, register_data_set
from equipoise.research.data.images import chosen


@register_data_set
class Bars(DataSet):
    """Train on one style, meet the other."""

    name = "bars"
    about = "drawn on the spot"
    classes = ("top", "middle", "bottom")

    def __init__(self, root):
        self.root = root

    @property
    def shifts(self):
        return [Shift("dark", "dark", ("light",)), Shift("light", "light", ("dark",))]

    def read(self, part, limit, reader):
        generator = torch.Generator().manual_seed(len(part))
        labels = torch.arange(60) % 3
        pixels = torch.rand(60, 1, 32, 32, generator=generator) * 60
        for row, label in enumerate(labels.tolist()):
            pixels[row, :, 4 + 9 * label : 9 + 9 * label] += 120 if part == "light" else 40
        return Images(pixels.to(torch.uint8), labels).select(chosen(60, limit))
'''

METHOD = '''
"""Entropy minimisation with a weight: a method of one's own."""

import time
from dataclasses import dataclass

from equipoise import register
from equipoise.core.gradient import GradientMethod, Loss
from equipoise.functional import entropy
from equipoise.options import option


@register
@dataclass(frozen=True, kw_only=True)
class Mine(GradientMethod):
    """The mean entropy times a weight."""

    name = "mine"
    weight: float = option(0.5, low=0)
    pause: float = option(0.0, low=0)
    parameters: str = "all"

    def loss(self, logits, targets, context):
        if self.weight == 13:
            raise RuntimeError("thirteen is unlucky")
        time.sleep(self.pause)
        return Loss(self.weight * entropy(logits).mean(), used=len(logits))
'''

RECIPE = """
about: bars with a method of one's own
data: bars
modules: [bars.py, mine.py]
seeds: [0, 1]
temperings: [none, mean, median, fixed]
training: {optimizer: adam, learning_rate: 0.001, epochs: 1, batch_size: 16}
backbones:
  smallcnn: {weights: random}
methods:
  source: {batch_size: 20}
  mine: {batch_size: 20}
  dec: {batch_size: 20}
"""
CELLS = 2 * 2 * 3 * 2 * 4
"""Targets, seeds, methods, protocols, temperings."""


def write_own(folder: Path, recipe: str = RECIPE) -> Path:
    """A recipe with a data set and a method beside it; its path."""
    (folder / "bars.py").write_text(DATA_SET)
    (folder / "mine.py").write_text(METHOD)
    path = folder / "own.yaml"
    path.write_text(recipe)
    return path


def command(line: str) -> list[str]:
    """`equipoise …` in this environment."""
    return [sys.executable, "-m", "equipoise", *line.split()]


def run(line: str) -> subprocess.CompletedProcess[str]:
    """Run `equipoise …` to its end."""
    done = subprocess.run(command(line), capture_output=True, text=True, timeout=HANG)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return done


def run_here(line: str) -> Result:
    """Run `equipoise …` in this process, which saves the start of another."""
    return CliRunner().invoke(app, line.split())
