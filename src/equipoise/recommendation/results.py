"""A session as a `Recommendation`: rows, words and the text of the call."""

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.recommendation.candidates import keywords
from equipoise.recommendation.choice import Form, chosen_form
from equipoise.recommendation.reason import reason
from equipoise.recommendation.recommendation import Recommendation, RecommendationRow, ShiftRow
from equipoise.recommendation.scoring import interval
from equipoise.recommendation.session import Omission, Session
from equipoise.registry import method_class


def recommendation_of(session: Session, functions: Mapping[str, Any]) -> Recommendation:
    """The recommendation of a session; `functions` are `inputs` and `outputs`, where they were given."""
    best = chosen_form(session.forms)
    baseline = next(form for form in session.forms if not form.adapts)
    name, options = best.candidate.name, dict(best.candidate.options)
    if method_class(name).default_tempering != best.tempering:
        options["tempering"] = best.tempering
    ranked = sorted(session.forms, key=lambda form: -float(form.sums.accuracies[0]))
    left_out = sum(omission.tempering == "none" for omission in session.omissions)
    rows = [_scored(form, baseline, form is best) for form in ranked]
    return Recommendation(
        method=name,
        options=options,
        call=_call(name, options, functions),
        source=session.rehearsed.get(str(best.candidate), session.setting.source),
        table=[*rows, *(_left_out(omission) for omission in session.omissions)],
        shifts=[row for form in ranked for row in _by_shift(form, list(session.setting.stream.shifts))],
        stream=session.setting.stream.about,
        why=reason(session.forms, left_out),
        functions=functions,
    )


def _call(name: str, options: Mapping[str, Any], functions: Mapping[str, Any]) -> str:
    given = [f'"{name}"', "model", "source", *([keywords(options)] if options else [])]
    return f"eq.create({', '.join([*given, *(f'{function}={function}' for function in functions)])})"


def _scored(form: Form, baseline: Form, recommended: bool) -> RecommendationRow:
    accuracy, gain = interval(form.sums.accuracies), form.gain(baseline)
    return RecommendationRow(
        method=form.candidate.name,
        options=dict(form.candidate.options),
        tempering=form.tempering,
        accuracy=accuracy.value,
        accuracy_low=accuracy.low,
        accuracy_high=accuracy.high,
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gain.high,
        ece=form.sums.calibration_error,
        nll=float(form.sums.nlls[0]),
        seconds=form.seconds,
        recommended=recommended,
        problem="",
    )


def _by_shift(form: Form, names: Sequence[str]) -> list[ShiftRow]:
    sums = form.sums
    columns = zip(names, sums.counts.tolist(), sums.hits.tolist(), sums.losses.tolist(), strict=True)
    return [
        ShiftRow(
            method=form.candidate.name,
            options=dict(form.candidate.options),
            tempering=form.tempering,
            shift=name,
            samples=round(count),
            accuracy=hits / max(count, 1),
            nll=loss / max(count, 1),
        )
        for name, count, hits, loss in columns
    ]


def _left_out(omission: Omission) -> RecommendationRow:
    return RecommendationRow(
        method=omission.candidate.name,
        options=dict(omission.candidate.options),
        tempering=omission.tempering,
        accuracy=None,
        accuracy_low=None,
        accuracy_high=None,
        gain=None,
        gain_low=None,
        gain_high=None,
        ece=None,
        nll=None,
        seconds=None,
        recommended=False,
        problem=omission.problem,
    )
