"""A guarded adapter decides as its adapter does, and watches what it answers for that."""

from threading import Event, Thread
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.errors import SourceError
from tests.support.models import drifted, make, rehearsed


def test_a_guarded_adapter_decides_as_its_adapter_and_learns_once() -> None:
    model, source = make("batch_norm")
    guarded = eq.Guarded(eq.create("poise", model, rehearsed(source, "poise"), tempering="rehearsed"))
    x = drifted(8)
    logits = guarded(x)
    assert torch.equal(guarded.sets(x), guarded.adapter.sets(logits))
    assert torch.equal(guarded.decide(x).classes, guarded.adapter.decide(logits).classes)
    assert guarded.batch == 1
    assert guarded.coverage() == guarded.adapter.coverage()
    assert torch.equal(guarded.curve().risk, guarded.adapter.curve().risk)
    guarded.sets(drifted(8))
    assert guarded.batch == 2
    guarded.reset()
    guarded.decide(x)
    assert guarded.batch == 3


def test_a_guarded_adapter_without_rehearsal_refuses_before_it_answers() -> None:
    model, source = make("batch_norm")
    guarded = eq.Guarded(eq.create("tent", model, source, tempering="none"))
    for call in (guarded.sets, guarded.decide):
        with pytest.raises(SourceError, match="needs a rehearsal"):
            call(drifted(8))
    assert guarded.batch == 0


def test_sets_wait_for_a_call_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its action, a rollback say, might come between the answer and its threshold."""
    model, source = make("batch_norm")
    adapter = eq.create("poise", model, rehearsed(source, "poise"), tempering="rehearsed")
    guarded, inside, go_on, done = eq.Guarded(adapter), Event(), Event(), Event()
    answered, x = adapter.sets, drifted(8)

    def hold() -> None:
        guarded.hold()
        done.set()

    def held(*args: Any, **kwargs: Any) -> torch.Tensor:
        inside.set()
        assert go_on.wait(10)
        return answered(*args, **kwargs)

    monkeypatch.setattr(adapter, "sets", held)
    first = Thread(target=lambda: guarded.sets(x))
    second = Thread(target=hold)
    first.start()
    assert inside.wait(10)
    second.start()
    assert not done.wait(0.2)
    go_on.set()
    first.join(10)
    second.join(10)
    assert done.is_set()
