"""The tables: ours of one part, the paper's with our numbers beside the printed ones, and of streams."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from equipoise.research.report import paper
from equipoise.research.report.paper import ROWS, SIGMA, counted, experiments, paper_name
from equipoise.research.report.part import Part, Place, PlaceScores, Spread, gap
from equipoise.research.report.results import AT_BEST_TEMPERATURE, BETTER, METRICS, Scope, Variant, grouped
from equipoise.research.report.significance import (
    FEWEST_PAIRS,
    SIGNIFICANT,
    TIERED,
    Comparison,
    against_best_other,
    alike_best,
    comparisons,
)
from equipoise.research.report.table import Columns, Entry, Table, compete, known, listed

NAMES = {"accuracy": "accuracy", "ece": "ECE", "nll": "NLL", "entropy": "entropy", "brier": "Brier score"}
HEADINGS = {
    "accuracy": "Accuracy ↑",
    "ece": "ECE ↓",
    "nll": "NLL ↓",
    "entropy": "Entropy",
    "brier": "Brier ↓",
}
"""With an arrow to where it is better; entropy, in bits, has no better."""
TEMPERED = {
    "none": "raw",
    "mean": "mean of τ",
    "median": "median of τ",
    "sample": "each image's τ",
    "fixed": "fixed τ",
}
"""The divisor of the logits in a word or two; other temperings are called by their names."""
FLOOR_HEADING = "floor"
FLOOR = (
    "Floor: the raw answers at the one temperature that is best for the stream by NLL, found with its labels."
)
ESTIMATED = (
    "A stream's estimate is the mean over its batches. The 90 % interval is held against the accuracy of the "
    "last 500 images after each batch."
)
TESTED = (
    "Each row is the method minus the best of the others by that metric: against the others raw, as in the "
    "paper, and with the same tempering. A pair is a shift, with the mean over the seeds that both have; "
    "tests are paired and two-sided, and corrected neither for their number nor for choosing the best."
)
STREAM_HEADINGS = {"accuracy": "acc. ↑", "ece": "ECE ↓", "nll": "NLL ↓", "estimate_off": "est. off ↓"}
"""The metrics of a stream with their short headings."""
ALL_STREAMS = "all streams"
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


def short(tempering: str) -> str:
    """A tempering in a word or two."""
    return TEMPERED.get(tempering, tempering)


def stream_name(scope: Scope, noun: str = "") -> str:
    """A kind of stream with its options: "recurring (passes 20)", or with a noun after the kind."""
    options: Mapping[str, object] = json.loads(scope.order_options or "{}")
    told = [
        f"{name.replace('_', ' ')} {value:g}"
        for name, value in options.items()
        if isinstance(value, (int, float))
    ]
    return f"{scope.order}{noun} ({', '.join(told)})" if told else f"{scope.order}{noun}"


def setting_words(scope: Scope) -> str:
    """A setting in a few words: "at most 500 images of a part, 1 epoch"."""
    told = {
        f"at most {scope.limit} images of a part": scope.limit is not None,
        f"at most {scope.domain_images} images of a domain": scope.domain_images is not None,
        counted(scope.epochs, "epoch"): True,
        f"{scope.input_size} px": scope.input_size is not None,
        stream_name(scope, " stream"): scope.order != "shuffled",
        "images made here": scope.origin == "made",
    }
    return ", ".join(words for words, said in told.items() if said)


def subject(scope: Scope) -> str:
    """Data set, network and protocol, and the setting where it is not the paper's."""
    name = ", ".join(filter(None, (paper_name(scope.data), paper_name(scope.backbone), scope.protocol)))
    papers = experiments().get(scope.data)
    as_printed = papers and not papers.differences(scope) and scope.origin == "official"
    return name if as_printed else f"{name} ({setting_words(scope)})"


def part_note(part: Part) -> str:
    """The setting, whether it is the paper's, the streams by counts, and the seeds, in sentences."""
    told, runs = setting_words(part.scope), part.runs
    if papers := experiments().get(part.scope.data):
        differences = papers.differences(part.scope)
        trial = f"{listed(differences)}: a trial, not comparable with the paper" if differences else ""
        told = trial or f"{told}, as in the paper"
        told += "; the corrupted images have a frost that is drawn" if part.scope.origin == "made" else ""
    images, classes, left_out = (_range(runs[column]) for column in ("images", "classes", "left_out"))
    told += f". {images} images a stream"
    if classes != "0":  # lines of old versions count none
        told += f" of {classes} classes"
    if left_out != "0":
        told += f", {left_out} unreadable files of it or of the training images left out"
    several = len(part.seeds) > 1
    seeds = f"Means over the seeds {listed(map(str, part.seeds))}" if several else f"Seed {part.seeds[0]}"
    described = next((f" {each}" for each in runs["described"].dropna()), "")
    return f"{told[:1].upper()}{told[1:]}. {seeds}.{described}"


def _range(counts: "pd.Series[int]") -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def average_tables(part: Part) -> list[Table]:
    """Means over the shifts: a row for each method, a column for each metric and tempering."""
    tables, size = [], len(part.names)
    for metrics in (("accuracy", "ece"), ("nll",), ("entropy",), ("brier",)):
        columns: dict[tuple[str, str], Sequence[Entry]] = {}
        for metric in metrics:
            shown = _changing(part, metric)
            places = [Place(name, kind) for kind in shown for name in part.names]
            if metric == "accuracy":  # also of a method that has no raw result
                places[:size] = [_first(part, name) for name in part.names]
            entries = _entries(part, places, metric)
            for at, kind in enumerate(shown):
                heading = "" if metric == "accuracy" and not at else short(kind)
                columns[HEADINGS[metric], heading] = entries[at * size : (at + 1) * size]
            columns |= floor_column(part, metric)
        notes = [_spread_note(part), *([FLOOR] if any(FLOOR_HEADING in head for head in columns) else [])]
        title = f"{listed(NAMES[metric] for metric in metrics)} on average"
        tables.append(_table(part, title, columns, part.names, notes))
    return tables


def floor_column(part: Part, metric: str) -> dict[tuple[str, str], Sequence[Entry]]:
    """A metric of each method at its best temperature, if the results have it: means as in `Part`."""
    column = AT_BEST_TEMPERATURE.get(metric)
    if column is None or part.runs[column].isna().all():
        return {}
    rows = part.runs[part.runs["tempering"] == "none"]
    means = rows.groupby(["name", "shift"])[column].mean().groupby("name").mean()
    return {(HEADINGS[metric], FLOOR_HEADING): [Entry(known(means.get(n, math.nan))) for n in part.names]}


def estimate_tables(part: Part) -> list[Table]:
    """Accuracy estimated without labels against the true one, a row for each method that was rehearsed."""
    rows = part.runs[part.runs["estimate"].notna()]
    if rows.empty:
        return []
    error = rows["estimate"] - rows["accuracy"]
    groups = rows.assign(error=error, off=error.abs()).groupby("name", sort=False)
    columns = {
        ("Off by", "on average"): _numbers(groups["off"].mean()),
        ("Off by", "at most"): _numbers(groups["off"].max()),
        ("Too high by", "on average"): _numbers(groups["error"].mean(), "+.3f"),
        ("Interval right", "of all batches"): _numbers(groups["estimate_covered"].mean(), ".0%"),
        ("Streams", ""): _numbers(groups.size(), ".0f"),
    }
    names = [str(name) for name in groups.groups]
    return [_table(part, "estimated against true accuracy", columns, names, [ESTIMATED])]


def detail_tables(part: Part) -> Iterator[Table]:
    """Each tier and domain: a table for each metric and tempering, with a column for each method."""
    domains = [("domain", target) for target in part.targets] if len(part.targets) > 1 else []
    places = [*(("tier", tier) for tier in part.tiers), *domains]
    rows = [f"Tier {where}" if kind == "tier" else where for kind, where in places]
    by = listed(dict.fromkeys(kind for kind, _ in places)) if places else ""
    for metric in METRICS if len(places) > 1 else ():
        for tempering in _changing(part, metric):
            names = [name for name in part.names if Place(name, tempering) in part.at]
            there = [[Place(name, tempering, *place) for name in names] for place in places]
            lines = [_entries(part, several, metric) for several in there]
            heads = [(HEADINGS[metric], name) for name in names]
            columns = {head: [line[at] for line in lines] for at, head in enumerate(heads)}
            title = f"{NAMES[metric]} by {by}, {short(tempering)}"
            notes = [_spread_note(part), "The best of each row is marked."]
            yield _table(part, title, columns, rows, notes)


def comparison_tables(part: Part, compare: str | None) -> list[Table]:
    """Paired tests of a method, by default the paper's DEC, against the best of the others."""
    first = next((name for name in part.names if part.methods[name] == "dec"), "")
    name = compare or (part.papers["DEC"].name if "DEC" in part.papers else first)
    made = comparisons(part.runs, name)
    if not made:
        return []
    rows = [f"{NAMES[each.metric]}: {each.focal} minus {each.rival}" for each in made]
    notes = [TESTED, *([TIERED] if part.tiers else [])]
    if passed_over := dict.fromkeys(str(variant) for each in made for variant in each.passed_over):
        notes.append(f"Not among the others where runs are missing: {listed(passed_over)}.")
    if any(each.test.t_p is None for each in made):
        notes.append(f"Too few pairs where p is missing: at least {FEWEST_PAIRS} shifts are needed.")
    return [_table(part, f"{name} against the best of the others", _tested(made), rows, notes)]


def _table(part: Part, title: str, columns: Columns, rows: Sequence[str], notes: Sequence[str]) -> Table:
    return Table(f"{subject(part.scope)}: {title}", columns, rows, notes, part_note(part))


def _tested(made: Sequence[Comparison]) -> Columns:
    tests = [each.test for each in made]
    return {
        ("Mean", "own"): _numbers([each.focal_mean for each in made]),
        ("Mean", "other"): _numbers([each.rival_mean for each in made]),
        ("Difference", ""): _numbers([test.difference for test in tests], "+.3f"),
        ("95% interval", "from"): _numbers([test.low for test in tests], "+.3f"),
        ("95% interval", "to"): _numbers([test.high for test in tests], "+.3f"),
        ("p", "t-test"): _numbers([test.t_p for test in tests], "p"),
        ("p", "Wilcoxon"): _numbers([test.wilcoxon_p for test in tests], "p"),
        ("Pairs", ""): _numbers([test.pairs for test in tests], ".0f"),
    }


def _numbers(values: Iterable[float | None], spec: str = ".3f") -> list[Entry]:
    return [Entry(value, spec=spec) for value in values]


def _entries(part: Part, places: Sequence[Place], metric: str) -> list[Entry]:
    there = [part.at.get(place) for place in places]
    return compete(there, metric, [part.missing(place) for place in places], part.spread)


def _changing(part: Part, metric: str) -> list[str]:
    """The temperings that change a metric; dividing the logits leaves the accuracy as it was."""
    if metric != "accuracy":
        return part.temperings
    means = {place: each.mean[metric] for place, each in part.at.items() if place.kind == "average"}
    first = {place: means[_first(part, place.name)] for place in means}
    changed = {place.tempering for place, mean in means.items() if abs(mean - first[place]) > 1e-9}
    return [part.temperings[0], *(kind for kind in part.temperings[1:] if kind in changed)]


def _first(part: Part, name: str) -> Place:
    return Place(*next(variant for variant in part.variants if variant.name == name))


def _spread_note(part: Part) -> str:
    if part.spread == "domains" and len(part.targets) < 2:
        return "One seed and one domain: no deviation."
    return f"± is the standard deviation over the {part.spread}."


def paper_tables(part: Part) -> list[Table]:
    """The paper's tables that a part has results for, in its own layout."""
    which = part.scope.data, part.scope.backbone
    return [
        _paper_table(each, part) for each in paper.printed_tables() if (each.data, each.backbone) == which
    ]


def _paper_table(printed: paper.PrintedTable, part: Part) -> Table:
    deviates = any(cell.std is not None for cell in printed.cells.values())
    spread: Spread = "domains" if deviates else part.spread
    spec, papers = f".{printed.decimals}f", experiments()[printed.data]
    columns: dict[tuple[str, str], list[Entry]] = {}
    for metric in printed.metrics:
        for name in printed.columns:
            kind, where = _place(name)
            there = _of_the_paper(part, kind, where)
            shifts = 1 if kind == "domain" else papers.domains
            missing = [gap(each.coverage if each else frozenset(), shifts, papers.seeds) for each in there]
            entries = compete(there, metric, missing, spread, spec)
            methods = sum(each is not None for each in there)
            lacks = f"{methods} of 6 methods" if methods < len(ROWS) else next(filter(None, missing), "")
            entries.append(Entry(_largest(there, metric, "domains"), spec=spec, missing=lacks))
            numbers = [printed.cells.get((metric, row, name)) for row in (*ROWS, paper.VARIANCE)]
            columns[HEADINGS[metric], "" if name == paper.AVERAGE else name] = [
                _beside(entry, number) for entry, number in zip(entries, numbers, strict=True) if number
            ]
    rows = [*ROWS, SIGMA][: len(next(iter(columns.values())))]
    kind, _ = _place(printed.columns[0])
    by = "average over the domains" if kind == "average" else f"by {kind}"
    metrics = listed(NAMES[each] for each in printed.metrics)
    told = "Every cell: ours (printed). As in the paper, only DEC's logits are divided (by the mean of τ)."
    notes = [f"{told} ± of ours is the standard deviation over the {spread}."]
    if SIGMA in rows:
        notes.append(f"{SIGMA}: the largest sample variance over the domains of any of the six.")
    notes += [*_claim(part, printed), *part.paper_notes]
    return _table(part, f"{metrics}, {by}, beside the paper", columns, rows, notes)


def _claim(part: Part, printed: paper.PrintedTable) -> list[str]:
    """DEC against the second best of the paper's algorithms, where the paper claims a p."""
    told, among = [], [each.name for each in part.papers.values()]
    for metric in ("ece", "nll") if printed.label in paper.CLAIMED and "DEC" in part.papers else ():
        tested = against_best_other(part.runs, metric, part.papers["DEC"], "none", among)
        if tested is not None and tested.test.t_p is not None:
            told.append(f"{NAMES[metric]} p = {tested.test.t_p:.3g} against {tested.rival.name}")
    claim = "The paper claims p < 0.01 for ECE and NLL and names no test; our paired t-test gives"
    return [f"{claim} {listed(told)}. {TIERED if part.tiers else ''}".strip()] if told else []


def run_to_run_tables(every: Sequence[Part]) -> list[Table]:
    """The largest run-to-run variance of any algorithm and network, a table for each setting and protocol."""
    printed = [part for part in every if part.scope.backbone in _networks(part.scope.data)]
    groups = grouped(printed, lambda part: part.scope._replace(backbone=""))
    return [_run_to_run(scope, several) for scope, several in groups.items()]


def _run_to_run(scope: Scope, several: Sequence[Part]) -> Table:
    rows = [each for part in several for each in _of_the_paper(part)]
    seeds = {seed for each in rows if each for _, seed in each.coverage}
    missing = paper.shortfall(
        networks=(len(several), len(_networks(scope.data))),
        methods=(sum(each is not None for each in rows), len(rows)),
        seeds=(len(seeds), len(experiments()[scope.data].seeds)),
    )
    columns = {}
    for metric, printed in paper.run_to_run()[scope.data].items():
        entry = Entry(_largest(rows, metric, "seeds"), spec=".3g", missing=missing)
        columns[HEADINGS[metric].rstrip(" ↑↓"), ""] = [_beside(entry, printed)]
    title = f"{subject(scope)}: run-to-run variance, the largest of any algorithm and network"
    note = "Every cell: ours (printed). The sample variance over seeds of averages over domains."
    return Table(title, columns, [SIGMA], [note])


def _of_the_paper(part: Part, kind: str = "average", where: str = "") -> list[PlaceScores | None]:
    """Our scores of the paper's algorithms at one place, in its order."""
    found = [part.papers.get(row) for row in ROWS]
    return [part.at.get(Place(*variant, kind, where)) if variant else None for variant in found]


def _place(column: str) -> tuple[str, str]:
    if column == paper.AVERAGE:
        return "average", ""
    return ("tier", column.removeprefix("Tier ")) if column.startswith("Tier ") else ("domain", column)


def _largest(rows: Sequence[PlaceScores | None], metric: str, over: Spread) -> float | None:
    stds = [known(each.std[over][metric]) for each in rows if each is not None]
    return max((std**2 for std in stds if std is not None), default=None)


def _beside(entry: Entry, printed: paper.Printed) -> Entry:
    value, std, bold, doubt = printed
    return replace(entry, printed=value, printed_std=std, bold=bold, doubt=doubt)


def _networks(data: str) -> set[str]:
    return {each.backbone for each in paper.printed_tables() if each.data == data}


def stream_tables(every: Sequence[Part]) -> list[Table]:
    """A table for each data set and network with streams, of answers while adapting.

    Shuffled streams are not among them: they are the tables of each data set, of one domain at a time.
    """
    online = [part for part in every if part.scope.protocol == "online"]
    shown = [part for part in online if part.scope.order not in ("recorded", "shuffled")]
    own: dict[str, Any] = {"order": "", "order_options": "", "origin": "", "domain_images": None}
    groups = grouped(shown, lambda part: part.scope._replace(**own))
    return [_stream_table(scope, several) for scope, several in groups.items()]


def stream_headings(scopes: Sequence[Scope]) -> list[str]:
    """A different name for each stream: its kind and options; images and origin where these tell it apart.

    Streams that have one name even so, as those along other `paths`, are numbered.
    """
    names = {scope: stream_name(scope) for scope in scopes}
    for alike in grouped(scopes, names.__getitem__).values():
        for detail in (_images, _origin):
            if len({detail(scope) for scope in alike}) > 1:
                names |= {scope: f"{names[scope]}, {detail(scope)}" for scope in alike}
    for alike in grouped(scopes, names.__getitem__).values():
        if len(alike) > 1:
            names |= {scope: f"{names[scope]}, no. {number}" for number, scope in enumerate(alike, 1)}
    return list(names.values())


def _images(scope: Scope) -> str:
    most = scope.domain_images
    return "all images" if most is None else f"{counted(most, 'image')} a domain"


def _origin(scope: Scope) -> str:
    return f"{scope.origin} images"


def _stream_table(scope: Scope, several: Sequence[Part]) -> Table:
    headings = stream_headings([part.scope for part in several])
    frames = {name: part.runs.assign(stream=name) for name, part in zip(headings, several, strict=True)}
    described = {name: next(iter(runs["described"].dropna()), None) for name, runs in frames.items()}
    if len(frames) > 1:
        frames[ALL_STREAMS] = pd.concat(frames.values())
    rows = list(dict.fromkeys(variant for part in several for variant in part.variants))
    columns: dict[tuple[str, str], Sequence[Entry | str]] = {
        (name, heading): _stream_column(rows, frame, metric)
        for name, frame in frames.items()
        for metric, heading in STREAM_HEADINGS.items()
        if frame[metric].notna().any()
    }
    given = {
        MARKED: True,
        TIERED: any(len(part.tiers) > 1 for part in several),
        FEW: min(frame["shift"].nunique() for frame in frames.values()) < FEWEST_PAIRS,
        EXPLAINED: any(heading == STREAM_HEADINGS["estimate_off"] for _, heading in columns),
    }
    notes = [note for note, applies in given.items() if applies]
    notes += [f"{name[:1].upper()}{name[1:]}: {told}" for name, told in described.items() if told]
    title = f"{paper_name(scope.data)}, {paper_name(scope.backbone)}: methods by stream"
    return Table(title, columns, list(map(str, rows)), notes)


def _stream_column(rows: Sequence[Variant], frame: pd.DataFrame, metric: str) -> list[Entry]:
    """The mean of each method over streams and seeds, with marks."""
    measured = frame[frame[metric].notna()]
    groups = measured.groupby(["name", "tempering"])[metric]
    means: dict[Any, float] = groups.mean().to_dict()
    counts: dict[Any, int] = groups.size().to_dict()
    alike = alike_best(frame, metric, BETTER.get(metric, -1), ["shift"], REPEATED)
    whole = len(measured[["shift", *REPEATED]].drop_duplicates())
    entries = []
    for row in rows:
        size, entry = counts.get(row, 0), Entry(means.get(row))
        missing = f"{size} of {whole} streams and seeds" if 0 < size < whole else ""
        # As written, so that a reader sees equal numbers marked alike.
        best = bool(alike) and size == whole and entry.written(means[row]) == entry.written(means[alike[0]])
        entries.append(replace(entry, missing=missing, best=best, alike=row in alike and not best))
    return entries
