"""The averages with a row for each method: what dividing the logits does is then seen along the row."""

from collections.abc import Sequence
from dataclasses import replace

from equipoise.report.numbers.runs import MethodVariant
from equipoise.report.tables.own_tables import TEMPERINGS_NOTE
from equipoise.report.tables.table import Column, Row, Table, TableEntry
from equipoise.report.tables.wording import HEADINGS

ONCE = HEADINGS["accuracy"]
"""Dividing the logits does not change it, so it has one column, and one more for `OWN_ANSWERS`."""
OWN_ANSWERS = "rehearsed"
"""The tempering with which the source model may answer instead of the method."""
LEFT_OUT = HEADINGS["brier"]
"""For the width of a page; it is in the table with a row for each tempering."""

PIVOT_NOTE = (
    "Below each metric, what the logits are divided by: nothing (raw), the mean or the median of τ over the "
    "batch, each sample's own τ, what the source model's agreement with the answers suggests, what a "
    "rehearsal on held-out source images suggests (there the source model may answer instead), or one fixed "
    "τ that is best on the source."
)


def pivoted(table: Table, variants: Sequence[MethodVariant]) -> Table:
    """The same table with a row for each label instead of each variant; `variants` are its rows."""
    labels = list(dict.fromkeys(variant.label for variant in variants))
    temperings = list(dict.fromkeys(variant.tempering for variant in variants))
    entries = {variant: row.entries for variant, row in zip(variants, table.rows, strict=True)}
    columns: list[Column] = []
    cells: dict[str, list[TableEntry]] = {label: [] for label in labels}
    for at, column in enumerate(table.columns):
        if column.metric == ONCE:
            columns.append(column)
            for label in labels:
                own = [variant for variant in variants if variant.label == label]
                shown = min(
                    own, key=lambda variant: variant.tempering == OWN_ANSWERS
                )  # the first of the others
                cells[label].append(entries[shown][at])
            if OWN_ANSWERS in temperings:
                columns.append(replace(column, heading=OWN_ANSWERS))
                for label in labels:
                    found = entries.get(MethodVariant(label, OWN_ANSWERS))
                    cells[label].append(found[at] if found else TableEntry())
        elif column.metric != LEFT_OUT:
            for tempering in temperings:
                columns.append(replace(column, heading="raw" if tempering == "none" else tempering))
                for label in labels:
                    found = entries.get(MethodVariant(label, tempering))
                    cells[label].append(found[at] if found else TableEntry())
    rows = tuple(Row(label, tuple(cells[label])) for label in labels)
    notes = tuple(PIVOT_NOTE if note == TEMPERINGS_NOTE else note for note in table.notes)
    return replace(table, key=f"{table.key}-pivoted", columns=tuple(columns), rows=rows, notes=notes)
