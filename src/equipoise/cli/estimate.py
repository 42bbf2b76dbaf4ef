"""`equipoise estimate`: how often a model is right, chunk by chunk, from the probabilities that it gave."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from equipoise.calibration.rehearsal import Estimate
from equipoise.cli.answer_table import NO_LABEL, AnswerRows, find_columns, read_reference, read_stream_rows
from equipoise.files import whole_file
from equipoise.json_form import to_json
from equipoise.metrics.intervals import wilson_interval
from equipoise.probabilities.estimator import Estimator
from equipoise.probabilities.report import Report
from equipoise.version import __version__

Unit: TypeAlias = Literal["hour", "day", "week", "month"]
By: TypeAlias = Unit | int
"""A unit of time, or a number of rows."""
Use: TypeAlias = Literal["none", "late", "all"]
"""The labels of a stream: none; some, which estimates use; or all, which they are compared with."""

UNSEEN = (
    "Without labels, an estimate cannot see concept drift: inputs that look as before and now belong to "
    "other classes. Labels of a few rows show it: draw rows at random, write their labels into the column of "
    "labels of the stream, and leave the others empty."
)
DRIFT = (
    "Their probabilities are not spread as those of the reference. Drift alone makes no answer wrong; the "
    "estimate says what it costs."
)
OUTSIDE = (
    "Outside: the probabilities are far from those of the reference, and the interval holds if the change is "
    "no larger than most are; or labels contradict what was estimated without them."
)
OTHERWISE = (
    "Labels say otherwise: the interval estimated before the labels of the chunk came, and that of the "
    "labels, have nothing in common. Believe the labels, if they are of rows drawn at random."
)
_FEW = 1000  # rows of a reference
_NAMED = 8  # classes or chunks in a sentence

_FORMATS: dict[Unit, tuple[str, str]] = {
    "hour": ("h", "%Y-%m-%d %H:00"),
    "day": ("D", "%Y-%m-%d"),
    "week": ("W", "%Y-%m-%d"),
    "month": ("M", "%Y-%m"),
}


@dataclass(frozen=True)
class Chunk:
    """Neighbouring rows of a stream, which are estimated together.

    Attributes:
        name: its first day, hour or month, or its first and last row.
        start: the time at which it begins, as ISO 8601 says it, or the number of its first row, from 1.
        end: the time at which the next one begins, or the number of its last row.
        rows: its rows.
    """

    name: str
    start: str | int
    end: str | int
    rows: slice


@dataclass(frozen=True)
class KnownTruth:
    """What the labels of a chunk say.

    Attributes:
        labels: how many rows have one.
        accuracy: the share of them that is answered rightly.
        low: lower end of a 90 % interval of the accuracy of all rows; the accuracy if all have a label.
        high: its upper end.
    """

    labels: int
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class EstimatedChunk:
    """A chunk with its estimates, the mean confidence of its answers, and the truth where labels came.

    Attributes:
        chunk: the rows.
        report: with the labels that are used.
        confidence: the mean of the largest probability.
        truth: what the labels of the chunk say; None without.
        before: the accuracy estimated before these labels came; None where that is the report's.
    """

    chunk: Chunk
    report: Report
    confidence: float
    truth: KnownTruth | None
    before: Estimate | None = None

    @property
    def contradicted(self) -> bool:
        """Whether the intervals of the labels, and of the estimate without them, have nothing in common."""
        before, truth = self.before or self.report.accuracy, self.truth
        return truth is not None and (truth.high < before.low or truth.low > before.high)


@dataclass(frozen=True)
class EstimatedFile:
    """All chunks of a stream.

    Attributes:
        reference: the file of the reference, and its rows.
        stream: the file of the stream, and its rows.
        by: the unit of the chunks.
        classes: the labels of the classes.
        held_out: the accuracy of the answers of the reference.
        use: of the labels of the stream.
        chunks: in order.
        remarks: what the reader should know of the files.
    """

    reference: tuple[str, int]
    stream: tuple[str, int]
    by: By
    classes: tuple[str, ...]
    held_out: float
    use: Use
    chunks: tuple[EstimatedChunk, ...]
    remarks: tuple[str, ...]

    def below(self, limit: float | None) -> list[EstimatedChunk]:
        """The chunks whose estimated accuracy is below a limit."""
        return [each for each in self.chunks if limit is not None and each.report.accuracy.value < limit]


def estimate(
    reference: Path,
    stream: Path,
    *,
    by: By,
    probabilities: Sequence[str] = (),
    target: str | None = None,
    time: str | None = None,
) -> EstimatedFile:
    """Read both files, and estimate the chunks of the stream in their order."""
    with _bar(Console(stderr=True)) as begin:
        columns = find_columns(reference, stream, probabilities, target, time, timed=isinstance(by, str))
        held_out, classes = read_reference(reference, columns, begin(f"reading {reference.name}"))
        rows = read_stream_rows(stream, columns, classes, begin(f"reading {stream.name}"))
        rows, sorting = sorted_by_time(rows)
        chunks = chunks_of(rows, by)
        known = rows.labels != NO_LABEL
        use: Use = "all" if known.all() else "late" if known.any() else "none"
        progress, found = begin("estimating"), []
        estimator = Estimator.fit(held_out.probabilities, held_out.labels)
        for chunk in chunks:
            found.append(_estimated(estimator, rows, chunk, learn=use == "late"))
            progress(len(found), len(chunks))
    right = float((held_out.probabilities.argmax(1) == held_out.labels).mean())
    names = (str(reference), len(held_out)), (str(stream), len(rows))
    remarks = (*reference_doubts(len(held_out), len(classes), right), *sorting, *_gaps(chunks, by))
    return EstimatedFile(*names, by, classes, right, use, tuple(found), remarks)


def reference_doubts(rows: int, classes: int, right: float) -> list[str]:
    """Remarks on a reference that makes all estimates doubtful."""
    few = f"The reference has few rows, {rows:,}: estimates and intervals can be relied on from {_FEW:,}."
    unfit = (
        f"Of the answers of the reference {right:.3f} are right, less than by chance: are its labels "
        "those of the rows, and the columns of probabilities in the order of the classes?"
    )
    return [said for said, holds in ((few, rows < _FEW), (unfit, right < 1 / classes)) if holds]


def sorted_by_time(rows: AnswerRows) -> tuple[AnswerRows, tuple[str, ...]]:
    """The rows in the order of their times, where they have some, and a remark if they were not."""
    if rows.times.is_monotonic_increasing:
        return rows, ()
    order = np.argsort(rows.times.to_numpy(), kind="stable")
    return rows.take(order), (f"The rows of {rows.file.name} were not in the order of time; they are now.",)


def chunks_of(rows: AnswerRows, by: By) -> list[Chunk]:
    """The chunks of rows that are in order; a unit of time without rows is none."""
    if isinstance(by, int):
        starts = range(0, len(rows), by)
        ends = [min(start + by, len(rows)) for start in starts]
        return [
            Chunk(f"{a + 1:,} to {b:,}", a + 1, b, slice(a, b)) for a, b in zip(starts, ends, strict=True)
        ]
    code, form = _FORMATS[by]
    periods = rows.times.to_period(code)
    firsts = np.flatnonzero(np.diff(periods.asi8, prepend=periods.asi8[0] - 1)).tolist()
    chunks = []
    for first, last in zip(firsts, [*firsts[1:], len(rows)], strict=True):
        start, end = periods[first].start_time, (periods[first] + 1).start_time
        name = start.strftime(form)
        chunks.append(Chunk(name, start.isoformat(), end.isoformat(), slice(first, last)))
    return chunks


def lines_of(found: EstimatedFile, limit: float | None) -> list[str]:
    """What is printed: the files, a line for each chunk, and what to know of the estimates."""
    heads, rows = table_of(found, limit)
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    table = ["  ".join(_aligned(row, widths)).rstrip() for row in (heads, *rows)]
    said = [f"- {each}" for each in remarks_of(found, limit)]
    return [*files_of(found), "", *table, "", *said]


def files_of(found: EstimatedFile) -> list[str]:
    """A sentence for each file: what it has."""
    labels = sum(each.truth.labels for each in found.chunks if each.truth)
    use = {
        "none": "no labels",
        "late": f"labels of {labels:,} rows, which correct the estimates of their {unit_of(found)} and later",
        "all": "a label in every row, shown beside the estimates, which do not use them",
    }
    classes = ", ".join(found.classes[:_NAMED]) + ", …" * (len(found.classes) > _NAMED)
    return [
        f"Reference {found.reference[0]}: {found.reference[1]:,} rows, {len(found.classes)} classes "
        f"({classes}), {found.held_out:.3f} of the answers are right.",
        f"Stream {found.stream[0]}: {found.stream[1]:,} rows, {use[found.use]}.",
    ]


def table_of(found: EstimatedFile, limit: float | None) -> tuple[list[str], list[list[str]]]:
    """The heads and the rows of a table of the chunks, as text; the truth only where labels came."""
    heads = [unit_of(found), "rows", "accuracy", "90 % interval"]
    heads += ["labels", "right"] if found.use != "none" else []
    return [*heads, "marks"], [_row(each, limit, found.use != "none") for each in found.chunks]


def _row(each: EstimatedChunk, limit: float | None, truth: bool) -> list[str]:
    accuracy, rows = each.report.accuracy, each.chunk.rows
    cells = [each.chunk.name, f"{rows.stop - rows.start:,}", f"{accuracy.value:.3f}"]
    cells.append(f"{accuracy.low:.3f} to {accuracy.high:.3f}")
    if truth:
        cells += [f"{each.truth.labels:,}", f"{each.truth.accuracy:.3f}"] if each.truth else ["0", ""]
    return [*cells, ", ".join(marks_of(each, limit))]


def marks_of(each: EstimatedChunk, limit: float | None) -> list[str]:
    """The words beside a chunk."""
    accuracy = each.report.accuracy
    below = limit is not None and accuracy.value < limit
    words = {
        "drift": each.report.drift,
        "outside": not accuracy.inside,
        "labels say otherwise": each.contradicted,
        f"below {limit}": below,
    }
    return [word for word, holds in words.items() if holds]


def remarks_of(found: EstimatedFile, limit: float | None) -> list[str]:
    """Sentences about the files, the drift, the limit, and what no estimate without labels can see."""
    drift = [each.chunk.name for each in found.chunks if each.report.drift]
    said, of = list(found.remarks), f"of {chunk_count(found)}"
    if limit is not None:
        below = [each.chunk.name for each in found.below(limit)]
        said.append(f"Estimated below {limit}: {len(below)} {of}{_first(below)}.")
    said.append(f"Drift: {len(drift)} {of}{_first(drift)}.{f' {DRIFT}' if drift else ''}")
    if any(not each.report.accuracy.inside for each in found.chunks):
        said.append(OUTSIDE)
    if any(each.contradicted for each in found.chunks):
        said.append(OTHERWISE)
    if found.use == "all":
        said.append(_compared(found))
    return said if found.use == "late" else [*said, UNSEEN]


def _compared(found: EstimatedFile) -> str:
    """How the estimates agree with labels that they did not use."""
    pairs = [(each.report.accuracy, each.truth.accuracy) for each in found.chunks if each.truth]
    error = sum(abs(estimate.value - truth) for estimate, truth in pairs) / len(pairs)
    held = sum(estimate.low <= truth <= estimate.high for estimate, truth in pairs)
    return (
        f"Against the labels, the estimates are off by {error:.3f} on average; {held} of "
        f"{chunk_count(found)} have the truth inside their interval."
    )


def _first(names: Sequence[str]) -> str:
    return f", first {names[0]}" if names else ""


def unit_of(found: EstimatedFile) -> str:
    """What a chunk is, in a word."""
    return "chunk" if isinstance(found.by, int) else found.by


def chunk_count(found: EstimatedFile) -> str:
    """The number of chunks, in their unit."""
    return f"{len(found.chunks):,} {unit_of(found)}{'s' * (len(found.chunks) != 1)}"


def write_json(found: EstimatedFile, limit: float | None, path: Path) -> None:
    """Write all numbers for other programs; null stands for what is not known."""
    whole = {
        "equipoise": __version__,
        "reference": dict(zip(("file", "rows"), found.reference, strict=True)),
        "stream": dict(zip(("file", "rows"), found.stream, strict=True)),
        "by": found.by,
        "held_out_accuracy": found.held_out,
        "labels": found.use,
        "fail_below": limit,
        "below": [each.chunk.name for each in found.below(limit)],
        "remarks": remarks_of(found, limit),
        "chunks": [_chunk_json(each, found.classes) for each in found.chunks],
    }
    with whole_file(path) as partial:
        partial.write_text(json.dumps(_known(whole), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _chunk_json(each: EstimatedChunk, classes: Sequence[str]) -> dict[str, Any]:
    report, chunk = each.report, each.chunk
    by_class = {
        name: {"precision": precision, "recall": recall, "f1": f1}
        for name, precision, recall, f1 in zip(
            classes, report.precision, report.recall, report.f1, strict=True
        )
    }
    numbers = {"accuracy": report.accuracy, "macro_f1": report.macro_f1, "roc_auc": report.roc_auc}
    return {
        "name": chunk.name,
        "start": chunk.start,
        "end": chunk.end,
        "rows": chunk.rows.stop - chunk.rows.start,
        **to_json(numbers),
        "classes": to_json(by_class),
        "drift": report.drift,
        "confidence": each.confidence,
        "truth": to_json(each.truth),
    }


def _known(value: Any) -> Any:
    """A value of JSON with None for numbers that are not finite, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _known(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_known(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _estimated(estimator: Estimator, rows: AnswerRows, chunk: Chunk, *, learn: bool) -> EstimatedChunk:
    """The estimates of a chunk, with its labels and those before it where they are learned from."""
    probabilities, labels = rows.probabilities[chunk.rows], rows.labels[chunk.rows]
    report = estimator.update(probabilities)
    before, known = report.accuracy, labels != NO_LABEL
    if learn and known.any():
        estimator.label(labels[known], ids=np.asarray(report.ids)[known])
        report = estimator.last
    right = int((probabilities.argmax(1) == labels)[known].sum())
    confidence = float(probabilities.max(1).mean())
    return EstimatedChunk(chunk, report, confidence, _truth(right, int(known.sum()), len(labels)), before)


def _truth(right: int, labels: int, rows: int) -> KnownTruth | None:
    if not labels:
        return None
    if labels == rows:
        return KnownTruth(labels, right / labels, right / labels, right / labels)
    count, hits = (torch.tensor(float(number), dtype=torch.float64) for number in (labels, right))
    low, high = wilson_interval(count, hits, 0.9)
    return KnownTruth(labels, right / labels, float(low), float(high))


def _gaps(chunks: Sequence[Chunk], by: By) -> tuple[str, ...]:
    """A remark on units of time without rows."""
    if isinstance(by, int):
        return ()
    empty = sum(one.end != other.start for one, other in pairwise(chunks))
    return (f"Gaps of a {by} or more without rows: {empty}.",) if empty else ()


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The cells of a row in columns: the first and the last begin at the left."""
    middle = [cell.rjust(width) for cell, width in zip(cells[1:-1], widths[1:-1], strict=True)]
    return [cells[0].ljust(widths[0]), *middle, cells[-1]]


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """A bar for several tasks, one after the other, on a terminal: called with a name, it begins one."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:

        def begin(name: str) -> Callable[[int, int], None]:
            task = bar.add_task(name, total=None)
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield begin
