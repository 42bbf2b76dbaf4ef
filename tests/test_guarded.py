"""The step that never looks, as CUDA graphs hold it, here on the CPU: it comes to what the plain one does."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.record import Step
from equipoise.engine import captured as graphs
from equipoise.functional import nats
from equipoise.methods._gradient import GradientAdapter, Objective
from equipoise.network.batch import Batch
from equipoise.network.outcome import Outcome, SourceView
from tests.test_conformance import CASES, POSSIBLE, create
from tests.toys import drifted, make, same, snapshot

QUICK = {"sotta": {"confidence": 0.0, "every": 8, "capacity": 8}}
"""A memory that is full after one batch."""


def made(case: str, kind: str) -> eq.Adapter:
    model, source = make(kind)
    return create(case, model, source, **QUICK.get(CASES[case][0], {}))


def guarded(adapter: eq.Adapter, x: Tensor) -> tuple[Tensor, Step, bool]:
    """A batch by the step that never looks."""
    batch = Batch.of((x,), {}).learnable()
    for parameter in adapter.learned.values():
        parameter.requires_grad_()
    with torch.enable_grad():
        adapter.fed = adapter.feed(batch)
        try:
            answer, record, fine = adapter.respond_guarded(batch)
        finally:
            adapter.fed = {}
    return answer, record.read(), bool(fine)


def assert_alike(plain: eq.Adapter, unseeing: eq.Adapter, x: Tensor) -> None:
    """The same answer and decision by both."""
    expected = plain(x)
    answer, step, fine = guarded(unseeing, x)
    assert fine
    assert torch.allclose(answer, expected, atol=1e-6)
    last = plain.last
    assert last is not None
    assert (step.used, step.updated, step.set_aside) == (last.used, last.updated, last.set_aside)
    assert step.temperature == pytest.approx(last.temperature) if last.temperature else True


def begun(case: str, kind: str) -> tuple[eq.Adapter, eq.Adapter]:
    """Two of the same that have seen a stream, so that everything has arrived that ever will."""
    plain, unseeing = made(case, kind), made(case, kind)
    for seed in range(3):
        plain(drifted(8, seed))
        unseeing(drifted(8, seed))
    assert unseeing.course(Batch.of((drifted(8),), {})) is not None
    return plain, unseeing


@pytest.mark.parametrize(("case", "kind"), POSSIBLE)
def test_it_comes_to_what_the_plain_step_does(case: str, kind: str) -> None:
    plain, unseeing = begun(case, kind)
    for seed in range(3, 6):
        assert_alike(plain, unseeing, drifted(8, seed))
    state, other = snapshot(plain), snapshot(unseeing)
    assert state.keys() == other.keys()
    assert all(torch.allclose(state[name], other[name], atol=1e-6) for name in state)


@pytest.mark.parametrize("case", ["norm", "tent, lively", "eta, lively", "eata, lively", "poise", "sotta"])
def test_samples_that_come_alone(case: str) -> None:
    plain, unseeing = made(case, "batch_norm"), made(case, "batch_norm")
    one = Batch.of((drifted(1),), {})
    seed = 0
    while seed < 4 or unseeing.course(one) is None:  # until windows are full
        plain(drifted(1, seed))
        unseeing(drifted(1, seed))
        seed += 1
        assert seed < 40
    for later in range(seed, seed + 7):
        assert_alike(plain, unseeing, drifted(1, later))
    state, other = snapshot(plain), snapshot(unseeing)
    assert all(torch.allclose(state[name], other[name], atol=1e-6) for name in state)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("case", ["poise", "dec", "tent", "eta, lively", "t3a", "norm", "sotta"])
def test_with_a_bad_sample_it_answers_the_others_and_learns_nothing(case: str, bad: float) -> None:
    _, unseeing = begun(case, "batch_norm")
    before = snapshot(unseeing)
    x = drifted(8, 7)
    x[2, 0, 1, 1] = bad
    answer, step, fine = guarded(unseeing, x)
    assert not fine
    assert bool(answer[2].isnan().all())
    assert bool(torch.cat([answer[:2], answer[3:]]).isfinite().all())
    assert (step.set_aside, step.used) == (1, 0)
    assert "1 of 8 set aside: non-finite" in step.reason
    host = ("waiting", "random")  # what the host counts and draws goes on
    after = {name: t if not name.endswith(host) else before[name] for name, t in snapshot(unseeing).items()}
    assert same(before, after)


def test_a_batch_without_a_good_sample_is_answered_with_nan() -> None:
    _, unseeing = begun("poise", "batch_norm")
    before = snapshot(unseeing)
    answer, step, fine = guarded(unseeing, torch.full((8, 3, 6, 6), torch.nan))
    assert not fine
    assert bool(answer.isnan().all())
    assert step.set_aside == 8
    assert same(before, snapshot(unseeing))


class Blind:
    """Lets no truth value be known on the host, as on a GPU."""

    def __call__(self, _truth: Tensor) -> bool | None:
        return None


@pytest.mark.parametrize("case", ["tent", "tent, lively", "eta, lively", "dec", "dec, lively", "poise"])
def test_what_goes_wrong_is_undone_by_flags_alone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, unseeing = begun(case, "batch_norm")
    for module in ("outcome", "optim", "gradient", "methods.eta"):
        monkeypatch.setattr(f"equipoise.{module}.known", Blind())
    before = snapshot(unseeing)
    _, step, _ = guarded(unseeing, 1e30 * drifted(8))
    assert step.used == 0
    assert "non-finite" in step.reason
    assert same(before, snapshot(unseeing))
    answer, step, _ = guarded(unseeing, drifted(8, 8))  # and it goes on
    assert bool(answer.isfinite().all())
    assert step.used > 0


@pytest.mark.parametrize("options", [{"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adam"}])
def test_nothing_to_learn_from_takes_no_step_by_flags_alone(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, source = make("batch_norm")
    adapters = [eq.create("eta", model, source, margin=1.0, epsilon=0.9, **options) for _ in range(2)]
    plain, unseeing = adapters
    for adapter in adapters:
        adapter(drifted(8, 0))
    for adapter in adapters:
        vars(adapter)["margin"] = 0.0  # from now on no sample is reliable
    plain(drifted(8, 1))
    for module in ("outcome", "optim", "gradient", "methods.eta"):
        monkeypatch.setattr(f"equipoise.{module}.known", Blind())
    _, step, _ = guarded(unseeing, drifted(8, 1))
    assert (step.used, step.reason) == (0, "none of 8 samples is reliable and new")
    left, right = snapshot(plain), snapshot(unseeing)
    assert all(torch.allclose(left[name], right[name]) for name in left)


def test_a_memory_that_an_update_spoils_is_emptied_by_flags_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, unseeing = begun("sotta", "batch_norm")
    for module in ("outcome", "optim", "gradient"):
        monkeypatch.setattr(f"equipoise.{module}.known", Blind())
    weights = {name: p.detach().clone() for name, p in unseeing.learned.items()}
    answer, step, _ = guarded(unseeing, 1e25 * drifted(8))
    assert bool(answer.isfinite().all())
    assert (step.used, step.updated) == (0, False)
    assert "the memory was emptied" in step.reason
    assert bool((unseeing.kept["classes"] == -1).all())
    assert all(torch.equal(weights[name], p) for name, p in unseeing.learned.items())


def test_after_a_memory_was_emptied_the_host_looks_until_it_is_full_again() -> None:
    _, unseeing = begun("sotta", "batch_norm")
    eight = Batch.of((drifted(8),), {})
    unseeing.kept["classes"] = torch.full_like(unseeing.kept["classes"], -1)  # as a graph leaves it
    _, step, _ = guarded(unseeing, drifted(3, 1))
    assert "emptied" not in step.reason
    unseeing(drifted(3, 2))  # the batch that the host looks at after the alarm
    assert unseeing.course(eight) is None
    unseeing(drifted(8, 3))
    assert unseeing.course(eight) is not None


class Own(eq.Adapter):
    """Writes weights by itself, and may say that it failed, as CONTRIBUTING allows."""

    name = "own"
    fails = False

    def __init__(self, model: nn.Module, source: eq.SourceStatistics | None = None, **shared: Any) -> None:
        super().__init__(model, source, "all", **shared)

    @property
    def rewrites(self) -> bool:
        return True

    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        logits = self.steady_logits(batch)
        with torch.no_grad():
            for parameter in self.learned.values():
                parameter.add_(0.1)
        return Outcome(logits, used=batch.rows, reason="no" if self.fails else "", failed=self.fails)


def test_a_method_that_writes_weights_itself_is_undone() -> None:
    adapter = Own(make()[0])
    before = snapshot(adapter)
    bad = drifted(8)
    bad[1] = torch.nan
    guarded(adapter, bad)
    assert same(before, snapshot(adapter))
    adapter.fails = True
    guarded(adapter, drifted(8))
    assert same(before, snapshot(adapter))
    adapter.fails = False
    _, step, _ = guarded(adapter, drifted(8))
    assert step.used == 8
    assert not same(before, snapshot(adapter))


class Half(GradientAdapter):
    """Learns from a part of each batch."""

    name = "half"

    def objective(self, logits: Tensor, source: SourceView | None) -> Objective:
        return Objective(nats(logits).mean(), used=len(logits))

    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        first = torch.arange(batch.rows) < 1
        super().step(batch.select(first), None)
        return super().step(batch.select(~first), None)._replace(logits=self.steady_logits(batch))


def test_a_method_may_step_on_a_part_of_a_batch() -> None:
    adapter = Half(make()[0])
    assert bool(adapter(drifted(8)).isfinite().all())
    assert adapter.last is not None
    assert adapter.last.used == 7


def test_what_a_graph_is_kept_under() -> None:
    adapter = made("tent", "batch_norm")
    x = drifted(8)
    key = graphs._key(adapter, Batch((x,), {"scale": 2.0}, 8))
    assert key is not None
    assert key == graphs._key(adapter, Batch((drifted(8, 1),), {"scale": 2.0}, 8))
    assert key != graphs._key(adapter, Batch((x,), {"scale": 3.0}, 8))
    assert key != graphs._key(adapter, Batch((x[:7],), {"scale": 2.0}, 7))
    for other in ((x,), [1], x.to("meta")):  # what is compared by identity, or lies elsewhere
        assert graphs._key(adapter, Batch((x,), {"more": other}, 8)) is None
