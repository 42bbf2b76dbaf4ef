"""Every table of the paper in its own layout, with our numbers beside the printed ones."""

from collections.abc import Mapping

from equipoise.bench.schema import Protocol
from equipoise.report.numbers.paper import (
    AVERAGE,
    CLAIMED,
    ROWS,
    SIGMA,
    VARIANCE,
    Experiment,
    PrintedTable,
    experiments,
    printed_tables,
    tier_of,
)
from equipoise.report.numbers.results import RunResults, TableScope
from equipoise.report.numbers.runs import Values, VariantScores
from equipoise.report.numbers.significance import against_second_best, describe_comparison
from equipoise.report.numbers.summary import at_target, at_tier, gap, largest_domain_variance
from equipoise.report.tables.cells import Expected, beside, column_of, rows_of, with_notes
from equipoise.report.tables.own_tables import TIERS_NOTE, own_tables
from equipoise.report.tables.run_to_run import run_to_run_tables
from equipoise.report.tables.table import Column, Table, TableEntry
from equipoise.report.tables.wording import (
    HEADINGS,
    NAMES,
    listed,
    seeds_note,
    setting_note,
    split_labels_note,
    subject,
    table_key,
)

VARIANTS_NOTE = (
    "As in the paper, only DEC's logits are divided (by the mean of τ over the batch); the others are raw."
)
CLAIM_NOTE = "The paper claims p < 0.01 here, for ECE and NLL; it does not name its test."
_LABELS = [variant.label for variant in ROWS.values()]


def all_tables(results: RunResults) -> list[Table]:
    """Everything that there are results for: the paper's tables, then ours, one protocol after the other."""
    protocols = results.protocols()
    theirs = [table for protocol in protocols for table in paper_tables(results, protocol)]
    return theirs + [table for protocol in protocols for table in own_tables(results, protocol)]


def paper_tables(results: RunResults, protocol: Protocol) -> list[Table]:
    """The paper's tables and run-to-run variances, each once for every setting that there are results for."""
    variant_scores = {
        scope: found for scope, found in results.variant_scores.items() if scope.protocol == protocol
    }
    tables = []
    for printed in printed_tables():
        which = (printed.data, printed.backbone)
        ours = {
            scope: found
            for scope, found in variant_scores.items()
            if (scope.setting.data, scope.backbone) == which
        }
        tables += [_table(printed, scope, found) for scope, found in ours.items()]
    return tables + run_to_run_tables(variant_scores, protocol)


def _table(printed: PrintedTable, scope: TableScope, found: VariantScores) -> Table:
    experiment = experiments()[printed.data]
    columns: list[Column] = []
    entries: list[list[TableEntry]] = []
    for metric in printed.metrics:
        for name in printed.columns:
            column = Column(HEADINGS[metric], "" if name == AVERAGE else name, printed.decimals)
            rows = {
                row: _selected(found.values(variant, metric), name, experiment)
                for row, variant in ROWS.items()
            }
            numbers = [printed.cells.get((metric, row, name)) for row in ROWS]
            expected = _expected(name, experiment)
            spread = any(number is not None and number.std is not None for number in numbers)
            cells = column_of(column, metric, list(rows.values()), expected, numbers, spread=spread)
            if (metric, VARIANCE, name) in printed.cells:
                largest = TableEntry(
                    ours=largest_domain_variance(rows.values()), missing=_gap_of_rows(rows, expected)
                )
                cells.append(beside(largest, printed.cells[metric, VARIANCE, name]))
            columns.append(column)
            entries.append(cells)
    labels = [*ROWS, SIGMA] if len(entries[0]) > len(ROWS) else list(ROWS)
    by = {"average": "average over the domains", "tier": "average over the domains by tier"}
    kind = _kind(printed)
    names = "-".join(printed.metrics) if kind == "tier" else ""
    table = Table(
        key=table_key(scope, f"paper-{kind}{'-' if names else ''}{names}"),
        title=f"{subject(scope)}: {listed(NAMES[metric] for metric in printed.metrics)}, "
        f"{by.get(kind, 'by domain')}",
        protocol=scope.protocol,
        columns=tuple(columns),
        rows=rows_of(labels, entries),
        notes=_start(scope, found, has_sigma=SIGMA in labels),
    )
    return with_notes(table, [*_tests(found, printed), *split_labels_note(found)])


def _start(scope: TableScope, found: VariantScores, *, has_sigma: bool) -> tuple[str, ...]:
    notes = [f"{setting_note(scope.setting)} {seeds_note(found.seeds)}", VARIANTS_NOTE]
    if has_sigma:
        notes.append(f"{SIGMA}: the largest sample variance over the domains of any of the six.")
    return tuple(notes)


def _tests(found: VariantScores, printed: PrintedTable) -> list[str]:
    """DEC against the second best of the paper's algorithms, by every metric of the table that has a best."""
    names = {variant: name for name, variant in ROWS.items()}
    comparisons = [
        against_second_best(found, metric, among=_LABELS) for metric in printed.metrics if metric != "entropy"
    ]
    sentences = [
        describe_comparison(comparison, lambda variant: names[variant], NAMES[comparison.metric])
        for comparison in comparisons
        if comparison is not None
    ]
    if not sentences:
        return []
    if any(shift.tier is not None for shift in found.shifts):
        sentences.append(TIERS_NOTE)
    if printed.label in CLAIMED:
        sentences.append(CLAIM_NOTE)
    return sentences


def _selected(values: Values, column: str, experiment: Experiment) -> Values:
    if column == AVERAGE:
        return values
    tier = tier_of(column) if experiment.tiers else None
    return at_target(values, column) if tier is None else at_tier(values, tier)


def _expected(column: str, experiment: Experiment) -> Expected:
    per_domain = column != AVERAGE and not experiment.tiers
    return Expected(1 if per_domain else experiment.domains, experiment.seeds)


def _kind(printed: PrintedTable) -> str:
    if printed.columns == (AVERAGE,):
        return "average"
    return "tier" if tier_of(printed.columns[0]) is not None else "domain"


def _gap_of_rows(rows: Mapping[str, Values], expected: Expected) -> str:
    """What is missing for a number of all rows: some of the methods, or something of one of them."""
    there = sum(bool(values) for values in rows.values())
    if there < len(rows):
        return f"{there} of {len(rows)} methods"
    gaps = (gap(values, expected.shifts, expected.seeds, expected.noun) for values in rows.values())
    return next((each for each in gaps if each), "")
