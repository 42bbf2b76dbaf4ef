"""Counts and calibration against formulas written as loops over rows, and sklearn's isotonic regression."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor

from equipoise.probabilities.classes import by_class
from equipoise.probabilities.tally import (
    BLOCK,
    CELLS,
    SHARED,
    Calibration,
    calibrate,
    directions,
    moved_odds,
    named,
    offset_for,
    tally,
)


def drawn(rows: int, classes: int, seed: int = 0, scale: float = 1.5) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=draw, dtype=torch.float64)
    probs = logits.softmax(1)
    return probs, torch.multinomial((logits / 1.6).softmax(1), 1, generator=draw).squeeze(1)


def step_of(confidence: float) -> int:
    """The step of a confidence by its definition."""
    return min(CELLS - 1, int(-64 * math.log(max(1 - confidence, math.exp(-16)))))


def isotonic_by_sklearn(steps: "np.ndarray[Any, Any]", hits: "np.ndarray[Any, Any]") -> IsotonicRegression:
    """The curve, where the 20 rows at either end are alike."""
    ordered = np.sort(steps)
    return IsotonicRegression(out_of_bounds="clip").fit(steps.clip(ordered[19], ordered[-20]), hits)


def even(classes: int) -> Calibration:
    """A calibration that says .7 everywhere."""
    right = torch.full((classes, CELLS), 0.7, dtype=torch.float64)
    return Calibration(right, torch.ones(classes, classes, dtype=torch.float64))


def test_each_row_is_counted_at_its_class_and_step() -> None:
    probs, _ = drawn(300, 4)
    counts, own = tally(probs, even(4))
    expected = torch.zeros(4, CELLS, dtype=torch.float64)
    others = torch.zeros(4, 4, dtype=torch.float64)
    for row in probs.tolist():
        c = row.index(max(row))
        expected[c, step_of(row[c])] += 1
        for k in range(4):
            if k != c:
                others[c, k] += 0.3 * row[k] / (1 - row[c])
    assert torch.equal(counts.steps, expected)
    assert counts.others.numpy() == pytest.approx(others.numpy(), rel=1e-9)
    assert own.classes.tolist() == probs.argmax(1).tolist()
    assert counts.expected(even(4)) == pytest.approx(0.7)


def test_blocks_make_no_difference() -> None:
    probs, _ = drawn(BLOCK // 4 + 100, 4)
    counts, own = tally(probs, even(4))
    assert float(counts.steps.sum()) == len(probs) == len(own.classes)
    part, _ = tally(probs[: len(probs) // 2], even(4))
    rest, _ = tally(probs[len(probs) // 2 :], even(4))
    assert torch.equal(part.steps + rest.steps, counts.steps)
    assert (part.others + rest.others).numpy() == pytest.approx(counts.others.numpy())


@pytest.mark.parametrize("confidence", [0.5, 0.51, 0.9, 0.999, 0.9999, 1.0])
def test_surer_rows_have_higher_steps(confidence: float) -> None:
    own = named(torch.tensor([[confidence, 1 - confidence]], dtype=torch.float64))
    assert int(own.steps) == step_of(confidence)


def test_calibration_is_isotonic_regression_of_the_class_and_of_all_rows() -> None:
    probs, labels = drawn(3000, 3)
    calibration, counts = calibrate(probs, labels)
    top, classes = probs.max(1)
    hits = (classes == labels).double().numpy()
    steps = np.array([step_of(each) for each in top.tolist()], dtype=float)
    every = np.arange(CELLS, dtype=float)
    shared = isotonic_by_sklearn(steps, hits).predict(every)
    for c in range(3):
        rows = (classes == c).numpy()
        own = isotonic_by_sklearn(steps[rows], hits[rows]).predict(every)
        share = rows.sum() / (rows.sum() + SHARED)
        expected = np.clip(share * own + (1 - share) * shared, 1e-3, 1 - 1e-3)
        assert calibration.right[c].numpy() == pytest.approx(expected, abs=1e-9)
    assert counts.rows == 3000


def test_mistakes_are_divided_as_held_out_labels_say() -> None:
    probs, labels = drawn(20_000, 3)
    labels = torch.where((labels == 1) & (probs.argmax(1) == 0), 2, labels)  # named 0, it is never 1
    calibration, counts = calibrate(probs, labels)
    shares = directions(counts.others * calibration.wrong)
    wrong = probs.argmax(1) != labels
    for c in range(3):
        rows = wrong & (probs.argmax(1) == c)
        for k in range(3):
            seen = float((labels[rows] == k).double().mean())
            assert float(shares[c, k]) == pytest.approx(seen, abs=0.02)


def test_the_offset_gives_the_accuracy_asked_for() -> None:
    probs, labels = drawn(2000, 3)
    calibration, counts = calibrate(probs, labels)
    for accuracy in (0.2, 0.5, 0.9):
        offset = offset_for(counts, calibration, accuracy)
        moved = 0.0
        for row in probs.tolist():
            c = row.index(max(row))
            q = float(calibration.right[c, step_of(row[c])])
            moved += q * math.exp(offset) / (q * math.exp(offset) + 1 - q)
        assert moved / 2000 == pytest.approx(accuracy, abs=1e-9)


def test_metrics_of_the_classes_are_expected_counts_over_rows() -> None:
    probs, labels = drawn(1500, 3)
    calibration, counts = calibrate(probs, labels)
    offset = -0.4
    right = moved_odds(calibration.right, offset)
    expected = np.zeros((3, 3))  # rows that name c where k is right
    for row in probs.tolist():
        c = row.index(max(row))
        expected[c, c] += float(right[c, step_of(row[c])])
    shares = directions(counts.others * calibration.wrong).numpy()
    rows = np.bincount(probs.argmax(1).numpy(), minlength=3)
    for c in range(3):
        expected[c] += shares[c] * (rows[c] - expected[c, c])
    found = by_class(counts, calibration, offset)
    precision, recall = expected.diagonal() / expected.sum(1), expected.diagonal() / expected.sum(0)
    assert found.precision.numpy() == pytest.approx(precision)
    assert found.recall.numpy() == pytest.approx(recall)
    assert found.f1.numpy() == pytest.approx(2 * precision * recall / (precision + recall))
    assert math.isnan(found.roc_auc)


def test_the_area_is_that_of_rows_with_expected_labels() -> None:
    probs, labels = drawn(400, 2)
    calibration, counts = calibrate(probs, labels)
    found = by_class(counts, calibration, 0.0)
    ranks, weights, targets = [], [], []
    for row in probs.tolist():
        c = row.index(max(row))
        step = step_of(row[c])
        q = float(moved_odds(calibration.right, 0.0)[c, step])
        for target, weight in ((c, q), (1 - c, 1 - q)):
            ranks.append(step + 1 if c == 1 else -step - 1)
            targets.append(target)
            weights.append(weight)
    expected = roc_auc_score(targets, ranks, sample_weight=weights)
    assert found.roc_auc == pytest.approx(expected, abs=1e-9)


def test_without_a_change_the_metrics_are_those_of_held_out_labels() -> None:
    probs, labels = drawn(8000, 3)
    calibration, counts = calibrate(probs, labels)
    found = by_class(counts, calibration, 0.0)
    named_by = probs.argmax(1)
    for c in range(3):
        both = float(((named_by == c) & (labels == c)).sum())
        assert float(found.precision[c]) == pytest.approx(both / float((named_by == c).sum()), abs=0.01)
        assert float(found.recall[c]) == pytest.approx(both / float((labels == c).sum()), abs=0.01)


def test_one_mistake_of_the_least_sure_row_is_not_a_curve() -> None:
    confidence = torch.cat([torch.tensor([0.51]), torch.full((199,), 0.9)])
    calibration, _ = calibrate(torch.stack([confidence, 1 - confidence], 1), torch.tensor([1] + [0] * 199))
    assert float(calibration.right[0, step_of(0.505)]) > 0.9


def test_a_class_that_few_rows_name_has_the_curve_of_all() -> None:
    probs, labels = drawn(3000, 3)
    rare = torch.cat([probs[probs.argmax(1) < 2], probs[probs.argmax(1) == 2][:40]])
    calibration, _ = calibrate(rare, labels[: len(rare)])
    few, _ = calibrate(rare[:-40], labels[: len(rare) - 40])
    assert calibration.right[2].numpy() == pytest.approx(few.right[2].numpy(), abs=0.1)
    assert not torch.equal(calibration.right[0], calibration.right[2])


def test_a_class_that_no_row_names_has_no_precision() -> None:
    probs = torch.tensor([[0.6, 0.3, 0.1], [0.3, 0.6, 0.1]] * 20)
    calibration, counts = calibrate(probs, torch.tensor([0, 1] * 20))
    found = by_class(counts, calibration, 0.0)
    assert math.isnan(float(found.precision[2]))
    assert float(found.recall[2]) == 0
