"""`equipoise report` with strange options and strange results."""

import json
from pathlib import Path

import pytest

from equipoise.cli.report import write_report
from equipoise.errors import OptionError
from tests.report.writer import folder, grid, line, stream_line

HALF = "half \ud800 a character"


def test_a_page_is_no_folder(tmp_path: Path) -> None:
    results = folder(tmp_path / "run", [line()])
    with pytest.raises(OptionError, match="--html: expected a file to write the page to, got the folder"):
        list(write_report(results, html=tmp_path, latex=None, markdown=False))


def test_the_tables_folder_is_no_file(tmp_path: Path) -> None:
    results = folder(tmp_path / "run", [line()])
    with pytest.raises(OptionError, match="--latex: expected a folder for the tables, got the file"):
        list(write_report(results, html=None, latex=results / "results.jsonl", markdown=False))


@pytest.mark.parametrize("option", ["html", "latex"])
def test_a_file_in_the_way_is_told(tmp_path: Path, option: str) -> None:
    results = folder(tmp_path / "run", [line()])
    where = results / "results.jsonl" / "deeper" / "still"
    paths = {"html": None, "latex": None, option: where}
    with pytest.raises(OptionError, match=f"--{option}: expected a folder at .* a file in its way"):
        list(write_report(results, html=paths["html"], latex=paths["latex"], markdown=False))


def test_half_a_character_is_written_as_a_question_mark(tmp_path: Path) -> None:
    lines = [line(HALF, target=HALF, data=HALF), line("dec", data=HALF, error=HALF)]
    streams = json.dumps(stream_line(data=HALF, target=HALF))
    results = folder(tmp_path / "run", lines, streams=streams)
    html, latex = tmp_path / "page.html", tmp_path / "tex"
    *_, markdown = write_report(results, html=html, latex=latex, markdown=True)
    assert "half ? a character" in markdown
    assert "half ? a character" in html.read_text(encoding="utf-8")
    assert len(list(latex.glob("*.tex"))) > 1


def test_long_names_are_cut_in_the_names_of_files_and_stay_apart(tmp_path: Path) -> None:
    lines = [
        each
        for name in ("a", "b")
        for each in grid("long " * 80 + name, "net", ["x"], seeds=[0], labels=["dec"])
    ]
    list(write_report(folder(tmp_path / "run", lines), html=None, latex=tmp_path / "tex", markdown=False))
    names = [path.stem for path in (tmp_path / "tex").glob("*.tex") if path.stem != "all"]
    assert len(names) == 2
    assert all(len(name) < 120 for name in names)
