"""RoTTA on a small model as plain tensors and loops, with a hook for what PeTTA adds."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.methods.parts.views import TILE, WEAK_DRAWS, weak_views
from tests.support.byhand import Adam
from tests.support.category_memory import ListedCategories
from tests.support.models import step_of

LIVELY: dict[str, Any] = {"every": 4, "capacity": 6, "decay": 0.5, "norm_momentum": 0.9}
LIVELY["learning_rate"] = 0.02
"""Options under which much happens in a short stream."""

LEARNED = ("1.weight", "1.bias")


def small_model(seed: int = 0, classes: int = 5) -> nn.Sequential:
    """Convolution, batch norm, ReLU, linear, in double precision; not sure of all samples."""
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, classes)]
    model = nn.Sequential(*layers).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                tensor.copy_(drawn**2 + 0.5 if "running_var" in name else 0.5 * drawn)
    return model.eval()


def stream(sizes: list[int], seed: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [2 * torch.randn(n, 3, 6, 6, generator=generator, dtype=torch.float64) + 1 for n in sizes]


class ByHand:
    """RoTTA on `small_model`, sample by sample."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        self.w = {n: t.clone() for n, t in model.state_dict().items() if t.is_floating_point()}
        self.teacher = {name: self.w[name].clone() for name in LEARNED}
        self.every, self.capacity = int(options.get("every", 64)), int(options.get("capacity", 64))
        self.decay = float(options.get("decay", 0.999))
        self.momentum = float(options.get("norm_momentum", 0.05))
        self.memory = ListedCategories(self.capacity, len(self.w["4.bias"]))
        self.generator = torch.Generator().manual_seed(options.get("seed", 0))
        self.offered, self.updates, self.loss, self.used = 0, 0, math.nan, 0
        self.descent = Adam(float(options.get("learning_rate", 1e-3)))

    def network(self, w: dict[str, Tensor], x: Tensor) -> Tensor:
        return self.features(w, x) @ w["4.weight"].T + w["4.bias"]

    def features(self, w: dict[str, Tensor], x: Tensor) -> Tensor:
        h = torch.nn.functional.conv2d(x, w["0.weight"], w["0.bias"])
        mean, var, scale, bias = (
            w[f"1.{name}"].view(1, 4, 1, 1) for name in ("running_mean", "running_var", "weight", "bias")
        )
        return ((h - mean) / (var + 1e-5).sqrt() * scale + bias).clamp(min=0).flatten(1)

    def answer(self, x: Tensor) -> Tensor:
        return self.network({**self.w, **self.teacher}, x)

    def move_statistics(self, x: Tensor) -> None:
        """The mixture of old and new samples: n of 64 have the share 1 − (1 − momentum)^(n/64)."""
        h = torch.nn.functional.conv2d(x, self.w["0.weight"], self.w["0.bias"])
        share = 1 - (1 - self.momentum) ** (len(x) / 64)
        for channel in range(4):
            values = h[:, channel].flatten()
            mean, var = self.w["1.running_mean"][channel], self.w["1.running_var"][channel]
            new = (1 - share) * mean + share * values.mean()
            second = (1 - share) * (var + mean**2) + share * (values**2).mean()
            self.w["1.running_mean"][channel], self.w["1.running_var"][channel] = new, second - new**2

    def extra_loss(
        self, weights: dict[str, Tensor], z: Tensor, x: Tensor, before: dict[str, Tensor]
    ) -> Tensor | float:
        """Terms of the loss besides RoTTA's; `before` are weights before the step, and statistics."""
        return 0.0

    def shares(self) -> float:
        """The share of the student in the teacher after this update."""
        return 1 - self.decay

    def weight(self, age: int) -> float:
        """The weight of a sample in the memory."""
        return math.exp(-age / self.capacity) / (1 + math.exp(-age / self.capacity))

    def came(self, sample: Tensor, label: int) -> None:
        """Take note of a sample and the class it is answered with."""

    def update(self) -> None:
        """A step on the memory, slot by slot: views depend on the order."""
        items = sorted((item for _, item in self.memory.listed()), key=lambda item: item.slot)
        x, ages = torch.stack([item.sample for item in items]), [item.age for item in items]
        share = self.shares()
        self.move_statistics(x)
        targets = self.answer(x).softmax(1)
        draws = torch.rand(self.capacity, WEAK_DRAWS, generator=self.generator)[: len(x)].double()
        tile = torch.rand(TILE, generator=self.generator)
        views = weak_views(x, draws, tile=tile)
        before = {name: value.clone() for name, value in self.w.items()}
        leaves = {name: self.w[name].clone().requires_grad_() for name in LEARNED}
        z = self.network({**self.w, **leaves}, views)
        loss = torch.zeros((), dtype=torch.float64)
        for row, age in enumerate(ages):
            loss = loss - self.weight(age) * (targets[row] * z[row].log_softmax(0)).sum() / len(ages)
        loss = loss + self.extra_loss(leaves, z, x, before)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        self.updates, self.loss, self.used = self.updates + 1, float(loss.detach()), len(x)
        for name, g in zip(leaves, gradients, strict=True):
            self.w[name] = self.w[name] + self.descent.move(name, g)
            self.teacher[name] = (1 - share) * self.teacher[name] + share * self.w[name]

    def step(self, x: Tensor) -> Tensor:
        """Answer a batch, and take a step after every so many samples."""
        z = self.answer(x)
        p = z.softmax(1)
        for sample, chances in zip(x, p, strict=True):
            self.came(sample, int(chances.argmax()))
            nats = -float((chances * chances.log()).sum())
            self.memory.offer(int(chances.argmax()), nats, sample)
            self.offered += 1
            if self.offered % self.every == 0:
                self.update()
        return z


def assert_stream_is_exact(
    adapter: eq.Adapter, expected: ByHand, sizes: list[int], rtol: float, atol: float
) -> None:
    """Batches of these sizes leave answers, records, weights and the teacher as computed here."""
    close = partial(torch.allclose, rtol=rtol, atol=atol)
    for x in stream(sizes):
        assert close(adapter(x), expected.step(x))
        step = step_of(adapter)
        if step.updated:
            assert step.loss == pytest.approx(expected.loss, rel=rtol)
            assert step.used == expected.used
    assert expected.updates >= 3
    for name, value in expected.w.items():
        assert close(adapter.student.state_dict()[name], value), name
    for name, value in expected.teacher.items():
        assert close(adapter.memory[f"teacher.{name}"], value), name
    (x,) = stream([5], seed=8)
    for answer in (adapter.predict(x), adapter.detach()(x)):
        assert close(answer, expected.answer(x))
