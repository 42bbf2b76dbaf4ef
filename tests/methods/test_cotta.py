"""CoTTA against formulas written out here and in `byhand`."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.methods.parts.views import TILE, WEAK_DRAWS, weak_views
from tests.support import byhand as by
from tests.support.models import drifted, make, step_of

VIEWS, RESTORE, DECAY, RATE = 3, 0.3, 0.8, 0.02


class Taught:
    """CoTTA's steps on one of the models of `byhand`: a student, a teacher, and the source weights."""

    def __init__(self, model: nn.Sequential, confidence: float, optimizer: str = "sgd") -> None:
        names = [name for name, _ in model.named_parameters()]
        self.student, self.teacher = by.ByHand(model, names), by.ByHand(model, names)
        self.source, self.confidence = by.ByHand(model), confidence
        self.descent: by.Descent = by.Momentum(RATE) if optimizer == "sgd" else by.Adam(RATE)
        self.symmetric, self.random = optimizer == "sgd", torch.Generator().manual_seed(5)
        self.averaged: list[bool] = []

    def draw(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.random)

    def step(self, x: Tensor) -> Tensor:
        draws, tile = self.draw(len(x), VIEWS, WEAK_DRAWS), self.draw(*TILE)
        sure = by.softmax(self.source.predict(x)).max(1).values.mean()
        self.averaged.append(bool(sure < self.confidence))
        if self.averaged[-1]:
            rows = torch.stack([image for image in x for _ in range(VIEWS)])
            views = weak_views(rows, draws.reshape(-1, WEAK_DRAWS), tile=tile)
            z = self.teacher.forward(views)
            targets = torch.stack([z[VIEWS * i : VIEWS * (i + 1)].sum(0) / VIEWS for i in range(len(x))])
        else:
            targets = self.teacher.forward(x)
        self.student.watch()
        p = by.softmax(self.student.forward(x))
        loss = -(by.softmax(targets) * p.log()).sum() / len(x)
        if self.symmetric:
            loss = 0.5 * loss - 0.5 * (p * by.softmax(targets).log()).sum() / len(x)
        self.student.descend(loss, self.descent)
        for name, weight in self.student.weights.items():
            self.teacher.weights[name] = DECAY * self.teacher.weights[name] + (1 - DECAY) * weight
        for name, weight in self.student.weights.items():
            back = self.draw(*weight.shape) < RESTORE
            self.student.weights[name] = torch.where(back, self.source.weights[name], weight)
        return targets


def adapter_of(model: nn.Module, source: eq.SourceStatistics | None = None, **options: Any) -> eq.Adapter:
    given = {"views": VIEWS, "restore": RESTORE, "decay": DECAY, "learning_rate": RATE, "seed": 5}
    return eq.create("cotta", model, source, **{**given, "optimizer": "sgd", **options})


@pytest.mark.parametrize(
    # Without views the first gradient is 0 but for rounding, of which "adam" makes a whole step.
    ("confidence", "optimizer"),
    [(0.0, "sgd"), (0.98, "sgd"), (1.0, "sgd"), (1.0, "adam")],
)
def test_weights_teacher_and_answers_are_those_of_the_formulas(confidence: float, optimizer: str) -> None:
    model = by.conv_model()
    adapter = adapter_of(model, confidence=confidence, optimizer=optimizer)
    hand = Taught(model, confidence, optimizer)
    for x in by.stream(4, like=model):
        assert by.close(adapter(x), hand.step(x), 1e-7)
        by.assert_alike(adapter, hand.student, 1e-7)
        for name, weight in hand.teacher.weights.items():
            assert by.close(adapter.memory[f"teacher.{name}"], weight, 1e-7), name
    assert set(hand.averaged) == {0.0: {False}, 0.98: {False, True}, 1.0: {True}}[confidence]


def test_predict_and_the_detached_module_answer_by_the_teacher() -> None:
    model = by.conv_model()
    adapter, hand = adapter_of(model, confidence=1.0), Taught(model, 1.0)
    for x in by.stream(2, like=model):
        adapter(x)
        hand.step(x)
    hand.teacher.mean, hand.teacher.var = hand.student.mean, hand.student.var
    (x,) = by.stream(1, like=model, seed=8)
    assert by.close(adapter.predict(x), hand.teacher.predict(x), 1e-7)
    assert by.close(adapter.detach()(x), hand.teacher.predict(x), 1e-7)


def test_the_confidence_limit_comes_from_the_source_statistics() -> None:
    model, source = make()
    levels = torch.linspace(0, 1, 257)
    source = replace(source, confidences=0.4 + 0.6 * levels)  # its 5 % quantile is .43
    adapter = eq.create("cotta", model, source)
    limit = adapter.responder.constants["confidence"]
    assert float(limit) == pytest.approx(0.38, abs=1e-6)
    given = eq.create("cotta", model, source, confidence=0.9)
    assert float(given.responder.constants["confidence"]) == pytest.approx(0.9)


def test_views_are_used_without_source_statistics() -> None:
    model, _ = make()
    always, none = adapter_of(model, confidence=1.0), adapter_of(model)
    assert torch.equal(always(drifted(8)), none(drifted(8)))


class Named(nn.Module):
    """A parameter that is neither called weight nor bias."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(-1, 1, 768).sin().reshape(3, 64, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("ncp,cpk->nk", x.flatten(2), self.gain)


def test_every_parameter_is_restored_whatever_its_name() -> None:
    model = Named()
    adapter = adapter_of(model, restore=0.5)
    x = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    adapter(x)
    back = (adapter.learned["gain"] == model.gain).float().mean()
    assert 0.4 < float(back) < 0.6
    everything = adapter_of(model, restore=1.0)
    everything(x)
    assert torch.equal(everything.learned["gain"], model.gain)
    assert not torch.equal(everything.memory["teacher.gain"], model.gain)  # it has followed before


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_a_lone_sample_is_answered_by_the_running_statistics_and_learned_from(confidence: float) -> None:
    model, source = make()
    adapter = adapter_of(model, source, confidence=confidence, restore=0.0)
    before = {name: buffer.clone() for name, buffer in adapter.student.named_buffers()}
    answer = adapter(drifted(1))
    assert bool(answer.isfinite().all())
    assert step_of(adapter).updated
    assert all(torch.equal(buffer, before[name]) for name, buffer in adapter.student.named_buffers())
    if confidence == 0.0:
        assert torch.allclose(answer, model(drifted(1)), atol=1e-6)
