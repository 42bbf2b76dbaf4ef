"""An adapter in place of a model is refused: `predict` of the outer one would teach the inner one."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import drifted, images, make, same


class Parent(nn.Module):
    """A model with an adapter inside."""

    def __init__(self, adapter: eq.Adapter) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"expert": adapter})

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body["expert"](x)
        return logits


def adapters() -> dict[str, eq.Adapter]:
    model, source = make()
    return {
        "an adapter": eq.create("tent", model),
        "a Tempered": eq.Tempered(eq.create("tent", model), source),
    }


@pytest.mark.parametrize("kind", adapters())
@pytest.mark.parametrize("place", ["itself", "inside", "compiled"])
def test_an_adapter_is_no_model(kind: str, place: str) -> None:
    adapter, (_, source) = adapters()[kind], make()
    adapter(drifted(8))
    before = adapter.state_dict()
    model: Any = Parent(adapter) if place == "inside" else adapter
    if place == "compiled":
        model = torch.compile(adapter, backend="eager")
    labelled = [(images(60), torch.arange(60) % 5)] * 3
    path = "expert" if place == "inside" else "adapt the model that it was made from"
    for call in (
        lambda: eq.create("tent", model),
        lambda: eq.Poise(model, source),
        lambda: eq.DEC(model, source),
        lambda: eq.SourceStatistics.measure(model, [images(8)], progress=False),
        lambda: eq.rehearse(model, labelled, shifts=8, progress=False),
    ):
        with pytest.raises(eq.errors.ModelError, match=path):
            call()
    assert same(before, adapter.state_dict())


def test_a_tempered_adapter_is_not_tempered_again() -> None:
    adapter, (_, source) = adapters()["a Tempered"], make()
    with pytest.raises(eq.errors.OptionError, match=r"already tempered.*\.adapter"):
        eq.Tempered(adapter, source)


def test_a_detached_module_is_a_model_again() -> None:
    detached = eq.create("tent", make()[0]).detach()
    assert eq.create("source", detached)(images(4)).shape == (4, 5)
