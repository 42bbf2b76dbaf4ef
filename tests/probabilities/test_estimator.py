"""The estimator for probabilities alone: its answers, kinds of input, errors and files."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.errors import BatchTypeError, OptionError, StateError
from equipoise.files import read_tensors, write_tensors
from equipoise.probabilities.coverage import threshold_of

NAMES = ["cat", "dog", "eel"]


def drawn(rows: int, classes: int = 3, scale: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Calibrated probabilities with labels drawn from them."""
    draw = torch.Generator().manual_seed(seed)
    probs = (scale * torch.randn(rows, classes, generator=draw)).softmax(1)
    return probs, torch.multinomial(probs, 1, generator=draw).squeeze(1)


@pytest.fixture(scope="module")
def estimator() -> eq.Estimator:
    return eq.Estimator.fit(*drawn(5000))


def true_accuracy(probs: Tensor, labels: Tensor) -> float:
    return float((probs.argmax(1) == labels).double().mean())


def test_without_a_change_the_accuracy_is_that_of_held_out_rows(estimator: eq.Estimator) -> None:
    truth = true_accuracy(*drawn(5000))
    reports = [estimator.update(drawn(2000, seed=seed)[0]) for seed in range(1, 41)]
    assert sum(report.drift for report in reports) <= 1
    for report in reports:
        assert float(report.accuracy) == pytest.approx(truth, abs=0.03)
        assert report.accuracy.inside
    held = [
        report.accuracy.low <= true_accuracy(*drawn(2000, seed=seed)) <= report.accuracy.high
        for seed, report in enumerate(reports, start=1)
    ]
    assert sum(held) >= 36


def test_less_confidence_is_less_accuracy(estimator: eq.Estimator) -> None:
    probs, labels = drawn(5000, scale=0.7, seed=3)
    report = estimator.update(probs)
    assert report.drift
    assert not report.accuracy.inside
    assert report.accuracy.low <= true_accuracy(probs, labels) <= report.accuracy.high
    assert float(report.accuracy) < true_accuracy(*drawn(5000)) - 0.1


def test_confidence_that_rises_is_not_believed_far_from_held_out_rows(estimator: eq.Estimator) -> None:
    held_out = true_accuracy(*drawn(5000))
    report = estimator.update(drawn(5000, scale=20.0, seed=3)[0])  # .93 confident
    assert float(report.accuracy) < held_out
    assert report.drift


def test_each_chunk_has_its_numbers_of_rows() -> None:
    estimator = eq.Estimator.fit(*drawn(500))
    ids = [estimator.update(drawn(rows, seed=rows)[0]).ids for rows in (100, 7, 30)]
    assert ids == [range(100), range(100, 107), range(107, 137)]


def test_any_kind_of_probabilities_gives_the_same_answers() -> None:
    probs, labels = drawn(400)
    later = drawn(50, seed=1)[0]
    kinds: list[Any] = [later, later.numpy(), later.tolist(), pd.DataFrame(later.numpy(), columns=NAMES)]
    fits: list[tuple[Any, Any]] = [
        (probs, labels),
        (probs.numpy(), labels.numpy()),
        (probs.tolist(), labels.tolist()),
        (pd.DataFrame(probs.numpy(), columns=NAMES), pd.Series(labels).map(lambda at: NAMES[at])),
    ]
    reports, shares, sets = [], [], []
    for fit, kind in zip(fits, kinds, strict=True):
        estimator = eq.Estimator.fit(*fit)
        reports.append(estimator.update(kind))
        shares.append(estimator.probabilities(kind))
        sets.append(estimator.sets(kind))
        assert type(shares[-1]) is type(kind)
        assert type(sets[-1]) is type(kind)
    for report, share, chosen in zip(reports, shares, sets, strict=True):
        assert float(report.accuracy) == pytest.approx(float(reports[0].accuracy), abs=1e-6)
        assert np.asarray(share) == pytest.approx(np.asarray(shares[0]), abs=1e-6)
        assert (np.asarray(chosen) == np.asarray(sets[0])).all()
    assert list(shares[3].columns) == NAMES


def test_the_probability_of_the_second_class_alone_will_do() -> None:
    probs, labels = drawn(400, classes=2)
    both, one = eq.Estimator.fit(probs, labels), eq.Estimator.fit(probs[:, 1], labels)
    later = drawn(100, classes=2, seed=1)[0]
    expected = float(both.update(later).accuracy)
    assert float(one.update(later[:, 1]).accuracy) == pytest.approx(expected, abs=1e-4)
    assert one.probabilities(later[:, 1]) == pytest.approx(both.probabilities(later)[:, 1], abs=1e-3)
    series = pd.Series(later[:, 1].numpy(), index=range(5, 105))
    found = one.probabilities(series)
    assert isinstance(found, pd.Series)
    assert (found.index == series.index).all()


def test_calibrated_probabilities_have_the_estimated_accuracy(estimator: eq.Estimator) -> None:
    probs = drawn(3000, scale=0.8, seed=5)[0]
    report = estimator.update(probs)
    shares = estimator.probabilities(probs)
    assert shares.sum(1) == pytest.approx(np.ones(3000), abs=1e-5)
    named = shares.gather(1, probs.argmax(1, keepdim=True))
    assert float(named.double().mean()) == pytest.approx(float(report.accuracy), abs=1e-4)


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_sets_cover_rows_like_held_out_ones(score: str) -> None:
    estimator = eq.Estimator.fit(*drawn(4000))
    probs, labels = drawn(4000, seed=8)
    chosen = estimator.sets(probs, coverage=0.9, score=score)
    assert chosen.dtype == torch.bool
    covered = float(chosen.gather(1, labels[:, None]).double().mean())
    assert 0.88 <= covered <= (0.92 if score == "lac" else 1.0)


def test_sets_grow_where_the_accuracy_is_estimated_lower() -> None:
    estimator = eq.Estimator.fit(*drawn(4000))
    probs, labels = drawn(4000, scale=0.8, seed=8)
    before = estimator.sets(probs)
    estimator.update(probs)
    after = estimator.sets(probs)
    rows = torch.arange(4000)
    assert float(before[rows, labels].double().mean()) < 0.88
    assert float(after[rows, labels].double().mean()) == pytest.approx(0.9, abs=0.03)
    assert int(after.sum()) > int(before.sum())


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_the_threshold_says_the_same_coverage_as_on_held_out_rows(score: str) -> None:
    held_out, labels = drawn(300)
    recent = drawn(200, scale=1.0, seed=1)[0]
    found = float(threshold_of(held_out, labels, recent, 0.9, score))

    def scores(row: list[float]) -> list[float]:
        if score == "lac":
            return [1 - p for p in row]
        return [sum(q for q in row if q > p) for p in row]

    own = sorted(scores(row)[label] for row, label in zip(held_out.tolist(), labels.tolist(), strict=True))
    conformal = own[math.ceil(301 * 0.9) - 1]

    def says(rows: Tensor, threshold: float) -> float:
        """The coverage by the probabilities themselves."""
        total = 0.0
        for row in rows.tolist():
            total += sum(p for p, s in zip(row, scores(row), strict=True) if s <= threshold + 1e-7)
        return total / len(rows)

    assert says(recent, found) >= says(held_out, conformal) - 1e-6
    assert says(recent, found - 1e-5) < says(held_out, conformal)
    same = float(threshold_of(held_out, labels, held_out, 0.9, score))
    assert same == pytest.approx(conformal, abs=1e-6)


def test_thresholds_are_those_of_the_last_chunk() -> None:
    asked, fresh = (eq.Estimator.fit(*drawn(2000)) for _ in range(2))
    probs = drawn(500, scale=0.6, seed=1)[0]
    asked.sets(probs)
    for each in (asked, fresh):
        each.update(probs)
    assert torch.equal(asked.sets(probs), fresh.sets(probs))


def test_a_chunk_that_is_written_over_changes_nothing() -> None:
    estimator, same = (eq.Estimator.fit(*drawn(2000)) for _ in range(2))
    chunk, later = drawn(1000, scale=0.5, seed=1)[0], drawn(200, seed=2)[0]
    estimator.update(chunk)
    same.update(chunk.clone())
    chunk[:] = 1 / 3
    assert torch.equal(estimator.sets(later), same.sets(later))


def test_all_classes_are_possible_where_held_out_rows_are_too_few() -> None:
    estimator = eq.Estimator.fit(*drawn(5))
    assert estimator.sets(drawn(10, seed=1)[0], coverage=0.9).all()


def test_rows_of_nan_are_left_out(estimator: eq.Estimator) -> None:
    probs = drawn(200, seed=9)[0]
    expected = estimator.update(probs)
    spoiled = torch.cat([probs, torch.full((50, 3), torch.nan)])
    with pytest.warns(UserWarning, match="50 of 250 rows are NaN"):
        report = estimator.update(spoiled)
    assert report.samples == 200
    assert len(report.ids) == 250
    assert report.accuracy == expected.accuracy
    assert estimator.probabilities(spoiled)[200:].isnan().all()
    assert estimator.sets(spoiled)[200:].all()


def test_a_saved_estimator_goes_on_as_it_was(tmp_path: Path) -> None:
    probs, labels = drawn(600)
    table = pd.DataFrame(probs.numpy(), columns=NAMES)
    estimator = eq.Estimator.fit(table, labels)
    estimator.update(drawn(300, scale=1.0, seed=1)[0])
    estimator.save(tmp_path / "estimator.safetensors")
    again = eq.Estimator.load(tmp_path / "estimator.safetensors")
    later = drawn(300, seed=2)[0]
    assert torch.equal(again.probabilities(later), estimator.probabilities(later))
    assert again.update(later) == estimator.update(later)
    with pytest.raises(OptionError, match="columns that the estimator was fitted on"):
        again.update(table[["dog", "cat", "eel"]])


def test_an_estimator_is_saved_before_its_first_chunk(tmp_path: Path) -> None:
    estimator = eq.Estimator.fit(*drawn(600))
    estimator.save(tmp_path / "estimator.safetensors")
    later = drawn(300, seed=2)[0]
    assert eq.Estimator.load(tmp_path / "estimator.safetensors").update(later) == estimator.update(later)


def test_a_file_with_other_tensors_is_no_estimator(tmp_path: Path) -> None:
    estimator = eq.Estimator.fit(*drawn(600))
    estimator.update(drawn(300, seed=1)[0])
    path = tmp_path / "estimator.safetensors"
    estimator.save(path)
    tensors, text = read_tensors(path, "equipoise estimator", 1)
    changes: list[dict[str, Tensor]] = [
        {name: value for name, value in tensors.items() if name != "chunks.right"},
        {**tensors, "chunks.labels": tensors["chunks.labels"][:-1]},
        {**tensors, "right": tensors["right"][:, :-1]},
        {**tensors, "recent": tensors["recent"][:, :2].contiguous()},
    ]
    for changed in changes:
        write_tensors(path, "equipoise estimator", 1, changed, {"estimator": text["estimator"]})
        with pytest.raises(StateError, match="not an estimator"):
            eq.Estimator.load(path)


def test_another_file_is_no_estimator(tmp_path: Path) -> None:
    path = tmp_path / "estimator.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(StateError, match="not a readable safetensors file"):
        eq.Estimator.load(path)


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        (torch.rand(5, 3) + 1, [0] * 5, "sum of 1"),
        ([[1.5, -0.5]], [0], r"\[1.5, -0.5\] first; of logits give the softmax"),
        (None, [0], "at least one row; got the shape"),
        ([[0.5, 0.5]] * 4, [0, 1, 0], "expected 4 labels"),
        ([[0.5, 0.5]] * 2, [0, 2], r"labels among 0, 1.*got 2 in row 1"),
        ([[0.5, 0.5]] * 2, ["a", "b"], r"got 'a' in row 0"),
        ([[0.5, 0.5]] * 2, [0.0, np.nan], "got nan in row 1"),
        (pd.DataFrame({"a": [0.5], "b": [0.5]}), ["c"], "labels among 'a', 'b'; got 'c'"),
        ([], [], "at least one row"),
        ([[np.nan, np.nan]], [0], "NaN in all 1 rows"),
        ([[0.5, np.nan]], [0], "NaN among others in 1"),
    ],
)
def test_what_cannot_be_fitted_says_why(probabilities: Any, labels: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        eq.Estimator.fit(probabilities, labels)


def test_what_is_no_number_says_what_came() -> None:
    with pytest.raises(BatchTypeError, match="expected probabilities as an array"):
        eq.Estimator.fit([["a", "b"]], [0])


@pytest.mark.parametrize("names", [pd.to_datetime(["2026-01-01", "2026-01-02"]), [("a", 1), ("b", 2)]])
def test_columns_that_a_file_cannot_keep_are_refused(names: Any) -> None:
    table = pd.DataFrame([[0.5, 0.5]] * 30)
    table.columns = pd.Index(names)
    with pytest.raises(OptionError, match=r"columns\.map\(str\)"):
        eq.Estimator.fit(table, [0, 1] * 15)


def test_columns_named_by_whole_numbers_of_numpy_are_kept(tmp_path: Path) -> None:
    table = pd.DataFrame([[0.5, 0.5]] * 30)
    table.columns = pd.Index([np.int64(3), np.int64(7)], dtype=object)
    estimator = eq.Estimator.fit(table, [3, 7] * 15)
    estimator.save(tmp_path / "estimator.safetensors")
    assert eq.Estimator.load(tmp_path / "estimator.safetensors").update(table).samples == 30


def test_a_table_of_one_column_is_of_the_second_class_by_its_name() -> None:
    table = pd.DataFrame({"no": [0.25, 0.5, 0.75] * 20, "yes": [0.75, 0.5, 0.25] * 20})
    estimator = eq.Estimator.fit(table, ["yes", "no", "no"] * 20)
    assert estimator.update(table[["yes"]]).accuracy == estimator.update(table).accuracy
    with pytest.raises(OptionError, match="column 'yes', got the column 'no'"):
        estimator.update(table[["no"]])


def test_rows_rounded_to_two_digits_are_divided_by_their_sum(estimator: eq.Estimator) -> None:
    rounded = np.array([[0.33, 0.33, 0.33], [0.505, 0.505, 0.005]] * 30)
    exact = rounded / rounded.sum(1, keepdims=True)
    assert estimator.update(rounded).accuracy == estimator.update(exact).accuracy
    with pytest.raises(OptionError, match=r"within 0\.02"):
        estimator.update(rounded * 0.98)


def test_one_row_as_a_list_says_its_shape(estimator: eq.Estimator) -> None:
    with pytest.raises(OptionError, match=r"of one row give the shape \(1, 3\)"):
        estimator.update([0.2, 0.3, 0.5])


def test_other_classes_than_those_fitted_are_refused(estimator: eq.Estimator) -> None:
    with pytest.raises(OptionError, match="3 classes that the estimator was fitted on, got 2"):
        estimator.update([0.5, 0.7])
