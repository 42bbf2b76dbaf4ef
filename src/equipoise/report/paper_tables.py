"""Every table of the paper in its own layout, with our numbers beside the printed ones."""

from collections.abc import Sequence
from dataclasses import replace

from equipoise.report.names import HEADINGS, NAMES, part_note, subject, table_key
from equipoise.report.paper import (
    AVERAGE,
    CLAIMED,
    ROWS,
    RUN_TO_RUN,
    SIGMA,
    VARIANCE,
    Printed,
    PrintedTable,
    experiments,
    paper_name,
    paper_variants,
    printed_tables,
    run_to_run,
    tier_of,
)
from equipoise.report.results import Scope, Variant
from equipoise.report.significance import against_best_other
from equipoise.report.summary import Part, Place, Summary, gap
from equipoise.report.table import Entry, Table, compete, listed, number_or_none, table_of


def paper_tables(part: Part) -> list[Table]:
    """The paper's tables that a part has results for."""
    which = part.scope.setting.data, part.scope.backbone
    return [_table(printed, part) for printed in printed_tables() if (printed.data, printed.backbone) == which]


def run_to_run_tables(every: Sequence[Part]) -> list[Table]:
    """The largest run-to-run variance of any algorithm and network, a table for each setting and protocol."""
    groups: dict[Scope, list[Part]] = {}
    for part in every:
        scope = part.scope
        if scope.setting.data in run_to_run() and scope.backbone in _networks(scope.setting.data):
            groups.setdefault(Scope(scope.setting, "", scope.protocol), []).append(part)
    return [_run_to_run(scope, several) for scope, several in groups.items()]


def _table(printed: PrintedTable, part: Part) -> Table:
    found, doubts = paper_variants(part.runs)
    spread = "domains" if any(cell.std is not None for cell in printed.cells.values()) else part.spread
    columns: dict[tuple[str, str], list[Entry | str]] = {}
    for metric in printed.metrics:
        for name in printed.columns:
            numbers = [printed.cells.get((metric, row, name)) for row in ROWS]
            summaries = [part.at.get(_place(found[row], name)) if row in found else None for row in ROWS]
            missing = [_gap(each, printed.data, name) for each in summaries]
            entries = compete(summaries, metric, missing, spread, f".{printed.decimals}f")
            cells = [_beside(*each) for each in zip(entries, numbers, strict=True)]
            if (sigma := printed.cells.get((metric, VARIANCE, name))) is not None:
                spec = f".{printed.decimals}f"
                largest = Entry(_largest(summaries, metric, "domains"), spec=spec, missing=_worst(missing))
                cells.append(_beside(largest, sigma))
            columns[HEADINGS[metric], "" if name == AVERAGE else name] = list(cells)
    has_sigma = len(next(iter(columns.values()))) > len(ROWS)
    kind, by = _kind(printed)
    metrics = "-".join(printed.metrics) if kind == "tier" else ""
    notes = [
        part_note(part),
        "Every cell: ours (printed). As in the paper, only DEC's logits are divided (by the mean of τ over the "
        f"batch); the others are raw. ± of ours is the standard deviation over the {spread}.",
        *([f"{SIGMA}: the largest sample variance over the domains of any of the six."] if has_sigma else []),
        *_tests(part, found, printed),
        *doubts,
    ]
    key = table_key(part.scope, "-".join(filter(None, ("paper", kind, metrics))))
    title = f"{subject(part.scope)}: {listed(NAMES[metric] for metric in printed.metrics)}, {by}, beside the paper"
    return table_of(key, title, columns, [*ROWS, *([SIGMA] if has_sigma else [])], notes, "paper")


def _run_to_run(scope: Scope, several: Sequence[Part]) -> Table:
    printed, networks = run_to_run()[scope.setting.data], _networks(scope.setting.data)
    rows = []
    for part in several:
        found, _ = paper_variants(part.runs)
        rows += [part.at.get(Place(*found[row])) if row in found else None for row in ROWS]
    seeds = {seed for each in rows if each for _, seed in each.coverage}
    wanted = [
        (len(several), len(networks), "networks"),
        (sum(each is not None for each in rows), len(rows), "methods"),
        (len(seeds), len(experiments()[scope.setting.data].seeds), "seeds"),
    ]
    missing = ", ".join(f"{there} of {all_of} {noun}" for there, all_of, noun in wanted if there < all_of)
    columns: dict[tuple[str, str], list[Entry | str]] = {
        (HEADINGS[metric].rstrip(" ↑↓"), ""): [
            _beside(Entry(_largest(rows, metric, "seeds"), spec=".3g", missing=missing), printed[metric])
        ]
        for metric in RUN_TO_RUN
    }
    which = "any network" if len(networks) > 1 else paper_name(networks[0])
    title = f"{subject(scope).replace(', ,', ',')}: run-to-run variance, the largest of any algorithm with {which}"
    notes = [
        "Every cell: ours (printed). The sample variance over seeds of the average over the domains; the paper "
        "does not define its own."
    ]
    return table_of(table_key(scope, "paper-run-to-run"), title, columns, [SIGMA], notes, "runs")


def _tests(part: Part, found: dict[str, Variant], printed: PrintedTable) -> list[str]:
    """DEC against the second best of the paper's algorithms, by every metric of the table that has a best."""
    if "DEC" not in found:
        return []
    names = {variant.name: row for row, variant in found.items()}
    told = []
    for metric in printed.metrics:
        if metric != "entropy" and (
            tested := against_best_other(part.runs, metric, found["DEC"], "none", among=list(names))
        ):
            told.append(tested.told("DEC", names[tested.rival.name], NAMES[metric]))
            if tested.passed_over:
                passed = listed(names[variant.name] for variant in tested.passed_over)
                told.append(f"{NAMES[metric]}: {passed} not compared, since runs are missing.")
    if told and part.tiers:
        told.append("The tiers of a domain are pairs of their own but not independent: p is too small.")
    if told and printed.label in CLAIMED:
        told.append("The paper claims p < 0.01 here, for ECE and NLL; it does not name its test.")
    return told


def _place(variant: Variant, column: str) -> Place:
    if column == AVERAGE:
        return Place(*variant)
    tier = tier_of(column)
    return Place(*variant, "domain", column) if tier is None else Place(*variant, "tier", str(tier))


def _kind(printed: PrintedTable) -> tuple[str, str]:
    if printed.columns == (AVERAGE,):
        return "average", "average over the domains"
    return ("domain", "by domain") if tier_of(printed.columns[0]) is None else ("tier", "by tier")


def _gap(found: Summary | None, data: str, column: str) -> str:
    experiment = experiments()[data]
    shifts = 1 if column != AVERAGE and not experiment.tiers else experiment.domains
    return gap(found.coverage if found else frozenset(), shifts, experiment.seeds)


def _worst(missing: Sequence[str]) -> str:
    """The gap of a number of all rows: the number of methods, or the first gap of one."""
    there = sum(each != "no results" for each in missing)
    return f"{there} of {len(missing)} methods" if there < len(missing) else next(filter(None, missing), "")


def _largest(rows: Sequence[Summary | None], metric: str, over: str) -> float | None:
    found = [each.std["seeds" if over == "seeds" else "domains"][metric] for each in rows if each is not None]
    return max((std**2 for std in map(number_or_none, found) if std is not None), default=None)


def _beside(entry: Entry, printed: Printed | None) -> Entry:
    if printed is None:
        return entry
    return replace(
        entry, printed=printed.value, printed_std=printed.std, bold=printed.bold, doubt=printed.suspicious
    )


def _networks(data: str) -> list[str]:
    return list(dict.fromkeys(table.backbone for table in printed_tables() if table.data == data))
