"""The options of `equipoise run`, and the summary that it prints."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from equipoise.cli import run
from equipoise.cli.run import make_workers, run_named_recipe, summary_lines
from equipoise.registry import file_digest
from equipoise.research.experiment.recipe import Recipe
from equipoise.research.experiment.sweep import SweepSummary
from equipoise.research.experiment.workers import InProcess, ProcessPool
from equipoise.testing.mark import write_mark

from ..research.experiment.own import write_own

LISTS = ("methods", "backbones", "targets", "tiers", "seeds", "temperings")


def run_toy(console: Console, name: str = "demo", **options: Any) -> int:
    given: dict[str, Any] = dict.fromkeys(LISTS, ())
    given |= dict.fromkeys(("on", "limit", "epochs", "domain_images", "address"), None)
    given |= {"data": Path("d"), "out": Path("o"), "ray": False, "workers": 1, "skip_bad_files": False}
    return run_named_recipe(name, console=console, **{**given, **options})


@pytest.mark.parametrize("failed", [0, 3])
def test_a_summary_is_printed(failed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_recipe", lambda *_, **__: SweepSummary(cells=10, before=4, failed=failed))
    said = StringIO()
    assert run_toy(Console(file=said, width=60)) == failed
    assert f"{10 - failed} of 10 cells in o/results.jsonl (4 were there before)" in said.getvalue()
    assert ("3 cells failed" in said.getvalue()) is (failed == 3)
    assert ("cells failed" in said.getvalue()) is bool(failed)


def test_results_of_other_code_are_counted() -> None:
    said = summary_lines(SweepSummary(cells=36, before=0, failed=0, of_other_code=12), Path("o"), ["online"])
    assert said[1:] == ["12 results of other code stay in the file; the report shows the newest only"]
    assert len(summary_lines(SweepSummary(36, 36, 0), Path("o"), ["online"])) == 1


@pytest.mark.parametrize(("skip", "word"), [(False, "refuse"), (True, "skip")])
def test_bad_files_are_skipped_only_if_asked(skip: bool, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def noted(*_: Any, **options: Any) -> SweepSummary:
        given.update(options)
        return SweepSummary(0, 0, 0)

    monkeypatch.setattr(run, "run_recipe", noted)
    run_toy(Console(file=StringIO()), skip_bad_files=skip, targets=["usps"], tiers=[3], limit=7)
    assert (given["bad_files"], given["targets"], given["limit"]) == (word, ["usps"], 7)
    assert given["tiers"] == [3]


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


def test_a_method_that_was_not_checked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_recipe", lambda *_, **__: SweepSummary(0, 0, 0))
    recipe, said = write_own(tmp_path), StringIO()
    run_toy(Console(file=said, width=60), name=str(recipe))
    file = tmp_path / "mine.py"
    line = f"{file}: the method 'mine' was not checked; run: equipoise check {file}\n"
    assert line in said.getvalue()
    write_mark(file, file_digest(file), ["mine"])
    said = StringIO()
    run_toy(Console(file=said, width=60), name=str(recipe))
    assert "not checked" not in said.getvalue()


def test_a_stream_runs_on_the_data_set_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Recipe] = []

    def noted(recipe: Recipe, **_: Any) -> SweepSummary:
        given.append(recipe)
        return SweepSummary(0, 0, 0)

    monkeypatch.setattr(run, "run_recipe", noted)
    console = Console(file=StringIO())
    run_toy(console, name="continual")
    run_toy(console, name="continual", on="pacs", domain_images=30, methods=["tent", "poise"])
    first, second = given
    assert (first.data, first.order, first.domain_images) == ("digits-c", "continual", 1000)
    assert (second.data, second.order, second.domain_images) == ("pacs-c", "continual", 30)
    assert list(second.methods) == ["tent", "poise"]
    assert all(entry.rehearsed for entry in second.methods.values())
