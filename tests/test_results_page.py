"""The programs behind docs/results.md: packing runs, comparing like with like, deciding goals, the page."""

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any
from xml.parsers.expat import ParserCreate

import bar
import claims
import comparing
import figures
import measured
import pack
import page
import pandas as pd
import pytest
import robustness
import significant
import sources
import wording
from measured import LABELS, POISE, SOURCE, Measured, Place, at, mean, tidy

from equipoise.report.results import Variant

ROOT = Path(__file__).parent.parent
PLACES = (
    ("digits", "smallcnn", ("mnist", "usps", "svhn"), (None,), (0, 1)),
    ("tiny-imagenet-c", "mobilenet_v1", ("fog", "frost", "snow"), (1, 5), (0,)),
)

DIVIDED = {"none": 1.0, "mean": 0.5, "median": 0.6, "rehearsed": 0.2}
"""The share of the ECE that each tempering leaves."""


def made_up_cells(poise_ece: float = 0.03) -> pd.DataFrame:
    """Results in which poise reaches every goal if its ECE does."""
    rows = []
    for data, backbone, targets, tiers, seeds in PLACES:
        for (at_target, target), tier, seed, (at_label, label) in product(
            enumerate(targets), tiers, seeds, enumerate(LABELS)
        ):
            ours = label == "poise"
            accuracy = 0.6 + 0.01 * at_target + (0.05 if ours else 0.001 * at_label) + 0.002 * seed
            ece, nll = 0.3 - 0.01 * at_label, 2.0 + 0.1 * at_target - 0.02 * at_label
            row: dict[str, Any] = {
                **dict(zip(pack.CELL, (data, backbone, target, tier, seed, label), strict=True)),
                "batch_size": 50,
                "epochs": 5,
                "input_size": None,
                "images": 100 + at_target,
                "device": "GPU",
                "torch": "2",
                "rehearsal_images": 1000,
                "rehearsal_shifts": 16,
            }
            for protocol, divided in product(("online", "after-pass"), DIVIDED):
                shrunk = DIVIDED[divided]
                scores = {"accuracy": accuracy, "ece": ece * shrunk, "nll": nll * (0.8 + 0.2 * shrunk)}
                if ours and divided == "rehearsed":
                    scores |= {"ece": poise_ece + 0.001 * at_target, "nll": 1.1}
                scores |= {"confidence": accuracy + scores["ece"], "entropy": 1.0 - 0.01 * at_label}
                row |= {f"{protocol}/{divided}/{name}": value for name, value in scores.items()}
                row |= {f"{protocol}/oracle/ece": 0.02, f"{protocol}/oracle/nll": 1.0}
            guess = {"value": accuracy + 0.02, "low": accuracy - 0.05, "high": accuracy + 0.1, "covered": 0.9}
            row |= {f"online/estimate/{name}": value for name, value in guess.items()}
            rows.append(row)
    return pd.DataFrame(rows)


def made_up_robust(lost: float = 0.0) -> pd.DataFrame:
    """Three streams of one target: the last is so much less accurate with poise than without adaptation."""
    rows = []
    for stream, method in product(("batches of 1", "ten passes", "sorted by class"), ("source", "poise")):
        hit = lost if (stream, method) == ("sorted by class", "poise") else 0.0
        about = {
            "data": "digits",
            "backbone": "smallcnn",
            "target": "usps",
            "stream": stream,
            "method": method,
        }
        scores = {"accuracy": 0.8 - hit, "ece": 0.03, "nll": 0.5, "estimate": 0.8, "after": 0.8}
        rows.append({**about, "images": 300, **scores})
    return pd.DataFrame(rows)


def made_up(folder: Path, poise_ece: float = 0.03) -> Path:
    """A folder with all files that the page is made of."""
    pack.write(made_up_cells(poise_ece), folder / "cells.csv")
    streams = [
        {"data": "tiny-imagenet-c", "backbone": "mobilenet_v1", "target": "fog", "tier": tier, "kappa": 10.0}
        | {"norm_0.05": 9.0 - tier, "norm_0.5": 9.0, "norm_0.95": 12.0, "tau_0.5": 2.0, "tau_std": 1 / tier}
        for tier in (1, 5)
    ]
    pd.DataFrame(streams).to_csv(folder / "streams.csv", index=False)
    made_up_robust().to_csv(folder / "robust.csv", index=False)
    training = [
        {"data": "digits", "backbone": "smallcnn", "target": "usps", "seed": 0, "way": way, "epoch": epoch}
        | {"held_out": 0.9 + 0.01 * epoch * better, "target_accuracy": 0.7, "seconds": epoch}
        for (way, better), epoch in product((("before", 0), ("after", 1)), range(1, 8))
    ]
    pd.DataFrame(training).to_csv(folder / "training.csv", index=False)
    return folder


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


def test_a_mean_is_of_all_shifts_or_there_is_none() -> None:
    cells = tidy(made_up_cells())
    place = Place("digits", "smallcnn")
    rows = at(cells, place)
    accuracies = rows[(rows["name"] == "source") & (rows["tempering"] == "none")]["accuracy"]
    assert mean(rows, SOURCE, "accuracy") == pytest.approx(accuracies.mean())
    without = rows[~((rows["name"] == "tent") & (rows["target"] == "svhn"))]
    assert mean(without, Variant("tent", "none"), "ece") is None
    assert mean(without, POISE, "ece") is not None


def test_every_goal_is_reached_or_missed_by_its_numbers(tmp_path: Path) -> None:
    good = bar.decisions(measured.read(made_up(tmp_path)))
    assert {each.goal for each in good} == set(bar.GOALS)
    assert all(each.reached is not False for each in good)
    bad = bar.decisions(measured.read(made_up(tmp_path, poise_ece=0.25)))
    assert {each.goal for each in bad if each.reached is False} == {"ece", "third", "paper-ece"}
    assert "✗ 0 of 3" in bar.goal_table(bad)


def test_a_rival_with_fewer_seeds_is_compared_on_these_seeds_alone() -> None:
    cells = tidy(made_up_cells())
    rows = at(cells, Place("digits", "smallcnn"))
    few = (rows["name"] == "tent") & (rows["tempering"] == "rehearsed") & (rows["seed"] == 1)
    rows = rows.assign(accuracy=rows["accuracy"].where(rows["seed"] == 0, 0.0))[~few]
    (only,) = comparing.against_each(rows, "accuracy", POISE, ["rehearsed"], ["tent"])
    assert only.focal_mean == pytest.approx(0.66)


def test_collapse_is_more_than_a_twentieth_below_no_adaptation() -> None:
    assert robustness.collapsed(made_up_robust(lost=0.049)).empty
    lost = robustness.collapsed(made_up_robust(lost=0.06))
    assert lost["stream"].tolist() == ["sorted by class"]
    assert "1 of 3 streams collapsed" in robustness.verdict(made_up_robust(lost=0.06))
    assert "No stream collapsed" in robustness.verdict(made_up_robust())


def test_holm_multiplies_the_smallest_p_most_and_never_falls() -> None:
    assert significant.holm([0.01, None, 0.04, 0.03]) == [
        pytest.approx(0.03),
        None,
        *[pytest.approx(0.06)] * 2,
    ]
    assert significant.holm([0.9, 0.8]) == [1.0, 1.0]


def test_claims_count_the_networks_for_which_they_hold(results: Measured) -> None:
    verdict = claims.norm_verdict(results.streams)
    assert "falls from tier to tier with 1 of 1 networks" in verdict
    assert "grows with 0 of 1" in verdict  # the variance falls from 1 to 1/25
    assert "higher in 0 of" in claims.certainty_verdict(results.cells)


def test_ways_to_train_are_ordered_by_held_out_accuracy_over_the_last_epochs(results: Measured) -> None:
    rows = [row for row in sources.training_tables(results.training).splitlines() if row.startswith("| ")]
    assert rows[2] == "| after | usps | .950 | .970 | .700 |"
    assert rows[3].startswith("| before | usps | .900 |")


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
    assert "TinyImageNet-C, MobileNet: only 3 of 15 domains, 2 of 5 tiers, 1 of 3 seeds" in text


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
