"""The programs behind docs/results.md: packing runs, comparing like with like, deciding goals, the page."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.parsers.expat import ParserCreate

import pandas as pd
import pytest

from benchmarks.results import (
    bar,
    causes,
    claims,
    extent,
    figures,
    measured,
    pack,
    page,
    sources,
    summary,
    temperatures,
    wording,
)
from benchmarks.results.measured import Measured, Place
from equipoise.errors import DataError
from tests.support.results_frames import made_up

ROOT = Path(__file__).parents[2]


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


def test_a_fixed_temperature_is_judged_where_it_was_run(results: Measured) -> None:
    cells = results.cells
    assert claims.fixed_verdict(cells) == "Not run."
    mean_of_tau = cells[(cells["name"] == "dec") & (cells["tempering"] == "mean")]
    there = mean_of_tau[mean_of_tau["data"] != "digits"].assign(tempering="fixed", ece=0.2)
    verdict = claims.fixed_verdict(pd.concat([cells, there]))
    assert "has the lower ECE in 1 of 1 cases (TinyImageNet-C, MobileNet: .120 against .200)." in verdict
    assert verdict.endswith("Not run on Digits and PACS.")


def test_methods_with_a_lower_ece_are_named_whatever_their_temperature(results: Measured) -> None:
    assert summary.lower(results.cells).startswith(
        "No ECE is below that of `poise`. Other methods were rehea"
    )
    cells = results.cells
    hit = (cells["name"] == "norm") & (cells["tempering"] == "rehearsed") & (cells["data"] == "digits")
    better = cells.assign(ece=cells["ece"].mask(hit, 0.021))
    assert "have on Digits, SmallCNN (`poise` .031) norm, rehearsed (.021)." in summary.lower(better)
    assert summary.against_dec(cells) == "3.9"


def test_rivals_that_equal_norm_are_named(results: Measured) -> None:
    cells = results.cells.assign(
        accuracy=results.cells["accuracy"].mask(results.cells["name"] == "norm", 0.5)
    )
    assert summary.hardly_learn(cells) == ""
    tent = cells["name"] == "tent"
    alike = cells.assign(accuracy=cells["accuracy"].mask(tent, 0.502))
    assert summary.hardly_learn(alike).startswith("In streams this short TENT hardly learn at these rates")


def test_the_distance_of_confidence_from_accuracy_is_that_of_single_streams(results: Measured) -> None:
    cells = results.cells.copy()
    mine = (cells["name"] == "poise") & (cells["tempering"] == "rehearsed") & (cells["protocol"] == "online")
    cells.loc[mine, "confidence"] = cells.loc[mine, "accuracy"] + 0.02
    first = cells.index[mine & (cells["target"] == "usps")][0]
    cells.loc[first, "confidence"] = cells.loc[first, "accuracy"] - 0.3
    assert "and by 30 at most (Digits, usps)" in summary.apart(cells)


def test_models_that_lost_accuracy_are_counted(results: Measured) -> None:
    cells = results.cells.copy()
    assert summary.models_that_lost(cells).startswith("On 0 of the ")
    mine = (cells["name"] == "poise") & (cells["tempering"] == "rehearsed") & (cells["protocol"] == "online")
    cells.loc[cells.index[mine][0], "accuracy"] -= 0.5
    assert summary.models_that_lost(cells).startswith("On 1 of the ")


def test_gaps_name_what_is_missing_once(results: Measured) -> None:
    cells = results.cells[(results.cells["name"] != "tent") | (results.cells["data"] != "digits")]
    gaps = extent.gaps(results._replace(cells=cells))
    assert "- Digits, SmallCNN: only 2 of 3 seeds; not run: TENT." in gaps
    assert "- Robustness on PACS, MobileNet: none of 32 streams." in gaps
    assert "- Ways to train, PACS, EfficientNet-B0: none but the recipe's." in gaps
    assert "- The fixed temperature: not run on Digits, SmallCNN and TinyImageNet-C, MobileNet." in gaps
    assert "Robustness on Digits" not in gaps


def test_parts_that_were_not_run_are_named_as_such(results: Measured) -> None:
    assert claims.norm_verdict(results.streams.iloc[:0]) == "Not run."
    raw = results.cells[results.cells["tempering"] == "none"]
    assert "not run on the same streams" in temperatures.mean_or_median(raw)


def test_rows_of_other_data_sets_and_networks_stay_when_some_are_added() -> None:
    def rows(backbone: str, accuracy: float) -> pd.DataFrame:
        place = {"data": "pacs", "backbone": backbone, "target": "photo", "tier": None, "seed": 0}
        return pd.DataFrame([{**place, "label": "poise", "online/none/accuracy": accuracy}])

    olds = pd.concat([rows("mobilenet_v1", 0.1), rows("efficientnet_b0", 0.2)])
    joined = pack.added(rows("efficientnet_b0", 0.9), olds)
    assert joined["online/none/accuracy"].tolist() == [0.9, 0.1]


def test_causes_are_written_for_missed_goals_alone(results: Measured) -> None:
    made = bar.decisions(results)
    assert causes.causes(results, made) == ""
    missed = bar.Decision("nll", Place("digits", "smallcnn"), "", reached=False)
    assert causes.causes(results, [missed]).endswith("no cause is known.")
    too_high = missed._replace(goal="ece")  # the cause is an estimate that is too low, and this one is not
    assert causes.causes(results, [too_high]).endswith("no cause is known.")


def test_the_chosen_way_to_train_is_named_with_the_lead_of_others(results: Measured) -> None:
    verdict = sources.training_verdicts(results.training)
    assert "*batches of 32* leads the recipe by .050" in verdict
    alike = results.training.assign(way=results.training["way"].replace("batches of 32", "recipe"))
    assert "no way but the recipe's was tried" in sources.training_verdicts(alike)
    swapped = {"batches of 32": "recipe", "recipe": "batches of 32"}
    best = results.training.assign(way=results.training["way"].replace(swapped))
    assert "the recipe leads the best of 1 other ways by .050 (models: 1)" in sources.training_verdicts(best)


def test_claims_count_the_networks_for_which_they_hold(results: Measured) -> None:
    verdict = claims.norm_verdict(results.streams)
    assert "falls from tier to tier with 1 of 1 networks" in verdict
    assert "grows with 0 of 1" in verdict  # the variance falls from 1 to 1/25
    assert "more than .001, in 0 of" in claims.certainty_verdict(results.cells)


def test_ways_to_train_are_ordered_by_held_out_accuracy_over_the_last_epochs(results: Measured) -> None:
    rows = [row for row in sources.training_tables(results.training).splitlines() if row.startswith("| ")]
    assert rows[2] == "| batches of 32 | usps | .950 | .970 | .700 |"
    assert rows[3].startswith("| **recipe** (chosen) | usps | .900 |")


@pytest.mark.parametrize(
    ("value", "words"), [(0.0312, "+.031"), (-0.0204, "-.020"), (-0.0001, "+.000"), (1.5, "+1.500")]
)
def test_differences_have_a_sign(value: float, words: str) -> None:
    assert wording.signed(value) == words


def test_the_page_fills_its_template_or_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "results.md"
    out.write_text("old")
    monkeypatch.setattr(sys, "argv", ["page.py", str(out), "--folder", str(tmp_path)])
    with pytest.raises(FileNotFoundError):
        page.main()
    assert out.read_text() == "old"
    made_up(tmp_path)
    page.main()
    text = out.read_text(encoding="utf-8")
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


def test_the_page_of_the_search_is_as_its_program_writes_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.results.choosing", str(tmp_path / "page.md")]
    subprocess.run(command, check=True, cwd=ROOT)
    made, committed = tmp_path / "page.md", ROOT / "docs" / "choosing-poise.md"
    assert made.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")
