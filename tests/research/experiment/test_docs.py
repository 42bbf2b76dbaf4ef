"""What docs/experiments.md shows works as it is written there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from equipoise.errors import RecipeError
from equipoise.research.data import Cache, Reader, open_data_set, read_stored
from equipoise.research.experiment.plan import resolved_order_options
from equipoise.research.experiment.recipe import Recipe, list_recipes, load_recipe
from equipoise.research.experiment.user_files import load_modules

from .toy import SMALL, go, toy_images, toy_recipe

PAGE = (Path(__file__).parents[3] / "docs" / "experiments.md").read_text()


def block(language: str, about: str) -> str:
    """The one block of code that contains a word."""
    (found,) = (code for code in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if about in code)
    return str(found)


def test_every_recipe_is_in_the_table() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)) == set(list_recipes())


def test_the_recipe_is_one() -> None:
    recipe = Recipe.model_validate(yaml.safe_load(block("yaml", "data: bars")))
    assert (recipe.data, recipe.modules) == ("bars", ("bars.py", "mine.py"))


def test_the_recipe_of_a_stream_is_one(tmp_path: Path) -> None:
    path = tmp_path / "stream.yaml"
    path.write_text(block("yaml", "on: pacs"))
    recipe = load_recipe(str(path))
    assert (recipe.data, recipe.tiers, recipe.domain_images) == ("pacs-c", (3, 5), 300)
    assert recipe.batch_size == 16
    resolved_order_options(recipe.order, recipe.order_options)


def test_the_data_set_reads_its_files(tmp_path: Path) -> None:
    module = tmp_path / "bars.py"
    module.write_text(block("python", "class Bars").replace('name = "bars"', 'name = "bars of the docs"'))
    for part, shade in (("light", 200), ("dark", 50)):
        for place, name in enumerate(("top", "middle", "bottom")):
            folder = tmp_path / "bars" / part / name
            folder.mkdir(parents=True)
            for number in range(2):
                Image.new("L", (40, 20), shade + place).save(folder / f"{number}.png")
    load_modules([str(module)])
    load_modules([str(module)])  # once in a process
    data = open_data_set("bars of the docs", tmp_path)
    assert [(s.target, s.stream, s.sources) for s in data.shifts] == [("dark", "dark", ("light",))]
    images = read_stored(Cache(tmp_path / "cache").store(data, "dark", None, Reader()).path)
    assert images.pixels.shape == (6, 1, 32, 32)
    assert images.labels.tolist() == [2, 2, 1, 1, 0, 0]  # by file name: bottom, middle, top
    assert torch.equal(images.pixels[:, 0, 0, 0], 50 + images.labels.to(torch.uint8))


def test_a_trained_model_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = toy_recipe(methods={"source": {}}, **SMALL)
    go(recipe, tmp_path, tmp_path / "results", targets=["dark"])
    monkeypatch.chdir(tmp_path)
    code = block("python", "load_source_model").replace('["file"][0])', '["file"][0], device="cpu")')
    names: dict[str, Any] = {"images": toy_images("dark").pixels.float()}
    exec(code, names)
    assert names["answers"].shape == (40, 3)
    assert names["trained"].info.classes == ("top", "middle", "bottom")


def test_modules_that_are_not_there_or_broken(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"modules: expected a Python file, got .*nothing\.py"):
        load_modules([str(tmp_path / "nothing.py")])
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('broken on purpose')")
    for _ in range(2):  # a second try runs it again
        with pytest.raises(RecipeError, match="broken on purpose"):
            load_modules([str(broken)])
