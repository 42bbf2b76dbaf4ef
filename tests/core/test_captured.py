"""The cache of captured steps, without a GPU: a replay runs the recorded step again, on the same tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core import graph as core_graph
from equipoise.core.graph import CapturedSteps
from equipoise.core.record import Record
from equipoise.core.state import State
from equipoise.core.step import Responder
from equipoise.network.batch import Batch
from tests.support.cases import CASES, FULL_SOON, IN_SHORT_OR_SLOW, create
from tests.support.models import drifted, make, snapshot


class Replaying(CapturedSteps):
    """Records a step as a function, which reads and writes the same tensors as a graph would."""

    replays = 0

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state

    def _rehearse(self, step: Callable[[], object]) -> None:
        step()

    def _recorded(
        self, step: Callable[[], tuple[Tensor, Record]]
    ) -> tuple[Callable[[], None], tuple[Tensor, Record]]:
        with self.state.trial():  # recording changes nothing
            results: Any = list(step())

        def replay() -> None:
            self.replays += 1
            counts = dict(self.state.counts)
            results[:] = step()
            self.state.counts.update(counts)  # a graph knows nothing of the host's numbers

        return replay, results


@pytest.fixture(autouse=True)
def _capture_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let adapters that have `Replaying` steps use them."""
    replaying = property(lambda adapter: isinstance(adapter._captured, Replaying))
    monkeypatch.setattr(eq.Adapter, "_captures", replaying)


def capture(adapter: eq.Adapter) -> Replaying:
    """Let an adapter run captured steps from now on."""
    steps = adapter._captured = Replaying(adapter.responder.state)
    return steps


def pair(case: str, kind: str = "batch_norm", **options: Any) -> tuple[eq.Adapter, eq.Adapter, Replaying]:
    """An adapter that runs eagerly, the same one with captured steps, and those."""
    model, source = make(kind)
    more = {**FULL_SOON.get(CASES[case][0], {}), **options}
    plain, graph = create(case, model, source, **more), create(case, model, source, **more)
    return plain, graph, capture(graph)


def assert_alike(plain: eq.Adapter, graph: eq.Adapter, x: Tensor) -> None:
    assert torch.allclose(graph(x), plain(x), atol=1e-5, equal_nan=True)
    one, other = plain.last, graph.last
    assert one is not None
    assert other is not None
    assert (one.used, one.updated, one.set_aside) == (other.used, other.updated, other.set_aside)
    assert one.reason == other.reason


def assert_same_state(plain: eq.Adapter, graph: eq.Adapter) -> None:
    left, right = snapshot(plain), snapshot(graph)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.allclose(tensor, right[name], atol=1e-5), name


@pytest.mark.parametrize(("case", "kind"), IN_SHORT_OR_SLOW)
def test_streams_of_all_shapes(case: str, kind: str, tmp_path: Path) -> None:
    plain, graph, steps = pair(case, kind)
    for seed, rows in enumerate((8, 8, 8, 8, 8, 8, 3, 5, 3, 1, 5, 8)):
        assert_alike(plain, graph, drifted(rows, seed))
    assert steps.replays > 3
    assert not steps.refusal
    assert_same_state(plain, graph)
    graph.save(tmp_path / "state.safetensors")
    plain.load_state_dict(graph.state_dict())
    plain.reset()
    graph.reset()
    for seed in range(3):
        assert_alike(plain, graph, drifted(8, seed))
    state = eq.load(tmp_path / "state.safetensors", make(kind)[0]).state_dict()
    plain.load_state_dict(state)
    graph.load_state_dict(state)
    before = steps.replays
    for seed in range(3):
        assert_alike(plain, graph, drifted(8, 20 + seed))
    assert steps.replays > before
    assert_same_state(plain, graph)


@pytest.mark.parametrize("case", ["norm", "tent, lively", "eta, lively", "poise"])
def test_windows_of_lone_samples(case: str) -> None:
    options: dict[str, Any] = {} if case == "poise" else {"window": 4}
    plain, graph, steps = pair(case, **options)
    for seed in range(14):
        assert_alike(plain, graph, drifted(1, seed))
    assert steps.replays > 3
    plain.reset()
    graph.reset()
    for rows in (1, 1, 8, 8, 8, 1, 1, 1, 1, 1, 1):  # a window that grows again, between batches
        assert_alike(plain, graph, drifted(rows, rows))
    assert not steps.refusal
    assert_same_state(plain, graph)


def test_a_bad_sample_raises_the_alarm_and_the_next_batches_run_eagerly() -> None:
    plain, graph, steps = pair("dec")
    for seed in range(3):
        assert_alike(plain, graph, drifted(8, seed))
    bad = drifted(8, 3)
    bad[2] = torch.inf
    before = snapshot(graph)
    answer, replays = graph(bad), steps.replays
    assert replays > 0
    assert bool(answer[2].isnan().all())
    assert graph.last is not None
    assert (graph.last.set_aside, graph.last.used) == (1, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot(graph).items())
    for _ in range(3):  # as long as samples are bad, the others are learned from
        graph(bad)
        assert (graph.last.set_aside, graph.last.used) == (1, 7)
    graph(drifted(8, 4))
    assert steps.replays == replays
    graph(drifted(8, 5))
    assert steps.replays == replays + 1


def test_an_emptied_memory_is_filled_again_before_steps_are_captured() -> None:
    _, graph, steps = pair("sotta")
    for seed in range(5):
        graph(drifted(8, seed))
    assert steps.replays > 1
    graph(1e25 * drifted(8, 4))
    assert graph.last is not None
    assert "the memory was emptied" in graph.last.reason
    replays = steps.replays
    graph(drifted(3, 5))
    graph(drifted(5, 6))  # learns from the samples that are there, as without graphs
    assert graph.last.used == 8
    assert steps.replays == replays
    assert not steps.refusal


def test_a_model_that_waits_is_refused_and_one_bad_batch_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, graph, steps = pair("tent")
    graph(drifted(8, 0))
    plain(drifted(8, 0))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            graph(drifted(8, 1)[:, :2])
    assert not steps.refusal
    assert_same_state(plain, graph)
    assert_alike(plain, graph, drifted(8, 1))
    assert steps.replays == 1

    def waiting(_self: object, _step: object) -> None:
        raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr(Replaying, "_rehearse", waiting)
    assert_alike(plain, graph, drifted(4, 2))
    assert_alike(plain, graph, drifted(4, 3))
    assert "synchronizing" in steps.refusal
    assert graph.execution.startswith("eager, as the step cannot be captured: called a synchronizing")
    assert_alike(plain, graph, drifted(8, 4))
    assert_alike(plain, graph, drifted(8, 5))
    assert steps.replays == 1
    assert_same_state(plain, graph)


def test_least_recently_used_graphs_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_graph, "MOST_GRAPHS", 2)
    plain, graph, steps = pair("poise")
    for rows in (2, 2, 3, 3, 2, 4, 4):
        assert_alike(plain, graph, drifted(rows, rows))
    assert steps.sizes == [2, 4]
    assert graph.execution.startswith("CUDA graphs (batches of 2, 4)")
    for _ in range(2):
        for rows in (2, 3, 4):
            for seed in range(2):
                assert_alike(plain, graph, drifted(rows, seed))
    assert len(steps.sizes) == 2
    assert_same_state(plain, graph)


def test_sightings_are_counted_of_a_limited_number_of_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_graph, "MOST_SEEN", 2)
    plain, graph, steps = pair("tent")
    for rows in (2, 3, 4, 5, 2, 3, 4, 5, 6, 6, 6):
        assert_alike(plain, graph, drifted(rows, rows))
    assert steps.sizes == [6]
    assert len(steps._seen) <= 3


def test_a_temper_around_an_adapter_has_graphs_of_its_own() -> None:
    _, source = make()
    plain, graph, steps = pair("tent")
    tempered, other = eq.Tempered(plain, source), eq.Tempered(graph, source)
    own = capture(other)
    for seed in range(3):
        assert_alike(plain, graph, drifted(8, seed))
    for seed in range(4):
        assert_alike(tempered, other, drifted(8, seed))
    assert tempered.temperature == pytest.approx(other.temperature)
    assert (steps.replays, own.replays) == (2, 3)
    for seed in range(3):
        assert_alike(plain, graph, drifted(8, seed))
    assert (steps.replays, own.replays) == (5, 3)
    assert_same_state(plain, graph)


def test_recording_changes_nothing() -> None:
    _, graph, steps = pair("mean teacher")
    graph(drifted(8, 0))
    before = snapshot(graph)
    batch = Batch.of((drifted(8, 1),), {}).learnable()
    with torch.enable_grad():
        steps._prepare(graph.responder, batch, "a key")
        steps._prepare(graph.responder, batch, "a key")
    assert steps.sizes == [8]
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot(graph).items())


def test_graphs_are_dropped_when_the_adapter_moves() -> None:
    _, graph, steps = pair("tent")
    for seed in range(3):
        graph(drifted(8, seed))
    assert steps.sizes == [8]
    graph.double()
    assert graph(drifted(8).double()).dtype == torch.float64
    assert steps.sizes == []


def key(respond: Responder, batch: Batch) -> object:
    return core_graph._key(respond, batch, respond.method.plan(respond.context(batch, looks=False)))


def test_batches_that_share_a_graph() -> None:
    _, graph, _ = pair("tent")
    respond, x = graph.responder, drifted(8)
    first = key(respond, Batch((x,), {"scale": 2.0}, 8))
    assert first is not None
    assert first == key(respond, Batch((drifted(8, 1),), {"scale": 2.0}, 8))
    assert first != key(respond, Batch((x,), {"scale": 3.0}, 8))
    assert first != key(respond, Batch((x[:7],), {"scale": 2.0}, 7))
    with torch.autocast("cpu", torch.bfloat16):
        assert first != key(respond, Batch((x,), {"scale": 2.0}, 8))
    for other in ((x,), [1], x.to("meta")):  # compared by identity, or on another device
        assert key(respond, Batch((x,), {"more": other}, 8)) is None
    named = key(respond, Batch(({"image": x},), {}, 8))
    assert named == key(respond, Batch(({"image": drifted(8, 1)},), {}, 8))
    assert named != key(respond, Batch(({"pixels": x},), {}, 8))
    assert named != key(respond, Batch(({"image": x}, x), {}, 8))
    graph.load_state_dict(graph.state_dict())
    assert first == key(respond, Batch((x,), {"scale": 2.0}, 8))
    graph.double()
    assert first != key(respond, Batch((x,), {"scale": 2.0}, 8))
