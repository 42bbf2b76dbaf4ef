"""The model's own answers, bit for bit: `predict` before the first batch and after a reset, `detach()`."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.method import Memory
from equipoise.core.student import Student
from equipoise.methods.norm import Norm
from tests.support.models import MODELS, drifted, make, measured, rehearsed

NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "batch_norm": nn.BatchNorm2d,
    "group_norm": lambda width: nn.GroupNorm(4, width),
    "instance_norm": lambda width: nn.InstanceNorm2d(width, affine=True, track_running_stats=True),
    "no_norm": lambda width: nn.Identity(),
}


def network(kind: str) -> nn.Module:
    """A network whose convolutions round in another way with the channels last."""
    norm = NETWORKS[kind]
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1), norm(32), nn.ReLU()]
    layers += [nn.Conv2d(32, 32, 3, groups=32), norm(32), nn.ReLU(), nn.Conv2d(32, 48, 3), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(192, 16), nn.LayerNorm(16), nn.Linear(16, 5))
    with torch.no_grad():
        model.train()(drifted(16))
    return model.eval()


def laid_out(model: nn.Module, memory_format: torch.memory_format) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=memory_format)
    return model


def expect_the_model(answers: Callable[[Tensor], Tensor], model: nn.Module, temperature: float = 1.0) -> None:
    """The answers are the model's over a temperature, to the last bit, for images in either format."""
    images = drifted(7, seed=5)
    for x in (images, images.contiguous(memory_format=torch.channels_last), images[:1]):
        with torch.no_grad():
            expected = deepcopy(model)(x) / temperature  # a copy: instance norm rewrites its statistics
        assert torch.equal(answers(x), expected)
        with torch.inference_mode():
            assert torch.equal(answers(x), expected)


@pytest.mark.parametrize("name", eq.list_methods())
def test_predict_of_every_method_begins_as_the_model(name: str) -> None:
    model = network("batch_norm")
    adapter = eq.create(name, model, measured(model, [drifted(16, 1)]), tempering="mean")
    if name == "t3a":  # its prototypes take the place of the head
        assert not torch.equal(adapter.predict(drifted(8)), model(drifted(8)))
    else:
        expect_the_model(adapter.predict, model)


def learn_and_reset(adapter: eq.Adapter | eq.Tempered) -> None:
    for seed in range(3):
        adapter(drifted(8, seed))
    adapter.reset()


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("options", [{}, {"source_copy": "swapped"}, {"engine": "eager"}], ids=str)
@pytest.mark.parametrize("name", ["poise", "tent", "dec", "rotta", "source"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_predict_is_the_model_before_the_first_batch_and_after_a_reset(
    kind: str, name: str, options: dict[str, Any], last: bool
) -> None:
    model = network(kind)
    source = eq.SourceStatistics.measure(model, [drifted(16, 1)], progress=False)
    if last:
        model = laid_out(model, torch.channels_last)
    if name in ("tent", "rotta"):
        options = {"parameters": "all", **options}
    adapter = eq.create(name, model, source, tempering="none", **options)
    expect_the_model(adapter.predict, model)
    learn_and_reset(adapter)
    expect_the_model(adapter.predict, model)
    expect_the_model(lambda x: adapter.detach()(x), model)


@pytest.mark.parametrize("kind", MODELS)
def test_a_rehearsed_predict_is_the_model_over_the_temperature(kind: str) -> None:
    model, source = make(kind)
    adapter = eq.Poise(model, rehearsed(source, "poise"))
    expect_the_model(adapter.predict, model, adapter.temperature)
    learn_and_reset(adapter)
    expect_the_model(adapter.predict, model, adapter.temperature)


@pytest.mark.parametrize("wanted", ["contiguous", "channels_last"])
def test_a_format_that_was_asked_for_holds_for_every_answer(wanted: str) -> None:
    model = network("batch_norm")
    adapter = eq.create("norm", model, memory_format=wanted)
    learn_and_reset(adapter)
    named = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    expect_the_model(adapter.predict, laid_out(model, named[wanted]))


def test_predict_leaves_the_weights_where_they_are() -> None:
    adapter = eq.create("norm", network("batch_norm"))
    adapter(drifted(8))
    before = [(weight.data_ptr(), weight.stride()) for weight in adapter.student.parameters()]
    adapter.predict(drifted(8))
    assert before == [(weight.data_ptr(), weight.stride()) for weight in adapter.student.parameters()]


@pytest.mark.parametrize("name", ["poise", "rotta"])
def test_an_adapted_detached_module_is_predict(name: str) -> None:
    model = network("batch_norm")
    source = eq.SourceStatistics.measure(model, [drifted(16, 1)], progress=False)
    adapter = eq.create(name, model, source, tempering="none")
    for seed in range(3):
        adapter(drifted(8, seed))
    detached = adapter.detach()
    assert [weight.stride() for weight in detached.parameters() if weight.ndim == 4] == [
        weight.stride() for weight in model.parameters() if weight.ndim == 4
    ]
    assert torch.allclose(detached(drifted(8)), adapter.predict(drifted(8)), atol=1e-6)


@dataclass(frozen=True, kw_only=True)
class Wrapping(Norm):
    """A method of one's own whose export has other names."""

    name = "wrapping"

    def export(self, student: Student, memory: Memory) -> nn.Module:
        return nn.Sequential(super().export(student, memory))


def test_a_method_may_export_a_module_with_other_names() -> None:
    model = laid_out(network("batch_norm"), torch.channels_last)
    adapter = eq.Adapter(Wrapping(), model)
    adapter(drifted(8))
    assert torch.allclose(adapter.detach()(drifted(8)), adapter.predict(drifted(8)), atol=1e-5)
