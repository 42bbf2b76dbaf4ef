"""The rule of choice: no harm, then accuracy within noise, then honesty, then cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from equipoise.recommending.candidates import NO_ADAPTATION, Candidate
from equipoise.recommending.scoring import Interval, ShiftSums, interval


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

    def gain(self, other: "Form") -> Interval:
        """The accuracy less that of another, over the same draws of shifts."""
        return interval(self.sums.accuracies - other.sums.accuracies)

    def surplus(self, other: "Form") -> Interval:
        """The negative log-likelihood less that of another, likewise."""
        return interval(self.sums.nlls - other.sums.nlls)


def finalists(forms: Sequence[Form]) -> list[Form]:
    """The forms that are indistinguishable from the most accurate, of those that do no harm.

    They are the forms of no adaptation, unless some method is clearly more accurate than that.
    """
    plain = [form for form in forms if not form.adapts]
    better = [form for form in forms if form.adapts and form.gain(plain[0]).clear]
    if not better:
        return plain
    best = max(better, key=lambda form: float(form.sums.accuracies[0]))
    return [form for form in better if form is best or not best.gain(form).clear]


def chosen_form(forms: Sequence[Form]) -> Form:
    """Of the finalists the one of lowest negative log-likelihood, or the cheapest of those alike in it."""
    last = sorted(finalists(forms), key=lambda form: float(form.sums.nlls[0]))
    alike = [form for form in last if form is last[0] or not form.surplus(last[0]).clear]
    return min(alike, key=lambda form: form.seconds)
