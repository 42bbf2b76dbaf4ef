"""The programs behind the comparison of docs/streams.md: packing runs, comparing like with like, the page."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.streams import pack_streams, stream_cells, streams_page
from benchmarks.streams.pack_streams import packed
from benchmarks.streams.stream_cells import Place, Setting
from equipoise.errors import DataError

ROOT = Path(__file__).parents[2]
GAINS = {"source": 0.0, "norm": 0.1, "tent": -0.2, "poise": 0.12}
PASSES, DOMAINS = 3, 2


def line(label: str, tempering: str = "none", order: str = "continual", **of_cell: Any) -> dict[str, Any]:
    """A line of results.jsonl: 10 images of each domain a pass; right answers fall with the pass for TENT."""
    options = {"passes": PASSES} if order == "recurring" else {}
    cell = {
        "data": "digits-c",
        "backbone": "smallcnn",
        "target": "usps",
        "tier": 5,
        "seed": 0,
        "order": order,
        "protocol": "online",
    }
    cell |= {"label": label, "tempering": tempering, "batch_size": 64, "domain_images": 10, "code": "c"}
    cell |= {"options": {"seed": 1}, "order_options": options, "model": "m", "stream": "s", **of_cell}
    visits = PASSES * DOMAINS if options else DOMAINS
    falling = [(visit // DOMAINS) if label == "tent" and options else 0 for visit in range(visits)]
    correct = [round(10 * (0.5 + GAINS[label])) - fall - visit % 2 for visit, fall in enumerate(falling)]
    names = (
        [{"name": "all", "bins": visits}] if options else [{"name": n, "bins": 1} for n in ("fog", "snow")]
    )
    bins = {"images": [10] * visits, "correct": correct, "nll": [1.0, 2.0] * (visits // 2), "segments": names}
    accuracy = sum(correct) / (10 * visits)
    estimate = {"estimate": {"value": 0.5, "off": 0.04}} if tempering == "rehearsed" else {}
    return {
        "status": "ok",
        "cell": cell,
        "images": 10 * visits,
        "scores": {"accuracy": accuracy, "ece": 0.1 if tempering == "rehearsed" else 0.2, "nll": 1.5},
        "reliability": {"confidence": [6.0 * visits]},
        "bins": bins,
        "made": {"device": "GPU", "torch": "2"},
        **estimate,
    }


def changed(result: dict[str, Any], part: str) -> dict[str, Any]:
    """A line with another value of one part of its cell."""
    return {**result, "cell": {**result["cell"], part: 7}}


def lines() -> Iterator[dict[str, Any]]:
    """A run of every method in every stream on two data sets, two targets and two seeds."""
    for stream, label, tempering, data, target, seed in product(
        stream_cells.STREAMS, GAINS, ("none", "rehearsed"), ("digits-c", "pacs-c"), ("usps", "svhn"), (0, 1)
    ):
        network = {"digits-c": "smallcnn", "pacs-c": "mobilenet_v1"}[data]
        yield line(label, tempering, stream, data=data, backbone=network, target=target, seed=seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("streams")
    packed(list(lines())).to_csv(made / "cells.csv", index=False)
    (made / "recommended").mkdir()
    setting = {"data": "digits-c", "backbone": "smallcnn", "target": "usps", "seed": 0, "stream": "continual"}
    tried = [
        {**setting, "label": label, "tempering": "none", "shift": shift, "samples": 10, "nll": 5.0}
        | {"correct": 5 + (label == "tent") + shift % 2, "seconds": 1.0}
        for label in GAINS
        for shift in range(4)
    ]
    pd.DataFrame(tried).to_csv(made / "recommended" / "digits.csv", index=False)
    return made


@pytest.fixture(scope="module")
def cells(folder: Path) -> pd.DataFrame:
    return stream_cells.read(folder)


def test_a_row_has_the_scores_and_the_accuracy_of_each_domain_and_pass() -> None:
    row = pack_streams.row_of(line("tent", order="recurring"))
    assert row["accuracy_by_domain"] == "0.2000 0.1000"  # (3 + 2 + 1) / 30, and one less in each visit
    assert row["nll_by_domain"] == "1.0000 2.0000"
    assert [float(each) for each in row["accuracy_by_pass"].split()] == [0.25, 0.15, 0.05]
    assert (row["accuracy"], row["confidence"], row["estimate"]) == (0.15, 0.6, None)
    assert pack_streams.row_of(line("norm"))["accuracy_by_pass"].split() == []


def test_bins_of_a_domain_are_weighted_by_their_images() -> None:
    bins: dict[str, Any] = {"images": [1, 3, 4], "correct": [1, 0, 4], "nll": [4.0, 0.0, 1.0]}
    bins["segments"] = [{"name": "fog", "bins": 2}, {"name": "snow", "bins": 1}]
    assert pack_streams.by_visit(bins, "correct", 1).tolist() == [[1.0, 4.0]]
    assert pack_streams.by_visit(bins, "nll", 1).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("part", ["model", "stream", "order_options", "domain_images", "batch_size"])
def test_lines_of_one_stream_must_share_their_making(part: str) -> None:
    with pytest.raises(DataError, match=f"expected results with one {part}"):
        packed([line("norm"), changed(line("tent"), part)])


def test_answers_of_a_second_pass_and_other_rehearsals_are_told_apart() -> None:
    late = changed(line("norm"), "protocol") | {"scores": {"accuracy": 0.9, "ece": 0.0, "nll": 0.0}}
    assert packed([line("norm"), late])["accuracy"].tolist() == [0.55]
    with pytest.raises(DataError, match="expected results with one rehearsal"):
        packed([line("norm", "rehearsed"), changed(line("tent", "rehearsed"), "rehearsal")])


def test_a_line_without_a_bin_for_each_visit_or_without_nll_is_refused() -> None:
    few = line("norm", order="recurring")
    few["bins"] = {**few["bins"], "images": [30, 30]}
    with pytest.raises(DataError, match="a bin for each of 6 visits to a domain, got 2 bins"):
        packed([few])
    old = line("norm")
    del old["bins"]["nll"]
    with pytest.raises(DataError, match="with its NLL over time"):
        packed([old])


def test_rehearsals_of_some_seeds_are_compared_among_themselves(cells: pd.DataFrame) -> None:
    some = cells[(cells["tempering"] == "none") | (cells["seed"] == 0)]
    assert all(len(by_name) == 4 for by_name in stream_cells.matrix(some, "ece", "rehearsed").values())
    assert set(stream_cells.with_rehearsal(some)["seed"]) == {0}


def test_lines_of_one_method_must_share_code_and_options_but_not_the_seed() -> None:
    assert len(packed([line("norm"), line("norm", seed=1, options={"seed": 2})])) == 2
    with pytest.raises(DataError, match="expected results with one options"):
        packed([line("norm"), line("norm", seed=1, options={"rate": 2})])
    with pytest.raises(DataError, match="at least one finished"):
        packed([{**line("norm"), "status": "failed"}])


def test_a_method_that_lacks_a_seed_is_not_compared(cells: pd.DataFrame) -> None:
    place = Place("digits-c", "smallcnn", 5)
    lacking = (cells["name"] == "norm") & (cells["seed"] == 1) & (cells["data"] == "digits-c")
    values = stream_cells.matrix(cells[~lacking], "accuracy", "none")
    assert list(values[Setting(place, "noisy")]) == ["source", "tent", "poise"]
    assert len(values[Setting(Place("pacs-c", "mobilenet_v1", 5), "noisy")]) == 4
    assert stream_cells.complete(values) == ["source", "tent", "poise"]


def test_the_best_comes_first_and_a_clear_loss_is_told_from_it(cells: pd.DataFrame) -> None:
    setting = Setting(Place("digits-c", "smallcnn", 5), "continual")
    found = stream_cells.marked(cells, setting, "accuracy", "none")
    assert found[0] in ("norm", "poise")
    assert "tent" not in found


def test_gains_are_over_no_adaptation_on_the_same_streams(cells: pd.DataFrame) -> None:
    gains = stream_cells.gains(cells)
    assert all(by_name["norm"] == pytest.approx(0.1) for by_name in gains.values())
    assert stream_cells.by_mean(gains)[-1] == "tent"
    assert stream_cells.mean_of(gains, "source", "noisy") == 0


def test_harm_is_counted_in_single_runs_and_not_in_means(cells: pd.DataFrame) -> None:
    """One of 16 runs of a method that gains .1 in all others loses .3: no mean over targets shows it."""
    one = (cells["name"] == "norm") & (cells["data"] == "pacs-c") & (cells["stream"] == "noisy")
    one &= (cells["target"] == "svhn") & (cells["seed"] == 0) & (cells["tempering"] == "none")
    harmed = cells.assign(accuracy=cells["accuracy"].where(~one, cells["accuracy"] - 0.4))
    runs = streams_page.run_gains(harmed, "none")
    assert len(runs) == 2 * 2 * 2 * len(stream_cells.STREAMS)
    assert streams_page.harm(runs, "norm") == ["3 %", "-.300"]
    assert "| `norm` |" in streams_page.overview_table(harmed, ["norm"], ["ece"])


def test_gains_have_their_spread_over_seeds_and_columns_say_which_are_rehearsed(cells: pd.DataFrame) -> None:
    place = Place("pacs-c", "mobilenet_v1", 5)
    lucky = (cells["name"] == "norm") & (cells["seed"] == 1) & (cells["data"] == "pacs-c")
    luckier = cells.assign(accuracy=cells["accuracy"].where(~lucky, cells["accuracy"] + 0.1))
    assert streams_page.seed_spread(luckier, place)["norm"] == " ± .071"  # of .1 and .2
    assert streams_page.seed_spread(luckier[luckier["seed"] == 0], place) == {}
    assert streams_page.fewer_seeds(cells, place) == ""
    some = cells[(cells["tempering"] == "none") | (cells["seed"] == 0)]
    assert streams_page.fewer_seeds(some, place) == ", seed 0"


def test_the_classes_in_a_row_come_from_the_description_of_the_stream() -> None:
    described = {"described": "… 64 images in a row are of 5.1 of 10 classes on average (seed 0)."}
    assert pack_streams.row_of(line("norm") | described)["classes_in_a_row"] == 5.1
    assert pack_streams.row_of(line("norm"))["classes_in_a_row"] is None


def test_a_table_marks_the_best_of_each_column(cells: pd.DataFrame) -> None:
    text = streams_page.metric_table(cells, "accuracy", "none")
    assert "| `poise` | **.550** |" in text
    assert "| `tent` | .250 |" in text


def test_packing_reads_folders_of_runs(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(json.dumps(line("norm")) + "\n")
    program = [sys.executable, "-m", "benchmarks.streams.pack_streams"]
    subprocess.run([*program, str(tmp_path), "--folder", str(tmp_path)], check=True, cwd=ROOT)
    assert len(stream_cells.read(tmp_path)) == 1


def test_a_recommendation_that_harms_has_its_regret(folder: Path) -> None:
    made = streams_page.parts("tables/streams-recommendation.md", folder, folder / "recommended")
    assert "| recommend() | 0% | 0.300 | 0.300 | 100% |" in made["regret_seen"]  # TENT is recommended
    assert made["regret_unseen"] == ""
