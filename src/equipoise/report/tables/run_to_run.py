"""The paper's list of run-to-run variances as tables, with ours beside it."""

from collections.abc import Mapping, Sequence

from equipoise.bench.schema import Protocol
from equipoise.report.numbers.paper import (
    ROWS,
    RUN_TO_RUN,
    SIGMA,
    experiments,
    paper_name,
    printed_tables,
    run_to_run,
)
from equipoise.report.numbers.results import Setting, TableScope
from equipoise.report.numbers.runs import Metric, VariantScores
from equipoise.report.numbers.summary import largest_run_variance
from equipoise.report.tables.cells import beside, with_notes
from equipoise.report.tables.table import Column, Row, Table, TableEntry
from equipoise.report.tables.wording import HEADINGS, plain_heading, setting_note, setting_words, table_key

_NOTE = "The sample variance over seeds of the average over the domains; the paper does not define its own."


def run_to_run_tables(variant_scores: Mapping[TableScope, VariantScores], protocol: Protocol) -> list[Table]:
    """The largest run-to-run variance of any algorithm and network, a table for each setting."""
    tables = []
    for data in run_to_run():
        networks = list(dict.fromkeys(table.backbone for table in printed_tables() if table.data == data))
        settings: dict[Setting, list[VariantScores]] = {}
        for scope, found in variant_scores.items():
            if scope.setting.data == data and scope.backbone in networks:
                settings.setdefault(scope.setting, []).append(found)
        tables += [_table(setting, found, networks, protocol) for setting, found in settings.items()]
    return tables


def _table(
    setting: Setting, variant_scores: Sequence[VariantScores], networks: Sequence[str], protocol: Protocol
) -> Table:
    printed = run_to_run()[setting.data]
    cells = [beside(_entry(variant_scores, len(networks), metric), printed[metric]) for metric in RUN_TO_RUN]
    which = "any network" if len(networks) > 1 else paper_name(networks[0])
    table = Table(
        key=table_key(TableScope(setting, "", protocol), "paper-run-to-run"),
        title=f"{paper_name(setting.data)} ({setting_words(setting)}): run-to-run variance, the largest of "
        f"any algorithm with {which}",
        protocol=protocol,
        columns=tuple(Column(plain_heading(HEADINGS[metric]), "", significant=3) for metric in RUN_TO_RUN),
        rows=(Row(SIGMA, tuple(cells)),),
        notes=(setting_note(setting), _NOTE),
    )
    return with_notes(table)


def _entry(variant_scores: Sequence[VariantScores], networks: int, metric: Metric) -> TableEntry:
    """The largest variance, and what is missing: networks, methods, or the seeds of the paper."""
    rows = [found.values(variant, metric) for found in variant_scores for variant in ROWS.values()]
    seeds = {seed for values in rows for each in values.values() for seed in each}
    papers = next(iter(experiments().values())).seeds
    parts = [
        (len(variant_scores), networks, "networks"),
        (sum(map(bool, rows)), len(rows), "methods"),
        (len(seeds), len(papers), "seeds"),
    ]
    missing = ", ".join(f"{there} of {wanted} {noun}" for there, wanted, noun in parts if there < wanted)
    return TableEntry(ours=largest_run_variance(rows), missing=missing)
