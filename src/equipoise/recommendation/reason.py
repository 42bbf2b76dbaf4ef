"""The choice of a method in words."""

from collections.abc import Sequence

from equipoise.recommendation.candidates import DEFAULT
from equipoise.recommendation.choice import Form, chosen_form, default_form, joint_level, most_honest


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
