"""The program that makes recommendations for the models of a run: its rows, and models that come late."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import equipoise as eq
from benchmarks.recommendation.recommendations import (
    LABELS,
    as_they_come,
    listed_methods,
    measured_settings,
    rows_of,
    wait_for_models,
)
from equipoise.recommendation.candidates import SHORT_LISTS, Candidate, candidates
from equipoise.research.experiment.recipe import load_recipe
from tests.support.rehearsals import held_out, trained

SETTING = {"data": "digits-c", "backbone": "net", "target": "usps", "seed": 0, "stream": "continual"}


@dataclass(frozen=True)
class Model:
    """The part of a model's plan that is waited for."""

    key: str
    name: str = "net on mnist"


@dataclass(frozen=True)
class Run:
    """The part of a run's plan that is waited for."""

    model: Model


def test_rows_have_every_method_and_shift_by_the_labels_of_the_recipe() -> None:
    listed = {
        "source": Candidate("source"),
        "norm": Candidate("norm"),
        "tent-slow": Candidate("tent", {"learning_rate": 1e-5}),
        "roid": Candidate("sar", {"parameters": ["nothing"]}),
    }
    methods = [(one.name, one.options) for one in listed.values()]
    small: dict[str, Any] = {"shifts": 8, "length": 400, "samples": 100, "budget": None, "progress": False}
    found = eq.recommend(trained(), held_out(), methods=methods, **small)
    rows = rows_of(found, listed, SETTING)
    good = rows[rows["problem"].isna()]
    assert set(good["label"]) == {"source", "norm", "tent-slow"}
    assert rows[rows["label"] == "roid"]["problem"].iloc[0]
    assert (good.groupby(["label", "tempering"])["shift"].nunique() == 8).all()
    chosen = good[good["chosen"].astype(bool)]
    assert chosen["label"].nunique() == 1
    norm = good[good["label"] == "norm"]
    (row,) = [row for row in found.table if row["method"] == "norm" and row["tempering"] == "none"]
    plain = norm[norm["tempering"] == "none"]
    assert plain["correct"].sum() / plain["samples"].sum() == pytest.approx(row["accuracy"])
    assert plain["nll"].sum() / plain["samples"].sum() == pytest.approx(row["nll"], abs=1e-4)


def test_settings_that_a_file_has_are_known(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    assert measured_settings(path)[1] == set()
    row = SETTING | {"label": "source", "problem": None}
    pd.DataFrame([row]).to_csv(path, index=False)
    assert measured_settings(path)[1] == {("digits-c", "net", "usps", "0", "continual")}
    failed = row | {"label": "tent", "problem": "OutOfMemoryError: CUDA out of memory"}
    pd.DataFrame([row, failed, row | {"stream": "noisy"}]).to_csv(path, index=False)
    kept, known = measured_settings(path)
    assert known == {("digits-c", "net", "usps", "0", "noisy")}
    assert len(kept) == 1


def test_models_that_are_there_come_first_and_late_ones_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "second.safetensors").touch()
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        (tmp_path / "first.safetensors").touch()

    monkeypatch.setattr(time, "sleep", sleep)
    runs: list[Any] = [Run(Model("first")), Run(Model("second"))]
    wait_for_models(tmp_path, 10)
    assert [run.model.key for run in as_they_come(runs, tmp_path, 10)] == ["second", "first"]
    assert len(slept) == 1


def test_a_model_that_never_comes_ends_the_program(tmp_path: Path) -> None:
    runs: list[Any] = [Run(Model("never"))]
    with pytest.raises(SystemExit, match=r"no model in .* of: net on mnist"):
        list(as_they_come(runs, tmp_path, -1))
    with pytest.raises(SystemExit, match="no model in"):
        wait_for_models(tmp_path, -1)


@pytest.mark.parametrize("on", ["digits", "pacs", "tiny-imagenet-c"])
def test_candidates_have_the_options_of_the_recipe(on: str) -> None:
    recipe = load_recipe("continual", on)
    listed = listed_methods(recipe)
    assert set(LABELS) - set(listed) <= {"roid-prior"}
    assert listed["tent"] == Candidate("tent", recipe.methods["tent"].options)


def test_every_method_of_a_short_list_has_a_label() -> None:
    names = {one.name for kind in SHORT_LISTS for one in candidates(None, kind)}
    assert names <= set(LABELS)
