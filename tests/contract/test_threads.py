"""Several threads with one adapter: every answer is one that some serial order of the calls gives."""

import copy
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import drifted, make, rehearsed
from tests.support.waiting import HANG


class Slow(nn.Module):
    """A model that lets other threads run in the middle of its forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.002)
        logits: Tensor = self.inner(x)
        time.sleep(0.002)
        return logits


@pytest.fixture(autouse=True)
def _threads_alternate_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def slow(name: str) -> eq.Adapter:
    model = Slow(make()[0])
    source = eq.SourceStatistics(h0=0.5, kappa=2.0, num_classes=5)
    if name == "tempered":
        return eq.Tempered(eq.create("tent", model, learning_rate=0.05), source)
    options: dict[str, Any] = {"source_copy": "swapped"} if name == "dec" else {}
    if name in ("dec", "tent"):
        options["learning_rate"] = 0.05
    return eq.create(name, model, source, **options)


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@pytest.mark.parametrize("name", ["poise", "dec", "tent", "t3a", "tempered"])
def test_predictions_while_another_thread_learns_are_those_of_a_serial_order(name: str) -> None:
    adapter, serial, x = slow(name), slow(name), drifted(6, 99)
    answers, possible = [], [serial.predict(x)]
    for seed in range(6):
        answers.append(serial(drifted(6, seed)))
        possible.append(serial.predict(x))

    def learn() -> list[Tensor]:
        return [adapter(drifted(6, seed)) for seed in range(6)]

    def predict() -> list[Tensor]:
        return [adapter.predict(x) for _ in range(12)]

    learned, *predicted = in_threads([learn, predict, predict])
    assert all(torch.equal(came, expected) for came, expected in zip(learned, answers, strict=True))
    for answer in (answer for part in predicted for answer in part):
        assert any(torch.equal(answer, expected) for expected in possible)


def _run(call: Callable[[], Any], done: threading.Event) -> None:
    call()
    done.set()


def test_every_call_that_reads_or_changes_state_waits() -> None:
    model, source = make()
    adapter = eq.Poise(model, rehearsed(source, "poise"))
    adapter(drifted(6))
    state = adapter.state_dict()
    calls: dict[str, Callable[[], Any]] = {
        "forward": lambda: adapter(drifted(6)),
        "predict": lambda: adapter.predict(drifted(6)),
        "source_logits": lambda: adapter.source_logits(drifted(6)),
        "reset": adapter.reset,
        "detach": adapter.detach,
        "state_dict": adapter.state_dict,
        "load_state_dict": lambda: adapter.load_state_dict(state),
        "to": lambda: adapter.to("cpu"),
        "deepcopy": lambda: copy.deepcopy(adapter),
        "footprint": adapter.footprint,
        "describe": adapter.describe,
    }
    facts = ("last", "accuracy", "source_accuracy", "temperature", "memory", "execution")
    calls |= {name: partial(getattr, adapter, name) for name in facts}
    for name, call in calls.items():
        done = threading.Event()
        thread = threading.Thread(target=_run, args=(call, done))
        with adapter._lock:
            thread.start()
            assert not done.wait(0.02), f"{name} did not wait"
        assert done.wait(HANG), f"{name} never came back"
        thread.join()


def test_threads_that_change_everything_leave_a_whole_adapter() -> None:
    adapter = slow("dec")

    def change() -> None:
        for seed in range(3):
            adapter(drifted(6, seed))
            adapter.reset()
            adapter.load_state_dict(adapter.state_dict())
            adapter.to("cpu")
            last = adapter.last
            assert last is None or last.samples == 6

    in_threads([change] * 3)
    adapter.reset()
    fresh = slow("dec")
    assert torch.equal(adapter(drifted(6)), fresh(drifted(6)))


def test_copies_have_a_lock_of_their_own() -> None:
    model, source = make()
    adapter = eq.Tempered(eq.create("tent", model), source)
    for twin in (copy.deepcopy(adapter), pickle.loads(pickle.dumps(adapter))):
        assert twin._lock is twin.adapter._lock
        assert twin._lock is not adapter._lock
        with adapter._lock:
            answer = in_threads([partial(twin, drifted(6))])[0]
        assert answer.shape == (6, 5)
    assert not any("lock" in name for name in adapter.state_dict())


def test_a_tempered_adapter_and_the_one_inside_share_a_lock() -> None:
    model, source = make()
    adapter = eq.create("tent", model)
    assert eq.Tempered(adapter, source)._lock is adapter._lock
