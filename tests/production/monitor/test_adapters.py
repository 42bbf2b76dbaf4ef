"""A monitor around adapters: every method, bad samples, threads, drift of statistics, a guard."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core.recent import recent_samples
from equipoise.errors import ForgottenRequestError
from tests.support.rehearsals import rehearsed, samples, trained


@pytest.mark.parametrize("method", eq.list_methods())
def test_every_method_answers_as_without_a_monitor(method: str) -> None:
    source = rehearsed() if method in ("poise", "tent") else measured_of_trained()
    alone, inner = (eq.create(method, trained(), source) for _ in range(2))
    monitor, labels = eq.Monitor(inner, window=32), {}
    for seed in range(6):
        x, y = samples(16, seed)
        assert monitor(x, request=str(seed)).equal(alone(x))
        labels[str(seed)] = y
    for request, y in labels.items():
        monitor.label(request, y)
    gauges = monitor.gauges()
    assert gauges["samples"] == 32
    assert gauges["labels"] == 32
    step = inner.last
    assert step is not None
    assert ("agreement" in gauges) == (step.source_logits is not None)
    assert ("accuracy" in gauges) == (step.accuracy is not None)
    assert ("temperature" in gauges) == (step.temperature is not None)
    assert monitor.totals()["batches"] == 6


def measured_of_trained() -> eq.SourceStatistics:
    return eq.SourceStatistics.measure(
        trained(), [samples(50, seed) for seed in range(3)], fisher=True, features=True, progress=False
    )


def test_samples_that_the_adapter_sets_aside_are_counted() -> None:
    monitor = eq.Monitor(eq.Poise(trained(), rehearsed()))
    x, y = samples(10)
    x[2] = torch.nan
    logits = monitor(x, request="a")
    assert logits[2].isnan().all()
    assert monitor.gauges()["set_aside"] == pytest.approx(0.1)
    monitor.label("a", y)
    assert monitor.gauges()["labels"] == 9


def test_the_estimate_is_that_of_the_adapter() -> None:
    adapter = eq.Poise(trained(), rehearsed())
    monitor = eq.Monitor(adapter)
    for seed in range(3):
        monitor(samples(16, seed)[0])
    estimate, gauges = adapter.accuracy, monitor.gauges()
    assert estimate is not None
    assert (gauges["accuracy"], gauges["accuracy_low"], gauges["accuracy_high"]) == (
        estimate.value,
        estimate.low,
        estimate.high,
    )


def test_statistics_that_follow_the_stream_are_at_a_distance_from_the_source() -> None:
    model = trained()
    adapter = eq.create("norm", model, measured_of_trained())
    assert adapter.statistics_shift() == pytest.approx(0, abs=1e-6)
    monitor = eq.Monitor(adapter)
    for seed in range(4):
        monitor(3 + 2 * samples(16, seed)[0])
    distances = []
    for name, module in adapter.student.named_modules():
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            own: Any = module
            theirs: Any = model.get_submodule(name)
            apart = (own.running_mean - theirs.running_mean) ** 2
            apart += (own.running_var**0.5 - theirs.running_var**0.5) ** 2
            distances.append((apart / theirs.running_var).mean() ** 0.5)
    expected = float(torch.stack(distances).mean())
    assert expected > 0.2
    assert monitor.gauges()["statistics_shift"] == pytest.approx(expected, rel=1e-4)


DECISIONS = {"coverage", "coverage_low", "coverage_high", "answered_share"}


@pytest.mark.parametrize("guarded", [False, True])
def test_decisions_are_those_of_the_adapter_read_twice_a_window(guarded: bool) -> None:
    adapter = eq.Poise(trained(), rehearsed())
    monitor = eq.Monitor(eq.Guarded(adapter) if guarded else adapter, window=100)
    expected: dict[str, float] = {}
    for seed, rows in enumerate((4, 20, 20, 40, 20, 30)):  # read after the first, the fourth and the last
        x, _ = samples(rows, seed)
        monitor(x + 0.5 * seed)
        if seed in (0, 3, 5):
            coverage = adapter.coverage(0.9)
            expected = {
                "coverage": coverage.value,
                "coverage_low": coverage.low,
                "coverage_high": coverage.high,
                "answered_share": adapter.decide(logits=torch.zeros(1, 4), accuracy=0.95).share,
            }
        gauges = monitor.gauges()
        assert {name: gauges[name] for name in DECISIONS} == expected
    assert not DECISIONS & monitor.totals().keys()
    again = eq.Monitor(window=100)
    again.load(monitor.state())
    assert again.gauges() == monitor.gauges()


def test_decisions_of_a_window_ago_are_gone() -> None:
    adapter = eq.Poise(trained(), rehearsed())
    monitor = eq.Monitor(adapter, window=20)
    monitor(samples(10)[0])
    for rows in (10, 9, 1):
        assert monitor.gauges().keys() >= DECISIONS
        by_source = replace(step_of(adapter), answered_by="source")  # another model answers
        monitor.observe(torch.zeros(rows, 4), by_source)
    assert not DECISIONS & monitor.gauges().keys()


def step_of(adapter: eq.Adapter) -> eq.Step:
    assert adapter.last is not None
    assert adapter.last.answered_by == "student"
    return adapter.last


def test_without_a_rehearsal_there_are_no_decisions() -> None:
    monitor = eq.Monitor(eq.create("norm", trained()))
    monitor(samples(8)[0])
    assert not DECISIONS & monitor.gauges().keys()


def test_a_state_of_before_there_were_decisions_is_taken() -> None:
    adapter = eq.Poise(trained(), rehearsed())
    monitor, again = (eq.Monitor(adapter, window=20) for _ in range(2))
    monitor(samples(10)[0])
    state = monitor.state()
    for name in ("decisions", "decided"):
        del state["numbers"][name]
    again.load(state)
    assert again.gauges() == {name: v for name, v in monitor.gauges().items() if name not in DECISIONS}


def test_a_model_without_statistics_has_no_distance_of_them() -> None:
    adapter = eq.create("source", trained())
    monitor = eq.Monitor(adapter)
    monitor(samples(4)[0])
    assert "statistics_shift" not in monitor.gauges()


def test_threads_may_share_a_monitor() -> None:
    monitor = eq.Monitor(eq.create("norm", trained()), window=50, keep=100)

    def use(number: int) -> None:
        monitor(samples(4, number)[0], request=str(number))
        monitor.gauges()
        monitor.rows()
        monitor.totals()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(60)))
    totals = monitor.totals()
    assert (totals["samples"], totals["batches"]) == (240, 60)
    assert [row["index"] for row in monitor.rows()] == list(range(1, 61))


class Guard:
    """Stands in for a guarded adapter: holds every third batch, and acts when it is told to."""

    def __init__(self) -> None:
        self.events: tuple[Any, ...] = (SimpleNamespace(action="snapshot"),)
        self.last: eq.Step | None = None

    def __call__(self, x: Tensor, *actions: str) -> Tensor:
        self.events = (*self.events, *(SimpleNamespace(action=action) for action in actions))[-3:]
        return x


def test_events_of_a_guard_are_counted_once_though_it_forgets_older_ones() -> None:
    guard = Guard()
    monitor = eq.Monitor(guard)
    x = torch.zeros(2, 3)
    monitor(x, "hold", "release")
    monitor(x)
    monitor(x, "hold", "rollback")
    totals = monitor.totals()
    assert "events_snapshot" not in totals  # it was before the monitor
    assert [totals[f"events_{a}"] for a in ("hold", "release", "rollback")] == [2, 1, 1]


def test_the_record_of_an_earlier_batch_is_not_taken_again() -> None:
    guard = Guard()
    adapter = eq.Poise(trained(), rehearsed())
    adapter(samples(4)[0])
    guard.last = adapter.last
    monitor = eq.Monitor(guard)
    monitor(torch.zeros(4, 4))
    assert "accuracy" in monitor.gauges()
    monitor(torch.zeros(4, 4))
    assert monitor.frame()["estimated_accuracy"].isna().tolist() == [False] * 4 + [True] * 4
    assert monitor.gauges()["accuracy"] == monitor.rows()[0]["accuracy"]  # the last that there is


@pytest.mark.parametrize("wrapped", [False, True])
def test_labels_reach_the_adapter_once(wrapped: bool) -> None:
    adapter = eq.Poise(trained(), rehearsed())
    monitor = eq.Monitor(eq.Guarded(adapter) if wrapped else adapter)
    x, y = samples(16)
    logits = monitor(x, request="a")
    before = adapter.accuracy
    monitor.label("a", (logits.argmax(1) + 1) % 4)
    assert adapter.labels == 16
    after = adapter.accuracy
    assert before is not None and after is not None and after.value < before.value
    monitor.label("a", y)
    assert adapter.labels == 16
    assert adapter.accuracy == after


def test_labels_that_the_adapter_has_had_count_once() -> None:
    adapter = eq.Poise(trained(), rehearsed())
    monitor = eq.Monitor(adapter)
    for seed in range(2):
        x, y = samples(16, seed)
        monitor(x, request=str(seed))
    adapter.label(y)
    monitor.label("1", y)
    assert adapter.labels == 16
    monitor.label("0", samples(16, 0)[1])
    assert adapter.labels == 32


@pytest.mark.parametrize("joined", [False, True])
def test_the_requests_of_a_batch_have_their_own_samples(joined: bool) -> None:
    adapter = eq.Poise(trained(), rehearsed())
    monitor = eq.Monitor(adapter)
    x, y = samples(16)
    if joined:
        monitor.observe(adapter(x), adapter.last, request={"a": 6, "b": 10})
        monitor.label("b", y[6:])
    else:
        monitor(x, request="b")
        monitor.label("b", y)
    adapter.label(y)
    assert adapter.labels == 16


def test_labels_of_answers_that_the_adapter_has_forgotten_count_by_their_logits() -> None:
    adapter = eq.Poise(trained(), rehearsed())
    monitor = eq.Monitor(adapter)
    x, y = samples(16)
    monitor(x, request="a")
    rows = recent_samples(4)
    for seed in range(rows // 256 + 1):
        adapter(samples(256, seed)[0])
    with pytest.raises(ForgottenRequestError):
        adapter.label(y, range(16))
    monitor.label("a", y)
    assert adapter.labels == 16


@pytest.mark.parametrize("kind", ["plain", "tempered", "guarded"])
@pytest.mark.parametrize("between", [0, 2])
def test_labels_of_answers_from_before_a_reset_are_not_the_adapters(kind: str, between: int) -> None:
    inner: Any = eq.Poise(trained(), rehearsed())
    if kind == "tempered":
        inner = eq.Tempered(eq.Poise(trained(), rehearsed(), tempering="none"), rehearsed(), "rehearsed")
    adapter = eq.Guarded(inner) if kind == "guarded" else inner
    monitor = eq.Monitor(adapter)
    x, y = samples(8)
    monitor(x, request="before")
    adapter.reset()
    for seed in range(between):
        monitor(x, request=str(seed))
    assert monitor.label("before", y) > 0
    assert inner.labels == 0
    if between:
        monitor.label("1", y)
        assert inner.labels == 8


def test_an_adapter_of_several_processes_gets_no_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = eq.Poise(trained(), rehearsed())
    monitor = eq.Monitor(adapter)
    x, y = samples(8)
    monitor(x, request="a")
    monkeypatch.setattr(eq.Adapter, "processes", 2)
    monitor.label("a", y)
    assert monitor.gauges()["labels"] == 8


def test_decisions_of_a_tempered_adapter_are_its_own() -> None:
    inner = eq.Poise(trained(), rehearsed(), tempering="none")
    adapter = eq.Tempered(inner, rehearsed(), "rehearsed")
    monitor = eq.Monitor(adapter)
    monitor(samples(16)[0])
    coverage, gauges = adapter.coverage(0.9), monitor.gauges()
    names = ("coverage", "coverage_low", "coverage_high")
    assert tuple(gauges[name] for name in names) == (coverage.value, coverage.low, coverage.high)


def test_an_adapter_without_a_rehearsal_needs_no_labels() -> None:
    monitor = eq.Monitor(eq.create("tent", trained(), measured_of_trained(), tempering="none"))
    x, y = samples(16)
    monitor(x, request="a")
    monitor.label("a", y)
    assert monitor.gauges()["labels"] == 16


def test_a_guarded_adapter_is_watched_with_its_events_and_gets_the_labels() -> None:
    guarded = eq.Guarded(eq.Poise(trained(), rehearsed()))
    monitor = eq.Monitor(guarded, window=16)
    wrong = 0
    for seed in range(6):
        x, y = samples(8, seed)
        if seed == 2:
            guarded.hold("a test")
        logits = monitor(x, request=str(seed))
        if seed == 3:
            guarded.release()
        wrong += int((logits.argmax(1) != y).sum())
        monitor.label(str(seed), y)
    totals = monitor.totals()
    assert (totals["events_hold"], totals["events_release"], totals["batches"]) == (1, 1, 6)
    assert totals["true_accuracy"] == pytest.approx(1 - wrong / 48)
    assert "accuracy" in monitor.gauges()
    assert "statistics_shift" in monitor.gauges()
