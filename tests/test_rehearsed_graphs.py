"""The cache of captured steps, without a GPU: what a graph would replay is run again on its tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core.record import Record, Step
from equipoise.engine import captured as graphs
from equipoise.engine.captured import StepGraphs
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import copies
from tests.test_conformance import CASES, POSSIBLE, create
from tests.toys import drifted, make, snapshot

QUICK = {"sotta": {"confidence": 0.0, "every": 8, "capacity": 8}}


class Rehearsed(StepGraphs):
    """Records a step as a function: replaying runs it, on and into the same tensors as a graph would."""

    replays = 0

    def __init__(self, adapter: eq.Adapter) -> None:
        super().__init__()
        self.adapter = adapter

    def _rehearse(self, step: Callable[[], object]) -> None:
        step()

    def _recorded(self, step: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        homes = {str(place): home for place, home in enumerate(self._homes.values())}
        contents = copies(homes)
        fed = self.adapter.fed
        with self.adapter.trial():
            results = list(step())  # recording changes nothing
        for name, home in homes.items():
            home.copy_(contents[name])

        def replay() -> None:
            self.replays += 1
            self.adapter.fed = fed
            results[:] = step()
            self.adapter.fed = {}
            for where, contents in (("kept", self.adapter.kept), (self.heat, self.heat.contents)):
                for name, tensor in list(contents.items()):
                    contents[name] = self._homes.get((where, name, tensor.shape, tensor.dtype), tensor)

        return replay, results

    @property
    def heat(self) -> Any:
        return self.adapter.temper.temperature

    def __call__(self, x: Tensor, **kwargs: Any) -> tuple[Tensor, Step]:
        for parameter in self.adapter.learned.values():
            parameter.requires_grad_()
        batch = Batch.of((x,), kwargs).learnable()
        with torch.enable_grad():
            answer, record = self.run(self.adapter, batch)
        assert isinstance(record, Record)
        return answer, record.read()


def pair(case: str, kind: str = "batch_norm", **options: Any) -> tuple[eq.Adapter, Rehearsed]:
    model, source = make(kind)
    more = {**QUICK.get(CASES[case][0], {}), **options}
    return create(case, model, source, **more), Rehearsed(create(case, model, source, **more))


def assert_alike(plain: eq.Adapter, graph: Rehearsed, x: Tensor) -> None:
    expected = plain(x)
    answer, step = graph(x)
    assert torch.allclose(answer, expected, atol=1e-5, equal_nan=True)
    last = plain.last
    assert last is not None
    assert (step.used, step.updated, step.set_aside) == (last.used, last.updated, last.set_aside)


def assert_same_state(plain: eq.Adapter, graph: Rehearsed) -> None:
    left, right = snapshot(plain), snapshot(graph.adapter)
    assert left.keys() == right.keys()
    assert all(torch.allclose(left[name], right[name], atol=1e-5) for name in left)


@pytest.mark.parametrize(("case", "kind"), POSSIBLE)
def test_streams_of_all_shapes(case: str, kind: str, tmp_path: Path) -> None:
    plain, graph = pair(case, kind)
    for seed, rows in enumerate((8, 8, 8, 8, 3, 8, 1, 8, 5, 5, 5, 8, 3, 3, 8)):
        assert_alike(plain, graph, drifted(rows, seed))
    assert graph.replays > 3
    assert not graph.refusal
    assert_same_state(plain, graph)
    graph.adapter.save(tmp_path / "state.safetensors")
    plain.load_state_dict(graph.adapter.state_dict())
    plain.reset()
    graph.adapter.reset()
    for seed in range(5):
        assert_alike(plain, graph, drifted(8, seed))
    state = eq.load(tmp_path / "state.safetensors", make(kind)[0]).state_dict()
    plain.load_state_dict(state)
    graph.adapter.load_state_dict(state)
    before = graph.replays
    for seed in range(5):
        assert_alike(plain, graph, drifted(8, 20 + seed))
    assert graph.replays > before
    assert_same_state(plain, graph)


@pytest.mark.parametrize("case", ["norm", "tent, lively", "eta, lively", "poise"])
def test_windows_of_samples_that_come_alone(case: str) -> None:
    options: dict[str, Any] = {} if case == "poise" else {"window": 4}
    plain, graph = pair(case, **options)
    for seed in range(14):
        assert_alike(plain, graph, drifted(1, seed))
    assert graph.replays > 3
    plain.reset()
    graph.adapter.reset()
    for rows in (1, 1, 8, 8, 8, 1, 1, 1, 1, 1, 1):  # a window that grows again, between batches
        assert_alike(plain, graph, drifted(rows, rows))
    assert not graph.refusal
    assert_same_state(plain, graph)


def test_a_bad_sample_is_heard_of_and_the_next_batches_are_looked_at() -> None:
    plain, graph = pair("dec")
    for seed in range(3):
        assert_alike(plain, graph, drifted(8, seed))
    bad = drifted(8, 3)
    bad[2] = torch.inf
    before = snapshot(graph.adapter)
    answer, step = graph(bad)
    assert bool(answer[2].isnan().all())
    assert (step.set_aside, step.used) == (1, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot(graph.adapter).items())
    replays = graph.replays
    for _ in range(3):  # as long as they are bad, the others are learned from
        _, step = graph(bad)
        assert (step.set_aside, step.used) == (1, 7)
    graph(drifted(8, 4))
    assert graph.replays == replays
    graph(drifted(8, 5))
    assert graph.replays == replays + 1


def test_a_memory_that_was_emptied_is_filled_again_before_it_is_captured() -> None:
    _, graph = pair("sotta")
    for seed in range(4):
        graph(drifted(8, seed))
    assert graph.replays > 1
    _, step = graph(1e25 * drifted(8, 4))
    assert "the memory was emptied" in step.reason
    _, step = graph(drifted(3, 5))
    _, step = graph(drifted(5, 6))  # learns from what there is, as without graphs
    assert step.used == 8
    assert not graph.refusal


def test_what_waits_is_refused_but_not_because_of_one_bad_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, graph = pair("tent")
    graph(drifted(8, 0))
    plain(drifted(8, 0))
    with pytest.raises(RuntimeError):
        graph(drifted(8, 1)[:, :2])
    with pytest.raises(RuntimeError):
        graph(drifted(8, 1)[:, :2])
    assert not graph.refusal
    assert_alike(plain, graph, drifted(8, 1))
    assert graph.replays == 1

    def waiting(_self: object, _step: object) -> None:
        raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr(Rehearsed, "_rehearse", waiting)
    assert_alike(plain, graph, drifted(4, 2))
    assert_alike(plain, graph, drifted(4, 3))
    assert "synchronizing" in graph.refusal
    assert_alike(plain, graph, drifted(8, 4))
    assert_alike(plain, graph, drifted(8, 5))
    assert graph.refusal
    assert_same_state(plain, graph)


def test_the_longest_unused_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    plain, graph = pair("poise")
    for _ in range(3):
        for rows in (2, 3, 4):
            for seed in range(2):
                assert_alike(plain, graph, drifted(rows, seed))
    assert len(graph.sizes) == 2
    assert_same_state(plain, graph)


def test_worn_temperatures_have_graphs_of_their_own() -> None:
    _, source = make()
    plain, graph = pair("tent")
    worn, other = eq.Tempered(plain, source), eq.Tempered(graph.adapter, source)
    for seed in range(3):
        assert_alike(plain, graph, drifted(8, seed))
    for seed in range(4):
        expected = worn(drifted(8, seed))
        with other._worn():
            answer, _ = graph(drifted(8, seed))
        assert torch.allclose(answer, expected, atol=1e-5)
    assert worn.temper.temperature.running() == pytest.approx(other.temper.temperature.running())
    for seed in range(3):
        assert_alike(plain, graph, drifted(8, seed))
