"""The rule of choice: the library's default, unless another method is clearly more accurate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from equipoise.recommendation.candidates import DEFAULT, NO_ADAPTATION, Candidate
from equipoise.recommendation.scoring import CLEAR_LEVEL, Interval, ShiftSums, interval


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
