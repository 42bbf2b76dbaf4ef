import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torchmetrics import MeanMetric
from torchmetrics.wrappers import Running

from equipoise import metrics
from equipoise.errors import OptionError
from tests.metrics.reference import calibrated_stream, random_logits
from tests.metrics.test_stream_metrics import CLASSES, MAKERS, arguments, assert_same, every_metric, one_shot

WITH_INTERVAL = ("Accuracy", "ExpectedCalibrationError", "NegativeLogLikelihood", "BrierScore", "Entropy")


def window(name: str, size: int) -> metrics.Window:
    metric: Any = MAKERS[name]()
    return metrics.Window(metric, size)


@every_metric
@pytest.mark.parametrize("size", [1, 3, 9])
def test_answers_for_the_last_updates(name: str, size: int) -> None:
    logits, target = random_logits(0, 100, CLASSES, ties=True)
    recent, running = window(name, size), Running(MAKERS[name](), window=size)
    for end in range(20, 101, 20):
        batch = arguments(name, logits[end - 20 : end], target[end - 20 : end])
        recent.update(**batch)
        if end % 40:  # torchmetrics' own wrapper of our metric, by both of its ways
            running.update(**batch)
        else:
            running(**batch)
        inside = slice(max(0, end - 20 * size), end)
        for _ in range(2):
            assert_same(recent.compute(), one_shot(name, logits[inside], target[inside]))
        assert_same(recent.compute(), running.compute())


@pytest.mark.parametrize("name", WITH_INTERVAL)
def test_interval_is_that_of_the_last_updates(name: str) -> None:
    logits, target, _ = calibrated_stream(0, 300, sharpness=2)
    recent = window(name, 2)
    alone: Any = MAKERS[name]()
    for start in (0, 100, 200):
        recent.update(**arguments(name, logits[start : start + 100], target[start : start + 100]))
    alone.update(**arguments(name, logits[100:], target[100:]))
    assert_same(recent.interval(0.8), alone.interval(0.8))
    with pytest.raises(OptionError, match="level to be a float"):
        recent.interval(95)


@pytest.mark.parametrize("name", sorted(set(MAKERS) - set(WITH_INTERVAL)))
def test_says_that_there_is_no_interval(name: str) -> None:
    with pytest.raises(OptionError, match=f"metric with an interval, got {name}"):
        window(name, 2).interval()


@every_metric
def test_nothing_seen_is_nan_also_after_reset(name: str) -> None:
    nothing = one_shot(name, torch.zeros(0, CLASSES).double(), torch.zeros(0).long())
    recent = window(name, 2)
    for _ in range(2):
        with pytest.warns(UserWarning, match="before the ``update`` method"):
            assert_same(recent.compute(), nothing)
        if name in WITH_INTERVAL:
            assert all(math.isnan(end) for end in recent.interval())
        recent.update(**arguments(name, *random_logits(1, 10, CLASSES)))
        recent.reset()


@every_metric
def test_a_refused_batch_costs_nothing(name: str) -> None:
    logits, target = random_logits(2, 20, CLASSES)
    recent = window(name, 2)
    recent.update(**arguments(name, logits, target))
    with pytest.raises(OptionError, match="finite maximum, got 20 rows"):
        recent.update(**arguments(name, torch.full_like(logits, torch.inf), target))
    assert_same(recent.compute(), one_shot(name, logits, target))


@every_metric
def test_counts_the_skipped_rows_of_the_last_updates(name: str) -> None:
    logits, target = random_logits(4, 20, CLASSES)
    recent, counts = window(name, 2), []
    for bad in (3, 5, 7):
        answers = logits.clone()
        answers[:bad] = torch.nan
        recent.update(**arguments(name, answers, target))
        counts.append(recent.skipped)
    assert counts == [3, 8, 12]
    recent.reset()
    assert recent.skipped == 0


@every_metric
def test_pickle_and_copy_go_on_alone(name: str) -> None:
    logits, target = random_logits(3, 60, CLASSES, ties=True)
    recent = window(name, 2)
    for start in (0, 20):
        recent.update(**arguments(name, logits[start : start + 20], target[start : start + 20]))
    for twin in (pickle.loads(pickle.dumps(recent)), copy.deepcopy(recent)):
        twin.update(**arguments(name, logits[40:], target[40:]))
        assert_same(twin.compute(), one_shot(name, logits[20:], target[20:]))
    assert_same(recent.compute(), one_shot(name, logits[:40], target[:40]))


def test_state_does_not_grow_with_the_stream() -> None:
    short, long = (metrics.Window(metrics.Accuracy(), size=2) for _ in range(2))
    for recent, updates in ((short, 2), (long, 50)):
        for _ in range(updates):
            recent.update(probs=torch.eye(2), target=torch.tensor([0, 1]))
        recent.compute()
    assert len(pickle.dumps(short)) == len(pickle.dumps(long))


def test_an_infinite_batch_leaves_the_window() -> None:
    recent = metrics.Window(metrics.NegativeLogLikelihood(), size=1)
    recent.update(probs=torch.eye(2), target=torch.tensor([1, 0]))
    assert math.isinf(recent.compute())
    recent.update(probs=torch.eye(2), target=torch.tensor([0, 1]))
    assert float(recent.compute()) == 0


def test_leaves_the_metric_it_was_given_alone() -> None:
    metric = metrics.Accuracy()
    metric.update(probs=torch.eye(2), target=torch.tensor([0, 1]))
    recent = metrics.Window(metric, size=3)
    with torch.inference_mode():
        recent.update(probs=torch.eye(2), target=torch.tensor([0, 0]))
    recent.update(probs=torch.eye(2), target=torch.tensor([1, 0]))
    assert float(metric.compute()) == 1
    assert float(recent.compute()) == 0.25


def test_refuses_other_metrics_and_sizes() -> None:
    other: Any = MeanMetric()
    with pytest.raises(OptionError, match="stream metrics, got MeanMetric"):
        metrics.Window(other, size=3)
    sizes: list[Any] = [0, -1, 2.5, True, None]
    for size in sizes:
        with pytest.raises(OptionError, match="expected size"):
            metrics.Window(metrics.Accuracy(), size)
