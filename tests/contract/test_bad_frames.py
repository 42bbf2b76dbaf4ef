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


@pytest.mark.parametrize(
    ("factor", "tempering"),
    [(0.0, "mean"), (0.0, "median"), (0.0, "sample"), (0.0, "none"), (torch.inf, "mean")],
)
def test_a_row_that_the_source_model_cannot_judge(factor: float, tempering: str) -> None:
    adapter, clean = (build(lambda z, _: z * factor, tempering=tempering) for _ in range(2))
    x = drifted(8, seed=1)
    logits = adapter(mark(x, 2))
    others = [row for row in range(8) if row != 2]
    assert torch.equal(logits[others], clean(x[others]))
    assert same(snapshot(adapter), snapshot(clean))
    assert adapter.last is not None
    assert (adapter.last.used, adapter.last.set_aside) == (7, 1)
    if factor:
        assert bool(logits[2].isnan().all())
        assert adapter.last.reason == "1 of 8 set aside: non-finite"
    else:  # it knows nothing, and says so
        assert logits[2].tolist() == adapter.predict(mark(x, 2))[2].tolist() == [0.0] * 5
        assert adapter.last.reason == "1 of 8 set aside: zero source logits"


def test_a_batch_of_zero_source_logits() -> None:
    adapter = build(lambda z, _: z * 0)
    before = snapshot(adapter)
    x = mark(mark(drifted(2), 0), 1)
    assert adapter(x).tolist() == [[0.0] * 5] * 2
    assert same(before, snapshot(adapter))
    assert adapter.last is not None
    assert not adapter.last.updated


def through(factor: float) -> Callable[[Tensor, bool], Tensor]:
    """The identity, whose gradient is multiplied by a factor where there is one."""

    def spoil(z: Tensor, learning: bool) -> Tensor:
        copy = z.clone()
        if learning:
            copy.register_hook(lambda gradient: gradient * factor)
        return copy

    return spoil


def marked(x: Tensor) -> Tensor:
    return mark(x, 3)


def huge(x: Tensor) -> Tensor:
    x[3] = 1e25
    return x


def tent(model: nn.Module, **options: Any) -> eq.Adapter:
    return eq.create("tent", model, **options)


TOO_LONG, OVERFLOW = "non-finite gradient or step", "non-finite statistics"
WRONG: list[tuple[Callable[[], eq.Adapter], Callable[[Tensor], Tensor], str]] = [
    (lambda: build(lambda z, learning: z * torch.nan if learning else z), marked, "non-finite loss"),
    (lambda: build(through(torch.inf)), marked, TOO_LONG),
    # The square of this gradient is not finite, and must not enter Adam's state.
    (lambda: tent(Odd(make("layer_norm")[0], through(1e30)), optimizer="adam"), marked, TOO_LONG),
    (lambda: eq.DEC(*make("norm_free"), learning_rate=1e39), torch.clone, TOO_LONG),
    (lambda: tent(make("layer_norm")[0].half(), optimizer="sgd", learning_rate=1e8), Tensor.half, TOO_LONG),
    (lambda: tent(make()[0]), huge, OVERFLOW),
    (lambda: eq.create("norm", make()[0]), huge, OVERFLOW),
]


@pytest.mark.filterwarnings("ignore:.*are lost")
@pytest.mark.parametrize(("made", "change", "reason"), WRONG)
def test_a_step_that_goes_wrong_is_undone(
    made: Callable[[], eq.Adapter], change: Callable[[Tensor], Tensor], reason: str
) -> None:
    adapter = made()
    before = snapshot(adapter)
    assert adapter(change(drifted(8, seed=1))).shape == (8, 5)
    assert same(before, snapshot(adapter))
    assert adapter.last is not None
    assert (adapter.last.updated, adapter.last.used, adapter.last.reason) == (False, 0, reason)
    if change is marked:  # a row was at fault, and not the adapter
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
    armed = False
    assert adapter(drifted(8, seed=1)).isfinite().all()


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
