"""Temperatures from the certainty regulariser: one number for a batch, and for all that was seen."""

import math
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from equipoise.errors import SourceError
from equipoise.functional import at_least_single, certainty_regularizer, check_range
from equipoise.options import number, one_of
from equipoise.outcome import SourceView
from equipoise.source import SourceStatistics

Tempering: TypeAlias = Literal["mean", "median", "sample", "agreement", "none"]
"""How logits are divided: by the mean of tau (the paper), its median, each sample's own tau, what the source
model's agreement with the answers suggests (`agreement_temperature`), or not."""

_WIDEST = 16.0  # how far from its start the search for a temperature goes, as a ratio
_HALVINGS = 14  # which leaves an interval of .03 %

# The sketch counts tau in cells whose edges grow by 1 %, so a cell's middle is within .5 % of all its values.
_GROWTH, _LOWEST, _HIGHEST = math.log(1.01), 1e-12, 1e12
_CELLS = math.ceil(math.log(_HIGHEST / _LOWEST) / _GROWTH)


def agreement_temperature(logits: Tensor, source_logits: Tensor, t: Tensor, tau: Tensor) -> Tensor:
    """The one temperature at which the answers are as confident as two models on average find them.

    T₀ = median_i √(t_i · tau_i), between the paper's tau and the authors' notebook's t. At T₀, with k_i the
    class of answer i, two models, the one that answers and the source model, give it the probability

        a = avg_i ½ · (softmax(z_i / T₀)_k + softmax(source_i / T₀)_k),

    and T is where avg_i max softmax(z_i / T) = a. Where both agree, T is near T₀; the more they differ, the
    higher it is. No label is needed, and no class of an answer changes.
    """
    start = (t * tau).sqrt().median()
    z, other = at_least_single(logits), at_least_single(source_logits)
    classes = z.argmax(1, keepdim=True)
    aim = (_doubt(z, classes, start) + _doubt(other, classes, start)) / 2
    low, high = start / _WIDEST, start * _WIDEST
    for _ in range(_HALVINGS):
        middle = (low * high).sqrt()
        too_sure = _doubt(z, classes, middle) < aim
        low, high = torch.where(too_sure, middle, low), torch.where(too_sure, high, middle)
    return torch.where(aim > 0, (low * high).sqrt(), start)  # without any doubt, every temperature would do


def _doubt(logits: Tensor, classes: Tensor, temperature: Tensor) -> Tensor:
    """avg_i (1 − softmax(z_i / T)_k): in single precision a probability near 1 would have no digits left."""
    others = (logits - logits.gather(1, classes)) / temperature
    odds = others.scatter(1, classes, -torch.inf).exp().sum(1)
    return (1 / (1 + 1 / odds)).mean()


class Temperature:
    """The temperature of a batch, and of every sample observed since the last reset, in constant memory.

    The mean is exact (a float64 sum); the median is that of a histogram of log tau, as in DDSketch
    (Masson, Rim and Lee, VLDB 2019), within 1 % of the exact one (the lower middle for an even count). For
    "agreement" it is the geometric mean of the batches' temperatures, each by its number of samples.
    """

    def __init__(self, kind: Tempering) -> None:
        one_of("tempering", kind, get_args(Tempering))
        self.kind = kind
        self.reset()

    def reset(self) -> None:
        """Forget every sample."""
        self._state = {"count": torch.zeros((), dtype=torch.int64)}
        if self.kind in ("mean", "agreement"):
            self._state["sum"] = torch.zeros((), dtype=torch.float64)
        if self.kind == "median":
            self._state["sketch"] = torch.zeros(_CELLS, dtype=torch.int64)

    def of_batch(self, logits: Tensor, view: SourceView) -> Tensor:
        """What to divide the (N, C) logits of a batch by: a number, or a column for "sample"."""
        if self.kind == "mean":
            return view.tau.mean()
        if self.kind == "median":
            return view.tau.median()
        if self.kind == "agreement":
            return agreement_temperature(logits, view.logits, view.t, view.tau)
        return view.tau.unsqueeze(1) if self.kind == "sample" else view.tau.new_ones(())

    def observe(self, tau: Tensor, temperature: Tensor) -> None:
        """Take a batch into the running temperature: the tau of its samples, and what it was divided by."""
        seen = tau.detach().to("cpu", torch.float64)
        news = {"count": torch.tensor(len(seen))}
        if self.kind == "mean":
            news["sum"] = seen.sum()
        if self.kind == "agreement":
            news["sum"] = temperature.detach().to("cpu", torch.float64).log() * len(seen)
        if self.kind == "median":
            cells = ((seen / _LOWEST).log() / _GROWTH).long().clamp(0, _CELLS - 1)
            news["sketch"] = torch.bincount(cells, minlength=_CELLS)
        self._state = {name: old + news[name] for name, old in self._state.items()}

    def running(self) -> float:
        """The temperature over all samples observed; 1 before the first, and where none applies to all."""
        count = int(self._state["count"])
        if count == 0 or self.kind in ("sample", "none"):
            return 1.0
        if self.kind == "mean":
            return float(self._state["sum"]) / count
        if self.kind == "agreement":
            return math.exp(float(self._state["sum"]) / count)
        cell = int(torch.searchsorted(self._state["sketch"].cumsum(0), (count + 1) // 2))
        return _LOWEST * math.exp((cell + 0.5) * _GROWTH)

    def state(self) -> dict[str, Tensor]:
        """A copy of what was observed."""
        return {name: tensor.clone() for name, tensor in self._state.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what another Temperature of the same kind observed."""
        self._state = {name: state[name].to("cpu", old.dtype, copy=True) for name, old in self._state.items()}


class Temper:
    """What a stream of logits is divided by: the certainty regulariser, and a temperature made of it.

    Args:
        kind: how the temperature comes from tau.
        source: the statistics tau is measured against; None where nothing is tempered.
        t_min: lower end of the regulariser's range of t.
        t_max: its upper end.
    """

    def __init__(self, kind: Tempering, source: SourceStatistics | None, t_min: float, t_max: float) -> None:
        self.temperature = Temperature(kind)
        self.source = source
        self.t_min, self.t_max = number("t_min", t_min), number("t_max", t_max)
        check_range(self.t_min, self.t_max)

    @property
    def kind(self) -> Tempering:
        """How the temperature comes from tau."""
        return self.temperature.kind

    def regularize(self, source_logits: Tensor) -> tuple[Tensor, Tensor]:
        """The certainty regulariser (t, tau) of each sample, from the source model's logits."""
        if self.source is None:
            raise SourceError("tempering needs source statistics")
        return certainty_regularizer(source_logits, self.source.h0, self.source.kappa, self.t_min, self.t_max)

    def divide(self, logits: Tensor, view: SourceView) -> tuple[Tensor, Tensor]:
        """The logits of a batch over its temperature, and that.

        Samples that the source model cannot judge (its logits are not finite, or zero) have no say in it, nor
        have answers that are not finite; where each sample has its own, theirs is the largest of the others'.
        """
        known = view.tau.isfinite()
        if self.kind == "agreement":
            known = known & (view.tau > 0) & logits.isfinite().all(1)
        if not bool(known.any()):
            temperature = view.tau.new_tensor(self.temperature.running())
        elif self.kind == "sample":
            temperature = torch.where(known, view.tau, view.tau[known].max()).unsqueeze(1)
        else:
            temperature = self.temperature.of_batch(logits[known], view.select(known))
        return divide(logits, temperature), temperature


def divide(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """Logits over a temperature, in the dtype of the logits."""
    return (logits / temperature).to(logits.dtype)
