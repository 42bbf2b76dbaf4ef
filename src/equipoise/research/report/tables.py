"""Our tables of one part: averages, paired tests, and each domain and tier."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence

from equipoise.research.report.paper import counted, experiments, paper_name, paper_variants
from equipoise.research.report.part import Part, Place
from equipoise.research.report.results import AT_BEST_TEMPERATURE, METRICS, Scope
from equipoise.research.report.significance import FEWEST_PAIRS, TIERED, Comparison, comparisons
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
    papers = scope.data in experiments() and not experiments()[scope.data].differences(scope)
    return name if papers and scope.origin == "official" else f"{name} ({setting_words(scope)})"


def part_note(part: Part) -> str:
    """The setting, whether it is the paper's, the streams by counts, and the seeds, in sentences."""
    told, runs = setting_words(part.scope), part.runs
    if part.scope.data in experiments():
        differences = experiments()[part.scope.data].differences(part.scope)
        trial = f"{listed(differences)}: a trial, not comparable with the paper" if differences else ""
        told = trial or f"{told}, as in the paper"
        told += "; the corrupted images have a frost that is drawn" if part.scope.origin == "made" else ""
    ranges = {}
    for column in ("images", "classes", "left_out"):
        low, high = int(runs[column].min()), int(runs[column].max())
        ranges[column] = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    told += f". {ranges['images']} images a stream"
    told += (
        f" of {ranges['classes']} classes" if runs["classes"].max() else ""
    )  # lines of old versions count none
    if runs["left_out"].max():
        told += f", {ranges['left_out']} unreadable files of it or of the training images left out"
    seeds = (
        f"Seed {part.seeds[0]}"
        if len(part.seeds) == 1
        else f"Means over the seeds {listed(map(str, part.seeds))}"
    )
    described = next((f" {each}" for each in runs["described"].dropna()), "")
    return f"{told[:1].upper()}{told[1:]}. {seeds}.{described}"


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
        title = f"{subject(part.scope)}: {listed(NAMES[metric] for metric in metrics)} on average"
        notes = [_spread_note(part), *([FLOOR] if any(FLOOR_HEADING in head for head in columns) else [])]
        tables.append(Table(title, columns, part.names, notes, part_note(part)))
    return tables


def floor_column(part: Part, metric: str) -> dict[tuple[str, str], Sequence[Entry]]:
    """A metric of each method at its best temperature, if the results have it: means as in `Part`."""
    if metric not in AT_BEST_TEMPERATURE or part.runs[AT_BEST_TEMPERATURE[metric]].isna().all():
        return {}
    rows = part.runs[part.runs["tempering"] == "none"]
    means = rows.groupby(["name", "shift"])[AT_BEST_TEMPERATURE[metric]].mean().groupby("name").mean()
    return {(HEADINGS[metric], FLOOR_HEADING): [Entry(known(means.get(n, math.nan))) for n in part.names]}


def estimate_tables(part: Part) -> list[Table]:
    """Accuracy estimated without labels against the true one, a row for each method that was rehearsed."""
    rows = part.runs[part.runs["estimate"].notna()]
    if rows.empty:
        return []
    error = rows["estimate"] - rows["accuracy"]
    groups = rows.assign(error=error, off=error.abs()).groupby("name", sort=False)
    columns = {
        ("Off by", "on average"): [Entry(value) for value in groups["off"].mean()],
        ("Off by", "at most"): [Entry(value) for value in groups["off"].max()],
        ("Too high by", "on average"): [Entry(value, spec="+.3f") for value in groups["error"].mean()],
        ("Interval right", "of all batches"): [
            Entry(value, spec=".0%") for value in groups["estimate_covered"].mean()
        ],
        ("Streams", ""): [Entry(value, spec=".0f") for value in groups.size()],
    }
    title = f"{subject(part.scope)}: estimated against true accuracy"
    names = [str(name) for name in groups.groups]
    return [Table(title, columns, names, [ESTIMATED], part_note(part))]


def detail_tables(part: Part) -> Iterator[Table]:
    """Each tier and domain: a table for each metric and tempering, with a column for each method."""
    domains = [("domain", target) for target in part.targets] if len(part.targets) > 1 else []
    places = [*(("tier", tier) for tier in part.tiers), *domains]
    rows = [f"Tier {where}" if kind == "tier" else where for kind, where in places]
    for metric in METRICS if len(places) > 1 else ():
        for tempering in _changing(part, metric):
            names = [name for name in part.names if Place(name, tempering) in part.at]
            lines = [
                _entries(part, [Place(name, tempering, *place) for name in names], metric) for place in places
            ]
            columns = {
                (HEADINGS[metric], name): [line[at] for line in lines] for at, name in enumerate(names)
            }
            by = listed(dict.fromkeys(kind for kind, _ in places))
            title = f"{subject(part.scope)}: {NAMES[metric]} by {by}, {short(tempering)}"
            notes = [_spread_note(part), "The best of each row is marked."]
            yield Table(title, columns, rows, notes, part_note(part))


def comparison_tables(part: Part, compare: str | None) -> list[Table]:
    """Paired tests of a method, by default the paper's DEC, against the best of the others."""
    papers = paper_variants(part.runs)[0].get("DEC")
    name = compare or (
        papers.name if papers else next((n for n in part.names if part.methods[n] == "dec"), "")
    )
    made = comparisons(part.runs, name)
    if not made:
        return []
    rows = [f"{NAMES[each.metric]}: {each.focal} minus {each.rival}" for each in made]
    notes = [TESTED, *([TIERED] if part.tiers else [])]
    if passed_over := dict.fromkeys(str(variant) for each in made for variant in each.passed_over):
        notes.append(f"Not among the others where runs are missing: {listed(passed_over)}.")
    if any(each.test.t_p is None for each in made):
        notes.append(f"Too few pairs where p is missing: at least {FEWEST_PAIRS} shifts are needed.")
    title = f"{subject(part.scope)}: {name} against the best of the others"
    return [Table(title, _tested(made), rows, notes, part_note(part))]


def _tested(made: Sequence[Comparison]) -> Columns:
    tests = [each.test for each in made]
    return {
        ("Mean", "own"): [Entry(each.focal_mean) for each in made],
        ("Mean", "other"): [Entry(each.rival_mean) for each in made],
        ("Difference", ""): [Entry(test.difference, spec="+.3f") for test in tests],
        ("95% interval", "from"): [Entry(test.low, spec="+.3f") for test in tests],
        ("95% interval", "to"): [Entry(test.high, spec="+.3f") for test in tests],
        ("p", "t-test"): [Entry(test.t_p, spec="p") for test in tests],
        ("p", "Wilcoxon"): [Entry(test.wilcoxon_p, spec="p") for test in tests],
        ("Pairs", ""): [Entry(test.pairs, spec=".0f") for test in tests],
    }


def _entries(part: Part, places: Sequence[Place], metric: str) -> list[Entry]:
    there = [part.at.get(place) for place in places]
    return compete(there, metric, [part.missing(place) for place in places], part.spread)


def _changing(part: Part, metric: str) -> list[str]:
    """The temperings that change a metric; dividing the logits leaves the accuracy as it was."""
    if metric != "accuracy":
        return part.temperings
    values = {place: each.mean[metric] for place, each in part.at.items() if place.kind == "average"}
    changed = {
        place.tempering for place in values if abs(values[place] - values[_first(part, place.name)]) > 1e-9
    }
    return [part.temperings[0], *(kind for kind in part.temperings[1:] if kind in changed)]


def _first(part: Part, name: str) -> Place:
    return Place(*next(variant for variant in part.variants if variant.name == name))


def _spread_note(part: Part) -> str:
    alone = part.spread == "domains" and len(part.targets) < 2
    return (
        "One seed and one domain: no deviation."
        if alone
        else f"± is the standard deviation over the {part.spread}."
    )
