"""Labels that come late: the filter against its formulas, what is refused, and that few labels do no harm."""

import math
from pathlib import Path

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


def drawn(rows: int, seed: int = 0, flips: float = 0.0) -> tuple[Tensor, Tensor]:
    """Probabilities with labels; a share of these is of another class than the probabilities say."""
    draw = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(rows, 3, generator=draw)).softmax(1)
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
    mean, spread = 0.0, 1.0
    for each, free, labels in zip(chunks, frees, (5, 0, 20), strict=True):
        sigma = (free.high - free.low) / 2 / 1.645
        mean, spread = 0.5 * mean, 0.25 * spread + 0.75
        if labels:
            scores = each.right.double()
            hits = (each.labels[:labels] == 0).double()
            value, variance = prediction_powered(hits, scores[:labels], scores.mean(), 50)
            s2 = float(variance) * (1 - labels / 50)
            gain = spread * sigma**2 / (spread * sigma**2 + s2)
            mean += gain * ((float(value) - free.value) / sigma - mean)
            spread *= 1 - gain
    found = with_labels(chunks)
    half = 1.645 * sigma * math.sqrt(spread)
    assert found.value == pytest.approx(0.7 + sigma * mean, abs=1e-9)
    assert found.low == pytest.approx(found.value - half, abs=1e-9)
    assert found.high == pytest.approx(min(1, found.value + half), abs=1e-9)
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
    assert abs(after - free) == pytest.approx(late.KEEPS * abs(known - free), rel=0.05)


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
