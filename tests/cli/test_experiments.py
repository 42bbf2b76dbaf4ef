"""`equipoise run` and `equipoise report`: what they hand on, what they print, and what they refuse."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise.cli import experiments
from equipoise.cli.app import app
from equipoise.cli.experiments import make_workers, summary_lines
from equipoise.registry import file_digest
from equipoise.research.experiment.recipe import Recipe, load_recipe
from equipoise.research.experiment.sweep import SweepSummary
from equipoise.research.experiment.workers import InProcess, ProcessPool
from equipoise.testing.mark import write_mark

from ..research.experiment.own import write_own
from ..research.report.written import folder, line

runner = CliRunner()
Run = Callable[[str], tuple[Recipe, dict[str, Any], str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command without its cells: the recipe, the options of sweep and workers, and the output."""

    def ran(words: str) -> tuple[Recipe, dict[str, Any], str]:
        given: dict[str, Any] = {}

        def noted(recipe: Recipe, **options: Any) -> SweepSummary:
            given.update(options, recipe=recipe)
            return SweepSummary(0, 0, 0)

        def made(*arguments: Any) -> InProcess:
            given["made"] = arguments
            return InProcess()

        monkeypatch.setattr("equipoise.research.experiment.sweep.run_recipe", noted)
        monkeypatch.setattr(experiments, "make_workers", made)
        result = runner.invoke(app, ["run", *words.split()])
        assert result.exit_code == 0, result.output
        del given["workers"], given["progress"]
        return given.pop("recipe"), given, result.output

    return ran


def test_run_hands_on_what_it_is_told(run: Run) -> None:
    recipe, given, _ = run("demo")
    assert recipe == load_recipe("demo")
    assert given == {
        "data": Path("data"),
        "out": Path("results"),
        "targets": (),
        "tiers": (),
        "limit": None,
        "bad_files": "refuse",
        "made": (False, None, None),
    }
    recipe, given, _ = run(
        "noisy --on pacs --domain-images 4 --data d --out o "
        "--methods tent,dec --backbones mobilenet_v1 --targets x/3 --tiers 3 --tiers 5 --seeds 1,2 "
        "--tempering mean --limit 5 --epochs 6 --engine ray --workers 7 --address auto --skip-bad-files"
    )
    assert recipe == load_recipe("noisy", "pacs").narrowed(
        methods=["tent", "dec"],
        backbones=["mobilenet_v1"],
        seeds=[1, 2],
        temperings=["mean"],
        epochs=6,
        domain_images=4,
    )
    assert given == {
        "data": Path("d"),
        "out": Path("o"),
        "targets": ["x/3"],
        "tiers": [3, 5],
        "limit": 5,
        "bad_files": "skip",
        "made": (True, 7, "auto"),
    }


def test_a_stream_runs_on_the_data_set_asked_for(run: Run) -> None:
    first, _, _ = run("continual")
    second, _, _ = run("continual --on pacs --domain-images 30 --methods tent,poise")
    assert (first.data, first.order, first.domain_images) == ("digits-c", "continual", 1000)
    assert (second.data, second.order, second.domain_images) == ("pacs-c", "continual", 30)
    assert list(second.methods) == ["tent", "poise"]
    assert all(entry.rehearsed for entry in second.methods.values())


def test_a_method_that_was_not_checked_is_named(tmp_path: Path, run: Run) -> None:
    recipe, file = write_own(tmp_path), tmp_path / "mine.py"
    line = f"{file}: the method 'mine' was not checked; run: equipoise check {file}\n"
    assert line in run(str(recipe))[2]
    write_mark(file, file_digest(file), ["mine"])
    assert "not checked" not in run(str(recipe))[2]


@pytest.mark.parametrize("failed", [0, 3])
def test_a_summary_is_printed(failed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = SweepSummary(cells=10, before=4, failed=failed)
    monkeypatch.setattr("equipoise.research.experiment.sweep.run_recipe", lambda *_, **__: summary)
    result = runner.invoke(app, ["run", "demo", "--out", "o", "--workers", "1"])
    assert result.exit_code == (1 if failed else 0)
    assert f"{10 - failed} of 10 cells in o/results.jsonl (4 were there before)" in result.output
    assert ("3 cells failed" in result.output) is ("cells failed" in result.output) is bool(failed)


def test_results_of_other_code_are_counted() -> None:
    said = summary_lines(SweepSummary(cells=36, before=0, failed=0, of_other_code=12), Path("o"), ["online"])
    assert said[1:] == ["12 results of other code stay in the file; the report shows the newest only"]
    assert len(summary_lines(SweepSummary(36, 36, 0), Path("o"), ["online"])) == 1


def test_one_worker_is_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    assert isinstance(make_workers(False, 1, None), InProcess)
    for workers, count in ((2, 2), (None, 3)):
        pool = make_workers(False, workers, None)
        assert isinstance(pool, ProcessPool)
        assert pool.count == count
        pool.close()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert isinstance(make_workers(False, None, None), InProcess)


def test_an_address_without_ray_is_refused_before_a_file_of_the_users_is_run(tmp_path: Path) -> None:
    result = runner.invoke(app, ["run", str(write_own(tmp_path)), "--address", "auto"])
    assert result.exit_code == 1
    assert "expected --engine ray with it" in result.output
    assert "was not checked" not in result.output


def test_report_writes_what_is_asked_for(tmp_path: Path) -> None:
    results = folder(tmp_path / "out", [line(), line("dec", "mean")])
    page, tables = tmp_path / "new" / "report.html", tmp_path / "tex"
    made = (("--html", page, page), ("--latex", tables, tables / "main.tex"))
    for option, path, written in made:
        said = runner.invoke(app, ["report", str(results), option, str(path)])
        assert said.exit_code == 0
        assert "# Results" not in said.output
        assert str(path) in said.output
        assert written.is_file()
    assert page.read_text().startswith("<!doctype html>")
    both = runner.invoke(app, ["report", str(results), "--html", str(page), "--markdown"])
    assert "# Results" in both.output
    assert runner.invoke(app, ["report", str(results)]).output.startswith("# Results")


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("nowhere", [], "expected the folder of a run"),
        ("out", ["--html", "file/report.html"], "expected a folder at file"),
    ],
)
def test_report_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, options: list[str], message: str
) -> None:
    folder(tmp_path / "out", [line(), line("dec", "mean")])
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["report", place, *options])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)  # not the error itself
    assert message in result.output
