"""The tables of the report: the paper's beside ours, averages, paired tests, and each domain and tier."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256

from equipoise.report.paper import (
    AVERAGE, CLAIMED, ROWS, RUN_TO_RUN, SIGMA, VARIANCE, Printed, PrintedTable, counted, experiments, paper_name,
    paper_variants, printed_tables, run_to_run,
)  # fmt: skip
from equipoise.report.part import Part, Place, Spread, Summary, gap
from equipoise.report.results import METRICS, Scope
from equipoise.report.significance import FEWEST_PAIRS, Comparison, against_best_other, comparisons
from equipoise.report.table import Columns, Entry, Table, compete, known, listed

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
TESTED = (
    "A pair is a shift, with the mean over the seeds that both have; tests are paired and two-sided, and corrected \
neither for their number nor for choosing the best of the others."
)
TIERED = "The tiers of a domain are pairs of their own but not independent: p is too small."
LONGEST_KEY = 100
"""The most characters of a table's key, since it names a file."""


def short(tempering: str) -> str:
    """A tempering in a word or two."""
    return TEMPERED.get(tempering, tempering)


def setting_words(scope: Scope) -> str:
    """A setting in a few words: "at most 500 images of a part, 1 epoch"."""
    told = {
        f"at most {scope.limit} images of a part": scope.limit is not None,
        counted(scope.epochs, "epoch"): True,
        f"{scope.input_size} px": scope.input_size is not None,
        f"{scope.order} stream": scope.order != "shuffled",
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
    if experiment := experiments().get(part.scope.data):
        differences = experiment.differences(part.scope)
        trial = f"{listed(differences)}: a trial, not comparable with the paper" if differences else ""
        told = trial or f"{told}, as in the paper"
        if part.scope.origin == "made":
            told += "; the corrupted images were made here, with a frost that is drawn"
    told += f". {_range(runs['images'].tolist())} images a stream"
    if runs["classes"].max():  # lines of old versions count none
        told += f" of {_range(runs['classes'].tolist())} classes"
    if runs["left_out"].max():
        told += (
            f", {_range(runs['left_out'].tolist())} unreadable files of it or of the training images left out"
        )
    seeds = (
        f"Seed {part.seeds[0]}"
        if len(part.seeds) == 1
        else f"Means over the seeds {listed(map(str, part.seeds))}"
    )
    return f"{told[:1].upper()}{told[1:]}. {seeds}."


def table_key(scope: Scope, kind: str) -> str:
    """A stable name for a table: data set, network, kind, protocol, and the unusual parts of the setting."""
    papers = experiments().get(scope.data)
    size = papers.input_size if papers and papers.input_size != papers.own_size else None
    unusual = {
        f"limit{scope.limit}": scope.limit is not None,
        f"epochs{scope.epochs}": papers is None or scope.epochs != papers.epochs,
        f"{scope.input_size or 'own'}px": scope.input_size != size,
        scope.order: scope.order != "shuffled",
        scope.origin: scope.origin != "official",
    }
    words = [
        scope.data,
        scope.backbone,
        kind,
        scope.protocol,
        *(word for word, said in unusual.items() if said),
    ]
    whole = "-".join(filter(None, words))
    key = re.sub(r"[^A-Za-z0-9_.-]+", "-", whole)
    mark = sha256(whole.encode("utf-8", "replace")).hexdigest()[:8]
    return key if len(key) <= LONGEST_KEY else f"{key[:LONGEST_KEY]}-{mark}"


def all_tables(every: Sequence[Part], compare: str | None = None) -> Iterator[Table]:
    """Every table: part by part the paper's and ours, then the run-to-run variances."""
    for part in every:
        yield from (
            *paper_tables(part),
            *average_tables(part),
            *test_tables(part, compare),
            *detail_tables(part),
        )
    yield from run_to_run_tables(every)


def average_tables(part: Part) -> list[Table]:
    """Means over the shifts: a row for each method, a column for each metric and tempering."""
    tables = []
    for metrics in (("accuracy", "ece"), ("nll",), ("entropy",), ("brier",)):
        columns: dict[tuple[str, str], Sequence[Entry]] = {}
        for metric in metrics:
            shown, size = _changing(part, metric), len(part.names)
            places = [Place(name, kind) for kind in shown for name in part.names]
            if metric == "accuracy":  # also of a method that has no raw result
                places[:size] = [_first(part, name) for name in part.names]
            entries = _entries(part, places, metric)
            for at, kind in enumerate(shown):
                heading = "" if metric == "accuracy" and not at else short(kind)
                columns[HEADINGS[metric], heading] = entries[at * size : (at + 1) * size]
        title = f"{subject(part.scope)}: {listed(NAMES[metric] for metric in metrics)} on average"
        notes = [part_note(part), _spread_note(part)]
        tables.append(Table(table_key(part.scope, "-".join(metrics)), title, columns, part.names, notes))
    return tables


def detail_tables(part: Part) -> Iterator[Table]:
    """Each tier and domain, a table for each metric and tempering: a row for each place, a column for each method."""
    domains = [("domain", target) for target in part.targets] if len(part.targets) > 1 else []
    places = [*(("tier", tier) for tier in part.tiers), *domains]
    rows = [f"Tier {where}" if kind == "tier" else where for kind, where in places]
    by = listed(dict.fromkeys(kind for kind, _ in places)) if places else ""
    for metric in METRICS if len(places) > 1 else ():
        for tempering in _changing(part, metric):
            names = [name for name in part.names if Place(name, tempering) in part.at]
            lines = [
                _entries(part, [Place(name, tempering, *place) for name in names], metric) for place in places
            ]
            columns = {
                (HEADINGS[metric], name): [line[at] for line in lines] for at, name in enumerate(names)
            }
            title = f"{subject(part.scope)}: {NAMES[metric]} by {by}, {short(tempering)}"
            notes = [part_note(part), f"{_spread_note(part)} The best of each row is marked."]
            yield Table(table_key(part.scope, f"details-{metric}-{tempering}"), title, columns, rows, notes)


def test_tables(part: Part, compare: str | None) -> list[Table]:
    """Paired tests of a method, by default the paper's DEC, against the best of the others."""
    name = compare
    if name is None:
        papers = paper_variants(part.runs)[0].get("DEC")
        name = (
            papers.name
            if papers
            else next((each for each in part.names if part.methods[each] == "dec"), None)
        )
    made = comparisons(part.runs, name) if name is not None else []
    if not made:
        return []
    rows = [f"{NAMES[each.metric]}: {each.focal} minus {each.rival}" for each in made]
    notes = [
        part_note(part),
        f"Each row is {name} minus the best of the other methods by that metric: against the others raw, as in the "
        "paper, and with the same tempering.",
        TESTED,
        *([TIERED] if part.tiers else []),
    ]
    if passed_over := dict.fromkeys(str(variant) for each in made for variant in each.passed_over):
        notes.append(f"Not among the others where runs are missing: {listed(passed_over)}.")
    if any(each.test.t_p is None for each in made):
        notes.append(f"Too few pairs where p is missing: at least {FEWEST_PAIRS} shifts are needed.")
    title = f"{subject(part.scope)}: {name} against the best of the others"
    return [Table(table_key(part.scope, f"tests-{name}"), title, _tested(made), rows, notes)]


def paper_tables(part: Part) -> list[Table]:
    """The paper's tables that a part has results for."""
    which = part.scope.data, part.scope.backbone
    return [_paper_table(each, part) for each in printed_tables() if (each.data, each.backbone) == which]


def run_to_run_tables(every: Sequence[Part]) -> list[Table]:
    """The largest run-to-run variance of any algorithm and network, a table for each setting and protocol."""
    groups: dict[Scope, list[Part]] = {}
    for part in every:
        if (part.scope.data, part.scope.backbone) in {
            (each.data, each.backbone) for each in printed_tables()
        }:
            groups.setdefault(part.scope._replace(backbone=""), []).append(part)
    return [_run_to_run(scope, several) for scope, several in groups.items()]


def _paper_table(printed: PrintedTable, part: Part) -> Table:
    found, doubts = paper_variants(part.runs)
    spread: Spread = (
        "domains" if any(cell.std is not None for cell in printed.cells.values()) else part.spread
    )
    columns: dict[tuple[str, str], list[Entry]] = {}
    for metric in printed.metrics:
        for name in printed.columns:
            kind, where = _column(name)
            there = [part.at.get(Place(*found[row], kind, where)) if row in found else None for row in ROWS]
            missing = [_paper_gap(each, printed.data, kind) for each in there]
            entries = compete(there, metric, missing, spread, f".{printed.decimals}f")
            if (metric, VARIANCE, name) in printed.cells:
                none = sum(each is None for each in there)
                lacks = (
                    f"{len(ROWS) - none} of {len(ROWS)} methods" if none else next(filter(None, missing), "")
                )
                largest = _largest(there, metric, "domains")
                entries.append(Entry(largest, spec=f".{printed.decimals}f", missing=lacks))
            numbers = [printed.cells.get((metric, row, name)) for row in (*ROWS, VARIANCE)]
            columns[HEADINGS[metric], "" if name == AVERAGE else name] = [
                _beside(*each) for each in zip(entries, numbers, strict=False)
            ]
    kind = _column(printed.columns[0])[0]
    rows = [*ROWS, SIGMA][: len(next(iter(columns.values())))]
    notes = [
        part_note(part),
        "Every cell: ours (printed). As in the paper, only DEC's logits are divided (by the mean of τ over the batch); "
        f"the others are raw. ± of ours is the standard deviation over the {spread}.",
        *(
            [f"{SIGMA}: the largest sample variance over the domains of any of the six."]
            if SIGMA in rows
            else []
        ),
        *_claim(part, printed),
        *doubts,
    ]
    key = table_key(part.scope, f"paper-{kind}{'-' + '-'.join(printed.metrics) if kind == 'tier' else ''}")
    by = "average over the domains" if kind == "average" else f"by {kind}"
    title = (
        f"{subject(part.scope)}: {listed(NAMES[each] for each in printed.metrics)}, {by}, beside the paper"
    )
    return Table(key, title, columns, rows, notes)


def _run_to_run(scope: Scope, several: Sequence[Part]) -> Table:
    networks = {each.backbone for each in printed_tables() if each.data == scope.data}
    rows = []
    for part in several:
        found, _ = paper_variants(part.runs)
        rows += [part.at.get(Place(*found[row])) if row in found else None for row in ROWS]
    seeds = {seed for each in rows if each for _, seed in each.coverage}
    methods, wanted = sum(each is not None for each in rows), len(experiments()[scope.data].seeds)
    lacks = [
        (len(several), len(networks), "networks"),
        (methods, len(rows), "methods"),
        (len(seeds), wanted, "seeds"),
    ]
    missing = ", ".join(f"{have} of {whole} {noun}" for have, whole, noun in lacks if have < whole)
    columns = {}
    for metric in RUN_TO_RUN:
        entry = Entry(_largest(rows, metric, "seeds"), spec=".3g", missing=missing)
        columns[HEADINGS[metric].rstrip(" ↑↓"), ""] = [_beside(entry, run_to_run()[scope.data][metric])]
    title = f"{subject(scope)}: run-to-run variance, the largest of any algorithm and network"
    note = (
        "Every cell: ours (printed). The sample variance over seeds of the average over the domains; the paper does \
not define its own."
    )
    return Table(table_key(scope, "paper-run-to-run"), title, columns, [SIGMA], [note])


def _tested(made: Sequence[Comparison]) -> Columns:
    return {
        ("Mean", "own"): [Entry(each.focal_mean) for each in made],
        ("Mean", "other"): [Entry(each.rival_mean) for each in made],
        ("Difference", ""): [Entry(each.test.difference, spec="+.3f") for each in made],
        ("95% interval", "from"): [Entry(each.test.low, spec="+.3f") for each in made],
        ("95% interval", "to"): [Entry(each.test.high, spec="+.3f") for each in made],
        ("p", "t-test"): [Entry(each.test.t_p, spec="p") for each in made],
        ("p", "Wilcoxon"): [Entry(each.test.wilcoxon_p, spec="p") for each in made],
        ("Pairs", ""): [Entry(each.test.pairs, spec=".0f") for each in made],
    }


def _claim(part: Part, printed: PrintedTable) -> list[str]:
    """DEC against the second best of the paper's algorithms, where the paper claims a p."""
    found, _ = paper_variants(part.runs)
    told = []
    for metric in ("ece", "nll") if printed.label in CLAIMED and "DEC" in found else ():
        tested = against_best_other(
            part.runs, metric, found["DEC"], "none", [each.name for each in found.values()]
        )
        if tested is not None and tested.test.t_p is not None:
            told.append(f"{NAMES[metric]} p = {tested.test.t_p:.3g} against {tested.rival.name}")
    claim = "The paper claims p < 0.01 for ECE and NLL against the second best; it does not name its test"
    return (
        [f"{claim}. Our paired t-test: {listed(told)}. {TIERED if part.tiers else ''}".strip()]
        if told
        else []
    )


def _entries(part: Part, places: Sequence[Place], metric: str) -> list[Entry]:
    there = [part.at.get(place) for place in places]
    return compete(there, metric, [part.missing(place) for place in places], part.spread)


def _changing(part: Part, metric: str) -> list[str]:
    """The temperings that change a metric; dividing the logits leaves the accuracy as it was."""
    if metric != "accuracy":
        return part.temperings
    accuracies = {variant: round(part.at[Place(*variant)].mean[metric], 9) for variant in part.variants}
    first = {name: next(v for v in part.variants if v.name == name) for name in part.names}
    changed = {v.tempering for v, a in accuracies.items() if a != accuracies[first[v.name]]}
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


def _column(name: str) -> tuple[str, str]:
    if name == AVERAGE:
        return "average", ""
    return ("tier", name.removeprefix("Tier ")) if name.startswith("Tier ") else ("domain", name)


def _paper_gap(found: Summary | None, data: str, kind: str) -> str:
    papers = experiments()[data]
    return gap(
        found.coverage if found else frozenset(), 1 if kind == "domain" else papers.domains, papers.seeds
    )


def _largest(rows: Sequence[Summary | None], metric: str, over: Spread) -> float | None:
    stds = [known(each.std[over][metric]) for each in rows if each is not None]
    return max((std**2 for std in stds if std is not None), default=None)


def _beside(entry: Entry, printed: Printed | None) -> Entry:
    if printed is None:
        return entry
    value, std, bold, doubt = printed
    return replace(entry, printed=value, printed_std=std, bold=bold, doubt=doubt)


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
