"""Methods by stream: accuracy, ECE, NLL and the error of the estimated accuracy in every kind of stream."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from equipoise.report.paper import paper_name
from equipoise.report.part import Part
from equipoise.report.results import BETTER, Scope, Variant
from equipoise.report.significance import FEWEST_PAIRS, SIGNIFICANT, alike_best
from equipoise.report.table import Entry, Table
from equipoise.report.tables import stream_name

STREAM_HEADINGS = {"accuracy": "acc. ↑", "ece": "ECE ↓", "nll": "NLL ↓", "estimate_off": "est. off ↓"}
"""The metrics of a stream with their short headings."""
ALL = "all streams"
PAIR = ("stream", "shift", "seed")
"""The columns that name a pair of a test."""
EXPLAINED = (
    "Est. off: the mean distance, after each batch, of the accuracy estimated without labels from that of "
    "the last 500 images; of rehearsed methods alone."
)
MARKED = (
    "Marked are the best of each column and, underlined (in Markdown: in italics), those that a paired "
    f"t-test over streams and seeds does not tell from it at {SIGNIFICANT:g}, adjusted by Holm for their "
    "number. Seeds of one target are pairs of their own but not independent: p is too small."
)
FEW = f"Fewer than {FEWEST_PAIRS} streams and seeds are not tested: only the best is marked."


def stream_tables(every: Sequence[Part]) -> list[Table]:
    """A table for each data set and network with streams other than shuffled, of answers while adapting."""
    groups: dict[Scope, list[Part]] = {}
    for part in every:
        if part.scope.protocol == "online" and part.scope.order != "recorded":
            common = part.scope._replace(order="", order_options="", origin="", domain_images=None)
            groups.setdefault(common, []).append(part)
    return [
        _table(scope, several)
        for scope, several in groups.items()
        if any(part.scope.order != "shuffled" for part in several)
    ]


def _table(scope: Scope, several: Sequence[Part]) -> Table:
    named = {stream_name(part.scope): part.runs for part in several}
    frames = {name: _with_distance(runs.assign(stream=name)) for name, runs in named.items()}
    if len(frames) > 1:
        frames[ALL] = pd.concat(frames.values())
    rows = list(dict.fromkeys(variant for part in several for variant in part.variants))
    columns: dict[tuple[str, str], Sequence[Entry | str]] = {
        (name, heading): _column(rows, frame, metric)
        for name, frame in frames.items()
        for metric, heading in STREAM_HEADINGS.items()
        if frame[metric].notna().any()
    }
    notes = [MARKED]
    if any(len(frame.drop_duplicates(list(PAIR))) < FEWEST_PAIRS for frame in frames.values()):
        notes.append(FEW)
    if any(heading == STREAM_HEADINGS["estimate_off"] for _, heading in columns):
        notes.append(EXPLAINED)
    for name, runs in named.items():
        first = next(iter(runs["described"].dropna()), None)
        notes += [f"{name[:1].upper()}{name[1:]}: {first}"] if first else []
    title = f"{paper_name(scope.data)}, {paper_name(scope.backbone)}: methods by stream"
    return Table(title, columns, list(map(str, rows)), notes)


def _with_distance(runs: pd.DataFrame) -> pd.DataFrame:
    """Rows of lines without the distance along the stream have that of the means."""
    return runs.assign(estimate_off=runs["estimate_off"].fillna((runs["estimate"] - runs["accuracy"]).abs()))


def _column(rows: Sequence[Variant], frame: pd.DataFrame, metric: str) -> list[Entry]:
    """The mean of each method over streams and seeds, with marks."""
    groups = frame[frame[metric].notna()].groupby(["name", "tempering"])[metric]
    means: dict[Any, float] = groups.mean().to_dict()
    counts: dict[Any, int] = groups.size().to_dict()
    alike = alike_best(frame, metric, BETTER.get(metric, -1), PAIR)
    whole = max(counts.values())
    entries = []
    for row in rows:
        if tuple(row) not in counts:
            entries.append(Entry())
            continue
        size, entry = counts[tuple(row)], Entry(float(means[tuple(row)]))
        missing = f"{size} of {whole} streams and seeds" if size < whole else ""
        # As written, so that a reader sees equal numbers marked alike.
        best = bool(alike) and not missing and _written(means, row) == _written(means, alike[0])
        entries.append(replace(entry, missing=missing, best=best, alike=row in alike and not best))
    return entries


def _written(means: Mapping[Any, float], row: Variant) -> str:
    return Entry().written(means[tuple(row)])
