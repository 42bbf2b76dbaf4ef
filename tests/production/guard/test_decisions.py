"""A guarded adapter decides as its adapter does, and watches what it answers for that."""

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
