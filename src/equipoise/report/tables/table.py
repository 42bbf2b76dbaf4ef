"""A table of the report, before it is Markdown, LaTeX or HTML."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TableEntry:
    """A value of ours beside the one that the paper prints.

    Attributes:
        ours: our value; None where there is no result yet.
        ours_std: its standard deviation over domains, where the paper prints one.
        printed: the paper's value; None where it has none.
        printed_std: the paper's standard deviation.
        best: whether ours is the best of its column (as written, so ties are all best).
        printed_best: whether the paper prints it in bold.
        suspicious: why the printed value is doubtful; empty where it is not.
        missing: what is missing for a complete value ("1 of 3 seeds", "2 of 4 domains"); empty where nothing.
    """

    ours: float | None = None
    ours_std: float | None = None
    printed: float | None = None
    printed_std: float | None = None
    best: bool = False
    printed_best: bool = False
    suspicious: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        metric: what it measures, as a reader is told ("ECE ↓"); neighbours of one metric share this heading.
        heading: its own heading ("Art", "Tier 1"); empty where the metric says all.
        decimals: how many are written.
        significant: how many significant digits are written, instead of decimals, where sizes differ widely.
        least: what is less is written as "<" this.
    """

    metric: str
    heading: str
    decimals: int = 3
    significant: int | None = None
    least: float | None = None


@dataclass(frozen=True)
class Row:
    """A row: what it is called, and an entry for each column."""

    label: str
    entries: tuple[TableEntry, ...]


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        key: a stable name, for file names and links ("pacs-efficientnet_b0-average-online").
        title: what it shows.
        protocol: "online" or "after-pass".
        columns: the columns.
        rows: the rows.
        notes: sentences under it: seeds, limits, doubtful cells, significance.
    """

    key: str
    title: str
    protocol: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())


def written(value: float, column: Column) -> str:
    """A number as the column writes it."""
    if column.least is not None and value < column.least:
        return f"<{column.least:g}"
    if column.significant is not None:
        return f"{value:.{column.significant}g}"
    return f"{round(value, column.decimals) + 0.0:.{column.decimals}f}"  # adding 0.0 makes -0.0 plain


def common_gap(table: Table) -> str:
    """What is missing behind every number of ours alike, so that it needs saying only once; else empty."""
    gaps = {entry.missing for row in table.rows for entry in row.entries if entry.ours is not None}
    return gaps.pop() if len(gaps) == 1 else ""
