"""The search that led to poise: ways to adapt, and what to divide by, on some streams of a finished run.

    python -m benchmarks.results.search OUT RECIPE DATA --targets mnist usps --images 2000 > search.csv

on the source models (seed 0) that `equipoise run RECIPE --data DATA --out OUT` trained; a row for each
stream, way and divisor. The committed search.csv has the means over the streams of each network.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks.results.models import met
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.functional import certainty_regularizer, nats
from equipoise.metrics import accuracy, expected_calibration_error, negative_log_likelihood

BATCH = 50


@dataclass(frozen=True)
class Way:
    """How to adapt: statistics of the "batch", with a "prior", or "following"; a loss, and on what."""

    statistics: str = "following"
    value: float = 0.1
    floor: float = 0.0
    loss: str = ""
    rate: float = 1e-3
    everything: bool = False
    own_teacher: bool = False
    weighted: bool = False
    prototypes: bool = False


WAYS = {
    "statistics: batch": Way("batch"),
    "statistics: batch with a prior of 16": Way("prior", 16),
    **{f"statistics: following {m}": Way(value=m) for m in (0.05, 0.1, 0.2, 0.4)},
    "statistics: following .1, one fifth source": Way(floor=0.2),
    "T3A prototypes alone": Way(prototypes=True),
    "CE(student, teacher/t) by 1/tau, Adam 1e-3 on norms": Way(loss="reverse", weighted=True),
    "CE(student, following teacher/t), Adam 1e-3 on norms": Way(loss="reverse", own_teacher=True),
    "the same by 1/tau": Way(loss="reverse", own_teacher=True, weighted=True),
    "the same by 1/tau, Adam 3e-4": Way(loss="reverse", own_teacher=True, weighted=True, rate=3e-4),
    "entropy by 1/tau, Adam 1e-3 on norms": Way(loss="entropy", weighted=True),
    "paper's loss without avg(tau)², Adam 1e-3 on norms": Way(loss="paper"),
    "the same with a following teacher": Way(loss="paper", own_teacher=True),
    "released loss, SGD 1e-3 on all": Way(loss="released", everything=True),
    "batch statistics, released loss, SGD 1e-3 on all": Way("batch", loss="released", everything=True),
    "reverse, following teacher, by 1/tau, SGD 1e-3 on all": Way(
        loss="reverse", own_teacher=True, weighted=True, everything=True
    ),
}
DIVISORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "raw": lambda t, _tau: t.new_ones(()),
    "mean": lambda _t, tau: tau.mean(),
    "median": lambda _t, tau: tau.median(),
    "start": lambda t, tau: (t * tau).sqrt().median(),
}


class Network:
    """A copy of a model whose batch norms do as a way says."""

    def __init__(self, model: nn.Module, way: Way) -> None:
        self.net, self.way = copy.deepcopy(model).eval(), way
        self.layers = [m for m in self.net.modules() if isinstance(m, _BatchNorm)]
        self.source = {id(m): self._moments(m) for m in self.layers}
        self.running = dict(self.source)
        if way.statistics != "batch":
            for layer in self.layers:
                layer.register_forward_pre_hook(self._join)

    @staticmethod
    def _moments(layer: nn.Module) -> tuple[Tensor, Tensor]:
        return layer.get_buffer("running_mean").clone(), layer.get_buffer("running_var").clone()

    def _join(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].detach()
        var, mean = torch.var_mean(x, [dim for dim in range(x.ndim) if dim != 1], correction=0)
        if self.way.statistics == "prior":
            share, start = len(x) / (len(x) + self.way.value), self.source[id(layer)]
        else:
            share, start = 1 - (1 - self.way.value) ** (len(x) / BATCH), self.running[id(layer)]
        joined = _mixed(start, (mean, var), share)
        self.running[id(layer)] = joined
        used = _mixed(self.source[id(layer)], joined, 1 - self.way.floor)
        layer.get_buffer("running_mean").copy_(used[0])
        layer.get_buffer("running_var").copy_(used[1])

    def __call__(self, x: Tensor) -> Tensor:
        """The logits."""
        for layer in self.layers:
            layer.train(self.way.statistics == "batch" and len(x) > 1)
        logits: Tensor = self.net(x)
        return logits


def _mixed(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], share: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of two together, the second by a share."""
    apart = second[0] - first[0]
    var = (1 - share) * first[1] + share * second[1] + share * (1 - share) * apart**2
    return first[0] + share * apart, var


def losses(kind: str, student: Tensor, teacher: Tensor, t: Tensor, tau: Tensor) -> Tensor:
    """The loss of each sample."""
    p = student.softmax(1)
    if kind == "entropy":
        return nats(student)
    if kind == "paper":
        return -((teacher / tau.unsqueeze(1)).softmax(1) * student.log_softmax(1)).sum(1)
    soft = teacher / t.unsqueeze(1)
    if kind == "reverse":
        return -(p * soft.log_softmax(1)).sum(1)
    q = soft.softmax(1).clamp(1e-7, 1 - 1e-7)
    return -(p * q.log() + (1 - p) * (1 - q).log()).mean(1) * t.mean() ** 2


def answers(model: nn.Module, way: Way, pixels: Tensor, plain: Tensor, t: Tensor, tau: Tensor) -> Tensor:
    """The online logits of a way to adapt."""
    student = Network(model, way)
    teacher = Network(model, way) if way.own_teacher else None
    norms = {id(p) for layer in student.layers for p in layer.parameters(False)}
    learned = [p for p in student.net.parameters() if way.loss and (way.everything or id(p) in norms)]
    for parameter in student.net.parameters():
        parameter.requires_grad_(any(parameter is p for p in learned))
    optimizer: torch.optim.Optimizer | None = None
    if learned:
        kind = torch.optim.SGD if way.everything else torch.optim.Adam
        optimizer = kind(learned, lr=way.rate)
    head = [m for m in student.net.modules() if isinstance(m, nn.Linear)][-1]
    features: list[Tensor] = []
    head.register_forward_pre_hook(lambda _m, inputs: features.append(inputs[0].detach()))
    sums = torch.zeros_like(head.weight.detach())
    sums.index_add_(0, head(head.weight).argmax(1), normalize(head.weight.detach()))
    features.clear()
    found = []
    for rows in torch.arange(len(pixels)).split(BATCH):
        x = pixels[rows].float()
        with torch.set_grad_enabled(optimizer is not None):
            logits = student(x)
        if optimizer is not None:
            with torch.no_grad():
                target = teacher(x) if teacher is not None else plain[rows]
            each = losses(way.loss, logits, target, t[rows], tau[rows])
            optimizer.zero_grad()
            (each / tau[rows] if way.weighted else each).mean().backward()
            optimizer.step()
        if way.prototypes:
            sums.index_add_(0, logits.detach().argmax(1), normalize(features[-1]))
            logits = features[-1] @ normalize(sums).T
        features.clear()
        found.append(logits.detach())
    return torch.cat(found)


def search(
    name: str, model: nn.Module, source: SourceStatistics, pixels: Tensor, labels: Tensor
) -> Iterator[dict[str, Any]]:
    """A row for each way and divisor."""
    with torch.no_grad():
        plain = torch.cat([model(batch.float()) for batch in pixels.split(BATCH)])
    t, tau = certainty_regularizer(plain, source.h0, source.kappa, 1.0, 3.0)
    for about, way in WAYS.items():
        torch.manual_seed(0)
        logits = answers(model, way, pixels, plain, t, tau)
        for rule, divisor in DIVISORS.items():
            parts = zip(logits.split(BATCH), t.split(BATCH), tau.split(BATCH), strict=True)
            divided = torch.cat([z / divisor(some_t, some_tau) for z, some_t, some_tau in parts])
            confidence = float(divided.softmax(1).max(1).values.mean())
            right = float(accuracy(logits=divided, target=labels))
            yield {
                "stream": name,
                "variant": about,
                "rule": rule,
                "accuracy": right,
                "ece": float(expected_calibration_error(logits=divided, target=labels)),
                "nll": float(negative_log_likelihood(logits=divided, target=labels)),
                "gap": confidence - right,
            }


def main() -> None:
    """Read the models and the streams, search, and print the rows as CSV."""
    rows: list[dict[str, Any]] = []
    for run, trained, pixels, labels in met(__doc__ or ""):
        cell = run.any_cell
        name = f"{cell['backbone']} on {cell['target']}" + (
            "" if cell["tier"] is None else f"/{cell['tier']}"
        )
        rows += search(name, trained.model, trained.source, pixels, labels)
    pd.DataFrame(rows).to_csv(sys.stdout, index=False)


if __name__ == "__main__":
    main()
