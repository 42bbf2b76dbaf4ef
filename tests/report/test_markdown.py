import re
from pathlib import Path

import pytest

from equipoise.report.tables.markdown import block, cell, markdown, rows
from equipoise.report.tables.table import Column, Row, Table, TableEntry
from tests.report.reading import HOME, read
from tests.report.writer import folder, grid, line

COLUMN = Column("ECE ↓", "Art", decimals=2)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (TableEntry(), "\N{EN DASH}"),
        (TableEntry(ours=0.123), "0.12"),
        (TableEntry(ours=0.123, best=True), "**0.12**"),
        (TableEntry(ours=0.123, printed=0.5), "0.12 (0.50)"),
        (TableEntry(printed=0.5, printed_best=True), "\N{EN DASH} (**0.50**)"),
        (TableEntry(ours=0.1, printed=0.5, suspicious="why"), "0.10 (0.50†)"),
        (TableEntry(ours=0.1, missing="1 of 2 seeds"), "0.10‡"),
        (TableEntry(missing="no results"), "\N{EN DASH}"),
        (
            TableEntry(ours=0.1, ours_std=0.02, printed=0.5, printed_std=0.03, best=True, printed_best=True),
            "**0.10** ± 0.02 (**0.50** ± 0.03)",
        ),
    ],
)
def test_cells(entry: TableEntry, expected: str) -> None:
    assert cell(entry, COLUMN) == expected


def test_what_is_missing_everywhere_is_not_marked_in_every_cell() -> None:
    assert cell(TableEntry(ours=0.1, missing="1 of 2 seeds"), COLUMN, "1 of 2 seeds") == "0.10"
    assert cell(TableEntry(ours=0.1, missing="1 of 2 seeds"), COLUMN, "2 of 4 domains") == "0.10‡"


def test_a_table() -> None:
    table = Table(
        key="k",
        title="a_b | c",
        protocol="online",
        columns=(COLUMN, Column("p", "", significant=2)),
        rows=(
            Row("x*y", (TableEntry(ours=0.5), TableEntry(ours=0.00012))),
            Row("z|w", (TableEntry(), TableEntry(ours=1.0))),
        ),
        notes=("One <b>.", "95% of 2 & 3."),
    )
    assert rows(table).splitlines() == [
        "|  | ECE ↓ Art | p |",
        "| --- | ---: | ---: |",
        r"| x\*y | 0.50 | 0.00012 |",
        "| z\\|w | \N{EN DASH} | 1 |",
    ]
    text = block(table)
    assert text.startswith("### a\\_b \\| c\n\n|  |")
    assert text.endswith("- Protocol: online.\n- One \\<b\\>.\n- 95% of 2 & 3.")
    folded = block(table, folded=True)
    assert folded.startswith("<details><summary>a_b | c</summary>\n\n|  |")
    assert folded.endswith("</details>")


def test_the_whole_report(tmp_path: Path) -> None:
    lines = grid("office-home", "mobilenet_v1", HOME, seeds=[0])
    lines += grid("demo", "smallcnn", ["a", "b", "c"], seeds=[0], protocol="after-pass")
    lines += [line("eata", data="demo", target="x_y", tier=2, error="ValueError: a|b\nline *two* of <it>")]
    lines += [line("source", data="other", model="old"), line("source", data="other", model="new")]
    text = markdown(read(tmp_path, [*lines, {"key": "damaged"}]))
    total = 6 * 3 * 4 + 6 * 3 * 3 + 1
    assert f"{total} results and 1 failed cell (listed at the end, in no table). Seeds: 0." in text
    assert "1 line could not be read and was skipped." in text
    assert "1 result of models or streams that were made anew since was left out." in text
    assert "Made with equipoise 0.1.0, torch 2.10.0, cpu." in text
    headings = re.findall("^## (.*)$", text, flags=re.MULTILINE)
    assert headings == [
        "The paper's tables, online",
        "All methods, online",
        "Is DEC better than the best of the others, online",
        "By domain and tier, online",
        "All methods, after-pass",
        "Is DEC better than the best of the others, after-pass",
        "By domain and tier, after-pass",
        "What failed",
    ]
    assert "HomeOffice, MobileNet: entropy, ECE and NLL, by domain\n" in text
    failure = text[text.index("## What failed") :]
    assert (
        "demo, efficientnet\\_b0, x\\_y tier 2, seed 0, eata (raw), online: ValueError: a\\|b line" in failure
    )
    assert "\\*two\\* of \\<it\\>" in failure
    assert (
        text.count("- Protocol: ")
        == text.count("| --- |")
        == len(re.findall("^(###|<details>)", text, flags=re.M))
    )
    assert text.endswith("\n")


def test_every_row_of_every_table_has_as_many_cells_as_its_head(tmp_path: Path) -> None:
    labels = ["a|b", "dec", "source", "x_y"]
    text = markdown(read(tmp_path, grid("demo", "n|et", ["p|q", "r"], labels=labels, seeds=[0])))
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(tables) == 7
    for table in tables:
        widths = {len(re.split(r"(?<!\\)\|", each)) for each in table.splitlines()}
        assert len(widths) == 1


def test_failures_alone_make_a_report(tmp_path: Path) -> None:
    text = markdown(read(tmp_path, [line(error="no")]))
    assert "0 results and 1 failed cell" in text
    assert "## What failed" in text


def test_nothing_that_went_well_is_not_mentioned(tmp_path: Path) -> None:
    text = markdown(read(folder(tmp_path, []), [line(seed=4)]))
    assert "1 result. Seeds: 4." in text
    for word in ("could not be read", "left out", "What failed", "failed cell"):
        assert word not in text
