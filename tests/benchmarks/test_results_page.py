"""The programs behind docs/results.md: packing runs, the order of the ways to train, and the pictures."""

import json
import re
from pathlib import Path
from typing import Any
from xml.parsers.expat import ParserCreate

import pandas as pd
import pytest

from benchmarks.results import figures, measured, pack, page
from benchmarks.results.measured import Measured
from equipoise.errors import DataError
from tests.support.results_frames import made_up


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measured.read(made_up(tmp_path_factory.mktemp("results")))


def line(tempering: str, of_cell: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A line of results.jsonl."""
    cell = {"data": "tiny-imagenet-c-2500", "backbone": "mobilenet_v1", "target": "fog", "tier": 3, "seed": 0}
    cell |= {"label": "poise", "batch_size": 50, "epochs": 25, "input_size": 128}
    cell |= {"protocol": "online", "tempering": tempering, "code": "c", "options": {}, "order": "shuffled"}
    cell |= {"model": "m", "stream": "s", **(of_cell or {})}
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


@pytest.mark.parametrize(
    ("of_cell", "images", "part"),
    [
        ({"code": "other"}, 2, "code"),
        ({"options": {"t_min": 2.0}}, 2, "options"),
        ({"model": "other"}, 2, "model"),
        ({"stream": "other", "label": "tent"}, 2, "stream"),
        ({"data": "tiny-imagenet-c", "label": "tent"}, 3, "images"),
    ],
)
def test_results_that_do_not_belong_together_are_refused(
    of_cell: dict[str, Any], images: int, part: str
) -> None:
    with pytest.raises(DataError, match=f"one {part}, got"):
        pack.packed_cells([line("none"), line("mean", of_cell, images=images)])


def test_a_later_result_replaces_an_earlier_one_of_other_code() -> None:
    assert len(pack.packed_cells([line("none", {"code": "old"}), line("none"), line("mean")])) == 1


def test_missing_and_empty_results_are_refused_and_leave_the_old_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"results.jsonl: expected a file"):
        pack.read_lines(tmp_path / "results.jsonl")
    (tmp_path / "cells.csv").write_text("old")
    with pytest.raises(DataError, match="expected at least one result"):
        pack.write(pd.DataFrame(), tmp_path / "cells.csv")
    assert (tmp_path / "cells.csv").read_text() == "old"


def test_rows_of_other_data_sets_and_networks_stay_when_some_are_added() -> None:
    def rows(backbone: str, accuracy: float) -> pd.DataFrame:
        place = {"data": "pacs", "backbone": backbone, "target": "photo", "tier": None, "seed": 0}
        return pd.DataFrame([{**place, "label": "poise", "online/none/accuracy": accuracy}])

    olds = pd.concat([rows("mobilenet_v1", 0.1), rows("efficientnet_b0", 0.2)])
    joined = pack.added(rows("efficientnet_b0", 0.9), olds)
    assert joined["online/none/accuracy"].tolist() == [0.9, 0.1]


def test_ways_to_train_are_ordered_by_held_out_accuracy_over_the_last_epochs(results: Measured) -> None:
    rows = [row for row in page.training_tables(results.training).splitlines() if row.startswith("| ")]
    assert rows[2] == "| batches of 32 | usps | .950 | .970 | .700 |"
    assert rows[3].startswith("| **recipe** (chosen) | usps | .900 |")


def test_pictures_are_whole_and_follow_light_and_dark(results: Measured) -> None:
    for figure in (figures.calibration_figure(results.cells), figures.estimate_figure(results.cells)):
        drawn = figures.standalone(figure, "a <picture>")
        ParserCreate().Parse(drawn, True)  # raises where XML is not well formed
        assert 'xmlns="http://www.w3.org/2000/svg"' in drawn
        assert "prefers-color-scheme: dark" in drawn


def test_a_page_can_be_made_of_some_of_the_runs(tmp_path: Path) -> None:
    folder = made_up(tmp_path)
    made = "\n\n".join(text for name in page.PAGES for text in (*page.parts(name, folder).values(), ""))
    assert not re.search(r"\bnan\b|None", made)
    for table in re.findall(r"(?:^\|.*\n)+", made, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
