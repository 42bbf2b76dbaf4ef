"""Our tables of one part: averages, paired tests, and each domain and tier."""

from collections.abc import Iterator

from equipoise.report.names import HEADINGS, NAMES, part_note, short, subject, table_key
from equipoise.report.results import METRICS, Results
from equipoise.report.significance import FEWEST_PAIRS, comparisons
from equipoise.report.paper import paper_variants
from equipoise.report.summary import Kind, Part, Place, parts
from equipoise.report.table import Entry, Table, compete, listed, table_of

AVERAGES = (("accuracy", "ece"), ("nll",), ("entropy",), ("brier",))
"""The metrics of each table of averages."""


def average_tables(part: Part) -> list[Table]:
    """Means over the shifts: a row for each method, a column for each metric and tempering."""
    tables = []
    for metrics in AVERAGES:
        columns: dict[tuple[str, str], list[Entry | str]] = {}
        for metric in metrics:
            shown = _changing(part, metric)
            places = [Place(name, kind) for kind in shown for name in part.names]
            if metric == "accuracy":  # also of a method that has no raw result
                places[: len(part.names)] = [Place(*_first(part, name)) for name in part.names]
            entries = _entries(part, places, metric)
            for at, kind in enumerate(shown):
                heading = "" if metric == "accuracy" and not at else short(kind)
                columns[HEADINGS[metric], heading] = list(entries[at * len(part.names) :][: len(part.names)])
        title = f"{subject(part.scope)}: {listed(NAMES[metric] for metric in metrics)} on average"
        notes = [part_note(part), _spread_note(part)]
        tables.append(table_of(table_key(part.scope, "-".join(metrics)), title, columns, part.names, notes))
    return tables


def detail_tables(part: Part) -> Iterator[Table]:
    """Each tier and domain, a table for each metric and tempering: a row for each place, a column for each method."""
    places: list[tuple[Kind, str]] = [("tier", tier) for tier in part.tiers]
    if len(part.targets) > 1:
        places += [("domain", target) for target in part.targets]
    if len(places) < 2:
        return
    by = listed([*(["tier"] if part.tiers else []), *(["domain"] if len(part.targets) > 1 else [])])
    rows = [f"Tier {where}" if kind == "tier" else where for kind, where in places]
    for metric in METRICS:
        for tempering in _changing(part, metric):
            names = [name for name in part.names if Place(name, tempering) in part.at]
            lines = [
                _entries(part, [Place(name, tempering, *place) for name in names], metric) for place in places
            ]
            columns: dict[tuple[str, str], list[Entry | str]] = {
                (HEADINGS[metric], name): [line[at] for line in lines] for at, name in enumerate(names)
            }
            title = f"{subject(part.scope)}: {NAMES[metric]} by {by}, {short(tempering)}"
            notes = [part_note(part), _spread_note(part), "The best of each row is marked."]
            key = table_key(part.scope, f"details-{metric}-{tempering}")
            yield table_of(key, title, columns, rows, notes, "details")


def test_tables(part: Part, compare: str | None) -> list[Table]:
    """Paired tests of a method, by default the paper's DEC, against the best of the others."""
    name = compare
    if name is None:
        papers = paper_variants(part.runs)[0].get("DEC")
        others = [each for each in part.names if part.methods[each] == "dec"]
        name = papers.name if papers else next(iter(others), None)
    made = comparisons(part.runs, name) if name is not None else []
    if not made:
        return []
    columns: dict[tuple[str, str], list[Entry | str]] = {
        ("Mean", "own"): [Entry(each.focal_mean) for each in made],
        ("Mean", "other"): [Entry(each.rival_mean) for each in made],
        ("Difference", ""): [Entry(each.test.difference, spec="+.3f") for each in made],
        ("95% interval", "from"): [Entry(each.test.low, spec="+.3f") for each in made],
        ("95% interval", "to"): [Entry(each.test.high, spec="+.3f") for each in made],
        ("p", "t-test"): [Entry(each.test.t_p, spec="p") for each in made],
        ("p", "Wilcoxon"): [Entry(each.test.wilcoxon_p, spec="p") for each in made],
        ("Pairs", ""): [Entry(each.test.pairs, spec=".0f") for each in made],
    }
    rows = [f"{NAMES[each.metric]}: {each.focal} minus {each.rival}" for each in made]
    notes = [
        part_note(part),
        f"Each row is {name} minus the best of the other methods by that metric: against the others raw, as in "
        "the paper, and with the same tempering.",
        "A pair is a shift, with the mean over the seeds that both have; tests are paired and two-sided, and "
        "corrected neither for their number nor for choosing the best of the others.",
    ]
    if part.tiers:
        notes.append("The tiers of a domain are pairs of their own but not independent: p is too small.")
    if passed_over := dict.fromkeys(str(variant) for each in made for variant in each.passed_over):
        notes.append(f"Not among the others where runs are missing: {listed(passed_over)}.")
    if any(each.test.t_p is None for each in made):
        notes.append(f"Too few pairs where p is missing: at least {FEWEST_PAIRS} shifts are needed.")
    title = f"{subject(part.scope)}: {name} against the best of the others"
    return [table_of(table_key(part.scope, f"tests-{name}"), title, columns, rows, notes, "tests")]


def _entries(part: Part, places: list[Place], metric: str) -> list[Entry]:
    missing = [part.missing(place) for place in places]
    return compete([part.at.get(place) for place in places], metric, missing, part.spread, ".3f")


def _changing(part: Part, metric: str) -> list[str]:
    """The temperings that change a metric; dividing logits leaves the accuracy as it was."""
    if metric != "accuracy":
        return part.temperings
    first = part.temperings[0]
    return [first] + [
        kind
        for kind in part.temperings[1:]
        if any(
            Place(name, kind) in part.at
            and part.at[Place(name, kind)].mean != part.at[Place(*_first(part, name))].mean
            and part.at[Place(name, kind)].mean[metric] != part.at[Place(*_first(part, name))].mean[metric]
            and part.at[Place(name, kind)].coverage == part.at[Place(*_first(part, name))].coverage
            for name in part.names
        )
    ]


def _first(part: Part, name: str) -> tuple[str, str]:
    return next(variant for variant in part.variants if variant.name == name)


def _spread_note(part: Part) -> str:
    if part.spread == "domains" and len(part.targets) < 2:
        return "One seed and one domain: there is no deviation."
    return f"± is the standard deviation over the {part.spread}."


def all_tables(results: Results, compare: str | None = None) -> Iterator[Table]:
    """Every table: the paper's, then ours, part by part."""
    from equipoise.report.paper_tables import paper_tables, run_to_run_tables

    every = parts(results)
    for part in every:
        yield from paper_tables(part)
    yield from run_to_run_tables(every)
    for part in every:
        yield from (*average_tables(part), *test_tables(part, compare), *detail_tables(part))
