"""The result of `recommend`: a method, the call that makes it, and the table it was chosen from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import TYPE_CHECKING, Any, TypedDict

from torch import nn

from equipoise.adapter import Adapter
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import MissingExtraError
from equipoise.factory import create
from equipoise.recommendation.candidates import NO_ADAPTATION, Candidate, keywords
from equipoise.recommendation.choice import Form, chosen_form, interval, reason
from equipoise.recommendation.trial import Omission, Session
from equipoise.registry import method_class

if TYPE_CHECKING:
    import pandas as pd


_FOOTNOTE = (
    "(intervals: 90 % each, over shifts; wider ones, which hold for all methods at once, decide; "
    "seconds: of one pass)"
)


class RecommendationRow(TypedDict):
    """A method in the table; numbers are None where there are no answers, and `problem` has the reason.

    Accuracy, its gain over no adaptation, ECE and NLL are of the answers to the whole made-up stream, as they
    came; `_low` and `_high` are the ends of 90 % intervals over shifts. `seconds` is the time of a
    pass: the median of its batches times their number.
    """

    method: str
    options: dict[str, Any]
    tempering: str
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    ece: float | None
    nll: float | None
    seconds: float | None
    recommended: bool
    problem: str


class ShiftRow(TypedDict):
    """The accuracy and the NLL of a method on the samples of one made-up shift."""

    method: str
    options: dict[str, Any]
    tempering: str
    shift: str
    samples: int
    accuracy: float
    nll: float


@dataclass(frozen=True)
class Recommendation:
    """A method that is worth adapting with, and why.

    Attributes:
        method: its name; "source" is the model as it is.
        options: the options of the call, its tempering among them.
        call: the text of the call; `source` in it is the attribute.
        source: the source statistics, with a rehearsal of the method if it is tempered by one.
        table: a row for each method, without tempering and, where it was rehearsed, with it; best first, then
            those without answers.
        shifts: the same by made-up shift, for the methods with answers.
        stream: the made-up stream in words.
        why: the choice in words.
        functions: `inputs` and `outputs` of the model, where they were given.
    """

    method: str
    options: Mapping[str, Any]
    call: str
    source: SourceStatistics = field(repr=False)
    table: Sequence[RecommendationRow] = field(repr=False)
    shifts: Sequence[ShiftRow] = field(repr=False)
    stream: str
    why: str
    functions: Mapping[str, Any] = field(repr=False)

    def adapter(self, model: nn.Module, **others: Any) -> Adapter:
        """The adapter of the recommended call, with other options of every adapter (`engine`, …) if given."""
        return create(self.method, model, self.source, **{**self.options, **self.functions, **others})

    def frame(self) -> "pd.DataFrame":
        """The table as a pandas frame."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError("frame() needs pandas: pip install 'equipoise[bench]'") from error
        return pd.DataFrame(list(self.table))

    def __str__(self) -> str:
        """The table, the methods that were not tried and why, the choice and the call."""
        tried = [row for row in self.table if not row["problem"]]
        width = max(len(row_name(row)) for row in self.table)
        head = f"  {'method':<{width}}  {'tempering':<9}  {'accuracy':<22}  {'gain over source':<25}"
        lines = [f"tried on {self.stream}", f"{head}  {'ECE':>5}  {'NLL':>6}  {'seconds':>7}"]
        for row in tried:
            mark = "→" if row["recommended"] else " "
            lines.append(f"{mark} {row_name(row):<{width}}  {row['tempering']:<9}  {_numbers(row)}")
        for row in self.table:
            if row["problem"]:
                reason = shorten(row["problem"].partition("; ")[0], 110, placeholder=" …")
                lines.append(f"  {row_name(row):<{width}}  {row['tempering']:<9}  {reason}")
        lines += [_FOOTNOTE, self.why, f"    {self.call}"]
        return "\n".join(lines)


def row_name(row: RecommendationRow) -> str:
    """The method of a row, with its options as in a call."""
    return str(Candidate(row["method"], row["options"]))


def _numbers(row: RecommendationRow) -> str:
    """The scores of a row."""
    accuracy = f"{row['accuracy']:.3f} ({row['accuracy_low']:.3f} to {row['accuracy_high']:.3f})"
    gain = f"{row['gain']:+.3f} ({row['gain_low']:+.3f} to {row['gain_high']:+.3f})"
    if row["method"] == NO_ADAPTATION:
        gain = ""
    return f"{accuracy:<22}  {gain:<25}  {row['ece']:5.3f}  {row['nll']:6.3f}  {row['seconds']:7.1f}"


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
        table=[*rows, *(_without_scores(omission) for omission in session.omissions)],
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


def _without_scores(omission: Omission) -> RecommendationRow:
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
