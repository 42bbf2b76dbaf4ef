"""The one path of a batch, run as a CUDA graph holds it: flags on the device decide, the host reads none."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core.gradient import GradientMethod, Loss, Targets
from equipoise.core.method import Context, Method, Update
from equipoise.core.record import Step
from equipoise.core.verdict import Check
from equipoise.functional import nats
from equipoise.methods.eta import Eta
from equipoise.network.parameters import Parameters
from equipoise.testing.subject import NoReads, captures, unread_step
from tests.support.cases import CASES, FULL_SOON, IN_SHORT_OR_SLOW, build
from tests.support.models import CLASSES, addresses, drifted, make, same, snapshot

QUICK: dict[str, dict[str, Any]] = {**FULL_SOON, "rdumb": {"every": 1000}}
"""Options for a memory that is full after one batch, and no reset, which is not captured."""

OF_THE_HOST = (".counts.", ".random")
"""Parts of the names of state that the host counts and draws, whatever the device decides."""


def begun(case: str, kind: str = "batch_norm") -> eq.Adapter:
    """An adapter that has seen a stream, so that all of its memory has arrived."""
    adapter, _ = build(case, kind, **QUICK.get(CASES[case][0], {}))
    for seed in range(3):
        adapter(drifted(8, seed))
    assert captures(adapter, drifted(8))
    return adapter


def of_the_device(adapter: eq.Adapter) -> dict[str, Tensor]:
    """The part of the state that flags decide on."""
    return {name: t for name, t in snapshot(adapter).items() if not any(part in name for part in OF_THE_HOST)}


def assert_near(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.allclose(tensor, right[name], atol=1e-5), name


def assert_same_step(plain: eq.Adapter, step: Step) -> None:
    last = plain.last
    assert last is not None
    assert (step.used, step.updated, step.set_aside) == (last.used, last.updated, last.set_aside)
    for name in ("loss", "entropy", "temperature"):
        ours, theirs = getattr(step, name), getattr(last, name)
        assert ours == theirs or ours == pytest.approx(theirs, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize(
    "read",
    [
        lambda x: bool(x.all()),
        lambda x: float(x.sum()),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.equal(x, x),
        lambda x: torch.where(x > 0),
        lambda x: x.masked_select(x > 0),
    ],
)
def test_reads_are_noticed(read: Callable[[Tensor], object]) -> None:
    reads = NoReads()
    with reads, pytest.raises(AssertionError, match="the host reads a tensor"):
        read(torch.ones(3))
    with reads, reads.allowed():
        read(torch.ones(3))


@pytest.mark.parametrize("case", ["norm", "tent, lively", "eta, lively", "eata, lively", "poise", "sotta"])
def test_lone_samples_as_the_eager_engine_without_a_read(case: str) -> None:
    options = QUICK.get(CASES[case][0], {})
    plain, unread = (build(case, "batch_norm", **options)[0] for _ in range(2))
    seed = 0
    while seed < 4 or not captures(unread, drifted(1)):  # until windows are full
        plain(drifted(1, seed))
        unread(drifted(1, seed))
        seed += 1
        assert seed < 40
    before = addresses(unread)
    for later in range(seed, seed + 7):
        expected = plain(drifted(1, later))
        answer, record = unread_step(unread, drifted(1, later), refusing=True)
        assert torch.allclose(answer, expected, atol=1e-5)
        assert_same_step(plain, record.read())
    assert addresses(unread) == before
    assert_near(snapshot(plain), snapshot(unread))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(("case", "kind"), IN_SHORT_OR_SLOW)
def test_a_bad_sample_is_answered_with_nan_and_nothing_is_learned(case: str, kind: str, bad: float) -> None:
    adapter = begun(case, kind)
    before, there = of_the_device(adapter), addresses(adapter)
    x = drifted(8, 7)
    x[2, 0, 1, 1] = bad
    answer, record = unread_step(adapter, x, refusing=True)
    assert answer.isnan().all(1).tolist() == [row == 2 for row in range(8)]
    assert bool(answer[[0, 1, 3, 4, 5, 6, 7]].isfinite().all())
    assert same(before, of_the_device(adapter))
    assert addresses(adapter) == there
    step = record.read()
    assert (step.set_aside, step.used, step.updated) == (1, 0, False)
    assert "1 of 8 set aside: non-finite; a captured step learns from whole batches" in step.reason


def test_a_batch_without_a_good_sample_is_answered_with_nan() -> None:
    adapter = begun("poise")
    before = snapshot(adapter)
    answer, record = unread_step(adapter, torch.full((8, 3, 6, 6), torch.nan), refusing=True)
    assert bool(answer.isnan().all())
    assert record.read().set_aside == 8
    assert same(before, snapshot(adapter))


STEADY = ("source", "t3a", "foa_shift", "lame", "memo")  # take huge samples as they are
EMPTIED = ("sotta", "rotta", "petta")  # keep a batch whose update goes wrong, and empty the memory
FRAGILE = [
    case for case, (name, _) in CASES.items() if name not in (*STEADY, *EMPTIED) and case != "rdumb, sotta"
]


@pytest.mark.parametrize("case", FRAGILE)
def test_a_step_that_goes_wrong_is_undone_by_flags_alone(case: str) -> None:
    adapter = begun(case)
    before, there = of_the_device(adapter), addresses(adapter)
    _, record = unread_step(adapter, 1e30 * drifted(8), refusing=True)
    step = record.read()
    assert step.used == 0
    assert "non-finite" in step.reason
    assert same(before, of_the_device(adapter))
    answer, _ = unread_step(adapter, drifted(8, 8), refusing=True)  # and it goes on
    assert bool(answer.isfinite().all())
    assert not same(before, of_the_device(adapter))
    assert addresses(adapter) == there


@pytest.mark.parametrize("options", [{"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adam"}])
def test_a_batch_with_nothing_to_learn_from_takes_no_step_by_flags_alone(options: dict[str, Any]) -> None:
    model, source = make("batch_norm")
    adapters = [eq.create("eta", model, source, margin=1.0, epsilon=0.9, **options) for _ in range(2)]
    plain, unread = adapters
    for adapter in adapters:
        adapter(drifted(8, 0))
        assert isinstance(adapter.method, Eta)
        adapter.responder.method = replace(adapter.method, margin=0.0)  # from now on no sample is reliable
    plain(drifted(8, 1))
    _, record = unread_step(unread, drifted(8, 1), refusing=True)
    step = record.read()
    assert (step.used, step.reason) == (0, "none of 8 samples is reliable and new")
    assert_near(snapshot(plain), snapshot(unread))


def test_a_memory_that_spoils_an_update_is_emptied_by_flags_alone() -> None:
    adapter = begun("sotta")
    weights = {name: p.detach().clone() for name, p in adapter.learned.items()}
    answer, record = unread_step(adapter, 1e25 * drifted(8), refusing=True)
    step = record.read()
    assert bool(answer.isfinite().all())
    assert (step.used, step.updated) == (0, False)
    assert "the memory was emptied" in step.reason
    assert bool((adapter.memory["classes"] == -1).all())
    assert all(torch.equal(weights[name], p) for name, p in adapter.learned.items())


def test_an_emptied_memory_is_not_captured_until_it_is_full_again() -> None:
    adapter = begun("sotta")
    adapter.responder.state.memory["classes"].fill_(-1)  # as a graph leaves it
    _, record = unread_step(adapter, drifted(3, 1))
    assert "emptied" not in record.read().reason
    adapter(drifted(3, 2))  # the batch that runs eagerly after the alarm
    assert not captures(adapter, drifted(8))
    adapter(drifted(8, 3))
    adapter(drifted(8, 4))  # whose plan finds it full
    assert captures(adapter, drifted(8))


@dataclass(frozen=True, kw_only=True)
class Writing(Method):
    """Writes weights by itself, and may say that it failed."""

    name = "writing"
    fails: bool = False

    @property
    def learns(self) -> Parameters:
        return "all"

    def step(self, context: Context) -> Update:
        logits = context.student.frozen(context.batch)
        with torch.no_grad():
            for parameter in context.student.learned.values():
                parameter.add_(0.1)
        fine = Check(torch.full((), not self.fails), "as asked for")
        return Update(logits, used=len(logits), checks=(fine,))


def test_a_method_that_writes_weights_by_itself_is_undone() -> None:
    adapter = eq.Adapter(Writing(), make()[0])
    before = snapshot(adapter)
    bad = drifted(8)
    bad[1] = torch.nan
    unread_step(adapter, bad, refusing=True)
    assert same(before, snapshot(adapter))
    adapter.responder.method = Writing(fails=True)
    _, record = unread_step(adapter, drifted(8), refusing=True)
    assert record.read().reason == "as asked for"
    assert same(before, snapshot(adapter))
    adapter(drifted(8))  # and by the eager engine
    assert same(before, snapshot(adapter))
    adapter.responder.method = Writing()
    _, record = unread_step(adapter, drifted(8), refusing=True)
    assert record.read().used == 8
    assert not same(before, snapshot(adapter))


@dataclass(frozen=True, kw_only=True)
class InParts(GradientMethod):
    """Learns from the first sample of a batch, then from the others."""

    name = "in_parts"

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        return Loss(nats(logits).mean(), used=len(logits))

    def step(self, context: Context) -> Update:
        batch, student = context.batch, context.student
        first = torch.arange(batch.rows) < 1
        one = super().step(context._replace(batch=batch.select(first)))
        memory = {**context.memory, **one.memory}
        rest = super().step(context._replace(batch=batch.select(~first), memory=memory))
        return rest._replace(logits=student.frozen(batch), memory={**one.memory, **rest.memory})


def test_a_method_may_step_on_a_part_of_a_batch() -> None:
    adapter = eq.Adapter(InParts(), make()[0])
    answer = adapter(drifted(8))
    assert answer.shape == (8, CLASSES)
    assert bool(answer.isfinite().all())
    assert adapter.last is not None
    assert adapter.last.used == 7
