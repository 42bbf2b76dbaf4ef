"""Rules of choice: of the methods that were tried on made-up shifts, which one is deployed?

A rule is a function of one form of each method, no adaptation among them, and returns one of them.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from equipoise.recommendation.candidates import DEFAULT
from equipoise.recommendation.choice import CLEAR_LEVEL, Form, chosen_form, joint_level

Rule: TypeAlias = Callable[[Sequence[Form]], Form]

SMALL_LOSS = 0.02
"""An accuracy that a cautious rule lets a method lose on a shift."""


def source_of(forms: Sequence[Form]) -> Form:
    """The form of no adaptation."""
    return next(form for form in forms if not form.adapts)


def gains_by_shift(form: Form, forms: Sequence[Form]) -> Tensor:
    """The accuracy on each shift less that of no adaptation, (shifts)."""
    base = source_of(forms)
    return form.sums.hits / form.sums.counts - base.sums.hits / base.sums.counts


def best_by(score: Callable[[Form, Sequence[Form]], float]) -> Rule:
    """The rule that takes the form of the largest score; that of no adaptation is 0."""

    def rule(forms: Sequence[Form]) -> Form:
        others = [form for form in forms if form.adapts]
        best = max(others, key=lambda form: score(form, forms), default=source_of(forms))
        return best if best.adapts and score(best, forms) > 0 else source_of(forms)

    return rule


def mean_gain(form: Form, forms: Sequence[Form]) -> float:
    """The gain over the whole stream."""
    return form.gain(source_of(forms)).value


def median_gain(form: Form, forms: Sequence[Form]) -> float:
    """The median of the gains over shifts: one shift alone decides nothing."""
    return float(gains_by_shift(form, forms).quantile(0.5))


def gain_where_it_is_hard(form: Form, forms: Sequence[Form]) -> float:
    """The mean gain over the half of the shifts on which the source model is least accurate."""
    base = source_of(forms)
    hardest = (base.sums.hits / base.sums.counts).argsort()[: (len(base.sums.counts) + 1) // 2]
    return float(gains_by_shift(form, forms)[hardest].mean())


def shrunk_gain(form: Form, forms: Sequence[Form]) -> float:
    """The posterior mean of the gain, with a normal prior fitted to the gains of all methods.

    With g_m the mean gain of a method over shifts, s_m² its sampling variance, and the prior N(μ, t²), μ the
    mean of g_m and t² their variance less the mean of s_m²: (t² g_m + s_m² μ) / (t² + s_m²).
    """
    each = {id(one): gains_by_shift(one, forms) for one in forms if one.adapts}
    means = torch.stack([gains.mean() for gains in each.values()])
    noise = torch.stack([gains.var() / len(gains) for gains in each.values()])
    centre = means.mean()
    spread = (means.var() - noise.mean()).clamp(min=0) if len(means) > 1 else noise.mean()
    own = each[id(form)]
    variance = own.var() / len(own)
    return float((spread * own.mean() + variance * centre) / (spread + variance).clamp(min=1e-12))


def gain_without_large_losses(form: Form, forms: Sequence[Form]) -> float:
    """The mean gain of a method that loses little on every shift; 0 for the others."""
    harmless = float(gains_by_shift(form, forms).min()) >= -SMALL_LOSS
    return mean_gain(form, forms) if harmless else 0.0


def low_end(level: float) -> Callable[[Form, Sequence[Form]], float]:
    """The lower end of the interval of the gain at a level."""
    return lambda form, forms: form.gain(source_of(forms), level).low


def most_accurate_of_the_clear(forms: Sequence[Form]) -> Form:
    """The most accurate of the methods that are clearly better than no adaptation."""
    base = source_of(forms)
    clear = [form for form in forms if form.adapts and form.gain(base).clear]
    return max(clear, key=lambda form: float(form.sums.accuracies[0]), default=base)


def surest_gain(forms: Sequence[Form]) -> Form:
    """The method with the largest lower end of its gain, of intervals that hold at once; or no adaptation."""
    return best_by(low_end(joint_level(len(forms) - 1)))(forms)


def no_adaptation_at_any_loss(forms: Sequence[Form]) -> Form:
    """`recommend` with another default: no adaptation where poise is less accurate at all."""
    base = source_of(forms)
    poise = next((form for form in forms if form.candidate.name == DEFAULT), base)
    default = poise if poise.gain(base).value >= 0 else base
    others = [form for form in forms if form is not default]
    level = joint_level(len(others))
    best = max(others, key=lambda form: form.gain(default, level).low, default=default)
    return best if best.gain(default, level).clear else default


ANY_LOSS = "no adaptation where poise loses at all"
RULES: dict[str, Rule] = {
    "recommend()": chosen_form,
    ANY_LOSS: no_adaptation_at_any_loss,
    "largest lower end, 90 % each": best_by(low_end(CLEAR_LEVEL)),
    "largest lower end, 50 % each": best_by(low_end(0.5)),
    "most accurate": best_by(mean_gain),
    "most accurate of the clear": most_accurate_of_the_clear,
    "shrunk": best_by(shrunk_gain),
    "median": best_by(median_gain),
    "hard half": best_by(gain_where_it_is_hard),
    "small losses alone": best_by(gain_without_large_losses),
    "largest lower end, 90 % together": surest_gain,
}
