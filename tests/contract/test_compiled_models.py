"""Models that torch.compile has wrapped or changed: the module inside is adapted, under its own names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from tests.support.models import drifted, images, make


def wrapped(model: nn.Module) -> nn.Module:
    """The model as torch.compile returns it; the backend runs no compiler."""
    compiled: Any = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    return compiled


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def inside(model: nn.Module) -> nn.Module:
    """A model whose last layers are compiled."""
    layers = list(model.children())
    return nn.Sequential(*layers[:-1], wrapped(layers[-1]))


FORMS = [wrapped, in_place, inside]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["poise", "t3a", "tent", "dec"])
def test_answers_are_those_of_the_plain_model(
    name: str, form: Callable[[nn.Module], nn.Module], tmp_path: Path
) -> None:
    model, source = make()
    compiled = form(make()[0])
    with torch.no_grad():
        compiled.eval()(images(8))  # compiled now, before any adapter can place a hook
    eq.create(name, compiled, source)(drifted(8))
    plain, adapter = eq.create(name, model, source), eq.create(name, compiled, source)
    for seed in range(3):
        assert torch.equal(adapter(drifted(8, seed)), plain(drifted(8, seed)))
    assert adapter.memory.keys() == plain.memory.keys()
    assert adapter.learned.keys() == plain.learned.keys()
    assert torch.allclose(adapter.detach()(drifted(8)), adapter.predict(drifted(8)), atol=1e-6)
    for saved, other in ((adapter, model), (plain, compiled)):
        saved.save(tmp_path / "state.safetensors")
        loaded = eq.load(tmp_path / "state.safetensors", other)
        assert torch.equal(loaded.predict(drifted(8, 4)), plain.predict(drifted(8, 4)))


@pytest.mark.parametrize("form", FORMS)
def test_statistics_are_those_of_the_plain_model(form: Callable[[nn.Module], nn.Module]) -> None:
    model, compiled = make()[0], form(make()[0])
    with torch.no_grad():
        compiled.eval()(images(8))
    loader = images(32).split(8)
    ours = eq.SourceStatistics.measure(compiled, loader, fisher=True, progress=False)
    theirs = eq.SourceStatistics.measure(model, loader, fisher=True, progress=False)
    assert ours.agrees_with(theirs)
    assert torch.equal(ours.norm_limits, theirs.norm_limits)
    assert ours.fisher.keys() == theirs.fisher.keys()


def test_a_detached_module_is_of_the_class_inside() -> None:
    model, source = make()
    assert type(eq.Poise(wrapped(model), source).detach()) is type(model)


def test_the_compiled_model_stays_compiled() -> None:
    model, source = make()
    in_place(model)
    before = model._compiled_call_impl
    eq.SourceStatistics.measure(model, [images(8)], progress=False)
    eq.Poise(model, source)(drifted(8))
    assert model._compiled_call_impl is before is not None


class NamedAlike(nn.Module):
    """A user's model whose child has the name that torch.compile gives to the module it wraps."""

    def __init__(self) -> None:
        super().__init__()
        self._orig_mod, self.scale = make()[0], 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.scale * self._orig_mod(x)
        return logits


@pytest.mark.parametrize("form", [lambda model: model, wrapped])
def test_a_name_does_not_make_a_compiled_model(form: Callable[[nn.Module], nn.Module]) -> None:
    adapter = eq.create("source", form(NamedAlike().eval()))
    assert torch.equal(adapter(images(8)), 2 * make()[0].eval()(images(8)))
    assert type(adapter.detach()) is NamedAlike
