"""Methods by stream: accuracy, ECE, NLL and the error of the estimated accuracy in every kind of stream."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from equipoise.research.report.paper import counted, paper_name
from equipoise.research.report.part import Part
from equipoise.research.report.results import BETTER, Scope, Variant
from equipoise.research.report.significance import FEWEST_PAIRS, SIGNIFICANT, TIERED, alike_best
from equipoise.research.report.table import Entry, Table
from equipoise.research.report.tables import stream_name

STREAM_HEADINGS = {"accuracy": "acc. ↑", "ece": "ECE ↓", "nll": "NLL ↓", "estimate_off": "est. off ↓"}
"""The metrics of a stream with their short headings."""
ALL = "all streams"
REPEATED = ("stream", "seed")
"""The columns of the repetitions of a shift: their means are one pair of a test."""
EXPLAINED = (
    "Est. off: the mean distance, after each batch, of the accuracy estimated without labels from that of "
    "the last 500 images; of rehearsed methods alone."
)
MARKED = (
    "Marked are the best of each column and, underlined (in Markdown: in italics), those that a paired "
    f"t-test over targets does not tell from it at {SIGNIFICANT:g}, adjusted by Holm for their number. "
    "A pair is a target, with the means over seeds and streams: these are no independent experiments on it."
)
FEW = f"Fewer than {FEWEST_PAIRS} targets are not tested: only the best is marked."


def stream_tables(every: Sequence[Part]) -> list[Table]:
    """A table for each data set and network with streams, of answers while adapting.

    Shuffled streams are not among them: they are the tables of each data set, of one domain at a time.
    """
    groups: dict[Scope, list[Part]] = {}
    for part in every:
        if part.scope.protocol == "online" and part.scope.order not in ("recorded", "shuffled"):
            common = part.scope._replace(order="", order_options="", origin="", domain_images=None)
            groups.setdefault(common, []).append(part)
    return [_table(scope, several) for scope, several in groups.items()]


def stream_headings(scopes: Sequence[Scope]) -> list[str]:
    """A different name for each stream: its kind and options; images and origin where these tell it apart.

    Streams that have one name even so, as those along other `paths`, are numbered.
    """
    found: dict[Scope, str] = {scope: stream_name(scope) for scope in scopes}
    for name, alike in _by_name(found).items():
        images = [_images(scope.domain_images) for scope in alike]
        origins = [f"{scope.origin} images" for scope in alike]
        told = [words for words in (images, origins) if len(set(words)) > 1]
        found |= {scope: ", ".join((name, *own)) for scope, *own in zip(alike, *told, strict=True)}
    for name, alike in _by_name(found).items():
        if len(alike) > 1:
            found |= {scope: f"{name}, no. {number}" for number, scope in enumerate(alike, 1)}
    return [found[scope] for scope in scopes]


def _by_name(names: Mapping[Scope, str]) -> dict[str, list[Scope]]:
    found: dict[str, list[Scope]] = {}
    for scope, name in names.items():
        found.setdefault(name, []).append(scope)
    return found


def _images(most: int | None) -> str:
    return "all images" if most is None else f"{counted(most, 'image')} a domain"


def _table(scope: Scope, several: Sequence[Part]) -> Table:
    headings = stream_headings([part.scope for part in several])
    named = {name: part.runs for name, part in zip(headings, several, strict=True)}
    frames = {name: runs.assign(stream=name) for name, runs in named.items()}
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
    shifts = [frame["shift"].nunique() for frame in frames.values()]
    if any(len(part.tiers) > 1 for part in several):
        notes.append(TIERED)
    if min(shifts) < FEWEST_PAIRS:
        notes.append(FEW)
    if any(heading == STREAM_HEADINGS["estimate_off"] for _, heading in columns):
        notes.append(EXPLAINED)
    for name, runs in named.items():
        first = next(iter(runs["described"].dropna()), None)
        notes += [f"{name[:1].upper()}{name[1:]}: {first}"] if first else []
    title = f"{paper_name(scope.data)}, {paper_name(scope.backbone)}: methods by stream"
    return Table(title, columns, list(map(str, rows)), notes)


def _column(rows: Sequence[Variant], frame: pd.DataFrame, metric: str) -> list[Entry]:
    """The mean of each method over streams and seeds, with marks."""
    known = frame[frame[metric].notna()]
    groups = known.groupby(["name", "tempering"])[metric]
    means: dict[Any, float] = groups.mean().to_dict()
    counts: dict[Any, int] = groups.size().to_dict()
    alike = alike_best(frame, metric, BETTER.get(metric, -1), ["shift"], REPEATED)
    whole = len(known[["shift", *REPEATED]].drop_duplicates())
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
