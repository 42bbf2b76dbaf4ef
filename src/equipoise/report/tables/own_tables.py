"""Our tables: every method with every tempering, on average and by domain and tier, and paired tests."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from equipoise.bench.schema import Protocol
from equipoise.report.numbers.results import RunResults, TableScope
from equipoise.report.numbers.runs import METRICS, TEMPERINGS, MethodVariant, Metric, Values, VariantScores
from equipoise.report.numbers.significance import (
    FEWEST_PAIRS,
    FOCAL,
    LEAST_P,
    Comparison,
    against_second_best,
)
from equipoise.report.numbers.summary import at_target, at_tier, run_std
from equipoise.report.tables.cells import Expected, column_of, rows_of, with_notes
from equipoise.report.tables.table import Column, Row, Table, TableEntry
from equipoise.report.tables.wording import (
    HEADINGS,
    NAMES,
    listed,
    seeds_note,
    setting_note,
    split_labels_note,
    subject,
    table_key,
    variant_name,
)

TEMPERINGS_NOTE = (
    "In brackets, what the logits are divided by: nothing (raw), the mean or median of τ over the batch "
    "(mean, median), each sample's own τ (sample), what the source model's agreement with the answers "
    "suggests (agreement), what a rehearsal on held-out source images suggests (rehearsed; there the source "
    "model may answer instead), or one temperature that is best on the source (fixed)."
)

TIERS_NOTE = "The tiers of a domain are pairs of their own but not independent: p is too small."


class _Part(NamedTuple):
    """A column of a table by domain or tier: its heading, which values it is of, and how many shifts."""

    heading: str
    of: Callable[[Values], Values]
    expected: Expected


def own_tables(results: RunResults, protocol: Protocol) -> list[Table]:
    """All of our tables for one protocol: for each setting and network the average, the rest after it."""
    tables = []
    for scope, found in _variant_scores(results, protocol):
        tables += [_average(scope, found), *_tests(scope, found), *_details(scope, found)]
    return tables


def average_tables(results: RunResults, protocol: Protocol) -> list[Table]:
    """Every method and tempering, on average over the shifts; one table for each setting and network."""
    return [_average(scope, found) for scope, found in _variant_scores(results, protocol)]


def detail_tables(results: RunResults, protocol: Protocol) -> list[Table]:
    """By domain and by tier, a table for each metric, where a data set has several."""
    return [table for scope, found in _variant_scores(results, protocol) for table in _details(scope, found)]


def significance_tables(results: RunResults, protocol: Protocol) -> list[Table]:
    """DEC against the best of the others: raw as in the paper, and divided alike."""
    return [table for scope, found in _variant_scores(results, protocol) for table in _tests(scope, found)]


def _variant_scores(results: RunResults, protocol: Protocol) -> list[tuple[TableScope, VariantScores]]:
    return [(scope, found) for scope, found in results.variant_scores.items() if scope.protocol == protocol]


def _average(scope: TableScope, found: VariantScores) -> Table:
    variants = found.variants
    columns = [Column(HEADINGS[metric], "") for metric in METRICS]
    expected = _expected(found, len(found.shifts))
    cells = [
        column_of(column, metric, [found.values(variant, metric) for variant in variants], expected)
        for column, metric in zip(columns, METRICS, strict=True)
    ]
    shifts = f"{len(found.shifts)} {expected.noun}{'' if len(found.shifts) == 1 else 's'}"
    table = Table(
        key=table_key(scope, "average"),
        title=f"{subject(scope)}: every method and tempering, average over {shifts}",
        protocol=scope.protocol,
        columns=tuple(columns),
        rows=rows_of([variant_name(variant) for variant in variants], cells),
        notes=(*_start(scope, found), TEMPERINGS_NOTE, *_run_to_run_note(found)),
    )
    return with_notes(table, split_labels_note(found))


def _details(scope: TableScope, found: VariantScores) -> list[Table]:
    targets = list(dict.fromkeys(shift.target for shift in found.shifts))
    tiers = sorted({shift.tier for shift in found.shifts if shift.tier is not None})
    domains = [
        _Part(
            target,
            partial(at_target, target=target),
            _expected(found, sum(shift.target == target for shift in found.shifts)),
        )
        for target in targets
    ]
    strengths = [
        _Part(
            f"Tier {tier}",
            partial(at_tier, tier=tier),
            _expected(found, sum(shift.tier == tier for shift in found.shifts), "domain"),
        )
        for tier in tiers
    ]
    tables = []
    for kind, parts in (("domain", domains), ("tier", strengths)):
        if len(parts) > 1:
            tables += [_detail(scope, found, metric, kind, parts) for metric in METRICS]
    return tables


def _detail(
    scope: TableScope, found: VariantScores, metric: Metric, kind: str, parts: Iterable[_Part]
) -> Table:
    variants = _different(found, metric)
    columns, cells = [], []
    for part in parts:
        column = Column(HEADINGS[metric], part.heading)
        values = [part.of(found.values(variant, metric)) for variant in variants]
        columns.append(column)
        cells.append(column_of(column, metric, values, part.expected, spread=kind == "tier"))
    notes = list(_start(scope, found))
    if kind == "tier":
        notes.append("± is the standard deviation over the domains.")
    if len(variants) < len(found.variants):
        notes.append("Rows that dividing the logits does not change are shown once.")
    table = Table(
        key=table_key(scope, f"{kind}-{metric}"),
        title=f"{subject(scope)}: {NAMES[metric]} by {kind}",
        protocol=scope.protocol,
        columns=tuple(columns),
        rows=rows_of(list(variants.values()), cells),
        notes=tuple(notes),
    )
    return with_notes(table)


def _different(found: VariantScores, metric: Metric) -> dict[MethodVariant, str]:
    """Variants with their names, without those that have the numbers of another one of the same label.

    Dividing logits does not change which is the largest, so accuracy has one row for each label.
    """
    kept: dict[MethodVariant, Values] = {}
    alike: dict[MethodVariant, bool] = {}
    for variant in found.variants:
        values = found.values(variant, metric)
        same = [other for other in kept if other.label == variant.label and kept[other] == values]
        if same:
            alike[same[0]] = True
        else:
            kept[variant] = values
    labels = [variant.label for variant in kept]
    return {
        variant: variant.label
        if variant in alike and labels.count(variant.label) == 1
        else variant_name(variant)
        for variant in kept
    }


def _tests(scope: TableScope, found: VariantScores) -> list[Table]:
    made = comparisons(found)
    rows = [_test_row(comparison) for comparison in made]
    if not rows:
        return []
    columns = (
        Column("Pairs", "", decimals=0),
        Column("Difference", "", significant=3),
        Column("95% interval", "from", significant=3),
        Column("95% interval", "to", significant=3),
        Column("p", "t-test", significant=3, least=LEAST_P),
        Column("p", "Wilcoxon", significant=3, least=LEAST_P),
    )
    notes = [
        *_start(scope, found),
        "Each row is dec minus the best of the other methods by that metric: first with the others raw, "
        "as in the paper, then with both divided alike.",
        "A pair is a shift, with the mean over the seeds that both have; tests are paired and two-sided. "
        "The p values are corrected neither for the number of tests nor for choosing the best of the others.",
    ]
    if any(shift.tier is not None for shift in found.shifts):
        notes.append(TIERS_NOTE)
    if passed_over := dict.fromkeys(variant_name(variant) for each in made for variant in each.passed_over):
        notes.append(f"Not among the others where runs are missing: {listed(passed_over)}.")
    if any(not each.test.enough for each in made):
        notes.append(
            f"Too few pairs: at least {FEWEST_PAIRS} shifts are needed to tell a difference from its spread."
        )
    return [
        Table(
            key=table_key(scope, "significance-dec"),
            title=f"{subject(scope)}: dec against the best of the others",
            protocol=scope.protocol,
            columns=columns,
            rows=tuple(rows),
            notes=tuple(notes),
        )
    ]


def comparisons(found: VariantScores) -> list[Comparison]:
    """DEC against the second best by ECE, NLL and accuracy: as in the paper, then divided alike.

    Accuracy comes once, since dividing the logits does not change it.
    """
    there = [variant.tempering for variant in found.variants if variant.label == FOCAL]
    tried: list[tuple[Metric, str, str | None]] = []
    if "mean" in there:
        tried += [("ece", "mean", "none"), ("nll", "mean", "none"), ("accuracy", "mean", "none")]
    elif there:
        tried.append(("accuracy", there[0], None))
    for tempering in sorted(there, key=lambda name: (name not in TEMPERINGS, there.index(name))):
        tried += [("ece", tempering, None), ("nll", tempering, None)]
    made = (
        against_second_best(found, metric, tempering=tempering, rivals=rivals)
        for metric, tempering, rivals in tried
    )
    return [comparison for comparison in made if comparison is not None]


def _test_row(comparison: Comparison) -> Row:
    test = comparison.test
    gap = "" if test.enough else "too few pairs"
    return Row(
        f"{NAMES[comparison.metric]}: {variant_name(comparison.focal)} minus "
        f"{variant_name(comparison.rival)}",
        (
            TableEntry(ours=test.pairs),
            TableEntry(ours=test.difference),
            TableEntry(ours=test.low, missing=gap),
            TableEntry(ours=test.high, missing=gap),
            TableEntry(ours=test.t_p, missing=gap),
            TableEntry(ours=test.wilcoxon_p, missing=gap),
        ),
    )


def _start(scope: TableScope, found: VariantScores) -> tuple[str, ...]:
    return (f"{setting_note(scope.setting)} {seeds_note(found.seeds)}",)


def _expected(found: VariantScores, shifts: int, noun: str = "") -> Expected:
    tiers = any(shift.tier is not None for shift in found.shifts)
    return Expected(shifts, found.seeds, noun or ("shift" if tiers else "domain"))


def _run_to_run_note(found: VariantScores) -> list[str]:
    """How far the averages move from seed to seed: the largest of any row."""
    told = []
    for metric in METRICS:
        spreads = [run_std(found.values(variant, metric)) for variant in found.variants]
        there = [spread for spread in spreads if spread is not None]
        if there:
            told.append(f"{NAMES[metric]} {max(there):.3f}")
    return (
        [f"Standard deviation over seeds of an average, the largest of any row: {listed(told)}."]
        if told
        else []
    )
