import json
import math

import pytest
import torch

from equipoise.demo.experiment import score_domain
from equipoise.demo.results import (
    best_shown,
    mean_accuracy,
    mean_confidence,
    mean_scores,
    pairs,
    pooled_reliability,
    to_json,
)
from equipoise.metrics import reliability_bins
from tests.demo.handmade import method, poise, reliability, results


def test_pooled_bins_are_weighted_by_their_counts() -> None:
    first = reliability([1, 0, 4], [0.2, None, 0.8], [1.0, None, 0.5])
    second = reliability([3, 0, 0], [0.1, None, None], [0.0, None, None])
    pooled = pooled_reliability([first, second])
    assert pooled["count"] == [4, 0, 4]
    assert pooled["confidence"] == [pytest.approx(0.125), None, pytest.approx(0.8)]
    assert pooled["accuracy"] == [pytest.approx(0.25), None, pytest.approx(0.5)]
    assert mean_confidence(pooled) == pytest.approx((0.2 + 3 * 0.1 + 4 * 0.8) / 8)
    assert mean_accuracy(pooled) == pytest.approx(3 / 8)


def test_pooling_equals_binning_everything_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(90, 10, generator=generator) * 2
    labels = torch.randint(0, 10, (90,), generator=generator)
    pooled = pooled_reliability(
        [
            score_domain(logits[:30], labels[:30])["reliability"],
            score_domain(logits[30:], labels[30:])["reliability"],
        ]
    )
    whole = reliability_bins(logits=logits, target=labels)
    assert pooled["count"] == whole.count.tolist()
    for mine, theirs in zip(pooled["accuracy"], whole.accuracy.tolist(), strict=True):
        assert math.isnan(theirs) if mine is None else mine == pytest.approx(theirs, abs=1e-6)


def test_mean_counts_every_domain_the_same() -> None:
    rows = [method("a", ece=0.1)["mean"], method("b", ece=0.4)["mean"]]
    assert mean_scores(rows)["ece"] == pytest.approx(0.25)


def test_best_is_high_accuracy_and_low_error() -> None:
    rows = [method("a", accuracy=0.4, ece=0.1)["mean"], method("b", accuracy=0.6, ece=0.3)["mean"]]
    assert best_shown(rows, "accuracy") == "0.600"
    assert best_shown(rows, "ece") == "0.100"
    assert best_shown(rows, "entropy") is None


def test_a_pair_is_a_method_raw_and_tempered() -> None:
    rows = [method("a"), method("a", "median", ece=0.1), *poise(mean_ece=0.3, median_ece=0.4)]
    found = pairs(results(*rows))
    assert [pair.label for pair in found] == ["a", "poise", "poise (median)"]
    assert [(p.scores()[0]["ece"], p.scores("mnist")[1]["ece"]) for p in found] == [
        (0.2, 0.1),
        (0.2, 0.3),
        (0.2, 0.4),
    ]


def test_json_refuses_nan() -> None:
    assert json.loads(to_json(results(method("a"))))["methods"][0]["label"] == "a"
    with pytest.raises(ValueError, match="JSON"):
        to_json(results(method("a", nll=math.nan)))
