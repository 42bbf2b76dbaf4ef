"""Poise against its parts, put together here: statistics that follow, prototypes, agreement."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.calibration.temper import Tempering
from equipoise.errors import OptionError, StateError, UnknownOptionError
from equipoise.methods.poise import SPREAD_TOTALS, blend, learn
from equipoise.network.head import FoundHead
from equipoise.network.running_statistics import following_statistics
from tests.support.models import make, step_of


def small_model() -> nn.Sequential:
    """A network with batch norm and a linear head."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
    ).eval()


def stream(count: int, rows: int = 10) -> list[torch.Tensor]:
    """Batches of images, brighter than those of the source."""
    draw = torch.Generator().manual_seed(5)
    return [2 * torch.rand(rows, 1, 8, 8, generator=draw) for _ in range(count)]


@pytest.mark.parametrize("tempering", ["none", "agreement"])
def test_it_is_statistics_and_prototypes(tempering: Tempering) -> None:
    model = small_model()
    source = eq.SourceStatistics.measure(model, [torch.rand(64, 1, 8, 8)], progress=False)
    adapter = eq.Poise(model, replace(source, norm_limits=torch.zeros(0)), tempering=tempering)
    mirror = copy.deepcopy(model)
    head, memory = nn.Linear(4 * 36, 5), dict[str, torch.Tensor]()
    head.load_state_dict(mirror[4].state_dict())
    for x in stream(3):
        answer = adapter(x)
        with torch.no_grad(), following_statistics(mirror, 0.1):
            features = mirror[:4](x)
            logits = head(features)
        seen = FoundHead("4", head, features, is_output=True)
        memory = learn(memory, seen, logits)
        raw = blend(memory, seen, logits)
        temperature = step_of(adapter).temperature or 1.0
        torch.testing.assert_close(answer * temperature, raw, rtol=1e-4, atol=1e-5)
    for name, parameter in adapter.student.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name))  # no gradient steps


def test_it_detaches_and_loads_with_its_prototypes(tmp_path: object) -> None:
    model = small_model()
    source = eq.SourceStatistics.measure(model, [torch.rand(64, 1, 8, 8)], progress=False)
    adapter = eq.Poise(model, source)
    for x in stream(3):
        adapter(x)
    torch.testing.assert_close(adapter.detach()(x), adapter.predict(x), rtol=1e-4, atol=1e-5)
    adapter.save(f"{tmp_path}/state.safetensors")
    again = eq.load(f"{tmp_path}/state.safetensors", model)
    assert torch.equal(again.predict(x), adapter.predict(x))
    again = eq.load(f"{tmp_path}/state.safetensors", model)
    with pytest.raises(StateError, match="answer a batch before detach"):
        again.detach()


def test_a_model_without_a_linear_head_does_without_prototypes() -> None:
    model = nn.Sequential(small_model(), nn.Softplus())
    source = eq.SourceStatistics.measure(model, [torch.rand(64, 1, 8, 8)], progress=False)
    adapter = eq.Poise(model, source)
    adapter(stream(1)[0])
    assert set(adapter.memory) == {"age"}


def test_what_belongs_to_gradient_steps_is_unknown() -> None:
    model = small_model()
    source = eq.SourceStatistics.measure(model, [torch.rand(8, 1, 8, 8)], progress=False)
    for option in ("learning_rate", "parameters", "optimizer", "momentum", "steps", "reading"):
        with pytest.raises(UnknownOptionError, match=f"poise has no option {option}; it has norm_momentum, "):
            eq.create("poise", model, source, **{option: 1})


@pytest.mark.parametrize("name", ["poise", "tent", "source"])
@pytest.mark.parametrize("end", [{"t_min": 1.0}, {"t_max": 3.0}])
def test_a_range_of_temperatures_needs_a_tempering(name: str, end: dict[str, float]) -> None:
    model, source = make()
    with pytest.raises(OptionError, match=f"no effect on {name} with tempering='none': leave them out"):
        eq.create(name, model, source, tempering="none", **end)
    assert eq.create(name, model, source, tempering="mean", **end).options["tempering"] == "mean"
    assert eq.create("dec", model, source, tempering="none", **end).options["tempering"] == "none"


def test_the_size_of_batches_and_their_order_change_little() -> None:
    model = small_model()
    source = eq.SourceStatistics.measure(model, [torch.rand(64, 1, 8, 8)], progress=False)
    x = torch.cat(stream(12))
    answers = []
    for size in (1, 16, 60):
        adapter = eq.Poise(model, source, tempering="none")
        for batch in x.split(size):
            adapter(batch)
        answers.append(adapter.predict(x[:30]).softmax(1))
    torch.testing.assert_close(answers[0], answers[2], atol=0.05, rtol=0)
    torch.testing.assert_close(answers[1], answers[2], atol=0.05, rtol=0)


class Twice(nn.Module):
    """Calls its head a second time, on what the first call gave."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.head(x).relu())
        return found


class Cosine(nn.Linear):
    """A head that is no plain linear layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 4 * nn.functional.normalize(x) @ nn.functional.normalize(self.weight).T


@pytest.mark.parametrize("model", [Twice(), nn.Sequential(nn.Linear(6, 8), Cosine(8, 4))])
def test_other_heads_stay_as_they_are(model: nn.Module) -> None:
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    source = eq.SourceStatistics.measure(model, [x], progress=False)
    adapter = eq.Poise(model, source)
    adapter(x)
    assert not adapter.memory
    torch.testing.assert_close(adapter.detach()(x), adapter.predict(x))


def test_half_precision_does_not_spoil_what_is_counted() -> None:
    model = small_model()
    source = eq.SourceStatistics.measure(model, [torch.rand(64, 1, 8, 8)], progress=False)
    adapter = eq.Poise(model, source)
    adapter(stream(1)[0])
    adapter.memory[SPREAD_TOTALS].mul_(70_000)
    before = adapter.memory[SPREAD_TOTALS].clone()
    adapter.half()
    assert torch.equal(adapter.memory[SPREAD_TOTALS], before)


def test_prototypes_of_another_shape_are_refused() -> None:
    model = small_model()
    source = eq.SourceStatistics.measure(model, [torch.rand(64, 1, 8, 8)], progress=False)
    adapter = eq.Poise(model, source)
    adapter(stream(1)[0])
    state = adapter.state_dict()
    name = next(name for name in state if name.endswith("sums"))
    with pytest.raises(StateError, match=r"sums: expected a tensor of \(classes=\d+, any\), got \(3, "):
        adapter.load_state_dict({**state, name: state[name][:3]})
    with pytest.raises(StateError, match="prototypes"):
        adapter.load_state_dict({key: tensor for key, tensor in state.items() if key != name})
