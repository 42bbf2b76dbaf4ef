"""Labels that come late: the filter against its formulas, what is refused, and that few labels do no harm."""

import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.calibration.labels import prediction_powered
from equipoise.calibration.rehearsal import Estimate
from equipoise.errors import ForgottenRequestError, OptionError
from equipoise.probabilities import late
from equipoise.probabilities.late import NO_CLASS, Awaiting, with_labels


def drawn(rows: int, seed: int = 0, flips: float = 0.0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Probabilities with labels; a share of these is of another class than the probabilities say."""
    draw = torch.Generator().manual_seed(seed)
    probs = (scale * torch.randn(rows, 3, generator=draw)).softmax(1)
    labels = torch.multinomial(probs, 1, generator=draw).squeeze(1)
    other = torch.rand(rows, generator=draw) < flips
    return probs, torch.where(other, (labels + 1) % 3, labels)


@pytest.fixture
def estimator() -> eq.Estimator:
    return eq.Estimator.fit(*drawn(3000))


def chunk(first: int, free: Estimate, hits: list[int], rows: int = 50) -> Awaiting:
    """A chunk whose first rows have labels: right ones where hits are 1."""
    draw = torch.Generator().manual_seed(first)
    labels = torch.full((rows,), NO_CLASS, dtype=torch.int32)
    labels[: len(hits)] = 1 - torch.tensor(hits, dtype=torch.int32)
    return Awaiting(
        first, free, torch.rand(rows, generator=draw), torch.zeros(rows, dtype=torch.int32), labels
    )


def test_without_labels_nothing_changes(estimator: eq.Estimator) -> None:
    before = estimator.update(drawn(500, 1)[0])
    assert estimator.last == before
    assert estimator.label([], ids=[]) == 0
    assert estimator.last == before


def test_the_filter() -> None:
    frees = [Estimate(0.8, 0.7, 0.9, True), Estimate(0.6, 0.4, 0.75, True), Estimate(0.7, 0.6, 0.8, False)]
    chunks = [chunk(0, frees[0], [1, 0, 0, 1, 0]), chunk(50, frees[1], []), chunk(100, frees[2], [1] * 20)]
    parts = {"near": [0.95, 0.0, 1.0], "far": [0.05, 0.0, 1.0]}  # share, mean and variance of u
    for each, free, labels in zip(chunks, frees, (5, 0, 20), strict=True):
        sigma = (free.high - free.low) / 2 / late.NEAR
        scale = {"near": sigma, "far": max(0.3, 3 * sigma)}
        share = 0.05 + 0.9 * (parts["far"][0] - 0.05)
        for name, keeps in (("near", 0.5), ("far", 0.9)):
            _, mean, spread = parts[name]
            parts[name] = [share if name == "far" else 1 - share, keeps * mean, 1 - keeps**2 * (1 - spread)]
        if labels:
            scores = each.right.double()
            hits = (each.labels[:labels] == 0).double()
            value, variance = prediction_powered(hits, scores[:labels], scores.mean(), 50)
            s2 = float(variance) * (1 - labels / 50)
            y = float(value) - free.value
            for name, (share, mean, spread) in parts.items():
                prior = spread * scale[name] ** 2
                parts[name][0] = share * NormalDist(mean * scale[name], math.sqrt(prior + s2)).pdf(y)
                gain = prior / (prior + s2)
                parts[name][1:] = mean + gain * (y / scale[name] - mean), (1 - gain) * spread
            total = sum(share for share, *_ in parts.values())
            for own in parts.values():
                own[0] /= total
    found = with_labels(chunks)
    kinds = [
        (share, NormalDist(0.7 + scale[name] * mean, scale[name] * math.sqrt(spread)))
        for name, (share, mean, spread) in parts.items()
    ]
    assert found.value == pytest.approx(sum(share * kind.mean for share, kind in kinds), abs=1e-9)
    assert sum(share * kind.cdf(found.low) for share, kind in kinds) == pytest.approx(0.05, abs=1e-6)
    above = sum(share * kind.cdf(found.high) for share, kind in kinds)
    assert above == pytest.approx(0.95, abs=1e-6) if found.high < 1 else above <= 0.95
    assert not found.inside


def test_where_all_labels_have_come_the_accuracy_is_known(estimator: eq.Estimator) -> None:
    probs, labels = drawn(400, 5, flips=0.5)
    estimator.update(probs)
    assert estimator.label(labels) == 400
    found, truth = estimator.last.accuracy, float((probs.argmax(1) == labels).double().mean())
    assert (found.value, found.low, found.high) == pytest.approx((truth, truth, truth), abs=1e-6)
    named = estimator.probabilities(probs).gather(1, probs.argmax(1, keepdim=True))
    assert float(named.double().mean()) == pytest.approx(truth, abs=1e-3)


def test_labels_that_contradict_the_estimate_say_so(estimator: eq.Estimator) -> None:
    probs, _ = drawn(500, 3)
    assert estimator.update(probs).accuracy.inside
    estimator.label((probs.argmax(1)[:100] + 1) % 3, ids=range(100))  # all wrong
    assert not estimator.last.accuracy.inside
    assert float(estimator.last.accuracy) < 0.2


def test_labels_count_for_the_next_chunk_too(estimator: eq.Estimator) -> None:
    probs, labels = drawn(1000, 3, flips=0.6)
    free = float(estimator.update(probs).accuracy)
    estimator.label(labels)
    after = float(estimator.update(probs).accuracy)
    known = float((probs.argmax(1) == labels).double().mean())
    assert after < free
    # An error that the interval does not know lasts.
    assert abs(after - free) == pytest.approx(late.TAIL_KEEPS * abs(known - free), rel=0.05)


@pytest.mark.parametrize(("labels", "error"), [(25, 0.15), (50, 0.1), (200, 0.06)])
def test_labels_of_a_model_that_is_sure_and_wrong_are_believed(labels: int, error: float) -> None:
    held_out = drawn(3000, scale=9.0)
    errors, held = [], 0
    for seed in range(10, 25):
        probs, right = drawn(1000, seed, flips=0.45, scale=9.0)
        truth = float((probs.argmax(1) == right).double().mean())
        estimator = eq.Estimator.fit(*held_out)
        assert estimator.update(probs).accuracy.low > truth + 0.3
        estimator.label(right[:labels], ids=range(labels))
        found = estimator.last.accuracy
        errors.append(abs(found.value - truth))
        held += found.low <= truth <= found.high
    assert np.mean(errors) < error
    assert held >= 9


def test_a_label_that_comes_again_replaces_the_first(estimator: eq.Estimator) -> None:
    probs, labels = drawn(200, 3)
    estimator.update(probs)
    estimator.label((labels + 1) % 3)
    assert estimator.label(labels) == 200
    once = eq.Estimator.fit(*drawn(3000))
    once.update(probs)
    once.label(labels)
    assert estimator.last == once.last
    estimator.label([0, 1, 2], ids=[7, 7, 7])  # the last of a call counts
    once.label([2], ids=[7])
    assert estimator.last == once.last


def test_labels_of_earlier_chunks_find_their_rows(estimator: eq.Estimator) -> None:
    first, second = drawn(100, 1), drawn(100, 2)
    estimator.update(first[0])
    estimator.update(second[0])
    assert estimator.label(torch.cat([first[1][90:], second[1][:10]]), ids=torch.arange(90, 110)) == 20


def test_labels_by_name() -> None:
    names = ["cat", "dog", "eel"]
    probs, labels = drawn(300)
    table = pd.DataFrame(probs.numpy(), columns=names)
    estimator = eq.Estimator.fit(table, labels)
    estimator.update(table)
    assert estimator.label([names[each] for each in labels.tolist()]) == 300
    truth = float((probs.argmax(1) == labels).double().mean())
    assert float(estimator.last.accuracy) == pytest.approx(truth, abs=1e-6)


@pytest.mark.filterwarnings("ignore:.*rows are NaN")
def test_rows_of_nan_have_no_label_that_counts(estimator: eq.Estimator) -> None:
    probs, labels = drawn(100, 4)
    probs[:30] = math.nan
    estimator.update(probs)
    assert estimator.label(labels) == 70
    truth = float((probs[30:].argmax(1) == labels[30:]).double().mean())
    assert float(estimator.last.accuracy) == pytest.approx(truth, abs=1e-6)


def test_labels_of_rows_that_are_not_awaited_are_refused(
    estimator: eq.Estimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match="a chunk first"):
        estimator.label([0])
    with pytest.raises(ForgottenRequestError, match="before the first"):
        estimator.label([0], ids=[0])
    monkeypatch.setattr(late, "AWAITED_ROWS", 250)
    for seed in range(3):
        estimator.update(drawn(100, seed)[0])
    before = estimator.last
    for ids in ([250, 99], [300], [-1]):
        with pytest.raises(ForgottenRequestError, match="100 to 299"):
            estimator.label([0] * len(ids), ids=ids)
    with pytest.raises(OptionError, match="expected 2 labels"):
        estimator.label([0], ids=[150, 151])
    with pytest.raises(OptionError, match="whole numbers"):
        estimator.label([0], ids=[150.5])
    with pytest.raises(OptionError, match="labels among 0, 1, 2"):
        estimator.label([3], ids=[150])
    assert estimator.last == before


def test_a_saved_estimator_keeps_its_labels(estimator: eq.Estimator, tmp_path: Path) -> None:
    for seed in (1, 2):
        probs, labels = drawn(300, seed, flips=0.3)
        estimator.update(probs)
        estimator.label(labels[:40], ids=estimator.last.ids[:40])
    estimator.save(tmp_path / "estimator.safetensors")
    again = eq.Estimator.load(tmp_path / "estimator.safetensors")
    assert again.last == estimator.last
    assert again.label(labels[40:80], ids=range(340, 380)) == estimator.label(labels[40:80], range(340, 380))
    later = drawn(200, 7)[0]
    assert again.update(later) == estimator.update(later)


@pytest.mark.parametrize("labels", [1, 10, 50])
def test_few_labels_are_no_worse_than_none(labels: int) -> None:
    """Where the interval without labels is honest, over accuracies drawn from it."""
    draw = np.random.default_rng(0)
    without, labelled, held = [], [], []
    for trial in range(1500):
        truth = float(np.clip(0.8 + 0.06 * draw.standard_normal(), 0, 1))
        hits = (draw.random(500) < truth).astype(int)
        half = 1.645 * 0.06
        free = Estimate(0.8, 0.8 - half, 0.8 + half, True)
        right = torch.full((500,), 0.8)
        own = torch.full((500,), NO_CLASS, dtype=torch.int32)
        own[:labels] = torch.from_numpy(1 - hits[:labels]).int()
        found = with_labels([Awaiting(500 * trial, free, right, torch.zeros(500, dtype=torch.int32), own)])
        known = hits.mean()
        without.append((0.8 - known) ** 2)
        labelled.append((found.value - known) ** 2)
        held.append(found.low <= known <= found.high)
    assert np.mean(labelled) < 1.01 * np.mean(without)
    assert 0.85 <= np.mean(held) <= 0.97
