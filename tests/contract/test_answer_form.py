"""Answers have the form of the model's: a tensor, or an object with `.logits`; probabilities are a tensor."""

from copy import deepcopy
from dataclasses import InitVar, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import CLASSES, drifted, images, make, measured


@dataclass(frozen=True)
class Scored:
    logits: Tensor
    features: Tensor


@dataclass
class Counted:
    logits: Tensor
    features: Tensor | None = None

    def __post_init__(self) -> None:
        self.rows = len(self.logits)


class Named(NamedTuple):
    loss: Tensor | None
    logits: Tensor


@dataclass
class Property:
    scores: Tensor

    @property
    def logits(self) -> Tensor:
        return self.scores


@dataclass(init=False)
class OwnInit:
    logits: Tensor
    features: Tensor

    def __init__(self, z: Tensor) -> None:
        self.logits, self.features = z, z.exp()


@dataclass
class OnceGiven:
    logits: Tensor
    factor: InitVar[float]

    def __post_init__(self, factor: float) -> None:
        self.features = factor * self.logits


@dataclass
class Reading:
    logits: Tensor
    features: Tensor

    def __post_init__(self) -> None:
        self.size = self.features.numel()


class Row(tuple[Tensor, ...]):
    @property
    def logits(self) -> Tensor:
        return self[0]


class Plain:
    def __init__(self, logits: Tensor) -> None:
        self.logits, self.features = logits, logits.exp()


FORMS: dict[str, tuple[Any, type[Any]]] = {
    "frozen dataclass": (lambda z: Scored(z, z.exp()), Scored),
    "dataclass": (lambda z: Counted(z, z.exp()), Counted),
    "named tuple": (lambda z: Named(z.sum(), z), Named),
    "namespace": (lambda z: SimpleNamespace(logits=z, features=z.exp()), SimpleNamespace),
    "class": (Plain, SimpleNamespace),
    "property": (Property, SimpleNamespace),
    "own __init__": (OwnInit, SimpleNamespace),
    "InitVar": (lambda z: OnceGiven(z, 2.0), SimpleNamespace),
    "reads a field": (lambda z: Reading(z, z.exp()), SimpleNamespace),
    "tuple": (lambda z: Row([z]), SimpleNamespace),
}


class Returns(nn.Module):
    """A small model whose output has its logits in another form."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.net, self.form = make()[0], form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.net(x))


def others(answer: Any) -> set[Any]:
    """The values beside the logits."""
    named = answer._asdict() if isinstance(answer, Named) else vars(answer)
    return {value for name, value in named.items() if name not in ("logits", "rows")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["source", "tent", "memo", "poise"])
def test_an_object_with_logits_is_answered_by_one(name: str, form: str, tmp_path: Path) -> None:
    returns, kind = FORMS[form]
    model, plain = Returns(returns), Returns(lambda z: z)
    source, theirs = measured(model, [images(32)]), measured(plain, [images(32)])
    options: dict[str, Any] = {"tempering": "none"} if name == "poise" else {}
    adapter = eq.create(name, model, source, **options)
    like = eq.create(name, plain, theirs, **options)
    for seed in range(3):
        answer, expected = adapter(drifted(8, seed)), like(drifted(8, seed))
        assert type(answer) is kind
        assert torch.equal(answer.logits, expected)
        assert others(answer) <= {None}
    if isinstance(answer, Counted):
        assert answer.rows == 8
    expected = like.predict(drifted(8))
    assert torch.equal(adapter.predict(drifted(8)).logits, expected)
    assert torch.equal(adapter.predict_proba(drifted(8)), expected.softmax(1))
    assert torch.equal(deepcopy(adapter).predict(drifted(8)).logits, expected)
    detached = adapter.detach()(drifted(8))
    assert type(detached) is kind
    assert torch.allclose(detached.logits, expected, atol=1e-6)
    adapter.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", model)
    assert torch.equal(loaded(drifted(8, 5)).logits, like(drifted(8, 5)))


def test_outputs_makes_the_answer_a_tensor() -> None:
    model = Returns(FORMS["dataclass"][0])
    adapter = eq.create("tent", model, outputs=lambda out: out.logits)
    assert isinstance(adapter(drifted(8)), Tensor)
    assert isinstance(adapter.predict(drifted(8)), Tensor)
    assert isinstance(adapter.detach()(drifted(8)), Tensor)


def test_a_first_batch_without_a_sample_that_can_be_judged() -> None:
    model = Returns(FORMS["dataclass"][0])
    for source in (None, measured(model, [images(32)])):
        answer = eq.create("tent", model, source)(torch.full((3, 3, 6, 6), torch.nan))
        assert isinstance(answer, Counted)
        assert answer.logits.shape == (3, CLASSES)
        assert answer.logits.isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_guard_and_monitor_pass_the_answer_on(form: str) -> None:
    returns, kind = FORMS[form]
    adapter, like = eq.create("tent", Returns(returns)), eq.create("tent", Returns(lambda z: z))
    watched, plain = eq.Monitor(eq.Guarded(adapter)), eq.Monitor(eq.Guarded(like))
    for seed in range(3):
        answer = watched(drifted(8, seed))
        assert type(answer) is kind
        assert torch.equal(answer.logits, plain(drifted(8, seed)))
    assert watched.gauges().keys() == plain.gauges().keys()
    guarded = watched.adapter
    assert isinstance(guarded, eq.Guarded)
    guarded.hold()
    assert type(guarded(drifted(8))) is kind
    assert type(guarded.predict(drifted(8))) is kind
    assert torch.equal(guarded.predict_proba(drifted(8)), like.predict_proba(drifted(8)))


@pytest.mark.parametrize("tempering", ["none", "median", "sample"])
def test_probabilities_are_the_softmax_of_predict(tempering: Any) -> None:
    model, source = make()
    adapter = eq.create("tent", model, source, tempering=tempering)
    adapter(drifted(8))
    before = {name: tensor.clone() for name, tensor in adapter.state_dict().items()}
    found = adapter.predict_proba(drifted(8))
    assert torch.equal(found, adapter.predict(drifted(8)).softmax(1))
    assert torch.allclose(found.sum(1), torch.ones(8))
    assert all(torch.equal(before[name], tensor) for name, tensor in adapter.state_dict().items())
    spoilt = drifted(4)
    spoilt[2] = torch.nan
    assert adapter.predict_proba(spoilt).isnan().all(1).tolist() == [False, False, True, False]


def test_probabilities_of_half_precision_are_in_single() -> None:
    model = make("norm_free")[0].to(torch.bfloat16)
    found = eq.create("source", model).predict_proba(drifted(8).to(torch.bfloat16))
    assert found.dtype is torch.float32
    assert torch.allclose(found.sum(1), torch.ones(8))
