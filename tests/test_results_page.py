"""The programs behind docs/results.md: packing runs, comparing like with like, deciding goals, the page."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.parsers.expat import ParserCreate

import claims
import figures
import measured
import pack
import page
import pandas as pd
import pytest
import sources
import wording
from measured import Measured

from tests.support.results_frames import made_up

ROOT = Path(__file__).parent.parent


@pytest.fixture
def results(tmp_path: Path) -> Measured:
    return measured.read(made_up(tmp_path))


def line(tempering: str, **more: Any) -> dict[str, Any]:
    """A line of results.jsonl."""
    cell = {"data": "tiny-imagenet-c-2500", "backbone": "mobilenet_v1", "target": "fog", "tier": 3, "seed": 0}
    cell |= {"label": "poise", "batch_size": 50, "epochs": 25, "input_size": 128}
    cell |= {"protocol": "online", "tempering": tempering}
    scores = {"accuracy": 0.5, "ece": 0.123456, "entropy": 1.0, "nll": 2.0, "brier": 0.6}
    return {
        "key": tempering,
        "status": "ok",
        "cell": cell,
        "images": 2,
        "scores": scores,
        "reliability": {"confidence": [0.0, 1.2]},
        "made": {"device": "GPU", "torch": "2"},
        **more,
    }


def test_packing_takes_the_floor_and_the_estimate_where_they_are_and_renames_short_streams(
    tmp_path: Path,
) -> None:
    oracle = {"temperature": 2.0, "ece": 0.01, "nll": 1.5}
    estimate = {"value": 0.5, "low": 0.4, "high": 0.6, "covered": 1.0}
    lines = [line("none", oracle=oracle), line("rehearsed", estimate=estimate), line("median")]
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, lines)))
    pack.write(pack.packed_cells(pack.read_lines(tmp_path / "results.jsonl")), tmp_path / "cells.csv")
    (row,) = pd.read_csv(tmp_path / "cells.csv").to_dict("records")
    assert (row["data"], row["images"], row["input_size"]) == ("tiny-imagenet-c", 2, 128)
    assert row["online/none/ece"] == 0.12346
    assert row["online/none/confidence"] == 0.6
    assert row["online/oracle/ece"] == 0.01
    assert row["online/estimate/covered"] == 1.0
    assert "online/none/entropy" in row
    assert "online/median/entropy" not in row


def test_claims_count_the_networks_for_which_they_hold(results: Measured) -> None:
    verdict = claims.norm_verdict(results.streams)
    assert "falls from tier to tier with 1 of 1 networks" in verdict
    assert "grows with 0 of 1" in verdict  # the variance falls from 1 to 1/25
    assert "higher in 0 of" in claims.certainty_verdict(results.cells)


def test_ways_to_train_are_ordered_by_held_out_accuracy_over_the_last_epochs(results: Measured) -> None:
    rows = [row for row in sources.training_tables(results.training).splitlines() if row.startswith("| ")]
    assert rows[2] == "| batches of 32 | usps | .950 | .970 | .700 |"
    assert rows[3].startswith("| recipe | usps | .900 |")


@pytest.mark.parametrize(
    ("value", "words"), [(0.0312, "+.031"), (-0.0204, "-.020"), (-0.0001, "+.000"), (1.5, "+1.500")]
)
def test_differences_have_a_sign(value: float, words: str) -> None:
    assert wording.signed(value) == words


def test_the_page_fills_its_template(results: Measured) -> None:
    template = (page.HERE / "results.template.md").read_text()
    text = wording.filled(template, page.parts(results))
    assert not re.search(r"\bnan\b|None|\{\{|\}\}", text)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    assert text.count("<details") == text.count("</details>") > 2
    assert "102 of 5,000 images a stream" in text
    assert "TinyImageNet-C, MobileNet: only 2 of 5 tiers, 1 of 3 seeds" in text


def test_pictures_are_whole_and_follow_light_and_dark(results: Measured) -> None:
    for figure in (figures.calibration_figure(results.cells), figures.estimate_figure(results.cells)):
        drawn = figures.standalone(figure, "a <picture>")
        ParserCreate().Parse(drawn, True)  # raises where XML is not well formed
        assert 'xmlns="http://www.w3.org/2000/svg"' in drawn
        assert "prefers-color-scheme: dark" in drawn


def test_the_page_of_the_search_is_as_its_program_writes_it() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "results" / "choosing.py")]
    made = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")
    assert made.stdout == (ROOT / "docs" / "choosing-poise.md").read_text(encoding="utf-8")
