"""Every registered method on every kind of normalisation, for batches of several sizes, through faults.

The conformance suite has the promises of a method on one stream; here are sizes and contents of batches that
break formulas: one sample, a bad frame among good ones, equal samples, no sample to learn from, one class.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.cases import CASES
from tests.support.models import CLASSES, MODELS, drifted, make, measured, snapshot

SIZES = (1, 2, 7, 50)


def rms_norm_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 8), nn.RMSNorm(8), nn.GELU(), nn.Linear(8, CLASSES))


def as_it_is(head: nn.Linear) -> None:
    """The head stays."""


def unsure(head: nn.Linear) -> None:
    """Answers become nearly even, whatever the input: no filter of sure samples lets one through."""
    head.weight.zero_()
    head.bias.copy_(torch.linspace(0, 1e-2, CLASSES))


def of_one_class(head: nn.Linear) -> None:
    """Answers become the first class, with a probability that rounds to one."""
    head.bias.copy_(torch.tensor([60.0, *[0.0] * (CLASSES - 1)]))


@cache
def prepared(kind: str, change: Callable[[nn.Linear], None]) -> tuple[nn.Module, eq.SourceStatistics]:
    """A model with a changed head and its source statistics, which adapters leave as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = make(kind)[0] if kind in MODELS else rms_norm_model().eval()
    head = list(model.modules())[-1]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        change(head)
    return model, measured(model, [drifted(32, seed=7)])


def adapter_of(
    method: str, kind: str, change: Callable[[nn.Linear], None], **options: Any
) -> eq.Adapter | None:
    """An adapter, or None where the method says that it needs other layers."""
    try:
        return eq.create(method, *prepared(kind, change), **options)
    except eq.errors.ModelError as error:
        assert kind != "batch_norm", f"{method} refuses batch norm: {error}"
        return None


def lively(method: str) -> dict[str, Any]:
    """Options under which much happens."""
    return CASES.get(f"{method}, lively", (method, {}))[1]


def learned(adapter: eq.Adapter) -> dict[str, Tensor]:
    """Copies of the weights that learn and of the optimiser's state."""
    state = {name: t for name, t in adapter.memory.items() if name.startswith("optimizer.")}
    return {name: t.detach().clone() for name, t in (*adapter.learned.items(), *state.items())}


def answer(adapter: eq.Adapter, x: Tensor) -> Tensor:
    """The answer to a batch, after everything that must hold for any batch is checked."""
    before = learned(adapter)
    logits: Tensor = adapter(x)
    good = x.flatten(1).isfinite().all(1)
    assert logits.shape == (len(x), CLASSES)
    assert logits[good].isfinite().all()
    assert logits[~good].isnan().all()
    for name, tensor in snapshot(adapter).items():
        assert tensor.isfinite().all(), name
    last = adapter.last
    assert last is not None
    assert (last.samples, last.set_aside) == (len(x), int((~good).sum()))
    assert last.updated or last.reason, "nothing was learned, and no reason is given"
    if not last.updated:
        for name, tensor in learned(adapter).items():
            assert torch.equal(tensor, before[name]), f"no step was taken, and {name} has moved"
    return logits


every_method = pytest.mark.parametrize("method", eq.list_methods())
every_kind = pytest.mark.parametrize("kind", [*MODELS, "rms_norm"])


@every_method
@every_kind
@pytest.mark.parametrize("size", SIZES)
def test_bad_frames_and_equal_samples_pass_in_batches_of_any_size(method: str, kind: str, size: int) -> None:
    adapter = adapter_of(method, kind, as_it_is, **lively(method))
    if adapter is None:
        return
    bad = torch.full_like(drifted(1), torch.nan)
    answer(adapter, torch.cat([bad, drifted(size, seed=1)]))
    equal = answer(adapter, drifted(1, seed=2).repeat(size, 1, 1, 1))
    assert "seed" in adapter.options or torch.allclose(equal, equal[:1], atol=1e-4)  # or views at random
    answer(adapter, drifted(size, seed=3))
    assert adapter.predict(drifted(size)).isfinite().all()


@every_method
@every_kind
def test_without_a_sure_sample_the_encoder_stays(method: str, kind: str) -> None:
    by_answers_alone = {"contrast": 0.0} if method == "rmt" else {}  # features are learned from without them
    adapter = adapter_of(method, kind, unsure, **by_answers_alone)
    if adapter is None:
        return
    answer(adapter, drifted(7))
    model, _ = prepared(kind, unsure)
    for name, parameter in adapter.student.named_parameters():
        if len(parameter) != CLASSES:  # not the head's, which moves where it is learned
            assert torch.allclose(parameter, model.get_parameter(name), atol=1e-6), name


@every_method
@every_kind
def test_answers_of_one_class_only_stay_finite(method: str, kind: str) -> None:
    adapter = adapter_of(method, kind, of_one_class, **lively(method))
    if adapter is None:
        return
    for seed in range(3):
        answer(adapter, drifted(7, seed))
