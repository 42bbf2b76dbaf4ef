"""After each fault, accuracy on clean source data is that of the source model, or the guard has acted."""

import pytest

import equipoise as eq
from tests.production.guard.streams import FAULTS, accuracy_of, adapter, clean

FAST = ("poise", "tent")
CLEAN = clean(24, seed=70)


def survives(method: str, fault: str) -> None:
    guarded = eq.Guarded(adapter(method))
    source = accuracy_of(guarded.adapter.source_logits, CLEAN[12:])
    for x in FAULTS[fault]():
        answers = guarded(x)
        assert answers[x.flatten(1).isfinite().all(1)].isfinite().all()
    acted = len(guarded.events)
    accuracy_of(guarded, CLEAN[:12])
    after = accuracy_of(guarded, CLEAN[12:])
    assert after >= source - 0.01 or acted, f"{after} against {source}, and no action"
    assert all(event.reason for event in guarded.events)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", FAST)
def test_a_fault_leaves_the_model_accurate_or_the_guard_has_acted(method: str, fault: str) -> None:
    survives(method, fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", [name for name in eq.list_methods() if name not in FAST])
def test_a_fault_leaves_every_method_accurate_or_the_guard_has_acted(method: str, fault: str) -> None:
    survives(method, fault)
