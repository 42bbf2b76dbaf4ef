"""The estimated accuracy and its interval against the formula written out."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.probabilities.accuracy import GROUPS, HeldOut
from equipoise.probabilities.tally import CELLS, calibrate, tally


def drawn(rows: int, seed: int = 0, scale: float = 1.5) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    probs = (scale * torch.randn(rows, 3, generator=draw, dtype=torch.float64)).softmax(1)
    return probs, torch.multinomial(probs, 1, generator=draw).squeeze(1)


@pytest.fixture(scope="module")
def held_out() -> HeldOut:
    probs, labels = drawn(4000)
    calibration, counts = calibrate(probs, labels)
    hits = int((probs.argmax(1) == labels).sum())
    return HeldOut(calibration, counts, hits, float(probs.amax(1).mean()))


def logit(share: float) -> float:
    return math.log(share / (1 - share))


def at_rest(held_out: HeldOut) -> float:
    """The accuracy of held-out rows as a logit, drawn towards their confidence by what chance may be."""
    n, a, c = held_out.counts.rows, held_out.right / held_out.counts.rows, held_out.confidence
    s2, delta = 1 / (n * a * (1 - a)), logit(a) - logit(c)
    return logit(a) - delta * s2 / (s2 + delta**2)


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def divergence(counts: "list[float]", others: "list[float]") -> float:
    """Σ p ln(p / q) over groups, with half a row more in each, less what chance makes of it."""
    n, m = sum(counts), sum(others)
    p = [(each + 0.5) / (n + 0.5 * len(counts)) for each in counts]
    q = [(each + 0.5) / (m + 0.5 * len(others)) for each in others]
    found = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    return max(0.0, found - (len(counts) - 1) / 2 * (1 / n + 1 / m))


@pytest.mark.parametrize(
    ("scale", "one_class"), [(0.5, False), (1.2, False), (1.5, True), (3.0, False), (10.0, True)]
)
def test_the_formula(held_out: HeldOut, scale: float, one_class: bool) -> None:
    probs, _ = drawn(2400 if one_class else 800, seed=1, scale=scale)
    probs = (probs[probs.argmax(1) == 0] if one_class else probs)[:800]
    rows = len(probs)
    counts, _ = tally(probs, held_out.calibration)
    before = held_out.counts.steps.sum(0).numpy()
    middle = (np.cumsum(before) - before / 2) / before.sum()
    group = np.minimum((middle * GROUPS).astype(int), GROUPS - 1)
    shares = [
        np.bincount(group, weights=each.steps.sum(0).numpy(), minlength=GROUPS).tolist()
        for each in (counts, held_out.counts)
    ]
    d = divergence(*shares)
    classes = divergence(*(each.steps.sum(1).tolist() for each in (counts, held_out.counts)))

    def confidence(steps: Tensor) -> float:
        return float((steps * held_out.calibration.right).sum() / steps.sum())

    rest = at_rest(held_out)
    gain = logit(confidence(counts.steps)) - logit(confidence(held_out.counts.steps))
    value = rest + (gain if gain < 0 else gain * math.exp(-2 * d)) - 0.25 * d
    a, b = sigmoid(value), sigmoid(rest)
    sampled = 1.645**2 * (1 / (rows * a * (1 - a) + 1) + 1 / (4000 * b * (1 - b) + 1))
    half = math.sqrt(0.2**2 + 1.7**2 * (d + classes) + sampled)

    distance = held_out.distance(counts)
    assert distance.confidence == pytest.approx(d, abs=1e-12)
    assert distance.classes == pytest.approx(classes, abs=1e-12)
    found = held_out.accuracy(counts, distance)
    assert found.value == pytest.approx(a, abs=1e-9)
    assert found.low == pytest.approx(sigmoid(value - half), abs=1e-9)
    assert found.high == pytest.approx(sigmoid(value + half), abs=1e-9)
    assert found.inside == (d + classes <= 0.1)


def test_the_discount_ends_at_chance(held_out: HeldOut) -> None:
    counts, _ = tally(torch.full((500, 3), 1 / 3, dtype=torch.float64), held_out.calibration)
    distance = held_out.distance(counts)
    assert distance.confidence > 2
    right = sigmoid(
        held_out.at_rest
        + logit(counts.expected(held_out.calibration))
        - logit(held_out.counts.expected(held_out.calibration))
    )
    assert held_out.accuracy(counts, distance).value == pytest.approx(min(right, 1 / 3), abs=1e-9)


def test_held_out_rows_themselves_have_their_accuracy(held_out: HeldOut) -> None:
    distance = held_out.distance(held_out.counts)
    assert distance.both == 0
    found = held_out.accuracy(held_out.counts, distance)
    assert found.value == pytest.approx(sigmoid(at_rest(held_out)), abs=1e-12)


@pytest.mark.parametrize(
    ("confidence", "by"), [(0.9, 0.0), (0.891, 0.5), (0.91, 0.5), (0.5, 0.05), (0.99, 0.05)]
)
def test_an_accuracy_that_chance_explains_is_drawn_towards_the_confidence(
    held_out: HeldOut, confidence: float, by: float
) -> None:
    counts = replace(held_out.counts, rows=1000)
    found = HeldOut(held_out.calibration, counts, 900, confidence)
    assert found.at_rest == pytest.approx(at_rest(found), abs=1e-12)
    errors = (logit(0.9) - found.at_rest) * math.sqrt(90)  # in standard errors
    assert errors * (0.9 - confidence) >= 0
    assert abs(errors) == pytest.approx(by, abs=0.05)


def test_the_noise_is_that_of_equal_distributions(held_out: HeldOut) -> None:
    distances = [
        held_out.distance(tally(drawn(500, seed)[0], held_out.calibration)[0]) for seed in range(200)
    ]
    assert sum(each.drift for each in distances) <= 2
    # A distance is 0 where chance made less of it than expected: half of all.
    assert np.mean([each.both > each.noise for each in distances]) < 0.4
    assert np.mean([each.both < 2.5 * each.noise for each in distances]) > 0.95


def test_steps_without_held_out_rows_have_a_group(held_out: HeldOut) -> None:
    groups = held_out.groups()
    assert len(groups) == CELLS
    assert int(groups[0]) == 0
    assert int(groups[-1]) == GROUPS - 1
    assert bool((groups.diff() >= 0).all())
