"""Snapshots in memory: an adapter goes back to one bit for bit, and serves several streams by them."""

import pytest
import torch

import equipoise as eq
from equipoise.errors import StateError
from tests.support.models import drifted, make


def made(method: str) -> eq.Adapter:
    return eq.create(method, *make(), engine="eager")


@pytest.mark.parametrize("method", eq.list_methods())
def test_restoring_a_snapshot_repeats_the_stream_bit_for_bit(method: str) -> None:
    adapter = made(method)
    adapter(drifted(8, 0))
    before = adapter.snapshot()
    first = [adapter(drifted(8, seed)) for seed in (1, 2)]
    state = adapter.state_dict()
    adapter.restore(before)
    assert adapter.last is None
    second = [adapter(drifted(8, seed)) for seed in (1, 2)]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    again = adapter.state_dict()
    assert state.keys() == again.keys()
    assert all(torch.equal(state[name], again[name]) for name in state)


def test_one_adapter_serves_two_streams_as_two_adapters_would() -> None:
    shared, apart = made("poise"), [made("poise"), made("poise")]
    states = [shared.snapshot(), shared.snapshot()]
    for seed in range(4):
        for stream in (0, 1):
            shared.restore(states[stream])
            answer = shared(drifted(8, seed) * (1 + stream))
            states[stream] = shared.snapshot()
            assert torch.equal(answer, apart[stream](drifted(8, seed) * (1 + stream)))


def test_a_snapshot_is_a_copy() -> None:
    adapter = made("poise")
    before = adapter.snapshot()
    kept = {name: tensor.clone() for name, tensor in before.model.items()}
    adapter(drifted(8, 0))
    adapter.restore(before)
    adapter(drifted(8, 1))
    assert all(torch.equal(kept[name], before.model[name]) for name in kept)
    assert before.bytes == sum(
        tensor.nbytes
        for part in (before.model, before.memory, before.temperature)
        for tensor in part.values()
    )


def test_the_temperature_may_go_on_following_the_stream() -> None:
    adapter = made("dec")
    before = adapter.snapshot()
    adapter(drifted(8, 0))
    weights, temperature = dict(before.model), adapter.temperature
    adapter.restore(before, keep_temperature=True)
    assert adapter.temperature == temperature != 1
    assert all(torch.equal(weights[name], tensor) for name, tensor in adapter.snapshot().model.items())


def test_a_snapshot_of_another_adapter_is_refused_and_nothing_changes() -> None:
    adapter = made("tent")
    adapter(drifted(8, 0))
    state = adapter.state_dict()
    with pytest.raises(StateError, match="another adapter"):
        adapter.restore(made("dec").snapshot())
    with pytest.raises(StateError, match="expected a snapshot of this adapter, got dict"):
        adapter.restore(adapter.state_dict())
    assert all(torch.equal(state[name], tensor) for name, tensor in adapter.state_dict().items())


def test_the_record_has_the_source_models_answers() -> None:
    adapter, x = made("dec"), drifted(8, 0)
    x[3] = torch.nan
    adapter(x)
    assert adapter.last is not None
    found = adapter.last.source_logits
    assert found is not None
    assert found[3].isnan().all()
    rest = torch.arange(8) != 3
    torch.testing.assert_close(found[rest], adapter.source_logits(x[rest]))
    tent = made("tent")
    tent(drifted(8, 0))
    assert tent.last is not None
    assert tent.last.source_logits is None
