"""`equipoise recipes`, `equipoise data` and `equipoise methods`."""

import inspect
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli.app import app
from equipoise.factory import options_of
from equipoise.registry import method_class
from equipoise.research.data import list_data_sets
from equipoise.research.data.dataset import data_set_class
from equipoise.research.experiment.recipe import list_recipes, recipe_text

from ..research.experiment.toy import ToyTiers

runner = CliRunner()


def test_recipes_are_listed_and_printed_as_they_are() -> None:
    listed = runner.invoke(app, ["recipes"]).output.splitlines()
    assert [row.split()[0] for row in listed] == list_recipes()
    assert "10 classes" in next(row for row in listed if row.startswith("digits"))
    assert runner.invoke(app, ["recipes", "pacs"]).output == recipe_text("pacs")
    wrong = runner.invoke(app, ["recipes", "cifar"])
    assert wrong.exit_code == 1
    assert "no recipe 'cifar'; there are abrupt, changing, continual" in wrong.output


def test_data_tells_where_to_get_each_and_what_is_here(tmp_path: Path) -> None:
    told = runner.invoke(app, ["data"]).output
    for name in list_data_sets():
        assert f"{name}\n" in told
    assert "tiny-imagenet-200.zip" in told
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        for name in ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"):
            (tmp_path / "pacs" / domain / name).mkdir(parents=True)
            (tmp_path / "pacs" / domain / name / "1.jpg").touch()
    here = runner.invoke(app, ["data", str(tmp_path)]).output
    assert "pacs: here, 7 classes, targets art_painting, cartoon, photo, sketch" in here
    assert "digits: not here" in here


def test_a_folder_is_looked_through_and_each_target_named_once(tmp_path: Path) -> None:
    told = runner.invoke(app, ["data", str(tmp_path)]).output
    assert f"{ToyTiers.name}: here, 3 classes, targets dim, grain\n\n" in told
    assert "\npacs: not here. the data set 'pacs' is not in " in told
    assert f"{tmp_path} lacks art_painting" in told


def test_one_data_set_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = f"pacs\n{data_set_class('pacs').about}\n\n"
    assert runner.invoke(app, ["data", "pacs"]).output == expected
    (tmp_path / "pacs").mkdir()
    assert runner.invoke(app, ["data", "pacs"]).output == expected
    assert "\npacs: not here." in runner.invoke(app, ["data", "./pacs"]).output
    wrong = runner.invoke(app, ["data", "pcas"])
    assert wrong.exit_code == 1
    assert "pcas: expected a folder, or the name of a data set: " in wrong.output


def test_every_method_is_a_line_from_its_docstring() -> None:
    result = runner.invoke(app, ["methods"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    for name, line in zip(eq.list_methods(), lines, strict=False):
        first = (inspect.getdoc(method_class(name)) or "").splitlines()[0]
        assert line.split() == [name, *first.split()]
    assert "equipoise methods NAME" in lines[-1]


@pytest.mark.parametrize("name", eq.list_methods())
def test_a_method_has_its_docstring_and_its_options_with_defaults(name: str) -> None:
    result = runner.invoke(app, ["methods", name])
    assert result.exit_code == 0
    assert (inspect.getdoc(method_class(name)) or "") in result.output
    _, _, tables = result.output.partition("\nOptions of the method:\n")
    own, every = tables.split("\nOptions of every adapter:\n")
    names = [field.name for field in fields(method_class(name))]
    defaults = {option: str(default) for option, default in options_of(name).items()}
    assert _rows(own) == ({option: defaults[option] for option in names} or {"none": ""})
    assert _rows(every) == {option: defaults[option] for option in defaults if option not in names}


def _rows(table: str) -> dict[str, str]:
    found = (line.strip().partition(" ") for line in table.splitlines() if line)
    return {option: default.strip() for option, _, default in found}


def test_an_unknown_name_gets_the_known_ones() -> None:
    result = runner.invoke(app, ["methods", "tend"])
    assert result.exit_code == 1
    assert f"no method 'tend'; there are {', '.join(eq.list_methods())}" in result.output
