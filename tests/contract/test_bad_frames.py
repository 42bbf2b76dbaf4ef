"""Bad samples in a stream: the others are answered, and the bad ones never enter the state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import drifted, make, same, snapshot


class Odd(nn.Module):
    """A classifier whose answer to an image with a marked corner is spoilt on purpose."""

    def __init__(self, inner: nn.Module, spoil: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.inner, self.spoil = inner, spoil

    def forward(self, x: Tensor) -> Tensor:
        marked = (x[:, 0, 0, 0] == 99.0).unsqueeze(1)
        logits: Tensor = self.inner(x.clamp(max=10))
        if not marked.any():
            return logits
        return torch.where(marked, self.spoil(logits, torch.is_grad_enabled()), logits)


def mark(x: Tensor, row: int) -> Tensor:
    x = x.clone()
    x[row, 0, 0, 0] = 99.0
    return x


def build(spoil: Callable[[Tensor, bool], Tensor], **options: Any) -> eq.Adapter:
    inner, source = make("batch_norm")
    hand_made = eq.SourceStatistics(source.h0, source.kappa, source.num_classes)
    adapter = eq.DEC(Odd(inner, spoil), hand_made, learning_rate=0.01, **options)
    adapter(drifted(8))
    return adapter


@pytest.mark.parametrize("tempering", ["mean", "median", "sample", "none"])
def test_source_logits_of_norm_zero(tempering: str) -> None:
    adapter, clean = (build(lambda z, _: z * 0, tempering=tempering) for _ in range(2))
    x = drifted(8, seed=1)
    logits = adapter(mark(x, 2))
    others = [row for row in range(8) if row != 2]
    assert torch.equal(logits[others], clean(x[others]))
    assert logits[2].tolist() == [0.0] * 5  # it knows nothing, and says so
    assert same(snapshot(adapter), snapshot(clean))
    assert adapter.last is not None
    assert (adapter.last.used, adapter.last.set_aside) == (7, 1)
    assert adapter.last.reason == "1 of 8 set aside: zero source logits"
    assert adapter.predict(mark(x, 2))[2].tolist() == [0.0] * 5


def test_finite_input_with_non_finite_source_logits() -> None:
    adapter, clean = (build(lambda z, _: z * torch.inf) for _ in range(2))
    x = drifted(8, seed=1)
    logits = adapter(mark(x, 0))
    assert bool(logits[0].isnan().all())
    assert torch.equal(logits[1:], clean(x[1:]))
    assert same(snapshot(adapter), snapshot(clean))


def test_a_batch_of_zero_source_logits() -> None:
    adapter = build(lambda z, _: z * 0)
    before = snapshot(adapter)
    x = mark(mark(drifted(2), 0), 1)
    assert adapter(x).tolist() == [[0.0] * 5] * 2
    assert same(before, snapshot(adapter))
    assert adapter.last is not None
    assert not adapter.last.updated


def overflowing(z: Tensor) -> Tensor:
    """The identity with an infinite gradient."""
    copy = z.clone()
    copy.register_hook(lambda gradient: gradient * torch.inf)
    return copy


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda z, learning: z * torch.nan if learning else z, "non-finite loss"),
        (lambda z, learning: overflowing(z) if learning else z, "non-finite gradient or step"),
    ],
)
def test_a_step_that_goes_wrong_is_undone(spoil: Callable[[Tensor, bool], Tensor], reason: str) -> None:
    adapter = build(spoil)
    before = snapshot(adapter)
    logits = adapter(mark(drifted(8, seed=1), 3))
    assert logits.shape == (8, 5)
    assert same(before, snapshot(adapter))
    assert adapter.last is not None
    assert not adapter.last.updated
    assert adapter.last.used == 0
    assert adapter.last.reason == reason
    adapter(drifted(8, seed=2))
    assert adapter.last.updated
    assert not same(before, snapshot(adapter))


def test_ctrl_c_in_the_middle_loses_nothing() -> None:
    def interrupt(z: Tensor, learning: bool) -> Tensor:
        if learning and armed:
            raise KeyboardInterrupt
        return z

    armed = False
    adapter = build(interrupt)
    before = snapshot(adapter)
    armed = True
    with pytest.raises(KeyboardInterrupt):
        adapter(mark(drifted(8, seed=1), 0))
    assert same(before, snapshot(adapter))


def test_a_step_too_long_for_the_numbers_is_not_taken() -> None:
    model, source = make("norm_free")
    adapter = eq.DEC(model, source, learning_rate=1e39)
    before = snapshot(adapter)
    adapter(drifted(8))
    assert adapter.last is not None
    assert adapter.last.reason == "non-finite gradient or step"
    assert same(before, snapshot(adapter))


@pytest.mark.parametrize("size", [1e15, 1e25, 3e38])
@pytest.mark.parametrize("method", eq.list_methods())
def test_a_finite_sample_too_large_to_square_never_stays_in_the_state(method: str, size: float) -> None:
    model, source = make("batch_norm")
    options: dict[str, Any] = {"confidence": 0.0, "every": 4} if method == "sotta" else {}
    adapter = eq.create(method, model, source, **options)
    x = drifted(8)
    x[3] = size
    for rows in (x, x[3:4], drifted(4)):
        adapter(rows)
        assert all(bool(tensor.isfinite().all()) for tensor in snapshot(adapter).values())
    assert bool(adapter(drifted(8, seed=1)).isfinite().all())
    assert bool(adapter.predict(drifted(8, seed=2)).isfinite().all())


def test_statistics_that_overflow_are_undone_and_no_step_is_taken() -> None:
    model, _ = make("batch_norm")
    for method in ("tent", "norm"):
        adapter = eq.create(method, model)
        before = snapshot(adapter)
        x = drifted(8)
        x[3] = 1e25
        adapter(x)
        assert adapter.last is not None
        assert (adapter.last.reason, adapter.last.updated) == ("non-finite statistics", False)
        assert same(before, snapshot(adapter))


def test_a_memory_that_spoils_every_update_is_emptied() -> None:
    model, _ = make("batch_norm")
    adapter = eq.create("sotta", model, confidence=0.0, every=8)
    adapter(torch.full((2, 3, 6, 6), 2e38))
    adapter(drifted(6))
    assert adapter.last is not None
    assert adapter.last.reason.endswith(": the memory was emptied")
    weights = {name: tensor.clone() for name, tensor in adapter.student.state_dict().items()}
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in weights.items())
    adapter(drifted(8, seed=1))
    assert adapter.last.used == 8


def test_a_gradient_too_long_to_square_does_not_enter_adams_state() -> None:
    model, _ = make("layer_norm")
    adapter = eq.create("tent", Odd(model, lambda z, learning: steep(z) if learning else z), optimizer="adam")
    before = snapshot(adapter)
    adapter(mark(drifted(8), 3))
    assert adapter.last is not None
    assert adapter.last.reason == "non-finite gradient or step"
    assert same(before, snapshot(adapter))


@pytest.mark.filterwarnings("ignore:.*are lost")
def test_a_step_too_long_for_half_precision_is_not_taken() -> None:
    model, _ = make("layer_norm")
    adapter = eq.create("tent", model.half(), optimizer="sgd", learning_rate=1e8)
    before = snapshot(adapter)
    adapter(drifted(8).half())
    assert adapter.last is not None
    assert adapter.last.reason == "non-finite gradient or step"
    assert same(before, snapshot(adapter))


def steep(z: Tensor) -> Tensor:
    """The identity with a gradient that is finite and whose square is not."""
    copy = z.clone()
    copy.register_hook(lambda gradient: gradient * 1e30)
    return copy
