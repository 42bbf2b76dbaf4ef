"""An adapter in words and numbers: its parts, the memory it takes, its distance from the source model."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipoise.core.method import SAMPLES, SUPPORTS, option_values
from equipoise.core.step import Responder
from equipoise.core.student import Student
from equipoise.network.head import linear_layer, linear_layers
from equipoise.network.named_tensors import part

_SHOWN = 4  # names of layers
_ITSELF = "the model itself"


def describe(respond: Responder, execution: str) -> str:
    """The parts of an adapter, a line each."""
    student, method = respond.student, respond.method
    weights = sum(parameter.numel() for parameter in student.model.parameters())
    classes = "" if student.classes is None else f", {student.classes} classes"
    lines = {
        method.name: f"on {type(student.model).__name__} with {weights:,} parameters{classes}",
        "learns": _learning(student),
        "statistics": _statistics(respond),
        "prototypes": _prototypes(respond),
        "tempering": _tempering(respond),
        "runs": f"{execution}, fp32" if student.layout.precision == "fp32" else execution,
        "holds": _holding(respond),
    }
    width = max(len(name) for name in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())


def _learning(student: Student) -> str:
    if not student.learned:
        return "no parameters: no gradient steps"
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in student.learned))
    count = sum(parameter.numel() for parameter in student.learned.values())
    return f"{count:,} parameters of {_counted(layers)}"


def _statistics(respond: Responder) -> str:
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in respond.student.statistics))
    if layers:
        heeds = respond.method.heeds_novelty and respond.source and "limit" in respond.source.inputs
        far = ", as far as rows are unlike source rows" if heeds else ""
        return f"running statistics of {_counted(layers)} follow the stream{far}"
    if not respond.method.moves_statistics:
        return f"none: {respond.method.name} leaves running statistics as they are"
    return "none: the model has no normalisation layer with running statistics"


def _prototypes(respond: Responder) -> str:
    student, method = respond.student, respond.method
    if not method.uses_prototypes:
        return f"none: {method.name} uses none"
    head = student.head or option_values(method).get("head")
    if head is not None:
        weight = linear_layer(student.model, head).weight
        return f"on the linear head {head!r}, {weight.shape[1]} features to {weight.shape[0]} classes"
    if student.head_is_output is None and linear_layers(student.model):
        return "on the linear head, which the first batch finds"
    if student.head_refusal:
        return f"none: {student.head_refusal}"
    last = _last_layer(student.model)
    return f"none: the logits are not the output of an nn.Linear; the last layer is {last}"


def _last_layer(model: nn.Module) -> str:
    """The name and the class of the last layer with weights; quantised ones have a method of that name."""
    found = [(name, module) for name, module in model.named_modules() if hasattr(module, "weight")]
    name, layer = found[-1] if found else ("", model)
    kind, module = type(layer).__name__, type(layer).__module__
    quantised = "quantised " if "quantized" in module else ""
    return f"{repr(name) if name else _ITSELF}, a {quantised}{kind}"


def _tempering(respond: Responder) -> str:
    temper, source = respond.temper, respond.source
    rehearsals = ", ".join(source.rehearsals) if source else ""
    if temper.rehearsed is None:
        cure = f'; tempering="rehearsed" would use the rehearsal of {rehearsals}' if rehearsals else ""
        return f"{temper.kind}; accuracy is not estimated{cure}"
    rehearsal = temper.rehearsed.rehearsal
    fallback = "may answer" if temper.compares else "never answers"
    return (
        f"rehearsed on {rehearsal.samples} samples and {len(rehearsal.runs)} streams; accuracy is estimated; "
        f"the source model {fallback}"
    )


def _holding(respond: Responder) -> str:
    held = measure_footprint(respond)
    stored = "stores samples as they came" if held.stores_observations else "stores no samples"
    return f"{_size(held.total.bytes)} on {respond.student.device}; {stored}"


def _counted(layers: list[str]) -> str:
    names = [name or _ITSELF for name in layers]
    shown = ", ".join(names if len(names) <= _SHOWN else [*names[: _SHOWN - 1], "…", names[-1]])
    return f"{len(layers)} layer{'s' if len(layers) > 1 else ''} ({shown})"


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


@dataclass(frozen=True)
class Amount:
    """An element count and its size in bytes."""

    numbers: int
    bytes: int

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> "Amount":
        """The amount in some tensors."""
        listed = list(tensors)
        return cls(sum(t.numel() for t in listed), sum(t.numel() * t.element_size() for t in listed))

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.numbers + other.numbers, self.bytes + other.bytes)


@dataclass(frozen=True)
class Footprint:
    """The tensors that an adapter holds now; a memory is counted whole once a batch has made it.

    Attributes:
        parameters: the student's parameters and those of the source model that are held a second time.
        learned: the parameters that learn.
        buffers: running statistics, an optimiser's state, averages, constants, temperatures.
        supports: T3A's supports, made from observations: their features, or sums of them.
        observations: samples as they came.
        samples: how many of those there is room for.
        stores_observations: whether samples are kept as they came: now, or by this method from its first
            batch on.
        paper: the numbers that the paper's appendix counts as the method's overhead: both networks where the
            source model is asked for every batch (DEC), else the parameters that learn (TENT, ETA), and to
            that the supports (T3A: M times the head) and the observations (SoTTA: N times a sample).
        total: everything held.
    """

    parameters: Amount
    learned: Amount
    buffers: Amount
    supports: Amount
    observations: Amount
    samples: int
    stores_observations: bool
    paper: int

    @property
    def total(self) -> Amount:
        """Everything held."""
        return self.parameters + self.buffers + self.supports + self.observations


def measure_footprint(respond: Responder, recent: Iterable[Tensor] = ()) -> Footprint:
    """Count the tensors that an adapter holds, on whatever device; `recent` are those of recent answers."""
    student, memory = respond.student, respond.state.memory
    second = student.source_copy.held()
    weights = {name for name, _ in student.model.named_parameters()}
    stored, supports = part(memory, SAMPLES).values(), part(memory, SUPPORTS).values()
    rest = [tensor for name, tensor in memory.items() if not name.startswith((SAMPLES, SUPPORTS))]
    rest += [*respond.constants.values(), *respond.state.temperature.values()]
    rest += [] if respond.state.random.state is None else [respond.state.random.state]
    rest += [*respond.state.cleared(), *recent]
    parameters = Amount.of(student.model.parameters()) + Amount.of(
        tensor for name, tensor in second.items() if name in weights
    )
    buffers = Amount.of([*student.model.buffers(), *rest]) + Amount.of(
        tensor for name, tensor in second.items() if name not in weights
    )
    learned, held, observed = Amount.of(student.learned.values()), Amount.of(supports), Amount.of(stored)
    base = parameters if respond.asks_source else learned
    return Footprint(
        parameters=parameters,
        learned=learned,
        buffers=buffers,
        supports=held,
        observations=observed,
        samples=max((len(tensor) for tensor in stored), default=0),
        stores_observations=respond.method.stores_samples or bool(stored),
        paper=base.numbers + held.numbers + observed.numbers,
    )


_TINY = 1e-12


class Deviation(NamedTuple):
    """The distance of an adapter from the source model.

    Attributes:
        finite: whether all weights, statistics and memory are finite.
        weights: ‖θ − θ₀‖ / ‖θ₀‖ of the weights that learn, θ₀ those of the source model; 0 if not finite.
        statistics: the same of the running statistics.
    """

    finite: bool
    weights: float
    statistics: float


def deviation(student: Student, memory: Iterable[Tensor]) -> Deviation:
    """Measure the distance of a network and its method's memory; waits for the device."""
    source = student.source_values(student.statistics)
    with torch.no_grad():
        weights, statistics = float(student.weight_distance()), _distance(student.statistics, source)
        remembered = _added([tensor.float().sum() for tensor in memory if tensor.is_floating_point()])
    finite = all(math.isfinite(value) for value in (weights, statistics, remembered))
    return Deviation(True, weights, statistics) if finite else Deviation(False, 0.0, 0.0)


def _distance(values: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> float:
    """‖values − source‖ / ‖source‖ over all tensors; 0 where there are none."""
    pairs = [
        (value.detach().float(), source[name].to(value.device).float())
        for name, value in values.items()
        if value.is_floating_point()
    ]
    moved = _added([(value - start).square().sum() for value, start in pairs])
    length = _added([start.square().sum() for _, start in pairs])
    return math.sqrt(moved / length) if length else math.sqrt(moved)


def _added(numbers: list[Tensor]) -> float:
    """The sum of numbers on a device, copied to the host at once."""
    return float(torch.stack(numbers).cpu().double().sum()) if numbers else 0.0


def statistics_shift(student: Student) -> float | None:
    """The distance of the running statistics from those of the source model, in its standard deviations.

    The mean over the layers of √(mean_c ((μ_c − μ⁰_c)² + (σ_c − σ⁰_c)²) / (σ⁰_c)²): the 2-Wasserstein
    distance of normal distributions with the moments μ, σ of the channels c, relative to σ⁰. None where no
    statistics follow the stream.
    """
    layers = [name.removesuffix("running_var") for name in student.statistics if name.endswith("running_var")]
    if not layers:
        return None
    names = [f"{layer}{kind}" for kind in ("running_mean", "running_var") for layer in layers]
    with torch.no_grad():
        source = student.source_values(dict.fromkeys(names))
        distances = [
            _apart(
                *(student.statistics[f"{layer}{kind}"] for kind in ("running_mean", "running_var")),
                *(source[f"{layer}{kind}"] for kind in ("running_mean", "running_var")),
            )
            for layer in layers
        ]
        return float(torch.stack(distances).mean())


def _apart(mean: Tensor, var: Tensor, source_mean: Tensor, source_var: Tensor) -> Tensor:
    source_mean, source_var = source_mean.to(mean), source_var.to(var)
    apart = (mean - source_mean).square() + (var.sqrt() - source_var.sqrt()).square()
    return (apart / source_var.clamp(min=_TINY)).mean().sqrt()
