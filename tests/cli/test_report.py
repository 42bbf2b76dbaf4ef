"""`equipoise report` from files to files: options, strange results, and the defects that readers met."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from equipoise.cli.experiments import write_report
from equipoise.errors import OptionError
from tests.research.report.written import folder, grid, line, stream_line

HALF = "half \ud800 a character"
DIGITS: dict[str, Any] = {"data": "digits", "backbone": "smallcnn", "epochs": 5}
TARGETS = ["mnist", "usps", "svhn"]


def markdown(path: Path, lines: list[dict[str, Any]], **options: Any) -> str:
    (text,) = write_report(folder(path, lines), html=None, latex=None, markdown=True, **options)
    return text


def test_counts_are_said_in_place_of_all_images(tmp_path: Path) -> None:
    lines = [
        line(target="a", images=1670, classes=7, left_out=0),
        line(target="b", images=3929, classes=6, left_out=3),
    ]
    text = markdown(tmp_path, lines)
    assert "ll images" not in text
    assert "1,670 to 3,929 images a stream of 6 to 7 classes, 0 to 3 unreadable files" in text
    assert "Up to 3 image files of a stream and its training set could not be read" in text


def test_the_captions_of_both_protocols_differ_and_labels_are_unique(tmp_path: Path) -> None:
    lines = [
        each
        for protocol in ("online", "after-pass")
        for each in grid("digits", "smallcnn", TARGETS, seeds=[0], epochs=5, protocol=protocol)
    ]
    list(write_report(folder(tmp_path / "run", lines), html=None, latex=tmp_path / "tex", markdown=False))
    text = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "tex").glob("*.tex"))
    captions, labels = re.findall(r"\\caption{(.*)}", text), re.findall(r"\\label{(.*)}", text)
    assert len(captions) > 10
    assert len(set(captions)) == len(captions)
    assert len(set(labels)) == len(labels)


def test_any_method_can_be_compared(tmp_path: Path) -> None:
    lines = grid("digits", "smallcnn", TARGETS, seeds=[0], epochs=5)
    text = markdown(tmp_path / "tent", lines, compare="tent")
    assert "tent against the best of the others" in text
    assert re.search(r"ECE: tent \(raw\) minus (source|dec|t3a|eta|sotta) \(raw\)", text)
    assert "dec against the best of the others" in markdown(tmp_path / "dec", lines)
    with pytest.raises(OptionError, match=r"--compare: expected one of dec, eta, .*, got nobody"):
        markdown(tmp_path / "nobody", lines, compare="nobody")


def test_only_some_methods_and_temperings(tmp_path: Path) -> None:
    lines = grid("digits", "smallcnn", TARGETS, seeds=[0], epochs=5)
    text = markdown(tmp_path / "a", lines, methods=["tent", "dec"], temperings=["median"])
    assert "median of τ" in text
    assert "raw |" not in text
    assert not re.search(r"^\| sotta", text, flags=re.MULTILINE)
    with pytest.raises(OptionError, match=r"--methods: expected some of .*, got nobody"):
        markdown(tmp_path / "b", lines, methods=["nobody"])
    with pytest.raises(OptionError, match="--temperings: expected some of mean, median, none, got warm"):
        markdown(tmp_path / "c", lines, temperings=["warm"])


def test_every_cell_has_mean_and_deviation_and_says_over_what(tmp_path: Path) -> None:
    one = [line("tent", target="a", seed=seed, ece=ece) for seed, ece in enumerate((0.1, 0.3))]
    text = markdown(tmp_path / "seeds", one)
    assert "0.200 ± 0.141" in text  # √(.1² + .1²)
    assert "± is the standard deviation over the seeds" in text
    text = markdown(
        tmp_path / "domains", [line("tent", target=t, ece=e) for t, e in (("a", 0.1), ("b", 0.3))]
    )
    assert "0.200 ± 0.141" in text
    assert "± is the standard deviation over the domains" in text


def test_csv_and_figure_files(tmp_path: Path) -> None:
    lines = grid("digits", "smallcnn", TARGETS, seeds=[0, 1], epochs=5, labels=["source", "dec"])
    run = folder(tmp_path / "run", lines, streams=json.dumps(stream_line(data="digits", backbone="smallcnn")))
    list(write_report(run, csv=tmp_path / "csv", figures=tmp_path / "drawn", methods=["dec"]))
    with (tmp_path / "csv" / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    mine = [each for each in lines if each["cell"]["label"] == "dec"]
    assert sorted(float(each["ece"]) for each in rows) == pytest.approx(
        sorted(e["scores"]["ece"] for e in mine)
    )
    with (tmp_path / "csv" / "tables.csv").open(encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    (dec,) = [
        c for c in cells if c["row"] == "DEC" and c["metric"] == "ECE" and "beside-the-paper" in c["table"]
    ]
    assert float(dec["printed"]) == 0.169
    names = {path.suffix for path in (tmp_path / "drawn").iterdir()}
    assert names == {".svg", ".pdf"}
    assert any("certainty" in path.name for path in (tmp_path / "drawn").glob("*.pdf"))


def test_failures_alone_are_reported_in_every_format(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [line(error="out of memory")])
    out: dict[str, Any] = {"latex": tmp_path / "tex", "csv": tmp_path / "csv", "figures": tmp_path / "drawn"}
    made = write_report(run, html=tmp_path / "page.html", markdown=True, **out)
    *_, text = made
    assert "out of memory" in text
    assert "out of memory" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_page_is_no_folder(tmp_path: Path) -> None:
    results = folder(tmp_path / "run", [line()])
    with pytest.raises(OptionError, match="--html: expected a file to write the page to, got the folder"):
        list(write_report(results, html=tmp_path))


@pytest.mark.parametrize("option", ["html", "latex", "csv", "figures"])
def test_a_file_in_the_way_is_told(tmp_path: Path, option: str) -> None:
    results = folder(tmp_path / "run", [line()])
    where = results / "results.jsonl" / "deeper" / "still"
    with pytest.raises(OptionError, match=f"--{option}: expected a folder at .* a file in its way"):
        paths: dict[str, Any] = {option: where}
        list(write_report(results, **paths))


def test_half_a_character_is_written_as_a_question_mark(tmp_path: Path) -> None:
    lines = [line(HALF, target=HALF, data=HALF), line("dec", data=HALF, error=HALF)]
    streams = json.dumps(stream_line(data=HALF, target=HALF))
    results = folder(tmp_path / "run", lines, streams=streams)
    html, latex = tmp_path / "page.html", tmp_path / "tex"
    *_, text = write_report(results, html=html, latex=latex, markdown=True)
    assert "half ? a character" in text
    assert "half ? a character" in html.read_text(encoding="utf-8")
    assert len(list(latex.glob("*.tex"))) > 1


def test_long_names_are_cut_in_the_names_of_files_and_stay_apart(tmp_path: Path) -> None:
    lines = [
        each
        for name in ("a", "b")
        for each in grid("long " * 80 + name, "net", ["x"], seeds=[0], labels=["dec"])
    ]
    list(write_report(folder(tmp_path / "run", lines), latex=tmp_path / "tex"))
    names = [path.stem for path in (tmp_path / "tex").glob("*.tex") if path.stem != "main"]
    assert len(names) == 2 * 4
    assert all(len(name) < 120 for name in names)
