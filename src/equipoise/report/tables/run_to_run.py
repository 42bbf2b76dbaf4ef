"""The paper's list of run-to-run variances as tables, with ours beside it."""

from collections.abc import Mapping, Sequence

from equipoise.bench.lines import Protocol
from equipoise.report.numbers.paper import (
    ROWS,
    RUN_TO_RUN,
    SIGMA,
    experiments,
    paper_name,
    printed_tables,
    run_to_run,
)
from equipoise.report.numbers.results import Group, Setting
from equipoise.report.numbers.runs import Board, Metric
from equipoise.report.numbers.summary import largest_run_variance
from equipoise.report.tables.cells import beside, with_notes
from equipoise.report.tables.table import Column, Entry, Row, Table
from equipoise.report.tables.wording import HEADINGS, plain_heading, setting_note, setting_words, table_key

NOTE = "The sample variance over seeds of the average over the domains; the paper does not define its own."


def run_to_run_tables(boards: Mapping[Group, Board], protocol: Protocol) -> list[Table]:
    """The largest run-to-run variance of any algorithm and network, a table for each setting."""
    tables = []
    for data in run_to_run():
        networks = list(dict.fromkeys(table.backbone for table in printed_tables() if table.data == data))
        settings: dict[Setting, list[Board]] = {}
        for group, board in boards.items():
            if group.setting.data == data and group.backbone in networks:
                settings.setdefault(group.setting, []).append(board)
        tables += [_table(setting, found, networks, protocol) for setting, found in settings.items()]
    return tables


def _table(setting: Setting, boards: Sequence[Board], networks: Sequence[str], protocol: Protocol) -> Table:
    printed = run_to_run()[setting.data]
    cells = [beside(_entry(boards, len(networks), metric), printed[metric]) for metric in RUN_TO_RUN]
    which = "any network" if len(networks) > 1 else paper_name(networks[0])
    table = Table(
        key=table_key(Group(setting, "", protocol), "paper-run-to-run"),
        title=f"{paper_name(setting.data)} ({setting_words(setting)}): run-to-run variance, the largest of "
        f"any algorithm with {which}",
        protocol=protocol,
        columns=tuple(Column(plain_heading(HEADINGS[metric]), "", significant=3) for metric in RUN_TO_RUN),
        rows=(Row(SIGMA, tuple(cells)),),
        notes=(setting_note(setting), NOTE),
    )
    return with_notes(table)


def _entry(boards: Sequence[Board], networks: int, metric: Metric) -> Entry:
    """The largest variance, and what is missing: networks, methods, or the seeds of the paper."""
    rows = [board.values(form, metric) for board in boards for form in ROWS.values()]
    seeds = {seed for values in rows for each in values.values() for seed in each}
    papers = next(iter(experiments().values())).seeds
    parts = [
        (len(boards), networks, "networks"),
        (sum(map(bool, rows)), len(rows), "methods"),
        (len(seeds), len(papers), "seeds"),
    ]
    missing = ", ".join(f"{there} of {wanted} {noun}" for there, wanted, noun in parts if there < wanted)
    return Entry(ours=largest_run_variance(rows), missing=missing)
