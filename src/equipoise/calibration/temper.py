"""The temperature of answers: of one batch, and of all samples since the last reset, in constant memory."""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from equipoise.calibration.agreement import agreement_temperature, median
from equipoise.calibration.rehearsal import Rehearsal, countable
from equipoise.calibration.rehearsed import RehearsedTemperature
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.calibration.window import GRID
from equipoise.errors import OptionError, SourceError
from equipoise.functional import certainty_regularizer, check_range
from equipoise.options import number, one_of

Tempering: TypeAlias = Literal["mean", "median", "sample", "agreement", "rehearsed", "none"]
"""The divisor of logits: the mean of the certainty regulariser tau over the batch (the paper; over all
samples since the last reset in `predict`), its median, each sample's own tau, the temperature of agreement
with the source model (`agreement_temperature`), that of a rehearsal for the recent stream, or none."""

OF_TAU: tuple[Tempering, ...] = ("mean", "median", "sample", "agreement")
"""The temperings that need the source model's logits for each batch."""

# The sketch counts tau in cells whose edges grow by 1 %, so a cell's middle is within .5 % of all its values.
_GROWTH, _LOWEST, _HIGHEST = math.log(1.01), 1e-12, 1e12
_CELLS = math.ceil(math.log(_HIGHEST / _LOWEST) / _GROWTH)


class SourceView(NamedTuple):
    """The source model's answers to a batch.

    Attributes:
        logits: its logits.
        t: the certainty regulariser's t of each sample.
        tau: its tau.
    """

    logits: Tensor
    t: Tensor
    tau: Tensor

    def select(self, rows: Tensor) -> "SourceView":
        """The answers to some samples."""
        return SourceView(self.logits[rows], self.t[rows], self.tau[rows])


class TauTemperature:
    """A temperature from tau, or none: pure functions of what was observed, a few tensors by name.

    The mean is exact (a float64 sum); the median is that of a histogram of log tau, as in DDSketch
    (Masson, Rim and Lee, VLDB 2019), within 1 % of the exact one (the lower middle for an even count). For
    "agreement" it is the geometric mean of the batches' temperatures, each by its number of samples.
    """

    def __init__(self, kind: Tempering) -> None:
        self.kind = kind

    def initial(self) -> dict[str, Tensor]:
        """The observations before the first batch."""
        observed = {"count": torch.zeros((), dtype=torch.int64)}
        if self.kind in ("mean", "agreement"):
            observed["sum"] = torch.zeros((), dtype=torch.float64)
        if self.kind == "median":
            observed["sketch"] = torch.zeros(_CELLS, dtype=torch.int64)
        return observed

    def of_batch(
        self, observed: Mapping[str, Tensor], logits: Tensor, view: SourceView, known: Tensor
    ) -> Tensor:
        """The divisor of the (N, C) logits of a batch: a number, or a column for "sample".

        Only samples that are `known` count. Without any it is that of all samples before.
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
        return torch.where(known.any(), found, self.level(observed).to(found))

    def after(self, observed: Mapping[str, Tensor], tau: Tensor, temperature: Tensor) -> dict[str, Tensor]:
        """The observations after a batch: the tau of its samples, and its temperature.

        A tau that is not finite does not count.
        """
        # Apple's GPUs have no double precision.
        seen = tau.detach().to("cpu" if tau.device.type == "mps" else tau.device).double()
        before = {name: old.to(seen.device) for name, old in observed.items()}
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
            news["sketch"] = torch.zeros_like(before["sketch"]).scatter_add(0, places, finite.long())
        return {name: old + news[name] for name, old in before.items()}

    def level(self, observed: Mapping[str, Tensor]) -> Tensor:
        """The temperature of all samples observed; 1 before the first, and where none applies to all."""
        count = observed["count"]
        one = torch.ones((), dtype=torch.float64, device=count.device)
        if self.kind in ("sample", "none"):
            return one
        if self.kind == "median":
            middle = ((count + 1) // 2).reshape(1)
            cell = torch.searchsorted(observed["sketch"].cumsum(0), middle)[0]
            found = _LOWEST * ((cell + 0.5) * _GROWTH).double().exp()
        else:
            found = observed["sum"] / count
            found = found.exp() if self.kind == "agreement" else found
        return torch.where(count > 0, found, one)


class TemperedAnswers(NamedTuple):
    """Answers after tempering.

    Attributes:
        logits: the answers.
        temperature: their divisor; None where nothing is tempered.
        observed: the observations of the temperature, this batch included.
    """

    logits: Tensor
    temperature: Tensor | None
    observed: Mapping[str, Tensor]


class Temper:
    """The divisor of a stream of logits: a temperature from the certainty regulariser or a rehearsal.

    Holds options and constants; the observations are passed in and returned.

    Args:
        kind: the kind of temperature.
        source: the statistics that tau is measured against; None where nothing is tempered.
        t_min: lower end of the regulariser's range of t, None for 1; for "rehearsed" the lowest temperature,
            None for the lowest that was right in rehearsal.
        t_max: upper end of the range, None for 3; for "rehearsed" the highest temperature.
        rehearsal: of the method, for "rehearsed".
        compares: whether the source model's logits come with each batch, so that it may answer.
    """

    def __init__(
        self,
        kind: Tempering,
        source: SourceStatistics | None,
        t_min: float | None = None,
        t_max: float | None = None,
        rehearsal: Rehearsal | None = None,
        compares: bool = False,
    ) -> None:
        one_of("tempering", kind, get_args(Tempering))
        self.kind, self.source = kind, source
        self.given = (_optional("t_min", t_min), _optional("t_max", t_max))
        least, most = self.given
        self.t_min, self.t_max = 1.0 if least is None else least, 3.0 if most is None else most
        self._of_tau, self.rehearsed = TauTemperature(kind), None
        if rehearsal is None:
            check_range(self.t_min, self.t_max)
        else:
            _check_searched(least, most)
            # tau plays no part: an end of its range that is not given gives way to one that is.
            self.t_min, self.t_max = sorted((self.t_min, self.t_max))
            self.rehearsed = RehearsedTemperature(rehearsal, compares, least, most)
        self.compares = self.rehearsed is not None and self.rehearsed.compares

    def initial(self) -> dict[str, Tensor]:
        """The observations before the first batch."""
        return self._of_tau.initial() if self.rehearsed is None else self.rehearsed.initial()

    def level(self, observed: Mapping[str, Tensor]) -> Tensor:
        """The temperature of the stream so far."""
        return (self._of_tau if self.rehearsed is None else self.rehearsed).level(observed)

    def view(self, source_logits: Tensor) -> SourceView:
        """The source model's answers with their certainty regulariser."""
        if self.source is None:
            raise SourceError("tempering needs source statistics")
        source = self.source
        t, tau = certainty_regularizer(source_logits, source.h0, source.kappa, self.t_min, self.t_max)
        return SourceView(source_logits, t, tau)

    def divide(
        self,
        observed: Mapping[str, Tensor],
        logits: Tensor,
        view: SourceView | None,
        good: Tensor,
        novelty: Tensor | None = None,
    ) -> TemperedAnswers:
        """The logits of a batch over its temperature; only `good` samples count for it.

        Nor do samples that the source model cannot judge (its logits are not finite, or zero), or answers
        that are not finite; where each sample has its own temperature, theirs is the largest of the others'.
        For a rehearsed temperature, nor do answers so large that a window cannot hold their norm.
        A rehearsal also takes the novelty of the inputs, where it is known.
        """
        if self.rehearsed is not None:
            return self._rehearse(self.rehearsed, observed, logits, view, good, novelty)
        if view is None:
            return TemperedAnswers(logits, None, observed)
        known = view.tau.isfinite()
        if self.kind == "agreement":
            known = known & (view.tau > 0) & good & logits.isfinite().all(1)
        temperature = self._of_tau.of_batch(observed, logits, view, known)
        after = self._of_tau.after(observed, view.tau, temperature)
        return TemperedAnswers(divide(logits, temperature), temperature, after)

    @staticmethod
    def _rehearse(
        rehearsed: RehearsedTemperature,
        observed: Mapping[str, Tensor],
        logits: Tensor,
        view: SourceView | None,
        good: Tensor,
        novelty: Tensor | None,
    ) -> TemperedAnswers:
        sound = good & countable(logits)
        if view is not None:
            sound = sound & countable(view.logits)
        others = None if view is None else view.logits
        after, verdict = rehearsed.after(observed, logits, others, sound, novelty)
        temperature = torch.where(verdict.trusts, verdict.temperatures[-1], verdict.temperatures[0])
        if view is not None:
            logits = torch.where(verdict.trusts, view.logits.to(logits), logits)
        return TemperedAnswers(divide(logits, temperature), temperature, after)


def _optional(name: str, value: float | None) -> float | None:
    return None if value is None else number(name, value)


def _check_searched(t_min: float | None, t_max: float | None) -> None:
    """Refuse a range of rehearsed temperatures that is empty, or wider than the range that is searched."""
    low, high = GRID[0] if t_min is None else t_min, GRID[-1] if t_max is None else t_max
    if not GRID[0] <= low <= high <= GRID[-1]:
        raise OptionError(
            f"expected {GRID[0]:g} <= t_min <= t_max <= {GRID[-1]:g} for rehearsed temperatures, got "
            f"t_min={t_min} and t_max={t_max}"
        )


def divide(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """Logits over a temperature, in the dtype of the logits."""
    return (logits / temperature).to(logits.dtype)
