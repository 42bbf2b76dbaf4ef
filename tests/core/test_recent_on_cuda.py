"""Labels on a GPU: a captured step reads them, a replay keeps them, and nothing in a step waits."""

import copy

import pytest
import torch

import equipoise as eq
from equipoise.core.graph import no_waiting
from tests.support.models import CLASSES, drifted, make, rehearsed

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def pair(method: str) -> tuple[eq.Adapter, eq.Adapter]:
    """The same adapter, eagerly and as CUDA graphs."""
    model, source = make("batch_norm")
    made = rehearsed(source, method)
    eager, graph = (
        eq.create(method, copy.deepcopy(model).cuda(), made, tempering="rehearsed", engine=engine)
        for engine in ("eager", "graph")
    )
    return eager, graph


@pytest.mark.parametrize("method", ["source", "tent", "poise"])
def test_labels_between_replays_count_as_in_an_eager_step(method: str) -> None:
    eager, graph = pair(method)
    for seed in range(12):
        x = drifted(8, seed).cuda()
        expected, came = eager(x), graph(x)
        torch.testing.assert_close(came, expected, atol=1e-4, rtol=1e-4)
        if seed % 3 == 2:
            target = torch.arange(8) % CLASSES
            ids = [int(each) for each in eager.ask(4)]
            for adapter in (eager, graph):
                assert adapter.label(target) == 8
                adapter.label([0] * len(ids), ids)
    assert "CUDA graphs (batches of 8)" in graph.execution
    assert eager.labels == graph.labels > 32
    one, other = eager.accuracy, graph.accuracy
    assert one is not None and other is not None
    assert other.value == pytest.approx(one.value, abs=1e-4)
    torch.testing.assert_close(
        eager.snapshot().temperature["labels"], graph.snapshot().temperature["labels"], atol=1e-3, rtol=1e-3
    )


def test_a_reset_and_a_restore_between_replays() -> None:
    _, graph = pair("poise")
    for seed in range(5):
        graph(drifted(8, seed).cuda())
    graph.label([0] * 8)
    taken = graph.snapshot()
    graph.reset()
    assert graph.labels == 0
    graph(drifted(8, 5).cuda())
    assert not bool(graph.snapshot().temperature["labels"].any())
    graph.restore(taken)
    assert graph.labels == 8
    graph(drifted(8, 6).cuda())
    assert bool(graph.snapshot().temperature["labels"].any())


def test_a_replayed_batch_with_its_answers_remembered_waits_for_nothing() -> None:
    _, graph = pair("poise")
    batches = [drifted(8, seed).cuda() for seed in range(8)]
    for x in batches[:5]:
        graph(x)
    torch.cuda.synchronize()
    with no_waiting():
        for x in batches[5:]:
            graph(x)
    assert graph.label([0] * 8) == 8


def test_a_window_of_the_source_model_may_be_on_the_host() -> None:
    """A server keeps the source model's answers there while that model answers."""
    _, graph = pair("poise")
    seen = None
    for seed in range(5):
        graph(drifted(8, seed).cuda())
        assert graph.last is not None and graph.last.source_logits is not None
        seen = graph.source_window(seen, graph.last.source_logits.cpu())
    assert seen is not None and seen.device.type == "cpu"
    assert 0 < graph.source_expectations(seen).set_threshold("lac", 0.9) <= 1
