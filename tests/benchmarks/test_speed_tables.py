"""The tables of the speed benchmark: lines survive a CSV file, and `make bench` explains its numbers."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed import performance
from benchmarks.speed.flat_csv import read_lines, write_lines

MACHINE = {"kind": "machine", "device": "cpu", "name": "arm", "torch": "2", "python": "3", "threads": 2}


def step(method: str) -> dict[str, Any]:
    """A measured cell as `run.py` has it."""
    timed = {"peak": 1, "held": 0, "ms": [2.0, 1.5, 2.5], "images_per_second": 25000.0}
    return {
        "cell": {"kind": "step", "backbone": "smallcnn", "batch": 50, "classes": 10, "method": method},
        "rounds": 5,
        "variants": {
            "plain": {**timed, "over": {}},
            "reference": {**timed, "over": {"plain": [1.0, 0.9, 1.1]}},
            "auto": {**timed, "execution": "eager, a, b", "over": {"reference": [0.5, 0.4, 0.6]}},
        },
    }


def deployed(batch: int) -> dict[str, Any]:
    """A measured cell of poise as it is deployed, as `run.py` has it."""
    forms = {"one forward": 0.7, "default": 2.04, "guarded and monitored": 13.7}
    variants = {form: {"ms": [3.0], "over": {"plain": [ratio]}} for form, ratio in forms.items()}
    cell = {"kind": "deployed", "backbone": "smallcnn", "batch": batch, "classes": 10, "method": "poise"}
    return {"cell": cell, "variants": {"plain": {"ms": [1.5], "over": {}}, **variants}}


def test_poise_is_told_in_plain_forwards(tmp_path: Path) -> None:
    write_lines(tmp_path / "local.csv", [{**MACHINE, "command": "make bench"}, deployed(1), deployed(50)])
    rows = performance.costs_table(performance.Lines(tmp_path / "local.csv")).splitlines()[2:]
    assert rows == [
        f"| SmallCNN, {batches} | 1.5 ms | .70 | 2.0 | 13.7 | - |"
        for batches in ("batches of 50", "single images")
    ]


def test_nested_lines_come_back_as_they_were(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {**MACHINE, "command": "python run.py --match 'a, \"b\"'"},
        step("tent"),
        {
            "cell": {"kind": "stream"},
            "held": [1, 2],
            "allocated": [],
            "tiny": 1e-07,
            "third": 1 / 3,
            "ok": True,
        },
    ]
    assert read_lines(tmp_path / "lines.csv") == []
    write_lines(tmp_path / "lines.csv", lines)
    assert read_lines(tmp_path / "lines.csv") == [{**lines[0], "torch": 2, "python": 3}, *lines[1:]]


def test_the_tables_of_one_file_have_a_legend_and_none_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = {"cell": {"kind": "stream", "method": "tent"}, "held": [800, 800, 809], "allocated": []}
    write_lines(tmp_path / "local.csv", [{**MACHINE, "command": "make bench"}, step("dec"), stream])
    monkeypatch.setattr(sys, "argv", ["performance.py", str(tmp_path / "local.csv")])
    performance.main()
    said = capsys.readouterr().out
    for word in ("- reference:", "- **bold**:", "paper's DEC", "paper's reading"):
        assert word in said.partition("###")[0]
    assert "| `dec` | 2 ms | 2 ms | 2 ms, **0.50** (0.40 to 0.60) |" in said
    assert "Not measured yet." not in said
    assert "| `tent` | +0 | +9 |" in said  # growth, not the bytes of a small model
    assert all("|---" in part for part in said.split("### ")[1:])
