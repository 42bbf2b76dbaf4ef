"""The structure of the LaTeX; that it compiles was tried with a real LaTeX, which a test cannot count on."""

import re
from pathlib import Path

import pytest

from equipoise.report.tables.latex import escaped, latex, write_latex
from equipoise.report.tables.table import Column, Row, Table, TableEntry
from tests.report.reading import HOME, read
from tests.report.writer import grid, line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b", r"a\_b"),
        ("95% & more", r"95\% \& more"),
        ("#$~^", r"\#\$\~{}\^{}"),
        ("{\\}", r"\{\textbackslash{}\}"),
        ("<|>", r"\textless{}\textbar{}\textgreater{}"),
        ('"all"', "{''}all{''}"),
        ("ECE ↓ Accuracy ↑", r"ECE $\downarrow$ Accuracy $\uparrow$"),
        ("σ²_max: 1", r"$\sigma^2_{\max}$: 1"),
        ("† ‡ ±", r"$^\dagger$ $^\ddagger$ $\pm$"),
        (
            "difference -0.1 to +0.2, t-test, after-pass, v-1",
            "difference $-$0.1 to +0.2, t-test, after-pass, v-1",
        ),
        ("naïve", "naïve"),
    ],
)
def test_escaping(text: str, expected: str) -> None:
    assert escaped(text) == expected


TABLE = Table(
    key="a_b.c-online",
    title="95% of a_b & c",
    protocol="after-pass",
    columns=(Column("ECE ↓", "Art", 2), Column("ECE ↓", "b_c", 2), Column("p", "t & u", significant=3)),
    rows=(
        Row(
            "x_y",
            (
                TableEntry(ours=0.1, best=True),
                TableEntry(printed=0.5, printed_best=True),
                TableEntry(ours=1.2e-7),
            ),
        ),
        Row(
            "σ²_max",
            (
                TableEntry(ours=-0.2, ours_std=0.03, printed=0.4, printed_std=0.05, suspicious="s"),
                TableEntry(ours=0.25, missing="1 of 2 seeds"),
                TableEntry(),
            ),
        ),
    ),
    notes=("One note: 5%.",),
)


def test_a_table() -> None:
    lines = latex(TABLE).splitlines()
    assert lines[0] == r"% needs \usepackage{booktabs} and \usepackage{graphicx}"
    assert r"\caption{95\% of a\_b \& c}" in lines
    assert r"\label{tab:a-b.c-online}" in lines
    start = lines.index(r"\toprule")
    assert lines[start - 1 : start + 9] == [
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r" & \multicolumn{2}{c}{ECE $\downarrow$} & \multicolumn{1}{c}{p} \\",
        r"\cmidrule(lr){2-3} \cmidrule(lr){4-4}",
        r" & Art & b\_c & t \& u \\",
        r"\midrule",
        r"x\_y & \textbf{0.10} & -- (\textbf{0.50}) & $1.2\times10^{-7}$ \\",
        r"$\sigma^2_{\max}$ & $-0.20$\textsubscript{0.03} (0.40\textsubscript{0.05}$^\dagger$) "
        r"& 0.25$^\ddagger$ & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert r"Protocol: after-pass.\par" in lines
    assert r"One note: 5\%.\par" in lines
    assert lines[-1] == r"\end{table}"


def test_a_table_without_headings_of_its_own_has_one_line_of_them() -> None:
    table = Table(
        "k", "t", "online", (Column("A", ""), Column("B", "")), (Row("r", (TableEntry(), TableEntry())),)
    )
    text = latex(table)
    assert "\n & A & B \\\\\n" in text
    assert "multicolumn" not in text


def check_structure(text: str) -> None:
    """Braces and environments close, every row has its cells, and signs that LaTeX would read are escaped."""
    body = re.sub(r"^%.*\n", "", text)
    assert "%" not in body.replace(r"\%", "").replace("{%\n", "")
    plain = body.replace(r"\{", "").replace(r"\}", "")
    depth = 0
    for sign in plain:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    assert re.findall(r"\\begin{(\w+)}", body) == list(reversed(re.findall(r"\\end{(\w+)}", body)))
    assert body.replace(r"\$", "").count("$") % 2 == 0
    (columns,) = re.findall(r"\\begin{tabular}{l(r+)}", body)
    tabular = body[body.index(r"\toprule") : body.index(r"\bottomrule")]
    for each in tabular.splitlines():
        if each.endswith(r"\\"):
            spanned = sum(int(width) - 1 for width in re.findall(r"\\multicolumn{(\d+)}", each))
            assert len(re.findall(r"(?<!\\)&", each)) + spanned == len(columns)
    for sign in "#&_^":
        outside = re.sub(r"\$[^$]*\$|\\label{[^}]*}|\\resizebox.*", "", body)
        rest = outside.replace(f"\\{sign}", "").replace(" & ", " ")
        assert sign not in rest


def test_a_file_for_each_table_and_a_document(tmp_path: Path) -> None:
    lines = grid("office-home", "mobilenet_v1", HOME, seeds=[0])
    lines += grid("my_data", "net#1", ["a_b%", "c&d", "$e^"], labels=["x_1", "dec"], seeds=[0])
    results = read(tmp_path / "in", lines)
    written = write_latex(results, tmp_path / "deep" / "out")
    assert sorted(written) == sorted((tmp_path / "deep" / "out").iterdir())
    *tables, document = written
    names = [path.name for path in tables]
    assert len(names) == len(set(names)) == 3 + 7 + 7
    assert "office-home-mobilenet_v1-paper-domain-online.tex" in names
    assert "my_data-net-1-domain-ece-online-epochs15.tex" in names
    for path in tables:
        check_structure(path.read_text(encoding="utf-8"))
    text = document.read_text(encoding="utf-8")
    assert document.name == "all.tex"
    assert re.findall(r"\\input{(.*)}", text) == [path.stem for path in tables]
    assert text.startswith(r"\documentclass")
    assert r"\usepackage{booktabs}" in text
    assert text.rstrip().endswith(r"\end{document}")


def test_a_write_that_fails_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = read(tmp_path / "in", [line()])
    first = write_latex(results, tmp_path / "out")
    before = first[0].read_text(encoding="utf-8")

    def half(path: Path, text: str, encoding: str) -> int:
        path.write_bytes(text.encode(encoding)[:10])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="no space"):
        write_latex(results, tmp_path / "out")
    assert first[0].read_text(encoding="utf-8") == before
    assert sorted((tmp_path / "out").iterdir()) == sorted(first)
