"""`equipoise methods`: the registered methods, and the options of one."""

import inspect
from dataclasses import fields

import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli.app import app
from equipoise.factory import options_of
from equipoise.registry import method_class

runner = CliRunner()


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
