"""One table in four formats."""

import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from equipoise.research.report.page import all_tables
from equipoise.research.report.part import parts
from equipoise.research.report.results import Results
from equipoise.research.report.table import (
    Entry,
    Table,
    html_frame,
    html_table,
    latex_table,
    latex_text,
    markdown_table,
    markdown_text,
    write_latex,
)
from tests.research.report.written import grid, line, made

NONE = "\N{EN DASH}"
TABLE = Table(
    "95% of a_b & <c>, online",
    {
        ("ECE ↓", "Art"): [
            Entry(0.1, spec=".2f", best=True),
            Entry(-0.2, 0.03, ".2f", False, 0.4, 0.05, doubt="s"),
        ],
        ("ECE ↓", "b_c"): [
            Entry(printed=0.5, spec=".2f", bold=True),
            Entry(0.25, spec=".2f", missing="1 of 2 seeds"),
        ],
        ("p", "t & u"): [Entry(1.2e-7, spec="p"), Entry()],
    },
    ["x_y", "σ²_max"],
    ["One note: 5%."],
)


def test_markdown() -> None:
    lines = markdown_table(TABLE).splitlines()
    cells = [[cell.strip() for cell in each.strip("|").split("|")] for each in lines[:4]]
    assert cells[0] == ["", "ECE ↓ Art", r"ECE ↓ b\_c", "p t & u"]
    assert cells[2] == [r"x\_y", "**0.10**", f"{NONE} (**0.50**)", "1.2e-07"]
    assert cells[3] == [r"σ²\_max", "-0.20 ± 0.03 (0.40 ± 0.05†)", "0.25‡", NONE]
    assert lines[5:] == [
        "- One note: 5%.",
        r"- ‡ Only 1 of 2 seeds: σ²\_max.",
        r"- † ECE of σ²\_max (Art): s.",
    ]


def test_html_is_escaped_and_marked() -> None:
    text = html_table(TABLE)
    assert "95% of a_b &amp; &lt;c&gt;, online" in text
    assert '<b class="best">0.10</b>' in text
    assert '-0.20<small> ±0.03</small> <span class="printed">(0.40<small> ±0.05</small>†)</span>' in text
    assert '&ndash; <span class="printed">(<b>0.50</b>)</span>' in text
    assert "0.25‡" in text
    assert "<th>t &amp; u</th>" in text
    assert re.search(r'<th colspan="2">ECE ↓</th>', text)


def test_any_frame_of_numbers_and_texts_is_a_table() -> None:
    frame = pd.DataFrame({"ECE": [0.12345, float("nan")], "by": ["<a>", "b"]}, index=["one", "two"])
    text = html_frame(frame, "a label")
    assert 'tabindex="0" role="region" aria-label="a label"' in text
    assert "<td>0.123</td>" in text
    assert "<td>&ndash;</td>" in text
    assert "&lt;a&gt;" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b", r"a\_b"),
        ("95% & more", r"95\% \& more"),
        ("#$~^", r"\#\$\~{}\^{}"),
        ("{\\}", r"\{\textbackslash{}\}"),
        ("<|>", r"$<$\textbar{}$>$"),
        ("ECE ↓ Accuracy ↑", r"ECE $\downarrow$ Accuracy $\uparrow$"),
        ("σ²_max: 1", r"$\sigma^2_{\max}$: 1"),
        ("† ‡ ±", r"$^\dagger$ $^\ddagger$ $\pm$"),
        ("from -0.1, t-test, v-1", "from $-$0.1, t-test, v-1"),
        ("1.2e-07", r"$1.2\times10^{-7}$"),
        ("naïve 漢", "naïve ?"),
    ],
)
def test_latex_text(text: str, expected: str) -> None:
    assert latex_text(text) == expected


def test_markdown_text() -> None:
    assert markdown_text("a|b\n<c> *d*") == r"a\|b \<c\> \*d\*"


def test_latex() -> None:
    text = latex_table(TABLE)
    assert r"\caption{95\% of a\_b \& $<$c$>$, online}" in text
    assert r"\label{tab:95-of-a-b-c-online}" in text
    assert r" & \multicolumn{2}{c}{ECE $\downarrow$} & p \\" in text
    assert r"x\_y & \textbf{0.10} & -- (\textbf{0.50}) & $1.2\times10^{-7}$ \\" in text
    assert r"{\scriptsize$\pm$0.03} (0.40{\scriptsize$\pm$0.05}$^\dagger$) & 0.25$^\ddagger$ & -- \\" in text


def awkward() -> Results:
    lines = grid("office-home", "mobilenet_v1", ["Art", "Clipart", "Product", "Real World"], seeds=[0])
    lines += grid("office-home", "mobilenet_v1", ["Art", "Clipart"], seeds=[0], protocol="after-pass")
    lines += grid("my_data", "net#1", ["a_b%", "c&d", "$e^"], labels=["x_1", "dec", "漢字"], seeds=[0, 1])
    return made([*lines, line("{\\}", data="my_data", backbone="net#1", target="~")])


def check_structure(text: str) -> None:
    """Braces and environments close, every row has its cells, and signs that LaTeX would read are escaped."""
    body = re.sub(r"^%.*\n", "", text)
    assert "%" not in body.replace(r"\%", "").replace("{%\n", "")
    depth = 0
    for sign in body.replace(r"\{", "").replace(r"\}", ""):
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    assert re.findall(r"\\begin{(\w+)}", body) == list(reversed(re.findall(r"\\end{(\w+)}", body)))
    assert body.replace(r"\$", "").count("$") % 2 == 0
    (columns,) = re.findall(r"\\begin{tabular}{l(r+)}", body)
    for each in body[body.index(r"\toprule") : body.index(r"\bottomrule")].splitlines():
        if each.endswith(r"\\"):
            spanned = sum(int(width) - 1 for width in re.findall(r"\\multicolumn{(\d+)}", each))
            assert len(re.findall(r"(?<!\\)&", each)) + spanned == len(columns)


def test_every_table_is_sound_latex_and_main_has_them_all(tmp_path: Path) -> None:
    tables = list(all_tables(parts(awkward())))
    *paths, document = write_latex(tables, tmp_path)
    for path in paths:
        check_structure(path.read_text(encoding="utf-8"))
    text = document.read_text(encoding="utf-8")
    assert document.name == "main.tex"
    assert re.findall(r"\\input{(.*)}", text) == [path.stem for path in paths]
    assert len({path.name for path in paths}) == len(tables) > 40


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_tables_compile_and_fit_the_page(tmp_path: Path) -> None:
    tables = list(all_tables(parts(awkward())))
    write_latex(tables[:12], tmp_path)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    log = (tmp_path / "main.log").read_text(encoding="utf-8", errors="replace")
    assert ran.returncode == 0, log[-2000:]
    assert (tmp_path / "main.pdf").stat().st_size > 10_000
    assert "Float too large" not in log
    assert "Overfull" not in log


def test_a_write_that_fails_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, main = write_latex([TABLE], tmp_path)
    before = first.read_text(encoding="utf-8")

    def half(path: Path, text: str, encoding: str) -> int:
        path.write_bytes(text.encode(encoding)[:10])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="no space"):
        write_latex([TABLE], tmp_path)
    assert first.read_text(encoding="utf-8") == before
    assert sorted(tmp_path.iterdir()) == sorted([first, main])
