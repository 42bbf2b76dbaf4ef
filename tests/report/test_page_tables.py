import pytest

from equipoise.report.numbers.runs import MethodVariant
from equipoise.report.page.tables import plain_table, table_html
from equipoise.report.tables.own_tables import TEMPERINGS_NOTE
from equipoise.report.tables.pivot import PIVOT_NOTE, pivoted
from equipoise.report.tables.table import Column, Row, Table, TableEntry
from equipoise.report.tables.wording import HEADINGS
from tests.report.drawn import Parsed

TWO = (Column("ECE ↓", "Art"), Column("ECE ↓", "Photo"), Column("NLL ↓", "Art", decimals=2))


def table(*entries: TableEntry, columns: tuple[Column, ...] = TWO, notes: tuple[str, ...] = ()) -> Table:
    return Table("key", "A title & more", "online", columns, (Row("dec", entries),), notes)


def cells(*entries: TableEntry) -> list[str]:
    """The HTML of the cells of one row."""
    html = table_html(table(*entries))
    row = html[html.index("<tbody>") : html.index("</tbody>")]
    return [part.split("</td>")[0] for part in row.split("<td")[1:]]


def test_headings_stand_over_their_columns() -> None:
    parsed = Parsed(table_html(table(TableEntry(1), TableEntry(2), TableEntry(3))))
    groups = [each for each in parsed.all("th") if each.attributes["scope"] == "colgroup"]
    assert [(each.text, each.attributes["colspan"]) for each in groups] == [("ECE ↓", "2"), ("NLL ↓", "1")]
    columns = [each for each in parsed.all("th") if each.attributes["scope"] == "col"]
    assert [each.text for each in columns] == ["Art", "Photo", "Art"]
    assert [each.text for each in parsed.all("th") if each.attributes["scope"] == "row"] == ["dec"]


def test_one_row_of_headings_is_enough_without_headings_of_their_own() -> None:
    parsed = Parsed(table_html(table(TableEntry(1), columns=(Column("ECE ↓", ""),))))
    assert [each.attributes["scope"] for each in parsed.all("th")] == ["col", "row"]


def test_ours_and_the_papers_stand_in_one_cell_and_look_different() -> None:
    first, second, third = cells(
        TableEntry(0.0691, printed=0.061), TableEntry(0.5), TableEntry(1.0, 0.25, 1.1, 0.3)
    )
    theirs = '<span class="printed"><span class="hidden">paper: </span>0.061</span>'
    assert first == f'><span class="ours">0.069</span>{theirs}'
    assert second == '><span class="ours">0.500</span>'
    assert '<span class="ours">1.00<small> ±0.25</small></span>' in third
    assert "1.10<small> ±0.30</small>" in third


def test_the_best_are_marked_each_in_its_way() -> None:
    first, second, _ = cells(
        TableEntry(0.1, printed=0.2, best=True), TableEntry(0.3, printed=0.1, printed_best=True), TableEntry()
    )
    assert '<span class="ours best">0.100</span>' in first
    assert "<b>" not in first
    assert "best" not in second
    assert "<b>0.100</b>" in second


def test_doubtful_and_incomplete_numbers_are_marked() -> None:
    first, second, third = cells(
        TableEntry(0.1, printed=0.2, suspicious="a copy"),
        TableEntry(0.3, missing="1 of 3 seeds"),
        TableEntry(None, missing="none"),
    )
    assert "0.200<sup>†</sup>" in first
    assert "‡" not in first
    assert "0.300<sup>‡</sup>" in second
    assert third == '><span class="ours"><span class="none">&ndash;</span></span>'


def test_what_all_lack_is_not_marked_everywhere() -> None:
    html = table_html(table(*(TableEntry(0.1, missing="1 of 3 seeds") for _ in range(3))))
    assert "‡" not in html


def test_without_printed_numbers_cells_are_plain() -> None:
    html = table_html(table(TableEntry(0.1, best=True), TableEntry(0.2), TableEntry(None)))
    assert '<td class="best">0.100</td><td>0.200</td>' in html
    assert "printed" not in html


def test_title_protocol_and_notes_are_there_and_escaped() -> None:
    parsed = Parsed(table_html(table(TableEntry(), TableEntry(), TableEntry(), notes=("a < b",))))
    assert parsed.all("caption")[0].text == "A title & moreonline: the answers given while adapting count"
    box = parsed.all("div", "wide")[0].attributes
    assert (box["role"], box["tabindex"], box["aria-label"]) == ("region", "0", "A title & more")
    assert parsed.all("li")[0].text == "a < b"


def test_rows_of_one_method_stand_together() -> None:
    rows = tuple(Row(label, (TableEntry(1),)) for label in ("dec (raw)", "dec (mean)", "tent (raw)"))
    parsed = Parsed(table_html(Table("k", "t", "online", (Column("ECE ↓", ""),), rows)))
    assert [each.attributes.get("class") for each in parsed.all("tr")[1:]] == [None, "joined", None]


def test_plain_tables_escape_their_words() -> None:
    parsed = Parsed(plain_table("a & b", ("<i>", "n"), [("<b>", "<s>")], "counts"))
    assert [each.text for each in parsed.all("th")] == ["<i>", "n", "<b>"]
    assert parsed.all("td")[0].text == "<s>"
    assert parsed.all("table", "counts")


@pytest.fixture
def averages() -> tuple[Table, list[MethodVariant]]:
    variants = [MethodVariant("tent", "none"), MethodVariant("tent", "mean"), MethodVariant("dec", "none")]
    columns = tuple(Column(HEADINGS[metric], "") for metric in ("accuracy", "ece", "brier"))
    rows = tuple(
        Row(
            f"{variant.label} ({variant.tempering})",
            (TableEntry(0.5), TableEntry(0.1 * at, best=at == 1), TableEntry(0.9)),
        )
        for at, variant in enumerate(variants)
    )
    return Table("k", "t", "online", columns, rows, ("Seed 0.", TEMPERINGS_NOTE)), variants


def test_a_pivoted_table_has_temperings_side_by_side(averages: tuple[Table, list[MethodVariant]]) -> None:
    made = pivoted(*averages)
    assert [(each.metric, each.heading) for each in made.columns] == [
        (HEADINGS["accuracy"], ""),
        (HEADINGS["ece"], "raw"),
        (HEADINGS["ece"], "mean"),
    ]
    assert [row.label for row in made.rows] == ["tent", "dec"]
    assert made.rows[0].entries == (TableEntry(0.5), TableEntry(0.0), TableEntry(0.1, best=True))
    assert made.rows[1].entries == (TableEntry(0.5), TableEntry(0.2), TableEntry())
    assert made.notes == ("Seed 0.", PIVOT_NOTE)  # there are no brackets in it


def test_where_the_source_model_may_answer_accuracy_has_a_column_of_its_own() -> None:
    variants = [
        MethodVariant("poise", "rehearsed"),
        MethodVariant("poise", "none"),
        MethodVariant("tent", "none"),
    ]
    columns = tuple(Column(HEADINGS[metric], "") for metric in ("accuracy", "ece"))
    rows = tuple(
        Row(variant.label, (TableEntry(0.1 * at), TableEntry(0.2))) for at, variant in enumerate(variants)
    )
    made = pivoted(Table("k", "t", "online", columns, rows, ()), variants)
    assert [(each.metric, each.heading) for each in made.columns][:2] == [
        (HEADINGS["accuracy"], ""),
        (HEADINGS["accuracy"], "rehearsed"),
    ]
    assert made.rows[0].entries[:2] == (TableEntry(0.1), TableEntry(0.0))
    assert made.rows[1].entries[:2] == (TableEntry(0.2), TableEntry())
