"""Temperatures from the certainty regulariser: one number for a batch, and for all that was seen."""

import math
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from equipoise.calibration.rehearsal import Rehearsal
from equipoise.calibration.rehearsed import RehearsedTemperature
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import SourceError
from equipoise.functional import at_least_single, certainty_regularizer, check_range
from equipoise.network.outcome import SourceView
from equipoise.options import number, one_of

Tempering: TypeAlias = Literal["mean", "median", "sample", "agreement", "rehearsed", "none"]
"""How logits are divided: by the mean of tau (the paper), its median, each sample's own tau, what the source
model's agreement with the answers suggests (`agreement_temperature`), what a rehearsal suggests
(`calibration.rehearsed`), or not."""

OF_TAU: tuple[Tempering, ...] = ("mean", "median", "sample", "agreement")
"""Those that need the source model's logits for each batch."""

_WIDEST = 16.0  # how far from its start the search for a temperature goes, as a ratio
_FINEST = 2**14  # into how many parts it divides that range, which leaves an interval of .03 %
_AT_ONCE = 2**16  # numbers up to which the search tries many temperatures in one go, for fewer kernels

# The sketch counts tau in cells whose edges grow by 1 %, so a cell's middle is within .5 % of all its values.
_GROWTH, _LOWEST, _HIGHEST = math.log(1.01), 1e-12, 1e12
_CELLS = math.ceil(math.log(_HIGHEST / _LOWEST) / _GROWTH)


def agreement_temperature(
    logits: Tensor, source_logits: Tensor, t: Tensor, tau: Tensor, known: Tensor | None = None
) -> Tensor:
    """The one temperature at which the answers are as confident as two models on average find them.

    T₀ = median_i √(t_i · tau_i), between the paper's tau and the authors' notebook's t. At T₀, with k_i the
    class of answer i, two models, the one that answers and the source model, give it the probability

        a = avg_i ½ · (softmax(z_i / T₀)_k + softmax(source_i / T₀)_k),

    and T is where avg_i max softmax(z_i / T) = a. Where both agree, T is near T₀; the more they differ, the
    higher it is. No label is needed, and no class of an answer changes. Only samples that are `known` (None:
    all) have a say.
    """
    if known is None:
        known = torch.ones_like(tau, dtype=torch.bool)
    share = known / known.sum()
    start = median((t * tau).sqrt(), known)
    z, other = at_least_single(logits), at_least_single(source_logits)
    classes = z.argmax(1, keepdim=True)
    ours, theirs = _behind(z, classes, known), _behind(other, classes, known)
    aim = (_doubt(ours, share, start[None]) + _doubt(theirs, share, start[None])) / 2
    points = 25 if 25 * z.numel() <= _AT_ONCE else 1
    between = torch.linspace(0, 1, points + 2, device=z.device, dtype=start.dtype)
    low, width = start / _WIDEST, torch.full_like(start, _WIDEST**2)
    for _ in range(math.ceil(math.log(_FINEST) / math.log(points + 1))):
        tried = low * width**between  # doubt grows with temperature: T is after the last that is too sure
        after = (_doubt(ours, share, tried[1:-1]) < aim).sum()
        low, width = tried.gather(0, after[None])[0], width ** between[1]
    return torch.where(aim > 0, low * width.sqrt(), start)[0]  # without doubt, every temperature would do


def _behind(logits: Tensor, classes: Tensor, known: Tensor) -> Tensor:
    """How far the logits of the other classes are behind that of the class of each answer."""
    behind = (logits - logits.gather(1, classes)).scatter(1, classes, -torch.inf)
    return torch.where(known.unsqueeze(1), behind, -torch.inf)


def _doubt(behind: Tensor, share: Tensor, temperatures: Tensor) -> Tensor:
    """avg_i (1 − softmax(z_i / T)_k) for each T: a probability near 1 would have no digits left."""
    odds = (behind / temperatures.reshape(-1, 1, 1)).exp().sum(2)
    return (share * (1 / (1 + 1 / odds))).sum(1)  # not a product of matrices: autocast would narrow it


def median(values: Tensor, known: Tensor) -> Tensor:
    """The median of the known values, the lower middle for an even count; infinity where none is known."""
    ordered = torch.where(known, values, torch.inf).sort().values
    return ordered.gather(0, ((known.sum() - 1).clamp(min=0) // 2)[None])[0]


class Temperature:
    """The temperature of a batch, and of every sample observed since the last reset, in constant memory.

    The mean is exact (a float64 sum); the median is that of a histogram of log tau, as in DDSketch
    (Masson, Rim and Lee, VLDB 2019), within 1 % of the exact one (the lower middle for an even count). For
    "agreement" it is the geometric mean of the batches' temperatures, each by its number of samples.

    Attributes:
        contents: what was observed, tensors by name, replaced and never written into.
    """

    contents: dict[str, Tensor]

    def __init__(self, kind: Tempering) -> None:
        one_of("tempering", kind, get_args(Tempering))
        self.kind = kind
        self.reset()

    def reset(self) -> None:
        """Forget every sample."""
        self.contents = {"count": torch.zeros((), dtype=torch.int64)}
        if self.kind in ("mean", "agreement"):
            self.contents["sum"] = torch.zeros((), dtype=torch.float64)
        if self.kind == "median":
            self.contents["sketch"] = torch.zeros(_CELLS, dtype=torch.int64)

    def of_batch(self, logits: Tensor, view: SourceView, known: Tensor) -> Tensor:
        """What to divide the (N, C) logits of a batch by: a number, or a column for "sample".

        Only samples that are `known` have a say in it. Without any it is that of all samples before.
        """
        if self.kind == "none":
            return view.tau.new_ones(())
        if self.kind == "sample":
            largest = torch.where(known, view.tau, -torch.inf).max()
            found = torch.where(known, view.tau, largest).unsqueeze(1)
        elif self.kind == "mean":
            found = torch.where(known, view.tau, 0.0).sum() / known.sum()
        elif self.kind == "median":
            found = median(view.tau, known)
        else:
            found = agreement_temperature(logits, view.logits, view.t, view.tau, known)
        return torch.where(known.any(), found, self.level().to(found))

    def after(self, tau: Tensor, temperature: Tensor) -> dict[str, Tensor]:
        """The contents after a batch: the tau of its samples, and what it was divided by.

        A tau that is not finite does not count.
        """
        # Apple's GPUs have no double precision.
        seen = tau.detach().to("cpu" if tau.device.type == "mps" else tau.device).double()
        state = {name: old.to(seen.device) for name, old in self.contents.items()}
        finite = seen.isfinite()
        count = finite.sum()
        news = {"count": count}
        if self.kind == "mean":
            news["sum"] = torch.where(finite, seen, 0.0).sum()
        if self.kind == "agreement":
            logarithm = temperature.detach().to(seen.device).double().log()
            news["sum"] = torch.where(count > 0, logarithm * count, 0.0)
        if self.kind == "median":
            # A value that does not count falls into a cell, but not on the scale.
            cells = (torch.where(finite, seen, 1.0) / _LOWEST).log() / _GROWTH
            places = cells.long().clamp(0, _CELLS - 1)
            news["sketch"] = torch.zeros_like(state["sketch"]).scatter_add(0, places, finite.long())
        return {name: old + news[name] for name, old in state.items()}

    def running(self) -> float:
        """The temperature over all samples observed; 1 before the first, and where none applies to all."""
        return float(self.level())

    def level(self) -> Tensor:
        """The same as a tensor, wherever it is."""
        count = self.contents["count"]
        one = torch.ones((), dtype=torch.float64, device=count.device)
        if self.kind in ("sample", "none"):
            return one
        if self.kind == "median":
            middle = ((count + 1) // 2).reshape(1)
            cell = torch.searchsorted(self.contents["sketch"].cumsum(0), middle)[0]
            found = _LOWEST * ((cell + 0.5) * _GROWTH).double().exp()
        else:
            found = self.contents["sum"] / count
            found = found.exp() if self.kind == "agreement" else found
        return torch.where(count > 0, found, one)

    def state(self) -> dict[str, Tensor]:
        """A copy of what was observed, on the CPU."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.contents.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what another Temperature of the same kind observed."""
        self.contents = {
            name: state[name].to(old.device, old.dtype, copy=True) for name, old in self.contents.items()
        }


class Divided(NamedTuple):
    """Answers after tempering.

    Attributes:
        logits: the answers.
        temperature: what they were divided by.
        contents: what the temperature will have seen when the batch counts.
    """

    logits: Tensor
    temperature: Tensor | None
    contents: dict[str, Tensor]


class Temper:
    """What a stream of logits is divided by: a temperature from the certainty regulariser or a rehearsal.

    Args:
        kind: how the temperature is found.
        source: the statistics tau is measured against, with the rehearsal; None where nothing is tempered.
        t_min: lower end of the regulariser's range of t.
        t_max: its upper end.
        rehearsal: of the method, for "rehearsed".
        compares: whether the source model is asked about each batch, and may answer in place of the method.
    """

    def __init__(
        self,
        kind: Tempering,
        source: SourceStatistics | None,
        t_min: float,
        t_max: float,
        rehearsal: Rehearsal | None = None,
        compares: bool = False,
    ) -> None:
        one_of("tempering", kind, get_args(Tempering))
        self.kind, self.source = kind, source
        self.temperature: Temperature | RehearsedTemperature = (
            Temperature(kind) if rehearsal is None else RehearsedTemperature(rehearsal, compares)
        )
        self.t_min, self.t_max = number("t_min", t_min), number("t_max", t_max)
        check_range(self.t_min, self.t_max)

    @property
    def rehearsed(self) -> RehearsedTemperature | None:
        """The temperature, where it comes from a rehearsal."""
        return self.temperature if isinstance(self.temperature, RehearsedTemperature) else None

    def regularize(self, source_logits: Tensor) -> tuple[Tensor, Tensor]:
        """The certainty regulariser (t, tau) of each sample, from the source model's logits."""
        if self.source is None:
            raise SourceError("tempering needs source statistics")
        return certainty_regularizer(source_logits, self.source.h0, self.source.kappa, self.t_min, self.t_max)

    def divide(self, logits: Tensor, view: SourceView | None, good: Tensor | None = None) -> Divided:
        """The logits of a batch over its temperature; only `good` samples (None: all) have a say in it.

        Nor have samples that the source model cannot judge (its logits are not finite, or zero), or answers
        that are not finite; where each sample has its own temperature, theirs is the largest of the others'.
        """
        sound = logits.isfinite().all(1) if good is None else good & logits.isfinite().all(1)
        if isinstance(self.temperature, RehearsedTemperature):
            if view is not None:
                sound = sound & view.logits.isfinite().all(1)
            contents, judged = self.temperature.after(logits, None if view is None else view.logits, sound)
            first, last = judged.temperatures[0], judged.temperatures[-1]
            temperature = torch.where(judged.trusts, last, first)
            if view is not None:
                logits = torch.where(judged.trusts, view.logits.to(logits), logits)
            return Divided(divide(logits, temperature), temperature, contents)
        if view is None:
            return Divided(logits, None, self.temperature.contents)
        known = view.tau.isfinite()
        if self.kind == "agreement":
            known = known & (view.tau > 0) & sound
        temperature = self.temperature.of_batch(logits, view, known)
        contents = self.temperature.after(view.tau, temperature)
        return Divided(divide(logits, temperature), temperature, contents)


def divide(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """Logits over a temperature, in the dtype of the logits."""
    return (logits / temperature).to(logits.dtype)
