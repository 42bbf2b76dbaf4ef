"""Tests of labels that come late, against formulas written out here."""

import math

import pytest
import torch
from torch import Tensor

from equipoise.calibration.labels import (
    aci,
    believing,
    correction,
    kept,
    label_sums,
    labelled_error,
    posterior,
    prediction_powered,
    rectified,
)

NONE = torch.zeros(7, dtype=torch.float64)


def double(*values: float) -> Tensor:
    """Numbers in double precision."""
    return torch.tensor(values, dtype=torch.float64)


def corrected(hits: Tensor, scores: Tensor, accuracy: float, doubt: float) -> Tensor:
    """The accuracy after labels (…, n), for an estimate with this doubt; confidence is right on average."""
    estimate = torch.full_like(hits, accuracy)
    sums = label_sums(hits, estimate, scores, estimate, torch.ones_like(hits))
    logit = double(accuracy)[0].logit()
    return (logit + posterior(sums, logit, double(doubt)[0])[1]).sigmoid()


def test_prediction_powered_is_its_formula() -> None:
    hits, scores = double(1, 0, 1, 1, 0, 1, 1, 1), double(0.9, 0.4, 0.8, 0.9, 0.7, 0.6, 0.95, 0.5)
    n, many, mean = 8, 400.0, 0.62
    value, variance = prediction_powered(hits, scores, mean, many)
    covariance = float(((hits - hits.mean()) * (scores - scores.mean())).mean())
    scatter = float((scores - scores.mean()).square().mean())
    slope = min(1.0, (n * covariance / scatter / (1 + n / many) + 10) / (n + 10))
    assert float(value) == pytest.approx(slope * mean + float((hits - slope * scores).mean()))
    rest = hits - slope * scores
    share = 0.5 + float((hits - 0.5).sum()) / (n + 10)
    spread = (float((rest - rest.mean()).square().sum()) + 10 * share * (1 - share)) / (n + 9)
    assert float(variance) == pytest.approx(spread / n + slope**2 * scatter / many)


def test_prediction_powered_without_labels_is_the_mean_score() -> None:
    none = torch.zeros(0, dtype=torch.float64)
    value, variance = prediction_powered(none, none, 0.7, 100)
    assert float(value) == 0.7 and float(variance) == math.inf


def test_ten_hits_of_ten_are_not_certain() -> None:
    hits = torch.ones(10, dtype=torch.float64)
    value, variance = prediction_powered(hits, torch.full_like(hits, 0.8), 0.8, 1000)
    assert float(value) == 1.0 and float(variance) ** 0.5 > 0.05


def test_prediction_powered_intervals_hold_and_are_narrower_than_those_of_hits_alone() -> None:
    chance = torch.Generator().manual_seed(0)
    scores = torch.rand(50_000, generator=chance, dtype=torch.float64) ** 0.3
    truth = float(scores.square().mean())  # the scores are too high
    picked = scores[torch.randint(len(scores), (4000, 60), generator=chance)]
    hits = (torch.rand(picked.shape, generator=chance, dtype=torch.float64) < picked.square()).double()
    value, variance = prediction_powered(hits, picked, scores.mean(), len(scores))
    inside = (value - truth).abs() <= 1.645 * variance.sqrt()
    assert 0.87 <= float(inside.double().mean()) <= 0.95
    assert float((value - truth).square().mean()) < 0.9 * float((hits.mean(1) - truth).square().mean())
    assert abs(float(value.mean()) - truth) < 0.005


def test_sums_forget_by_half_in_two_thousand_samples_and_at_a_change() -> None:
    still, changed = torch.tensor(False), torch.tensor(True)
    assert float(kept(torch.tensor(2000.0), still)) == 0.5
    assert float(kept(torch.tensor(0.0), changed)) == 0.5
    assert float(kept(torch.tensor(2000.0), changed)) == 0.25


def test_a_label_counts_by_its_weight() -> None:
    hits, scores = double(1, 1, 0, 1), double(0.9, 0.8, 0.4, 0.7)
    estimate, mean = double(0.8, 0.8, 0.7, 0.7), double(0.75, 0.75, 0.7, 0.7)
    sums = label_sums(hits, estimate, scores, mean, double(1, 1, 0.5, 0))
    d, q = hits - estimate, scores - mean
    expected = [2.5]
    expected += [float(d[0] * a + d[1] * b + d[2] * c / 2) for a, b, c in [(1, 1, 1), tuple(d[:3])]]
    expected += [float(q[0] * a + q[1] * b + q[2] * c / 2) for a, b, c in [(1, 1, 1), tuple(q[:3])]]
    expected += [float(q[0] * d[0] + q[1] * d[1] + q[2] * d[2] / 2)]
    expected += [2.0]
    assert sums.tolist() == pytest.approx(expected)


def test_without_labels_nothing_is_corrected_bit_for_bit() -> None:
    for logit in (-3.0, 0.1, 7.0, 12.0):
        for kind in (torch.float32, torch.float64):
            estimate, one = torch.tensor(logit, dtype=kind), torch.ones((), dtype=kind)
            sums = torch.zeros(7, dtype=kind)
            weight, offset = posterior(sums, estimate, 0.3 * one)
            row = believing(sums, weight, offset, estimate)
            assert row.tolist() == [0.0] * 10
            assert [float(each) for each in correction(row, estimate - 1)] == [0.0, 1.0]
            assert float(labelled_error(sums, estimate.sigmoid()).precision) == 0.0


def test_belief_fades_as_labels_forget() -> None:
    """Odds of o · f are those of a Gaussian prior where the labels have the part f of their weight left."""
    prior, variance, part = 0.03**2, 0.02**2, 0.25
    weight = prior / (prior + variance)
    estimate = double(1.3)[0]
    row = believing(NONE + 1, double(weight)[0], double(-0.8 * weight)[0], estimate)
    offset, left = correction(row, estimate)
    assert float(offset) == pytest.approx(-0.8 * weight) and float(left) == pytest.approx(1 - weight)
    offset, left = correction(part * row, estimate)
    later = prior / (prior + variance / part)
    assert float(offset) == pytest.approx(-0.8 * later) and float(left) == pytest.approx(1 - later)


def test_half_of_a_move_of_the_estimate_is_believed_as_far_as_labels_are() -> None:
    for weight in (0.0, 0.4, 0.999):
        row = believing(NONE + 1, double(weight)[0], double(-0.7)[0], double(1.3)[0])
        for moved in (-0.5, 0.0, 2.0):
            offset, left = correction(row, double(1.3 + moved)[0])
            assert float(offset) == pytest.approx(-0.7 - 0.5 * weight * moved)
            assert float(left) == pytest.approx(1 - weight)


def test_labels_of_another_estimate_are_measured_from_half_way_to_it() -> None:
    hits, scores = double(1, 0, 1, 1, 0, 1), double(0.9, 0.4, 0.8, 0.9, 0.7, 0.6)
    then, weights = double(0.8, 0.8, 0.8, 0.7, 0.7, 0.7), double(1, 1, 1, 0.5, 0.5, 0.5)
    sums = label_sums(hits, then, scores, double(0.7).expand(6), weights)
    plain = rectified(sums, double(0.6)[0])
    before = (0.8 * 3 + 0.7 * 1.5) / 4.5
    found = labelled_error(sums, double(0.6)[0])
    moved = 0.6 - before
    assert float(found.value) == pytest.approx(float(plain.value) - moved / 2)
    slope = float(plain.slope)
    sampled = max(float(plain.spread), 0.24 - slope * (2 - slope) * float(plain.scatter)) / 4.5
    assert float(found.sampled) == pytest.approx(1 / sampled)
    assert float(found.precision) == pytest.approx(1 / (sampled + (moved / 2) ** 2))


def test_the_posterior_is_its_formula() -> None:
    hits, scores = double(1, 0, 0, 1, 0, 0, 1, 0), double(0.9, 0.4, 0.8, 0.9, 0.7, 0.6, 0.95, 0.5)
    a = 0.8
    sums = label_sums(
        hits, torch.full_like(hits, a), scores, torch.full_like(hits, 0.7), torch.ones_like(hits)
    )
    found = posterior(sums, double(a)[0].logit(), double(0.6)[0])
    error, precision, _ = labelled_error(sums, double(a)[0])
    labelled = rectified(sums, double(a)[0])
    r, slope = float(labelled.value), float(labelled.slope)
    floor = a * (1 - a) - slope * (2 - slope) * float(labelled.scatter)
    variance = max(float(labelled.spread), floor) / 8
    sigma = a * (1 - a) * 0.6
    wide = max(0.1, 3 * sigma)

    def density(deviation: float) -> float:
        total = deviation**2 + variance
        return math.exp(-(r**2) / 2 / total) / math.sqrt(total)

    tail = 0.05 * density(wide) / (0.05 * density(wide) + 0.95 * density(sigma))
    near, far = (each**2 / (each**2 + variance) for each in (sigma, wide))
    weight = (1 - tail) * near + tail * far
    assert float(found[0]) == pytest.approx(weight)
    after = a + weight * r
    assert float(found[1]) == pytest.approx(math.log(after / (1 - after)) - math.log(a / (1 - a)))
    assert float(error) == pytest.approx(r)
    assert float(precision) == pytest.approx(1 / variance)


@pytest.mark.parametrize("accuracy", [0.7, 0.9, 0.97])
@pytest.mark.parametrize("doubt", [0.25, 0.4])
def test_ten_labels_are_no_worse_than_none_and_more_are_better(accuracy: float, doubt: float) -> None:
    """The mean squared error over true errors drawn as the doubt says; 10, 50 and 200 labels."""
    chance = torch.Generator().manual_seed(1)
    error = torch.randn(3000, 1, generator=chance, dtype=torch.float64) * doubt * accuracy * (1 - accuracy)
    error = error.clamp(-accuracy, 0.999 - accuracy)
    found = []
    for labels in (10, 50, 200):
        scores = 1 - torch.rand(3000, labels, generator=chance, dtype=torch.float64) ** 2 * (1 - accuracy) * 3
        scores = scores.clamp(0.05, 1)
        scores = scores + accuracy - scores.mean()
        hits = (torch.rand(scores.shape, generator=chance, dtype=torch.float64) < scores + error).double()
        after = corrected(hits, scores, accuracy, doubt)
        found.append(float((after - accuracy - error[:, 0]).square().mean() / error.square().mean()))
    assert found[0] <= 1.05 and found[1] < found[0] and found[2] < 0.8


@pytest.mark.parametrize("miss", [0.05, 0.1, 0.2])
def test_labels_are_believed_where_the_estimate_is_wrong_by_more_than_its_doubt(miss: float) -> None:
    chance = torch.Generator().manual_seed(2)
    errors = []
    for labels in (10, 50, 200):
        scores = 1 - 0.3 * torch.rand(2000, labels, generator=chance, dtype=torch.float64)
        scores = scores + 0.9 - scores.mean()
        hits = (torch.rand(scores.shape, generator=chance, dtype=torch.float64) < scores - miss).double()
        after = corrected(hits, scores, 0.9, 0.3)
        errors.append(float((after - 0.9 + miss).square().mean().sqrt()))
    assert errors[0] <= 1.05 * miss and errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.05


def test_all_labels_wrong_are_believed() -> None:
    hits = torch.zeros(40, dtype=torch.float64)
    assert float(corrected(hits, torch.full_like(hits, 0.9), 0.9, 0.3)) < 0.2


def test_adaptive_conformal_inference_is_its_formula_and_comes_to_its_coverage() -> None:
    level = torch.tensor(0.9, dtype=torch.float64)
    assert float(aci(level, torch.tensor(1.0), 0.9, 0.1)) == pytest.approx(0.9 + 0.1 * (0.9 - 1))
    needed = torch.rand(4000, generator=torch.Generator().manual_seed(3), dtype=torch.float64) ** 0.25
    covered = []
    for each in needed:  # the level that a label needs: far more than levels say
        covered.append(bool(each <= level))
        level = aci(level, torch.tensor(covered[-1]), 0.9, 0.05)
    assert abs(sum(covered) / len(covered) - 0.9) <= (1 + 0.05) / (0.05 * len(covered))


def test_an_estimate_that_has_come_down_by_itself_is_not_taken_below_what_labels_saw() -> None:
    draw = torch.Generator().manual_seed(0)
    hits = (torch.rand(1000, generator=draw, dtype=torch.float64) < 0.2).double()
    then, now = torch.full_like(hits, 0.7), torch.tensor(0.4, dtype=torch.float64)
    sums = label_sums(hits, then, then, then, torch.ones_like(hits))
    _, offset = posterior(sums, now.logit(), torch.tensor(1.0, dtype=torch.float64))
    corrected = float((now.logit() + offset).sigmoid())
    assert corrected == pytest.approx(float(hits.mean()), abs=0.04)
    _, offset = posterior(sums, then[0].logit(), torch.tensor(1.0, dtype=torch.float64))
    assert float((then[0].logit() + offset).sigmoid()) == pytest.approx(float(hits.mean()), abs=0.02)
