"""Everything that adaptation changes: transactions, fixed addresses, moves, and checks of what is loaded."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.checkpoint import check_state
from equipoise.core.method import Context, Method, Shapes, Update
from equipoise.core.state import NewMemoryError, State
from equipoise.core.student import Student
from equipoise.errors import OptionError, StateError
from tests.support.cases import CASES, build
from tests.support.models import addresses, drifted, make, same, snapshot

QUICK: dict[str, Any] = {"confidence": 0.0, "every": 4, "capacity": 4}


def sotta(*, batches: int = 2, **options: Any) -> eq.Adapter:
    """An adapter with weights, statistics, memory, counts, random numbers and a temperature."""
    model, source = make()
    adapter = eq.create("sotta", model, source, **{**QUICK, "tempering": "mean", **options})
    for seed in range(batches):
        adapter(drifted(6, seed))
    return adapter


def disturb(state: State) -> dict[str, Tensor]:
    """Write into weights and statistics and draw random numbers, as a step does; returns new memory."""
    with torch.no_grad():
        for tensor in state.student.adapting.values():
            tensor.add_(1)
    state.random.draw((3,))
    return {name: tensor + 1 for name, tensor in state.memory.items()}


# ---------------------------------------------------------------------- transactions


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_undoes_weights_statistics_and_the_random_state(error: type[BaseException]) -> None:
    adapter = sotta()
    state, before = adapter.responder.state, snapshot(adapter)
    with pytest.raises(error), state.transaction():
        disturb(state)
        raise error
    assert same(before, snapshot(adapter))


@pytest.mark.parametrize("host_looks", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_a_commit_keeps_everything_where_its_flag_is_true_and_nothing_else(
    keep: bool, host_looks: bool
) -> None:
    adapter = sotta()
    state, there, before = adapter.responder.state, addresses(adapter), snapshot(adapter)
    with state.transaction() as pending:
        memory = disturb(state)
        heat = {name: tensor + 1 for name, tensor in state.temperature.items()}
        pending.commit(torch.tensor(keep), memory, heat, {"waiting": 3}, host_looks=host_looks)
    after = snapshot(adapter)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    if keep:
        assert all(torch.equal(state.memory[name], new) for name, new in memory.items())
        assert all(torch.equal(state.temperature[name], new) for name, new in heat.items())
        assert state.counts == {"waiting": 3, "full": 1}
        assert {
            name for name in before if name.startswith("sotta.model.") or name == "sotta.random"
        } <= changed
    else:  # where the device decides, the host's counts and random numbers go on
        assert changed == (set() if host_looks else {"sotta.counts.waiting", "sotta.random"})
    assert addresses(adapter) == there


def test_memory_of_a_new_name_or_shape_is_for_the_host_to_take_over() -> None:
    adapter = sotta()
    state, before = adapter.responder.state, snapshot(adapter)
    for memory in ({"more": torch.zeros(2)}, {"classes": torch.zeros(2, dtype=torch.long)}):
        with pytest.raises(NewMemoryError), state.transaction() as pending:
            disturb(state)
            pending.commit(torch.tensor(True), memory, {}, {}, host_looks=False)
        assert same(before, snapshot(adapter))


def test_a_trial_undoes_everything() -> None:
    adapter = sotta()
    state, there, before = adapter.responder.state, addresses(adapter), snapshot(adapter)
    with state.trial():
        adapter(drifted(5, 7))
        assert not same(before, snapshot(adapter))
    assert same(before, snapshot(adapter))
    assert addresses(adapter) == there
    with pytest.raises(RuntimeError), state.trial():
        adapter(drifted(5, 7))
        raise RuntimeError
    assert same(before, snapshot(adapter))


# ---------------------------------------------------------------------- addresses


@pytest.mark.parametrize("case", CASES)
def test_addresses_stay_over_batches_resets_and_loads(case: str) -> None:
    adapter, _ = build(case, "batch_norm")
    for seed in range(2):
        adapter(drifted(8, seed))
    there, state = addresses(adapter), adapter.state_dict()
    adapter(drifted(8, 2))
    adapter(drifted(3, 3))
    assert addresses(adapter) == there
    adapter.reset()
    for seed in range(2):
        adapter(drifted(8, seed))
    assert addresses(adapter) == there
    assert same(state, adapter.state_dict())
    for _ in range(2):
        adapter(drifted(8, 5))
        adapter.load_state_dict(state)
        assert addresses(adapter) == there
        assert same(state, adapter.state_dict())


def test_named_tensors_are_copies() -> None:
    adapter = sotta()
    before = snapshot(adapter)
    for tensor in adapter.responder.state.snapshot().named().values():
        tensor.zero_()
    assert same(before, snapshot(adapter))


@dataclass(frozen=True, kw_only=True)
class LastBatch(Method):
    """Keeps the last batch as it came: a view of the caller's tensor."""

    name = "last_batch"
    arrives: ClassVar[Shapes] = {"samples.*": (...,)}

    def step(self, context: Context) -> Update:
        samples = {f"samples.{name}": tensor for name, tensor in context.batch.samples().items()}
        return Update(context.student.frozen(context.batch), samples, idle="nothing is learned")


def test_memory_that_arrives_is_a_copy_of_the_callers_batch() -> None:
    adapter = eq.Adapter(LastBatch(), make()[0])
    first, second = drifted(4, 0), drifted(4, 1)
    adapter(first)
    assert torch.equal(adapter.memory["samples.0"], first)
    adapter(second)  # is written into the memory, and not into the first batch
    assert torch.equal(first, drifted(4, 0))
    second.zero_()
    assert torch.equal(adapter.memory["samples.0"], drifted(4, 1))


@pytest.mark.parametrize("name", ["norm", "tent", "eta", "sotta"])
def test_samples_in_memory_are_not_the_callers(name: str) -> None:
    model, source = make()
    options = QUICK if name == "sotta" else {}
    one, other = (eq.create(name, model, source, **options) for _ in range(2))
    for seed in range(3):
        x = drifted(1, seed)
        assert torch.equal(one(x), other(drifted(1, seed)))
        x.fill_(torch.nan)
    assert same(snapshot(one), snapshot(other))


# ---------------------------------------------------------------------- beside, moves


def test_a_state_beside_another_has_a_temperature_of_its_own() -> None:
    adapter = sotta()
    state = adapter.responder.state
    other = state.beside({"count": torch.tensor(7)})
    assert other.memory is state.memory
    assert other.counts is state.counts
    assert other.random is state.random
    assert {name: int(t) for name, t in other.temperature.items()} == {"count": 7}
    before = dict(state.snapshot().named())
    other.write({}, {"count": torch.tensor(9)}, None)
    assert same(before, state.snapshot().named())
    other.forget_temperature()
    assert int(other.temperature["count"]) == 7
    assert {name for name in other.snapshot().named() if name.startswith("temperature")} == {
        "temperature.count"
    }
    adapter(drifted(6, 4))
    assert same(
        {n: t for n, t in state.snapshot().named().items() if not n.startswith("temperature")},
        {n: t for n, t in other.snapshot().named().items() if not n.startswith("temperature")},
    )


def test_a_move_leaves_samples_counts_and_observations_as_they_are() -> None:
    adapter = sotta()
    before = adapter.state_dict()
    adapter.double()
    kinds = {name: tensor.dtype for name, tensor in adapter.state_dict().items()}
    for name, kind in kinds.items():
        wide = before[name].dtype == torch.float32 and "samples." not in name
        assert kind == (torch.float64 if wide else before[name].dtype), name
    assert kinds["sotta.memory.optimizer.mean.1.weight"] == torch.float64
    assert kinds["sotta.memory.samples.0"] == torch.float32
    assert kinds["sotta.memory.classes"] == kinds["sotta.memory.optimizer.steps"] == torch.int64
    after = adapter.state_dict()
    assert all(torch.equal(before[name].double(), tensor.double()) for name, tensor in after.items())


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_a_move_to_half_precision_leaves_memory_in_single(narrow: torch.dtype) -> None:
    adapter = sotta()
    before = adapter.memory
    adapter.to(narrow)
    assert all(p.dtype == narrow for p in adapter.learned.values())
    assert all(torch.equal(before[name], tensor) for name, tensor in adapter.memory.items())
    assert all(before[name].dtype == tensor.dtype for name, tensor in adapter.memory.items())


# ---------------------------------------------------------------------- files


WEIGHT, MEMORY = "sotta.model.1.weight", "sotta.memory.optimizer.mean.1.weight"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tent.model.1.weight", lambda _: torch.zeros(1), "expected the state of 'sotta', got that of tent"),
        ("sotta.model.extra", lambda _: torch.zeros(1), "unknown entries: sotta.model.extra"),
        ("sotta.memory.extra", lambda _: torch.zeros(1), "unknown entries: sotta.memory.extra"),
        ("sotta.counts.extra", lambda _: torch.tensor(1), "unknown entries: sotta.counts.extra"),
        ("sotta.temperature.extra", lambda _: torch.tensor(1), "unknown entries: sotta.temperature.extra"),
        (WEIGHT, lambda _: None, f"the state lacks {WEIGHT}"),
        (MEMORY, lambda _: None, f"the state lacks {MEMORY}"),
        ("sotta.counts.waiting", lambda _: None, r"the state lacks sotta\.counts\.waiting"),
        ("sotta.temperature.sum", lambda _: None, r"the state lacks sotta\.temperature\.sum"),
        (WEIGHT, lambda t: t[:2], rf"{WEIGHT}: expected torch.float32 \(4,\), got torch.float32 \(2,\)"),
        (MEMORY, lambda t: t.double(), rf"{MEMORY}: expected torch.float32 \(4,\), got torch.float64"),
        (
            "sotta.counts.waiting",
            lambda t: t.reshape(1),
            r"expected torch.int64 \(\), got torch.int64 \(1,\)",
        ),
        (WEIGHT, lambda t: t * torch.nan, f"{WEIGHT}: expected finite values"),
        (MEMORY, lambda t: t + torch.inf, f"{MEMORY}: expected finite values"),
        ("sotta.memory.samples.0", lambda t: t * torch.nan, "samples.0: expected finite values"),
        (WEIGHT, lambda t: t.tolist(), f"{WEIGHT}: expected a tensor, got list"),
        ("sotta.counts.waiting", lambda t: t + 4, "expected fewer than every=4 samples waiting, got"),
        (
            "sotta.memory.samples.0",
            lambda t: t[:3],
            r"samples.0: expected a tensor of \(capacity=4, ...\), got \(3, ",
        ),
        ("sotta.memory.classes", lambda t: t + 9, "classes that the model does not have"),
        ("sotta.random", lambda t: t[:-1], "the random state is damaged"),
        ("sotta.random", lambda t: t.float(), "the random state is damaged"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_before_anything_changes(
    name: str, change: Callable[[Tensor | None], object], message: str
) -> None:
    adapter = sotta()
    state, before, last = dict(adapter.state_dict()), snapshot(adapter), adapter.last
    changed = change(state.pop(name, None))
    wrong = state if changed is None else {**state, name: changed}
    with pytest.raises(StateError, match=message):
        adapter.load_state_dict(wrong)
    with pytest.raises(OptionError, match="taken whole"):
        adapter.load_state_dict(adapter.state_dict(), strict=False)
    assert same(before, snapshot(adapter))
    assert adapter.last is last


def test_a_state_from_before_the_first_batch_has_no_arriving_memory() -> None:
    adapter, fresh = sotta(), sotta(batches=0)
    state = fresh.state_dict()
    assert "sotta.random" not in state
    assert not any("samples" in name for name in state)
    adapter.load_state_dict(state)
    assert same(snapshot(adapter), snapshot(fresh))
    for seed in range(3):
        assert torch.equal(adapter(drifted(6, seed)), fresh(drifted(6, seed)))
    assert same(snapshot(adapter), snapshot(fresh))


def test_check_state_allows_optional_names_in_any_shape() -> None:
    expected = {"a": torch.zeros(2)}
    check_state(expected, {"a": torch.ones(2), "more.x": torch.ones(3)}, ("more.*",))
    check_state(expected, {"a": torch.ones(2)}, ("more.*",))
    with pytest.raises(StateError, match=r"unknown entries: less\.x"):
        check_state(expected, {"a": torch.ones(2), "less.x": torch.ones(3)}, ("more.*",))
    many = {str(number): torch.zeros(1) for number in range(7)}
    with pytest.raises(StateError, match="lacks 0, 1, 2, 3, 4 and 2 more; other options, another model"):
        check_state(many, {}, ())


@dataclass(frozen=True, kw_only=True)
class Shift(eq.Method):
    """Remembers the value of the batch before."""

    name = "shift"

    def initial(self, student: Student, source: eq.SourceStatistics | None) -> dict[str, Tensor]:
        return {"now": torch.zeros(()), "before": torch.zeros(())}

    def step(self, context: Context) -> Update:
        now = context.memory["now"]
        return Update(context.student.frozen(context.batch), {"now": now + 1, "before": now}, used=1)


def test_memory_may_refer_to_other_memory() -> None:
    adapter = eq.Adapter(Shift(), make()[0])
    for _ in range(3):
        adapter(drifted(8))
    assert (float(adapter.memory["now"]), float(adapter.memory["before"])) == (3, 2)


def test_a_reset_leaves_no_sample_behind() -> None:
    adapter = eq.create("sotta", make()[0], confidence=0.0)
    x = drifted(8)
    adapter(x)
    adapter.reset()
    assert x[0].numpy().tobytes() not in pickle.dumps(adapter)
    assert adapter.footprint().observations.numbers == 0


class Stray(Shift):
    """Returns memory that it has not declared."""

    name = "stray"

    def step(self, context: Context) -> Update:
        return super().step(context)._replace(memory={"more": torch.zeros(())})


def test_memory_that_is_not_declared_is_refused() -> None:
    adapter = eq.Adapter(Stray(), make()[0])
    with pytest.raises(RuntimeError, match="'more', which is neither in `initial` nor in `arrives`"):
        adapter(drifted(8))


def test_an_interrupt_in_a_swapped_forward_spares_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = make()
    adapter = eq.create("dec", model, source, source_copy="swapped", learning_rate=1e-3)
    adapter(drifted(8))
    teacher = adapter.responder.student.source_copy
    stored = {name: t.clone() for name, t in teacher.tensors(list(adapter.learned)).items()}
    seen: list[int] = []

    def noting(network: nn.Module, _batch: object) -> object:
        seen.extend(p.data_ptr() for p in network.parameters())
        raise KeyboardInterrupt

    monkeypatch.setattr(adapter.responder.student.compiler, "run", noting)
    with pytest.raises(KeyboardInterrupt):
        adapter(drifted(8, 1))
    held = {t.data_ptr() for t in teacher.tensors(list(adapter.learned)).values()}
    assert not held & set(seen)  # the forward had copies
    assert all(torch.equal(stored[n], t) for n, t in teacher.tensors(list(adapter.learned)).items())
