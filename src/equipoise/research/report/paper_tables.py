"""Every table of the paper in its own layout, with our numbers beside the printed ones."""

from collections.abc import Sequence
from dataclasses import replace

from equipoise.research.report import paper
from equipoise.research.report.paper import AVERAGE, ROWS, SIGMA, VARIANCE, Printed, PrintedTable, experiments
from equipoise.research.report.part import Part, Place, PlaceScores, Spread, gap
from equipoise.research.report.results import Scope
from equipoise.research.report.significance import TIERED, against_best_other
from equipoise.research.report.table import Entry, Table, compete, known, listed
from equipoise.research.report.tables import HEADINGS, NAMES, part_note, subject


def paper_tables(part: Part) -> list[Table]:
    """The paper's tables that a part has results for."""
    which = part.scope.data, part.scope.backbone
    return [_table(each, part) for each in paper.printed_tables() if (each.data, each.backbone) == which]


def run_to_run_tables(every: Sequence[Part]) -> list[Table]:
    """The largest run-to-run variance of any algorithm and network, a table for each setting and protocol."""
    groups: dict[Scope, list[Part]] = {}
    for part in every:
        if part.scope.backbone in _networks(part.scope.data):
            groups.setdefault(part.scope._replace(backbone=""), []).append(part)
    return [_run_to_run(scope, several) for scope, several in groups.items()]


def _table(printed: PrintedTable, part: Part) -> Table:
    found, doubts = paper.paper_variants(part.runs)
    spread: Spread = (
        "domains" if any(cell.std is not None for cell in printed.cells.values()) else part.spread
    )
    spec, papers = f".{printed.decimals}f", experiments()[printed.data]
    columns: dict[tuple[str, str], list[Entry]] = {}
    for metric in printed.metrics:
        for name in printed.columns:
            kind, where = _place(name)
            there = [part.at.get(Place(*found[row], kind, where)) if row in found else None for row in ROWS]
            shifts = 1 if kind == "domain" else papers.domains
            missing = [gap(each.coverage if each else frozenset(), shifts, papers.seeds) for each in there]
            entries = compete(there, metric, missing, spread, spec)
            methods = sum(each is not None for each in there)
            lacks = f"{methods} of 6 methods" if methods < len(ROWS) else next(filter(None, missing), "")
            entries.append(Entry(_largest(there, metric, "domains"), spec=spec, missing=lacks))
            numbers = [printed.cells.get((metric, row, name)) for row in (*ROWS, VARIANCE)]
            columns[HEADINGS[metric], "" if name == AVERAGE else name] = [
                _beside(entry, number)
                for entry, number in zip(entries, numbers, strict=True)
                if number is not None
            ]
    rows = [*ROWS, SIGMA][: len(next(iter(columns.values())))]
    kind = _place(printed.columns[0])[0]
    by = "average over the domains" if kind == "average" else f"by {kind}"
    title = (
        f"{subject(part.scope)}: {listed(NAMES[each] for each in printed.metrics)}, {by}, beside the paper"
    )
    told = "Every cell: ours (printed). As in the paper, only DEC's logits are divided (by the mean of τ)."
    notes = [f"{told} ± of ours is the standard deviation over the {spread}."]
    if SIGMA in rows:
        notes.append(f"{SIGMA}: the largest sample variance over the domains of any of the six.")
    return Table(title, columns, rows, [*notes, *_claim(part, printed), *doubts], part_note(part))


def _run_to_run(scope: Scope, several: Sequence[Part]) -> Table:
    rows: list[PlaceScores | None] = []
    for part in several:
        found, _ = paper.paper_variants(part.runs)
        rows += [part.at.get(Place(*found[row])) if row in found else None for row in ROWS]
    seeds = {seed for each in rows if each for _, seed in each.coverage}
    have = {"networks": len(several), "methods": sum(each is not None for each in rows), "seeds": len(seeds)}
    want = [len(_networks(scope.data)), len(rows), len(experiments()[scope.data].seeds)]
    missing = ", ".join(
        f"{n} of {whole} {noun}" for (noun, n), whole in zip(have.items(), want, strict=True) if n < whole
    )
    columns = {}
    for metric, printed in paper.run_to_run()[scope.data].items():
        entry = Entry(_largest(rows, metric, "seeds"), spec=".3g", missing=missing)
        columns[HEADINGS[metric].rstrip(" ↑↓"), ""] = [_beside(entry, printed)]
    title = f"{subject(scope)}: run-to-run variance, the largest of any algorithm and network"
    note = "Every cell: ours (printed). The sample variance over seeds of averages over domains."
    return Table(title, columns, [SIGMA], [note])


def _claim(part: Part, printed: PrintedTable) -> list[str]:
    """DEC against the second best of the paper's algorithms, where the paper claims a p."""
    found, _ = paper.paper_variants(part.runs)
    told = []
    for metric in ("ece", "nll") if printed.label in paper.CLAIMED and "DEC" in found else ():
        tested = against_best_other(
            part.runs, metric, found["DEC"], "none", [each.name for each in found.values()]
        )
        if tested is not None and tested.test.t_p is not None:
            told.append(f"{NAMES[metric]} p = {tested.test.t_p:.3g} against {tested.rival.name}")
    claim = "The paper claims p < 0.01 for ECE and NLL and names no test; our paired t-test gives"
    return [f"{claim} {listed(told)}. {TIERED if part.tiers else ''}".strip()] if told else []


def _place(column: str) -> tuple[str, str]:
    if column == AVERAGE:
        return "average", ""
    return ("tier", column.removeprefix("Tier ")) if column.startswith("Tier ") else ("domain", column)


def _largest(rows: Sequence[PlaceScores | None], metric: str, over: Spread) -> float | None:
    stds = [known(each.std[over][metric]) for each in rows if each is not None]
    return max((std**2 for std in stds if std is not None), default=None)


def _beside(entry: Entry, printed: Printed) -> Entry:
    value, std, bold, doubt = printed
    return replace(entry, printed=value, printed_std=std, bold=bold, doubt=doubt)


def _networks(data: str) -> set[str]:
    return {each.backbone for each in paper.printed_tables() if each.data == data}
