"""The numbers of docs/results.md: means over like runs, the best rivals, tests and estimates."""

import pandas as pd
import pytest

from benchmarks.results import measured, page
from benchmarks.results.measured import POISE, RIVALS, SOURCE, Place, at, mean, spread, tidy
from equipoise.research.report.results import Variant
from tests.support.results_frames import made_up_cells

TENT = Variant("tent", "none")


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    return tidy(made_up_cells())


@pytest.fixture
def rows(cells: pd.DataFrame) -> pd.DataFrame:
    return at(cells, Place("digits", "smallcnn"))


def lacking(rows: pd.DataFrame, variant: Variant, **values: object) -> pd.DataFrame:
    """Rows without those of a method that have all of some values."""
    gone = (rows["name"] == variant.name) & (rows["tempering"] == variant.tempering)
    for name, value in values.items():
        gone &= rows[name] == value
    return rows[~gone]


def test_a_mean_is_of_all_shifts_or_there_is_none(rows: pd.DataFrame) -> None:
    assert mean(rows, SOURCE, "accuracy") == pytest.approx(0.611)
    without = lacking(rows, TENT, target="svhn")
    assert mean(without, TENT, "ece") is None
    assert mean(without, POISE, "ece") == pytest.approx(0.031)


def test_common_rows_are_of_the_shifts_and_seeds_that_all_methods_have(rows: pd.DataFrame) -> None:
    part = lacking(rows, TENT, target="svhn", seed=1)
    both = measured.common(part, POISE, TENT)
    assert len(measured.of(both, POISE)) == len(measured.of(both, TENT)) == 5
    assert mean(both, SOURCE, "accuracy") == pytest.approx((0.601 + 0.611 + 0.62) / 3)
    assert measured.common(lacking(rows, TENT, target="svhn"), POISE, TENT).empty


def test_the_spread_is_the_standard_deviation_of_the_seeds_that_have_all_shifts(rows: pd.DataFrame) -> None:
    assert spread(rows, SOURCE, "accuracy") == pytest.approx(0.002 / 2**0.5)
    third = rows[rows["seed"] == 0].assign(seed=2, accuracy=0.9)
    more = pd.concat([rows, third[third["target"] != "svhn"]])
    assert spread(more, SOURCE, "accuracy") == pytest.approx(0.002 / 2**0.5)
    assert spread(rows[rows["seed"] == 0], SOURCE, "accuracy") is None


def test_the_best_raw_rival_has_the_least_ece_and_all_runs_of_poise(rows: pd.DataFrame) -> None:
    assert measured.best_raw_rival(rows) == Variant("sotta", "none")
    fewer = lacking(rows, Variant("sotta", "none"), target="svhn", seed=1)
    assert measured.best_raw_rival(fewer) == Variant("t3a", "none")
    assert measured.best_raw_rival(rows[~rows["name"].isin(RIVALS)]) is None


def test_a_rival_with_fewer_seeds_is_compared_on_these_seeds_alone(rows: pd.DataFrame) -> None:
    rehearsed = Variant("tent", "rehearsed")
    part = lacking(rows.assign(accuracy=rows["accuracy"].where(rows["seed"] == 0, 0.0)), rehearsed, seed=1)
    (only,) = measured.against_each(part, "accuracy", POISE, ["rehearsed"], ["tent"])
    assert only.focal_mean == pytest.approx(0.66)
    fewer = lacking(rows, rehearsed, target="svhn")
    assert measured.against_each(fewer, "accuracy", POISE, ["rehearsed"], ["tent"]) == []


def test_the_hardest_comparison_is_with_the_best_rival(rows: pd.DataFrame) -> None:
    by_ece = measured.hardest(measured.against_each(rows, "ece", POISE, ["none", "mean"]))
    by_accuracy = measured.hardest(measured.against_each(rows, "accuracy", POISE, ["none"]))
    assert by_ece is not None
    assert by_accuracy is not None
    assert by_ece.rival == Variant("sotta", "mean")
    assert by_ece.rival_mean == pytest.approx(0.125)
    assert by_accuracy.rival == Variant("sotta", "none")
    assert by_accuracy.rival_mean == pytest.approx(0.616)


def test_tests_are_against_the_best_rival_and_its_best_tempering(cells: pd.DataFrame) -> None:
    tests = page.tested(cells, POISE, ["mean", "median"])
    assert [best.metric for _, best, _ in tests] == ["ece", "nll"] * 2
    assert all(best.rival == Variant("sotta", "mean") for _, best, _ in tests)
    assert tests[0][1].test.difference == pytest.approx(0.031 - 0.125)
    assert all(p is not None and p < 0.05 for _, _, p in tests)


def test_an_estimate_is_off_by_its_difference_from_the_accuracy(cells: pd.DataFrame) -> None:
    found = measured.estimated(cells)
    assert len(found) == 3 * 2 + 15 * 2
    assert found["error"].to_numpy() == pytest.approx(0.02)
    assert "| .020 | +.020 | .020 | 90 % |" in page.estimate_table(cells)
