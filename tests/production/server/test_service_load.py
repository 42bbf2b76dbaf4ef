"""Many clients at once: bounded waiting, bounded latency, and no rows mixed up."""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.production.server.errors import BusyError, InputError
from equipoise.production.server.interface import Prediction
from equipoise.production.server.learner import SPAN, BusyShare
from equipoise.production.server.limits import Limits
from equipoise.production.server.request_queue import Request, RequestQueue
from tests.production.server.support import PATIENT, adapter, ask, batch, labels, probabilities, service
from tests.support.rehearsals import trained
from tests.support.waiting import HANG, wait_until


def test_the_share_is_an_exponential_average_of_work_over_time() -> None:
    share, expected = BusyShare(), 0.0
    for waited, worked in [(0.1, 0.3), (0.0, 0.5), (2.0, 0.1), (0.0, 0.0)]:
        share.add(waited, worked)
        passed = waited + worked
        if passed:
            kept = math.exp(-passed / SPAN)
            expected = kept * expected + (1 - kept) * worked / passed
        assert share.value == pytest.approx(expected)


def test_a_thread_that_only_works_comes_to_one_and_one_that_waits_to_zero() -> None:
    share = BusyShare()
    for _ in range(100):
        share.add(0.0, 0.1)
    assert share.value > 0.99
    share.add(20.0, 0.0)
    assert share.value < 0.01


CLASSES = 16


class Marked(nn.Module):
    """A classifier whose class is the first number of the sample; it refuses a sample of 99."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(CLASSES) * 50)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x[:, 0] == 99).any()):
            raise RuntimeError("a sample of 99")
        return self.weight[x[:, 0].long().clamp(0, CLASSES - 1)]


class Gate(nn.Module):
    """A classifier that waits in training threads until it is opened; the source model's copy never waits."""

    opened = threading.Event()

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        if threading.current_thread().name == "learner":
            Gate.opened.wait(HANG)
        logits: Tensor = self.inner(x)
        return logits


@pytest.fixture
def gate() -> Any:
    Gate.opened.clear()
    yield Gate.opened
    Gate.opened.set()


def gated() -> eq.Adapter:
    return eq.create("norm", Gate(trained()), engine="eager")


def test_200_clients_at_once_get_their_own_rows(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    marks = [draw.integers(CLASSES, size=int(draw.integers(1, 5))) for _ in range(200)]
    barrier = threading.Barrier(200)

    def client(index: int) -> Prediction:
        barrier.wait()
        inputs = np.stack([marks[index], np.full(len(marks[index]), index)], 1).astype(np.float32)
        return ask(own, f"camera-{index % 7}", inputs)

    own = service(tmp_path, adapter=eq.create("source", Marked()), waiting=200)
    with own, ThreadPoolExecutor(200) as pool:
        opened = threading.Event()
        own._queue.run(opened.wait)
        asked = pool.map(client, range(200))
        wait_until(lambda: len(own._queue) > 7, "two requests of one stream")
        opened.set()
        answers = list(asked)
        for index, answer in enumerate(answers):
            assert answer.classes == marks[index].tolist()
            assert answer.stream == f"camera-{index % 7}"
            assert own.label(answer.stream, answer.request, marks[index].tolist()).right == len(marks[index])
        statuses = own.streams()
    assert len({answer.request for answer in answers}) == 200
    assert sum(status.samples for status in statuses) == sum(map(len, marks))
    assert sum(status.batches for status in statuses) < 200  # some were joined: the first wait together


def test_an_error_of_the_model_is_that_of_one_request_alone(tmp_path: Path, gate: threading.Event) -> None:
    model = nn.Sequential(Gate(nn.Identity()), Marked())
    with service(tmp_path, adapter=eq.create("source", model, engine="eager")) as own:
        gate.set()
        ask(own, "a", np.zeros((1, 2)))
        gate.clear()
        first = own.submit("a", np.zeros((1, 2)))
        joined = [own.submit("a", np.full((2, 2), value)) for value in (1, 99, 2)]
        gate.set()
        assert first.result(HANG).classes == [0]
        assert joined[0].result(HANG).classes == [1, 1]
        with pytest.raises(InputError, match="a sample of 99"):
            joined[1].result(HANG)
        assert joined[2].result(HANG).classes == [2, 2]


def test_a_stream_whose_first_request_fails_is_not_made(tmp_path: Path) -> None:
    with service(tmp_path, adapter=eq.create("source", Marked())) as own:
        ask(own, "a", np.zeros((1, 2)))
        with pytest.raises(InputError, match="a sample of 99"):
            ask(own, "b", np.full((2, 2), 99))
        assert [status.name for status in own.streams()] == ["a"]
        assert len(list((tmp_path / "streams").iterdir())) == 1
        assert ask(own, "b", np.ones((2, 2))).classes == [1, 1]
        assert ask(own, "a", np.ones((2, 2))).classes == [1, 1]


def test_a_fault_after_learning_does_not_learn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with service(tmp_path / "one") as own, service(tmp_path / "two") as other:
        ask(own, "a", batch(0))
        ask(other, "a", batch(0))
        monkeypatch.setattr(own._learner, "_observe", _broken)
        assert ask(own, "a", batch(1)).learned
        monkeypatch.undo()
        ask(other, "a", batch(1))
        mine, expected = ask(own, "a", batch(2)), ask(other, "a", batch(2))
        assert np.array_equal(mine.probabilities, expected.probabilities)


def _broken(*_: object) -> None:
    raise RuntimeError("a fault of the monitor")


def test_a_full_queue_refuses(tmp_path: Path, gate: threading.Event) -> None:
    with service(tmp_path, adapter=gated(), waiting=3, rows=8) as own:
        accepted = []
        with pytest.raises(BusyError, match="3 requests of 18432 bytes are waiting"):
            for seed in range(10):
                accepted.append(own.submit("a", batch(seed)))  # noqa: PERF401
        assert 3 <= len(accepted) <= 4
        gate.set()
        assert all(len(future.result(HANG).classes) == 8 for future in accepted)
        assert len(ask(own, "a", batch(0)).classes) == 8


def test_an_answer_does_not_wait_for_learning(tmp_path: Path, gate: threading.Event) -> None:
    x, plain = batch(0), trained()
    with service(tmp_path, adapter=gated(), latency_ms=50) as own:
        begun = time.monotonic()
        first, late = own.submit("a", x), own.submit("a", batch(1))
        answer = first.result(HANG)
        assert time.monotonic() - begun >= 0.05
        assert (answer.answered_by, answer.learned) == ("source", False)
        assert "latency" in answer.reason
        with torch.no_grad():
            np.testing.assert_allclose(
                answer.probabilities, probabilities(plain(torch.from_numpy(x))), rtol=1e-5, atol=1e-7
            )
        assert late.result(HANG).answered_by == "source"
        gate.set()
        # both are learned from when there is time
        wait_until(lambda: own.streams() and own.status("a").samples == 16, "16 samples learned from")
        assert own.label("a", answer.request, [0] * 8).rows == 8


def test_the_source_model_answers_at_the_temperature_that_was_last_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, slow = threading.Event(), adapter()
    gate.set()
    run = slow._answer

    def waiting(batch: Any) -> Tensor:
        gate.wait(HANG)
        return run(batch)

    monkeypatch.setattr(slow, "_answer", waiting)
    with service(tmp_path, adapter=slow) as own:
        for seed in range(9):
            ask(own, "a", batch(seed, shift=2))
        own._limits = own._limits.__class__(latency_ms=50)
        gate.clear()
        answer = ask(own, "a", batch(20))
        gate.set()
        assert answer.answered_by == "source"
        assert answer.temperature == own._cache.streams["a"].source_temperature
        assert answer.temperature is not None
        assert answer.accuracy is not None


def test_under_load_a_part_of_the_batches_is_learned_from(tmp_path: Path) -> None:
    with service(tmp_path, rows=8, unlearned=3) as own:
        ask(own, "a", batch(0))
        opened = threading.Event()
        own._queue.run(opened.wait)
        waiting = [own.submit("a", batch(seed)) for seed in range(1, 21)]
        opened.set()
        answers = [future.result(HANG) for future in waiting]
        learned = [answer.learned for answer in answers]
        assert learned[-1]  # nothing waits behind it
        assert 5 <= sum(learned) < 20
        gaps = "".join("x" if each else "." for each in learned)
        assert "...." not in gaps
        assert all("waiting" in answer.reason for answer in answers if not answer.learned)


def request(stream: str, rows: int, shape: tuple[int, ...] = (2,), deadline: float = 1e12) -> Request:
    return Request(stream, torch.zeros(rows, *shape), deadline)


def test_batches_join_the_oldest_requests_of_one_stream_and_shape_in_order() -> None:
    queue = RequestQueue(waiting=20, rows=8, waiting_bytes=2**20)
    came = [("a", 3), ("b", 2), ("a", 4), ("a", 2), ("b", 1), ("a", 1)]
    requests = [request(stream, rows) for stream, rows in came]
    for each in requests:
        queue.put(each)
    taken = []
    while len(queue):
        found = queue.take(0)
        assert isinstance(found, list)
        taken.append([requests.index(each) for each in found])
    assert taken == [[0, 2], [1, 4], [3, 5]]
    queue.put(request("a", 1, (2,)))
    queue.put(request("a", 1, (3,)))
    for _ in range(2):
        found = queue.take(0)
        assert isinstance(found, list)
        assert len(found) == 1
    assert queue.take(0) == []
    queue.close()
    assert queue.take(0) is None


def test_an_answered_request_gives_its_place_to_a_new_one() -> None:
    queue = RequestQueue(waiting=2, rows=8, waiting_bytes=2**20)
    first, second = request("a", 1), request("a", 1)
    queue.put(first)
    queue.put(second)
    assert queue.pressing
    assert first.claim()
    assert not first.claim()
    assert queue.pressing
    queue.put(request("b", 1))
    with pytest.raises(BusyError):
        queue.put(request("b", 1))


def test_a_request_that_the_learner_answers_at_once_is_not_answered_by_the_source_model() -> None:
    queue = RequestQueue(waiting=4, rows=8, waiting_bytes=2**20)
    promised, late, answered = (request("a", 1, deadline=0.0) for _ in range(3))
    for each in (promised, late, answered):
        queue.put(each)
    assert answered.claim()
    assert queue.promise([promised, answered]) == [promised]
    assert queue.take_late() == [late]
    assert promised.claim()


def test_a_busy_learner_learns_from_a_part_of_the_batches_of_several_clients(tmp_path: Path) -> None:
    with service(tmp_path) as served:
        learner = served._learner
        alone, joined = [request("a", 1)], [request("a", 1), request("a", 1)]
        assert not learner._is_pressed(joined)
        learner._busy.value = 1.0
        assert learner._is_pressed(joined)
        assert not learner._is_pressed(alone)


def test_the_bytes_that_wait_are_bounded() -> None:
    queue = RequestQueue(waiting=20, rows=8, waiting_bytes=100)
    large = request("a", 8, (10,))
    queue.put(large)  # 320 bytes: alone it may wait
    with pytest.raises(BusyError, match="1 requests of 320 bytes are waiting, of at most 20 and 100"):
        queue.put(request("a", 1))
    assert large.claim()
    for _ in range(12):  # 8 bytes each, in the place of the one that is answered
        queue.put(request("a", 1))
    with pytest.raises(BusyError):
        queue.put(request("a", 1))
    assert len(queue) == 12


def test_inputs_count_as_the_bytes_that_the_model_takes(tmp_path: Path, gate: threading.Event) -> None:
    with service(tmp_path, adapter=gated(), waiting_bytes=8 * 3 * 8 * 8 * 4) as own:
        small = np.zeros((8, 3, 8, 8), np.uint8)
        own._queue.run(gate.wait)
        first = own.submit("a", small)
        with pytest.raises(BusyError):
            own.submit("a", small)
        gate.set()
        assert first.result(HANG).answered_by == "student"


@pytest.mark.parametrize("guarded", [True, False])
def test_the_monitor_is_shown_the_answers_that_clients_got(tmp_path: Path, guarded: bool) -> None:
    with service(tmp_path, guarded=guarded, rows=64, unlearned=0) as own:
        for seed in range(12):  # a shift on which the adapter is right more often than the source model
            ask(own, "a", batch(seed, 32, shift=3.0))
        own._limits, opened = Limits(latency_ms=1), threading.Event()
        own._queue.run(opened.wait)
        waiting = [own.submit("a", batch(seed, 32, shift=3.0)) for seed in (20, 21, 22)]
        late = [future.result(HANG) for future in waiting]
        own._limits = Limits(latency_ms=PATIENT)
        early = own.submit("a", batch(23, 32, shift=3.0))  # joined with one that was answered late
        opened.set()
        answers = [*late, early.result(HANG)]
        assert [answer.answered_by for answer in answers] == ["source"] * 3 + ["student"]
        right = [
            own.label("a", each.request, labels(20 + index, 32)).right for index, each in enumerate(answers)
        ]
        assert own.status("a").samples == 16 * 32
        gauges = own.status("a").gauges
        assert gauges["labels"] == 128
        assert gauges["true_accuracy"] == sum(right) / 128
        assert right[3] > max(right[:3]), "else this test shows nothing"
        live = own._cache.streams["a"].live
        assert live is not None
        assert live.monitor._recent is not None
        for answer in answers:
            rows = live.monitor._rows_of_request(answer.request.rpartition("-")[2])
            assert rows["predicted"].tolist() == answer.classes
            assert answer.temperature is not None
            np.testing.assert_allclose(rows["temperature"], answer.temperature, rtol=0.2)
