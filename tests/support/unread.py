"""Steps as a CUDA graph holds them, on the CPU, for tests that make the whole package believe it."""

from contextvars import ContextVar
from typing import Any

import pytest

import equipoise as eq
from equipoise.core.method import Context, Plan
from equipoise.network import verdict
from equipoise.testing.reads import NoReads, captures, unread_step

__all__ = ["NoReads", "addresses", "allow_plans", "captures", "forget_the_cpu", "unread_step"]


def forget_the_cpu(patch: pytest.MonkeyPatch) -> None:
    """Make the package behave as on a GPU, where flags are not known to the host."""
    patch.setattr(verdict, "_FREE", ContextVar("reads on the CPU are free", default=False))


def allow_plans(patch: pytest.MonkeyPatch, adapter: eq.Adapter, reads: NoReads) -> None:
    """Let the method's plan, which is the host's business, read the host's counts."""
    kind = type(adapter.method)
    plan: Any = kind.plan

    def allowed(self: Any, context: Context) -> Plan:
        with reads.allowed():
            made: Plan = plan(self, context)
            return made

    patch.setattr(kind, "plan", allowed)


def addresses(adapter: eq.Adapter) -> dict[str, int]:
    """Where the tensors of the state are."""
    state = adapter.responder.state
    parts = {"memory": state.memory, "temperature": state.temperature, "model": state.student.adapting}
    return {f"{part}.{name}": t.data_ptr() for part, tensors in parts.items() for name, t in tensors.items()}
