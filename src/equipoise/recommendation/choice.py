"""The choice of a method: the default, unless another one is clearly more accurate; and the reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from equipoise.metrics.functional import expected_calibration_error
from equipoise.metrics.intervals import BOOTSTRAP_REPLICATES, BOOTSTRAP_SEED
from equipoise.recommendation.candidates import DEFAULT, NO_ADAPTATION, Candidate

CLEAR_LEVEL = 0.9
"""Of intervals, as of estimated accuracies: a difference whose interval is above 0 is clear."""


class Interval(NamedTuple):
    """A mean with its interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval is above 0."""
        return self.low > 0


@dataclass(frozen=True, eq=False)
class ShiftSums:
    """Sums over the samples of each shift: counts, right answers and −ln p of the label, (shifts)."""

    counts: Tensor
    hits: Tensor
    losses: Tensor
    calibration_error: float

    @cached_property
    def accuracies(self) -> Tensor:
        """The accuracy of the stream, then of replicates with other draws of the shifts."""
        return self._replicates(self.hits)

    @cached_property
    def nlls(self) -> Tensor:
        """The negative log-likelihood, in the same form."""
        return self._replicates(self.losses)

    def _replicates(self, sums: Tensor) -> Tensor:
        draws = _draws(len(self.counts))
        return torch.cat([(sums.sum() / self.counts.sum())[None], (draws @ sums) / (draws @ self.counts)])


def _draws(shifts: int) -> Tensor:
    """The count of each shift in each replicate of the bootstrap; the same for all methods, so paired."""
    generator = torch.Generator().manual_seed(BOOTSTRAP_SEED)
    picked = torch.randint(shifts, (BOOTSTRAP_REPLICATES, shifts), generator=generator)
    counts = torch.zeros(BOOTSTRAP_REPLICATES, shifts, dtype=torch.float64)
    return counts.scatter_add(1, picked, torch.ones_like(picked, dtype=torch.float64))


def shift_sums(logits: Tensor, labels: Tensor, domains: Tensor, shifts: int) -> ShiftSums:
    """The sums of answers (T, C); samples of no class (label −1) are left out."""
    known = labels >= 0
    logits, labels, domains = logits[known], labels[known], domains[known]
    right = (logits.argmax(1) == labels).double()
    losses = cross_entropy(logits.double(), labels, reduction="none")

    def total(values: Tensor) -> Tensor:
        return torch.zeros(shifts, dtype=torch.float64).index_add(0, domains, values)

    error = float(expected_calibration_error(logits=logits, target=labels))
    return ShiftSums(total(torch.ones_like(right)), total(right), total(losses), error)


def interval(replicates: Tensor, level: float = CLEAR_LEVEL) -> Interval:
    """A value with the quantiles of its replicates, which come after it."""
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=replicates.dtype)
    low, high = replicates[1:].quantile(tails).tolist()
    return Interval(float(replicates[0]), low, high)


@dataclass(frozen=True, eq=False)
class Form:
    """A method that was tried, without tempering or with that of its rehearsal.

    Attributes:
        candidate: the method.
        tempering: "none" or "rehearsed".
        sums: the scores of its answers.
        seconds: that a pass over the stream takes.
    """

    candidate: Candidate
    tempering: Literal["none", "rehearsed"]
    sums: ShiftSums
    seconds: float

    @property
    def adapts(self) -> bool:
        """Whether this is more than the source model."""
        return self.candidate.name != NO_ADAPTATION

    def gain(self, other: "Form", level: float = CLEAR_LEVEL) -> Interval:
        """The accuracy less that of another, over the same draws of shifts."""
        return interval(self.sums.accuracies - other.sums.accuracies, level)


def most_honest(forms: Sequence[Form]) -> dict[str, Form]:
    """Of each method, by its name with options, the form of lowest negative log-likelihood.

    Where a rehearsal changes no answer (its temperature is 1), both are equal, and the rehearsed form is
    taken: it has an estimate of its accuracy.
    """
    found: dict[str, Form] = {}
    for form in sorted(forms, key=lambda form: (float(form.sums.nlls[0]), form.tempering != "rehearsed")):
        found.setdefault(str(form.candidate), form)
    return found


def default_form(methods: Mapping[str, Form]) -> Form:
    """The method that is taken where no other is clearly better: "poise" unless it clearly loses, or none.

    Made-up shifts are milder than many real ones, and a model as it is answers mild ones well: a small loss
    of "poise" on them, within its interval, says little (benchmarks/recommendation).

    Args:
        methods: the forms by the names of their candidates, no adaptation among them.
    """
    baseline = next(form for form in methods.values() if not form.adapts)
    poise = next((form for form in methods.values() if form.candidate.name == DEFAULT), baseline)
    return baseline if baseline.gain(poise).clear else poise


def chosen_form(forms: Sequence[Form]) -> Form:
    """The default, unless the gain of another over it is clear; then the one whose lower end is largest.

    Each method is compared in its most honest form. The intervals of m methods have the level
    1 - (1 - .9) / m, so that with 90 % all of them hold at once, however many methods were tried.
    """
    methods = most_honest(forms)
    default = default_form(methods)
    others = [form for form in methods.values() if form is not default]
    level = joint_level(len(others))
    best = max(others, key=lambda form: form.gain(default, level).low, default=default)
    return best if best.gain(default, level).clear else default


def joint_level(count: int) -> float:
    """The level of each of so many intervals, at which all hold at once with `CLEAR_LEVEL` (Bonferroni)."""
    return 1 - (1 - CLEAR_LEVEL) / max(count, 1)


def reason(forms: Sequence[Form], left_out: int) -> str:
    """The reason for the choice among methods.

    Args:
        forms: those with scores, no adaptation among them.
        left_out: how many have none, as they failed or there was no time.
    """
    methods = most_honest(forms)
    best, default = chosen_form(forms), default_form(methods)
    baseline = next(form for form in methods.values() if not form.adapts)
    poise = next((form for form in methods.values() if form.candidate.name == DEFAULT), None)
    others = sum(form.adapts and form is not best and form is not poise for form in methods.values())
    lost = _lost(poise, baseline) if poise and default is baseline else ""
    if best is not default:
        gain = best.gain(default, joint_level(len(methods) - 1))
        name = default.candidate.name if default.adapts else "no adaptation"
        several = f"; none of {others} other methods has a larger lower end" if others > 1 else ""
        return (
            f"{best.candidate} is clearly more accurate than {name}, by {gain.value:.3f}, at least "
            f"{gain.low:.3f}{several}{'; ' * bool(lost)}{lost}."
        )
    if best.adapts:
        return f"{DEFAULT} is the default, and {_others(others, left_out)}; {_against(best, baseline)}."
    if lost:
        return f"{lost}, and {_others(others, left_out)}: do not adapt."
    if others:
        return "No method is clearly more accurate than the model as it is: do not adapt."
    return f"No method was tried{_to_the_end(left_out)}: do not adapt."


def _others(count: int, left_out: int) -> str:
    if not count:
        return f"no other method was tried{_to_the_end(left_out)}"
    none = "the other method is not" if count == 1 else f"none of {count} other methods is"
    return f"{none} clearly more accurate"


def _to_the_end(left_out: int) -> str:
    return " to the end" if left_out else ""


def _lost(poise: Form, baseline: Form) -> str:
    loss = baseline.gain(poise)
    return (
        f"{DEFAULT} is clearly less accurate than no adaptation, by {loss.value:.3f} "
        f"({loss.low:.3f} to {loss.high:.3f})"
    )


def _against(poise: Form, baseline: Form) -> str:
    gain = poise.gain(baseline)
    ends = f"{gain.low:.3f} to {gain.high:.3f}"
    if gain.value < 0:
        return f"it loses {-gain.value:.3f} against no adaptation here, but not clearly (a gain of {ends})"
    return f"over no adaptation it gains {gain.value:.3f} ({ends})"
