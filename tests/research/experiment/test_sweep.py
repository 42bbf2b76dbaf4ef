"""A recipe from data to results in one process, and what is said on the way."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from equipoise.errors import RecipeError
from equipoise.research.data import Images, Reader
from equipoise.research.data.reader import Problem
from equipoise.research.experiment import sweep
from equipoise.research.experiment.progress import RunProgress
from equipoise.research.experiment.provenance import code_digest
from equipoise.research.experiment.sweep import SweepSummary, find_weights, picked_shifts

from .test_training import flipped
from .toy import SMALL, Toy, ToyTiers, go, lines, scores, toy_images, toy_recipe


def test_only_cells_of_this_run_count_as_there_before(tmp_path: Path) -> None:
    first = toy_recipe(methods={"source": {"batch_size": 16}}, **SMALL)
    both = toy_recipe(methods={"source": {"batch_size": 16}, "norm": {"batch_size": 16}}, **SMALL)
    assert go(first, tmp_path, targets=["dark"])[0] == SweepSummary(cells=1, before=0, failed=0)
    assert go(first, tmp_path, targets=["noisy"])[0] == SweepSummary(cells=1, before=0, failed=0)
    assert go(both, tmp_path, targets=["dark"])[0] == SweepSummary(cells=2, before=1, failed=0)


def test_results_of_edited_code_are_made_anew_and_the_old_ones_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = toy_recipe(methods={"source": {"batch_size": 16}, "norm": {"batch_size": 16}}, **SMALL)
    go(recipe, tmp_path, targets=["dark"])
    edited = {"norm": "edited"}
    monkeypatch.setattr(
        "equipoise.research.experiment.plan.code_digest",
        lambda name, _base: edited.get(name, code_digest(name)),
    )
    outcome, _ = go(recipe, tmp_path, targets=["dark"])
    assert outcome == SweepSummary(cells=2, before=1, failed=0, of_other_code=1)
    found = [(line["cell"]["label"], line["cell"]["code"]) for line in lines(tmp_path / "out")]
    assert found == [("source", code_digest("source")), ("norm", code_digest("norm")), ("norm", "edited")]


def test_what_a_killed_run_was_writing_is_removed(tmp_path: Path) -> None:
    recipe = toy_recipe(methods={"source": {"batch_size": 16}}, **SMALL)
    go(recipe, tmp_path, targets=["dark"])
    out = tmp_path / "out"
    halves = [folder / ".half.safetensors.1.partial" for folder in (out, out / "models", out / "cache")]
    unfinished = out / "models" / "key.partial.safetensors"  # a training that goes on from its last epoch
    for file in (*halves, unfinished):
        file.write_bytes(b"half")
    go(recipe, tmp_path, targets=["dark"])
    assert [file.exists() for file in halves] == [False] * 3
    assert unfinished.exists()


def test_damaged_models_are_named_and_trained_anew(tmp_path: Path) -> None:
    recipe = toy_recipe(methods={"source": {"batch_size": 16}}, **SMALL)
    go(recipe, tmp_path, targets=["dark"])
    (path,) = (tmp_path / "out" / "models").glob("*.safetensors")
    path.write_bytes(flipped(path.read_bytes()))
    both = toy_recipe(methods={"source": {"batch_size": 16}, "norm": {"batch_size": 16}}, **SMALL)
    outcome, said = go(both, tmp_path, targets=["dark"])
    assert outcome == SweepSummary(cells=2, before=1, failed=0)
    assert f"{path}: " in said
    assert "smallcnn on plain + noisy, seed 0 is trained again" in said


def test_cells_of_a_model_that_cannot_be_trained_fail_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(sweep, "train_source_model", fails)
    outcome, said = go(toy_recipe(), tmp_path, targets=["dark"])
    assert outcome == SweepSummary(cells=36, before=0, failed=36)
    assert len(scores(tmp_path / "out")) == 36
    assert "failed: smallcnn/dark/tent, seed 0: RuntimeError: out of luck" in said


def test_a_wrong_option_ends_the_run_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no option 'rho'"):
        go(toy_recipe(methods={"tent": {"options": {"rho": 1}}}), tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("bad_files", ["refuse", "skip"])
def test_bad_files_are_read_as_asked_and_named(
    bad_files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def read(data: Toy, part: str, limit: int | None, reader: Reader) -> Images:
        found.append(reader.bad_files)
        if reader.bad_files == "skip" and part == "dark":
            reader.account([Problem(Path("torn.png"), "cut short")], 41)
        return toy_images(part)

    monkeypatch.setattr(Toy, "read", read)
    recipe = toy_recipe(methods={"source": {}}, **SMALL)
    _, said = go(recipe, tmp_path, targets=["dark"], bad_files=bad_files)
    assert set(found) == {bad_files}
    assert ("dark: 1 files left out:\n  torn.png: cut short" in said) is (bad_files == "skip")
    assert said.count("left out") == (bad_files == "skip")
    (line,) = lines(tmp_path / "out")
    assert (line["left_out"], line["images"], line["classes"]) == (int(bad_files == "skip"), 40, 3)


def test_networks_start_from_a_file_the_hub_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    file = tmp_path / "weights" / "mobilenet_v1.safetensors"
    file.touch()
    recipe = toy_recipe(
        backbones={
            "mobilenet_v1": {},
            "efficientnet_b0": {},
            "smallcnn": {},
            "resnet18": {"weights": "random"},
        }
    )
    assert find_weights(recipe, tmp_path) == {
        "mobilenet_v1": file.resolve(),
        "efficientnet_b0": "hub",
        "smallcnn": None,
        "resnet18": None,
    }


def test_targets_are_domains_or_tiers_of_them() -> None:
    shifts = ToyTiers(Path()).shifts
    assert picked_shifts(shifts, []) == shifts
    assert picked_shifts(shifts, ["dim/2"]) == [shifts[1]]
    assert picked_shifts(shifts, ["grain", "dim/1"]) == [shifts[0], shifts[2], shifts[3]]
    with pytest.raises(RecipeError, match=r"no target 'dim/3'; there are dim, grain \(and one tier"):
        picked_shifts(shifts, ["dim/3"])
    with pytest.raises(RecipeError, match=r"there are plain, dark, noisy$"):
        picked_shifts(Toy(Path()).shifts, ["dim"])


def test_the_tiers_asked_for_are_streams_in_place_of_those_of_the_recipe(tmp_path: Path) -> None:
    methods = {"source": {"batch_size": 16}}
    recipe = toy_recipe(data="toy-tiers", order="continual", tiers=[2], methods=methods, **SMALL)
    assert go(recipe, tmp_path)[0].cells == 1
    assert go(recipe, tmp_path, tiers=[1, 2])[0] == SweepSummary(cells=2, before=1, failed=0)
    assert [line["cell"]["tier"] for line in lines(tmp_path / "out")] == [2, 1]
    with pytest.raises(RecipeError, match="tiers: expected some of 1, 2, got 3, 4"):
        go(recipe, tmp_path, tiers=[1, 3, 4])
    without = toy_recipe(methods=methods, tiers=[5], **SMALL)  # as a recipe of a stream has it
    assert go(without, tmp_path, targets=["dark"])[0].failed == 0
    with pytest.raises(RecipeError, match="tiers: expected none, as toy has no tiers, got 5"):
        go(without, tmp_path, tiers=[5])


def test_a_changing_stream_reads_no_corrupted_images_and_takes_no_tiers(tmp_path: Path) -> None:
    options = {"transition": 10, "length": 20}
    methods = {"source": {"batch_size": 16}}
    recipe = toy_recipe(
        data="demo-c", order="changing", order_options=options, tiers=[5], methods=methods, **SMALL
    )
    outcome, _ = go(recipe, tmp_path, targets=["mnist"], limit=60)
    assert outcome == SweepSummary(cells=1, before=0, failed=0)
    assert not [path.name for path in (tmp_path / "out" / "cache").iterdir() if "fog" in path.name]
    with pytest.raises(RecipeError, match="tiers: expected none, as 'changing' has a `severity`, got 3"):
        go(recipe, tmp_path, targets=["mnist"], limit=60, tiers=[3])


class Clock:
    """A time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("equipoise.research.experiment.progress.time.monotonic", lambda: self.now)


def test_the_rate_counts_the_cells_of_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(monkeypatch), StringIO()
    shown = RunProgress(Console(file=said))
    clock.now += 50  # reading the data is not counted
    shown.cells(40, 1000)
    clock.now += 5
    shown.made(6)
    clock.now += 5
    shown.made(4)  # 10 in 10 seconds; 950 are left
    assert shown.rate() == "60/min, 0:15:50 left"
    clock.now += 10  # half as fast
    assert shown.rate() == "30/min, 0:31:40 left"
    clock.now += 70
    assert shown.rate().endswith(" 2:22:30 left")


def test_elsewhere_than_in_a_terminal_lines_come_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(monkeypatch), StringIO()
    with RunProgress(Console(file=said)) as shown:
        shown.stage("training [a]", 3)
        shown.cells(0, 20)
        for _ in range(5):
            clock.now += 4
            shown.made(2)
    assert said.getvalue().splitlines() == ["training [a]", "6 of 20 cells, 30/min, 0:00:28 left"]


def test_a_terminal_gets_bars_instead_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(monkeypatch), StringIO()
    shown = RunProgress(Console(file=said, force_terminal=True))
    shown.stage("training", 3)
    shown.cells(0, 20)
    clock.now += 60
    shown.made(2)
    assert "training" not in said.getvalue()
    assert "cells" not in said.getvalue()
    shown.say("this stays")
    assert "this stays" in said.getvalue()
