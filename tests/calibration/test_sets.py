"""Prediction sets, their scores and thresholds, against loops over classes and samples."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.calibration.sets import FREE_RANKS, RANK_PENALTY, SCORES, class_scores, set_threshold
from equipoise.errors import BatchError, OptionError


def _score(p: list[float], label: int, score: str) -> float:
    """The score of a class by a loop over the others."""
    if score == "lac":
        return 1 - p[label]
    ahead = [k for k in range(len(p)) if p[k] > p[label] or (p[k] == p[label] and k < label)]
    penalty = RANK_PENALTY * max(0, len(ahead) + 1 - FREE_RANKS) if score == "raps" else 0.0
    return sum(p[k] for k in ahead) + penalty


@pytest.mark.parametrize("score", SCORES)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=12))
def test_class_scores_are_those_of_a_loop(score: str, weights: list[int]) -> None:
    p = torch.tensor(weights, dtype=torch.float64)
    p = p / p.sum()
    expected = [_score(p.tolist(), label, score) for label in range(len(weights))]
    assert class_scores(p, score).tolist() == pytest.approx(expected)


def test_ties_of_aps_go_to_the_lower_index() -> None:
    p = torch.full((4,), 0.25, dtype=torch.float64)
    assert class_scores(p, "aps").tolist() == [0, 0.25, 0.5, 0.75]


def test_raps_penalises_the_sixth_class() -> None:
    p = torch.full((8,), 1 / 8, dtype=torch.float64)
    extra = class_scores(p, "raps") - class_scores(p, "aps")
    assert extra.tolist() == pytest.approx([0, 0, 0, 0, 0, RANK_PENALTY, 2 * RANK_PENALTY, 3 * RANK_PENALTY])


def _logits(p: list[list[float]]) -> Tensor:
    return torch.tensor(p, dtype=torch.float64).log()


def test_sets_are_the_classes_below_the_threshold() -> None:
    logits = _logits([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]])
    assert eq.sets(logits, 0.62).tolist() == [[True, False, False], [True, False, False]]
    assert eq.sets(logits, 0.66).tolist() == [[True, False, False], [True, True, False]]
    assert eq.sets(logits, 0.72, score="aps").tolist() == [[True, True, False], [True, True, False]]


def test_sets_can_be_empty_by_lac_and_never_by_aps() -> None:
    logits = _logits([[0.5, 0.5]])
    assert not eq.sets(logits, 0.4).any()
    assert eq.sets(logits, 0.0, score="aps").tolist() == [[True, False]]
    assert eq.sets(logits, 0.0, score="raps").tolist() == [[True, False]]


@pytest.mark.parametrize("score", SCORES)
def test_sets_of_an_infinite_threshold_are_full(score: str) -> None:
    assert eq.sets(torch.randn(5, 1000), math.inf, score=score).all()


@pytest.mark.parametrize("score", SCORES)
def test_rows_with_nan_have_all_classes(score: str) -> None:
    logits = _logits([[0.9, 0.1], [0.9, 0.1]])
    logits[1, 0] = math.nan
    assert eq.sets(logits, 0.2, score=score).tolist() == [[True, False], [True, True]]


def test_sets_of_half_precision_are_those_of_single() -> None:
    logits = torch.randn(40, 6).bfloat16()
    assert torch.equal(eq.sets(logits, 0.7), eq.sets(logits.float(), 0.7))


def test_sets_need_a_matrix_of_floats() -> None:
    with pytest.raises(BatchError, match=r"expected logits \(N, C\)"):
        eq.sets(torch.zeros(3), 0.5)
    with pytest.raises(BatchError, match="int64"):
        eq.sets(torch.zeros(3, 2, dtype=torch.int64), 0.5)
    with pytest.raises(OptionError, match="score"):
        eq.sets(torch.zeros(3, 2), 0.5, score="margin")


@pytest.mark.parametrize(
    ("count", "coverage", "place"), [(9, 0.9, 9), (19, 0.9, 18), (99, 0.9, 90), (4, 0.5, 3)]
)
def test_threshold_is_the_quantile_of_split_conformal_prediction(
    count: int, coverage: float, place: int
) -> None:
    scores = torch.arange(1, count + 1).double()[torch.randperm(count)]
    assert set_threshold(scores, coverage) == place


def test_threshold_beyond_the_scores_is_infinite() -> None:
    assert set_threshold(torch.rand(8), 0.9) == math.inf
    assert set_threshold(torch.rand(0), 0.9) == math.inf


def test_threshold_ignores_nan_and_takes_a_coverage_of_zero() -> None:
    assert set_threshold(torch.tensor([math.nan, 3.0, 1.0]), 0.0) == 1
    with pytest.raises(OptionError, match="coverage"):
        set_threshold(torch.rand(8), 1.5)


@pytest.mark.parametrize("score", SCORES)
def test_split_conformal_sets_cover_exchangeable_samples(score: str) -> None:
    torch.manual_seed(0)
    logits = 2 * torch.randn(40_000, 5)
    target = torch.distributions.Categorical(logits=logits / 1.7).sample()
    own = class_scores(logits.softmax(1), score).gather(1, target[:, None])[:, 0]
    threshold = set_threshold(own[:20_000], 0.9)
    held = eq.sets(logits[20_000:], threshold, score=score).gather(1, target[20_000:, None]).float().mean()
    assert abs(float(held) - 0.9) < 0.01
