"""The commands of the experiments: what they print, and what they say when something is missing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from equipoise.cli.app import app
from equipoise.cli.lists import TakesLists
from equipoise.research.data import list_data_sets
from equipoise.research.experiment.recipe import list_recipes, recipe_text
from tests.research.report.written import folder, line

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


def test_report_writes_what_is_asked_for(tmp_path: Path) -> None:
    results = folder(tmp_path / "out", [line(), line("dec", "mean")])
    plain = runner.invoke(app, ["report", str(results)])
    assert plain.output.startswith("# Results")
    page, tables = tmp_path / "new" / "report.html", tmp_path / "tex"
    said = runner.invoke(app, ["report", str(results), "--html", str(page), "--latex", str(tables)])
    assert said.exit_code == 0
    assert "# Results" not in said.output
    assert str(page) in said.output
    assert page.read_text().startswith("<!doctype html>")
    assert (tables / "main.tex").is_file()
    both = runner.invoke(app, ["report", str(results), "--html", str(page), "--markdown"])
    assert "# Results" in both.output


def test_report_of_nothing_is_told_plainly(tmp_path: Path) -> None:
    result = runner.invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 1
    assert "expected the folder of a run" in result.output


def test_without_the_packages_it_says_what_to_install() -> None:
    code = """
import sys
sys.modules["yaml"] = None
from equipoise.__main__ import main
for arguments in (["run", "demo"], ["recipes"]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as stop:
        print(stop.code)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["1", "1"]
    assert result.stderr.splitlines() == ["This needs yaml: pip install 'equipoise[bench]'"] * 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["x", "--many", "a", "b", "c"], (["a", "b", "c"], 0, "x")),
        (["--many", "a", "b", "--one", "3", "x"], (["a", "b"], 3, "x")),
        (["x", "--many", "a,b,,c"], (["a", "b", "c"], 0, "x")),
        (["x", "--many=a,b", "c"], (["a", "b", "c"], 0, "x")),
        (["x", "--many", "a", "--many", "b"], (["a", "b"], 0, "x")),
        (["x", "--many", "a", "-1", "--one", "-2"], (["a", "-1"], -2, "x")),
        (["x"], (None, 0, "x")),
    ],
)
def test_lists_are_given_in_any_way(arguments: list[str], expected: Any) -> None:
    found: list[Any] = []
    program = typer.Typer()

    @program.command(cls=TakesLists)
    def command(word: str, many: list[str] | None = None, one: int = 0) -> None:
        found.append((many or None, one, word))

    result = runner.invoke(program, arguments)
    assert result.exit_code == 0, result.output
    assert found == [expected]


@pytest.mark.parametrize("rest", [["--methods"], ["--methods", ","], ["--methods", "--workers", "1"]])
def test_a_list_without_values_is_refused(rest: list[str]) -> None:
    result = runner.invoke(app, ["run", "demo", *rest])
    assert result.exit_code == 2
    assert "--methods" in result.output
    assert "at least one value" in result.output


def test_run_hands_on_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def noted(name: str, **options: Any) -> int:
        given.clear()
        given.update(options, name=name)
        return 0

    monkeypatch.setattr("equipoise.cli.run.run_named_recipe", noted)
    assert runner.invoke(app, ["run", "demo"]).exit_code == 0
    lists = ("methods", "backbones", "targets", "tiers", "seeds", "temperings")
    unset = ("on", "limit", "epochs", "domain_images", "workers", "address")
    assert given == {
        **dict.fromkeys(lists, ()),
        **dict.fromkeys(unset, None),
        "name": "demo",
        "data": Path("data"),
        "out": Path("results"),
        "ray": False,
        "skip_bad_files": False,
    }
    words = (
        "run noisy --on pacs --domain-images 4 --data d --out o "
        "--methods tent dec --backbones b --targets x/3 --tiers 3 --tiers 5 --seeds 1,2 "
        "--tempering mean --limit 5 --epochs 6 --engine ray --workers 7 --address auto --skip-bad-files"
    )
    assert runner.invoke(app, words.split()).exit_code == 0
    assert given == {
        "name": "noisy",
        "on": "pacs",
        "domain_images": 4,
        "data": Path("d"),
        "out": Path("o"),
        "methods": ["tent", "dec"],
        "backbones": ["b"],
        "targets": ["x/3"],
        "tiers": [3, 5],
        "seeds": [1, 2],
        "temperings": ["mean"],
        "limit": 5,
        "epochs": 6,
        "ray": True,
        "workers": 7,
        "address": "auto",
        "skip_bad_files": True,
    }


def test_a_page_that_cannot_be_written_is_told_plainly(tmp_path: Path) -> None:
    results = folder(tmp_path / "out", [line(), line("dec", "mean")])
    (tmp_path / "file").touch()
    result = runner.invoke(app, ["report", str(results), "--html", str(tmp_path / "file" / "report.html")])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)  # not the error itself
    assert str(tmp_path / "file") in result.output


def test_report_with_either_option_prints_no_tables(tmp_path: Path) -> None:
    results = folder(tmp_path / "out", [line(), line("dec", "mean")])
    for option, path in (("--html", tmp_path / "report.html"), ("--latex", tmp_path / "tex")):
        result = runner.invoke(app, ["report", str(results), option, str(path)])
        assert result.exit_code == 0
        assert "# Results" not in result.output
