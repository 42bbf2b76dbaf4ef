"""`equipoise estimate`: chunks, labels that came late, what is printed and written, and the exit status."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from equipoise.cli.app import app
from equipoise.cli.estimate import EstimatedFile, estimate, reference_doubts
from equipoise.cli.estimate_page import estimate_page, page_headline
from tests.cli.estimated import StandIn, report

Write = Callable[..., Path]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An estimator in whose place the mean probability of the first class is told; what it is asked."""
    told: list[Any] = []
    monkeypatch.setattr("equipoise.cli.estimate.Estimator", StandIn(told))
    return told


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes probabilities of the first of two classes, with other columns, under a name."""

    def written(name: str, first: Any, **others: Any) -> Path:
        columns = {"p_a": first, "p_b": 1 - np.asarray(first), **others}
        pd.DataFrame(columns).to_csv(tmp_path / name, index=False)
        return tmp_path / name

    return written


@pytest.fixture
def reference(write: Write) -> Path:
    """Four rows, three of them right."""
    return write("reference.csv", [0.75, 0.75, 0.25, 0.25], target=["a", "b", "b", "b"])


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["estimate", *map(str, arguments)])


def table(result: Result) -> list[list[str]]:
    """The lines of the chunks, at their cells."""
    block = result.output.split("\n\n")[1]
    return [re.split(r"  +", line) for line in block.splitlines()]


def found(reference: Path, stream: Path, by: Any) -> EstimatedFile:
    return estimate(reference, stream, by=by)


def test_chunks_by_count_are_as_long_as_asked_but_for_the_last(
    write: Write, reference: Path, asked: list[Any]
) -> None:
    stream = write("stream.csv", [1, 0.5, 0.25, 0.75, 0])
    result = run(reference, stream, "--by", 2)
    assert result.exit_code == 0, result.output
    assert table(result) == [
        ["chunk", "rows", "accuracy", "90 % interval", "marks"],
        ["1 to 2", "2", "0.750", "0.650 to 0.850"],
        ["3 to 4", "2", "0.500", "0.400 to 0.600"],
        ["5 to 5", "1", "0.000", "0.000 to 0.100", "drift, outside"],
    ]
    chunks = found(reference, stream, 2).chunks
    assert [(each.chunk.name, each.chunk.start, each.chunk.end) for each in chunks] == [
        ("1 to 2", 1, 2),
        ("3 to 4", 3, 4),
        ("5 to 5", 5, 5),
    ]
    assert [each.report.accuracy.value for each in chunks] == [0.75, 0.5, 0.0]


@pytest.mark.parametrize(
    ("by", "names", "sizes", "last"),
    [
        (
            "hour",
            ["2026-05-03 23:00", "2026-05-04 00:00", "2026-06-30 07:00"],
            [2, 1, 1],
            "2026-06-30T08:00:00",
        ),
        ("day", ["2026-05-03", "2026-05-04", "2026-06-30"], [2, 1, 1], "2026-07-01T00:00:00"),
        ("week", ["2026-04-27", "2026-05-04", "2026-06-29"], [2, 1, 1], "2026-07-06T00:00:00"),
        ("month", ["2026-05", "2026-06"], [3, 1], "2026-07-01T00:00:00"),
    ],
)
def test_chunks_by_time_begin_with_the_unit(
    write: Write,
    reference: Path,
    asked: list[Any],
    by: str,
    names: list[str],
    sizes: list[int],
    last: str,
) -> None:
    times = ["2026-05-03 23:00", "2026-05-03T23:59:59.999", "2026-05-04", "2026-06-30 07:30"]
    stream = write("stream.csv", [1, 0.5, 0.25, 0.75], time=times)
    estimates = found(reference, stream, by)
    assert [each.chunk.name for each in estimates.chunks] == names
    assert [each.report.samples for each in estimates.chunks] == sizes
    assert estimates.chunks[-1].chunk.end == last
    gap = f"Gaps of a {by} or more without rows: 1."
    assert estimates.remarks[1:] == (() if by == "month" else (gap,))


def test_rows_are_put_in_the_order_of_time(write: Write, reference: Path, asked: list[Any]) -> None:
    times = ["2026-05-04", "2026-05-03", "2026-05-04", "2026-05-03"]
    stream = write("stream.csv", [1, 0.5, 0.25, 0.75], time=times, target=["a", "b", None, None])
    estimates = found(reference, stream, "day")
    assert [each.report.accuracy.value for each in estimates.chunks] == [0.595, 0.595]
    assert [given[1][:, 0].tolist() for given in asked if given[0] == "update"] == [[0.5, 0.75], [1, 0.25]]
    assert [given[1].tolist() for given in asked if given[0] == "label"] == [[1], [0]]
    assert [given[2].tolist() for given in asked if given[0] == "label"] == [[0], [2]]
    assert "not in the order of time" in estimates.remarks[1]


def test_late_labels_correct_the_estimate_of_their_chunk(
    write: Write, reference: Path, asked: list[Any]
) -> None:
    stream = write("stream.csv", [1, 0.6, 0.25, 0.75, 0.9], target=[None, "b", None, None, "a"])
    result = run(reference, stream, "--by", 2)
    assert "labels of 2 rows, which correct the estimates of their chunk and later" in result.output
    assert [line[4:6] for line in table(result)] == [
        ["labels", "right"],
        ["1", "0.000"],
        ["0"],
        ["1", "1.000"],
    ]
    given = [(name, *(each.tolist() for each in rest)) for name, *rest in asked if name != "fit"]
    assert [name for name, *_ in given] == ["update", "label", "update", "update", "label"]
    assert [rest for name, *rest in given if name == "label"] == [[[1], [1]], [[0], [4]]]
    values = [line[2] for line in table(result)[1:]]
    assert values == ["0.770", "0.500", "0.870"]  # that without labels was .8 and .9
    estimates = found(reference, stream, 2)
    truths = [each.truth and (each.truth.labels, each.truth.accuracy) for each in estimates.chunks]
    assert truths == [(1, 0.0), None, (1, 1.0)]
    # Wilson's interval of one row that is wrong: from 0 to z² / (1 + z²) at z = 1.645.
    first = estimates.chunks[0].truth
    assert first is not None
    assert [first.low, first.high] == pytest.approx([0, 2.7055 / 3.7055], abs=1e-4)


def test_a_stream_with_all_labels_is_compared_with_them(
    write: Write, reference: Path, asked: list[Any]
) -> None:
    stream = write("stream.csv", [1, 0.6, 0.25, 0.75], target=["a", "b", "b", "a"])
    result = run(reference, stream, "--by", 2)
    assert "a label in every row, shown beside the estimates, which do not use them" in result.output
    assert "label" not in [name for name, *_ in asked]
    assert [each.truth.accuracy for each in found(reference, stream, 2).chunks if each.truth] == [0.5, 1.0]
    assert found(reference, stream, 2).held_out == 0.75
    # Estimated are .8 and .5, with .1 on both sides.
    assert "off by 0.400 on average; 0 of 2 chunks have the truth inside" in result.output


@pytest.mark.parametrize(
    ("limit", "status", "said"),
    [
        (None, 0, None),
        (0.2, 0, "Estimated below 0.2: 0 of 3 chunks."),
        (0.5, 0, "Estimated below 0.5: 0 of 3 chunks."),
        (0.51, 3, "Estimated below 0.51: 1 of 3 chunks, first 3 to 4."),
        (0.9, 3, "Estimated below 0.9: 2 of 3 chunks, first 1 to 2."),
    ],
)
def test_the_exit_status_says_whether_an_estimate_is_below(
    write: Write, reference: Path, asked: list[Any], limit: float | None, status: int, said: str | None
) -> None:
    stream = write("stream.csv", [1, 0.5, 0.25, 0.75, 1])
    result = run(reference, stream, "--by", 2, *([] if limit is None else ["--fail-below", limit]))
    assert result.exit_code == status, result.output
    assert (said or "Drift: ") in result.output
    assert ("Estimated below" in result.output) == (limit is not None)


def test_json_has_every_number_and_null_where_none_is_known(
    write: Write, reference: Path, asked: list[Any], tmp_path: Path
) -> None:
    stream = write("stream.csv", [1, 0.5, 0.25], target=["a", None, None])
    out = tmp_path / "all.json"
    assert run(reference, stream, "--by", 2, "--json", out, "--fail-below", 0.5).exit_code == 3
    told = json.loads(out.read_text())
    assert told["reference"] == {"file": str(reference), "rows": 4}
    assert told["stream"]["rows"] == 3
    assert (told["by"], told["labels"], told["fail_below"], told["below"]) == (2, "late", 0.5, ["3 to 3"])
    assert told["held_out_accuracy"] == 0.75
    first, last = told["chunks"]
    assert first["accuracy"] == {"value": 0.72, "low": 0.62, "high": 0.82, "inside": True}
    assert first["truth"]["labels"] == 1
    assert first["confidence"] == 0.75
    assert list(first["classes"]) == ["a", "b"]
    assert first["classes"]["b"]["precision"]["value"] is None
    assert (last["name"], last["start"], last["end"], last["rows"]) == ("3 to 3", 3, 3, 1)
    assert (last["drift"], last["truth"]) == (True, None)


def test_what_no_estimate_can_see_is_said_and_drift_and_outside_are_marked(
    write: Write, reference: Path, asked: list[Any], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    result = run(reference, write("stream.csv", [0.75, 0.75, 0.4, 0.05]), "--by", 1, "--html", page)
    last = [line[-1] for line in table(result)[1:]]
    assert last[2:] == ["drift", "drift, outside"]
    html = page.read_text(encoding="utf-8")
    for said in (
        "cannot see concept drift",
        "Drift: 2 of 4 chunks, first 3 to 3.",
        "Outside: the probabilities are far",
    ):
        assert said in result.output
        assert said in html
    assert "<script" not in html
    assert "http" not in html.replace("http://www.w3.org/", "")
    assert f"see {page} in a browser" in result.output


def test_labels_that_contradict_the_estimate_are_marked(
    write: Write, reference: Path, asked: list[Any]
) -> None:
    labels = ["b"] * 10 + [None] * 10 + ["a"] * 10
    result = run(reference, write("stream.csv", [0.95] * 30, target=labels), "--by", 10)
    assert ["labels say otherwise" in line[-1] for line in table(result)[1:]] == [True, False, False]
    assert "Believe the labels" in result.output


@pytest.mark.parametrize(
    ("rows", "classes", "right", "said"),
    [
        (1000, 2, 0.5, []),
        (999, 2, 0.9, ["few rows, 999:"]),
        (1000, 4, 0.24, ["0.240 are right, less than by chance"]),
        (4, 2, 0.0, ["few rows, 4:", "0.000 are right"]),
    ],
)
def test_a_reference_that_makes_estimates_doubtful_is_told(
    rows: int, classes: int, right: float, said: list[str]
) -> None:
    told = reference_doubts(rows, classes, right)
    assert len(told) == len(said)
    assert all(words in each for words, each in zip(said, told, strict=True))


def test_one_chunk_is_enough(write: Write, reference: Path, asked: list[Any]) -> None:
    stream = write("stream.csv", [0.8], time=["2026-05-01"])
    for by in (1, "month"):
        estimates = found(reference, stream, by)
        assert len(estimates.chunks) == 1
        told = "In the last " + ("month" if by == "month" else "chunk")
        assert page_headline(estimates).startswith(
            f"{told}, an estimated 80\N{NO-BREAK SPACE}% of the answers"
        )
        assert estimate_page(estimates, 0.9).count("<svg") == 2 + 2 + 2


def test_a_page_has_pictures_of_a_few_classes_and_a_row_for_each(tmp_path: Path) -> None:
    names = tuple(f"class <{at}>" for at in range(40))
    f1 = [at / 40 for at in range(39)] + [math.nan]
    each = report([0.5] * 40, 0.7, f1=f1)
    estimates = EstimatedFile(
        ("r.csv", 9), ("s.csv", 9), 9, names, 0.8, "none", (StandIn.estimated(each),), ()
    )
    page = estimate_page(estimates, None)
    assert page.count("<h3>class") == 12
    assert "<h3>class &lt;0&gt;</h3>" in page
    assert "The pictures have the 12 classes of 40" in page
    assert page.count("<th>class &lt;") == 40


def test_a_file_that_cannot_be_used_is_told_in_one_line(
    write: Write, reference: Path, asked: list[Any]
) -> None:
    stream = write("stream.csv", [0.8, 0.7])
    result = run(reference, stream, "--by", "week")
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert "--time NAME, or --by 1000" in result.output
    assert run(reference, stream, "--html", "nowhere/page.html").exit_code == 1
    assert asked == []


@pytest.mark.parametrize("by", ["year", "0", "-3", "1.5", "", "²"])
def test_unknown_chunks_are_wrong_words(write: Write, reference: Path, by: str) -> None:
    result = run(reference, reference, "--by", by)
    assert result.exit_code == 2
    assert "expected hour, day, week, month or a number of rows" in " ".join(
        result.output.replace("│", "").split()
    )


def test_ctrl_c_ends_it_with_status_130_and_no_file(
    write: Write, reference: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Stopped(StandIn):
        def update(self, probabilities: NDArray[np.float64]) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setattr("equipoise.cli.estimate.Estimator", Stopped([]))
    out = tmp_path / "all.json"
    result = run(reference, reference, "--json", out)
    assert result.exit_code == 130
    assert "Stopped; nothing was written." in result.output
    assert not out.exists()


def test_help_says_what_the_statuses_mean() -> None:
    said = " ".join(run("--help").output.split())
    assert "The exit status is 0; 3 if an estimate is below --fail-below" in said
    assert "equipoise estimate reference.csv stream.csv --by week --html report.html" in said


def test_with_the_estimator_itself(write: Write, tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def drawn(rows: int, hard: float) -> tuple[NDArray[np.float64], list[str]]:
        first = random.beta(hard, hard, rows)
        return first, ["a" if each else "b" for each in random.random(rows) < first]

    easy, labels = drawn(3000, 0.3)
    late, later = zip(*(drawn(1000, hard) for hard in (0.3, 0.3, 1.5)), strict=True)
    target = [label for some in later for label in some]
    reference = write("reference.csv", easy, target=labels)
    stream = write("stream.csv", np.concatenate(late), target=target)
    result = run(reference, stream, "--html", tmp_path / "page.html", "--json", tmp_path / "all.json")
    assert result.exit_code == 0, result.output
    chunks = found(reference, stream, 1000).chunks
    for each in chunks:
        assert each.truth is not None
        assert each.report.accuracy.value == pytest.approx(each.truth.accuracy, abs=0.05)
    assert [each.report.drift for each in chunks] == [False, False, True]
