"""Methods by stream: means, marks and notes, counted by hand."""

from pathlib import Path
from typing import Any

import pytest

from equipoise.cli.report import write_report
from equipoise.research.report.page import report_markdown, report_page
from equipoise.research.report.part import parts
from equipoise.research.report.table import Entry, Table, html_table, latex_table, markdown_table
from equipoise.research.report.tables import stream_tables
from tests.research.report.plausible import made
from tests.research.report.streamed import binned
from tests.research.report.writer import folder, line

TARGETS = ("mnist", "usps", "svhn")
SEEDS = (0, 1)


def lines() -> list[dict[str, Any]]:
    """Two streams; tent is far behind, poise ahead of norm by a little that differs in sign by target."""
    found = []
    wobbles = dict(zip(TARGETS, (0.02, -0.02, 0.0), strict=True))
    for order, options in (("continual", None), ("recurring", {"passes": 20})):
        for place, (target, seed) in enumerate((t, s) for t in TARGETS for s in SEEDS):
            for label, tempering, error in (
                ("tent", "none", 0.5 + 0.001 * place),
                ("norm", "none", 0.2 + wobbles[target] + 0.001),
                ("poise", "none", 0.2),
                ("poise", "rehearsed", 0.2),
            ):
                found.append(
                    binned(
                        label, [error] * 4, tempering, order=order, options=options, target=target, seed=seed,
                        ece=error / 10, nll=3 * error, off=0.04 if tempering == "rehearsed" else None,
                    )
                )  # fmt: skip
    return found


def table(given: list[dict[str, Any]]) -> Table:
    (found,) = stream_tables(parts(made(given)))
    return found


def column(found: Table, stream: str, metric: str) -> dict[str, Entry]:
    return {row: entry for row, head, entry in found.entries if head == (stream, metric)}


def test_a_column_for_each_metric_of_each_stream_and_of_all() -> None:
    found = table(lines())
    streams = ["continual", "recurring (passes 20)", "all streams"]
    metrics = ["acc. ↑", "ECE ↓", "NLL ↓", "est. off ↓"]
    heads = dict.fromkeys(head for _, head, _ in found.entries)
    assert list(heads) == [(stream, metric) for stream in streams for metric in metrics]
    assert list(found.frame.index) == ["norm (raw)", "tent (raw)", "poise (raw)", "poise (rehearsed)"]
    accuracy = column(found, "continual", "acc. ↑")
    assert accuracy["tent (raw)"].value == pytest.approx(1 - 0.5 - 0.0025)
    assert accuracy["norm (raw)"].value == pytest.approx(0.799)
    off = column(found, "all streams", "est. off ↓")
    assert off["poise (rehearsed)"].value == pytest.approx(0.04)
    assert off["tent (raw)"].value is None


def test_the_best_and_those_that_a_test_cannot_tell_from_it_are_marked() -> None:
    accuracy = column(table(lines()), "continual", "acc. ↑")
    marks = {row: (entry.best, entry.alike) for row, entry in accuracy.items()}
    assert marks == {
        "tent (raw)": (False, False),
        "norm (raw)": (False, True),
        "poise (raw)": (True, False),
        "poise (rehearsed)": (True, False),
    }


def test_seeds_and_streams_of_a_target_are_no_pairs_of_their_own() -> None:
    """Two targets with two seeds in two streams are two pairs: too few, where eight would be enough."""
    few = [each for each in lines() if each["cell"]["target"] != "svhn"]
    found = table(few)
    for stream in ("continual", "all streams"):
        accuracy = column(found, stream, "acc. ↑")
        assert not any(entry.alike for entry in accuracy.values())
        assert accuracy["poise (raw)"].best
    assert any("Fewer than 3 targets are not tested" in note for note in found.notes)
    assert not any("too small" in note for note in found.notes)


def test_tiers_are_pairs_of_their_own_and_a_note_says_that_they_are_not_independent() -> None:
    given = [
        binned("tent", [0.5 + 0.01 * seed] * 4, target="all", tier=tier, seed=seed)
        for tier in (3, 5)
        for seed in SEEDS
    ]
    assert any("p is too small" in note for note in table(given).notes)
    of_one = [each for each in given if each["cell"]["tier"] == 5]
    assert not any("p is too small" in note for note in table(of_one).notes)


def test_streams_of_other_sizes_options_or_origins_have_columns_of_their_own() -> None:
    given = [
        binned("tent", [0.1] * 4),
        binned("tent", [0.2] * 4, domain_images=200),
        binned("tent", [0.3] * 4, domain_images=1000, origin="made"),
        binned("tent", [0.4] * 4, order="changing", options={"severity": 3.0, "paths": None}),
        binned("tent", [0.5] * 4, order="changing", options={"severity": 3.0, "paths": {"a": [[1.0, 2.0]]}}),
    ]
    found = table(given)
    accuracies = {head[0]: entry.value for _, head, entry in found.entries if head[1] == "acc. ↑"}
    assert {name: round(value or 0, 3) for name, value in accuracies.items()} == {
        "continual, all images, official images": 0.9,
        "continual, 200 images a domain, official images": 0.8,
        "continual, 1,000 images a domain, made images": 0.7,
        "changing (severity 3), no. 1": 0.6,
        "changing (severity 3), no. 2": 0.5,
        "all streams": 0.7,
    }


def test_shuffled_streams_are_not_among_all_streams() -> None:
    """TinyImageNet-C has shuffled streams under the name of the data set that its other streams have."""
    shuffled = [line("tent", data="digits-c", backbone="smallcnn", accuracy=0.01, target="fog")]
    found = table([*lines(), *shuffled])
    assert {head[0] for _, head, _ in found.entries} == {"continual", "recurring (passes 20)", "all streams"}
    assert column(found, "all streams", "acc. ↑")["tent (raw)"].value == pytest.approx(1 - 0.5 - 0.0025)


def test_a_distance_that_was_not_measured_stays_missing() -> None:
    """The distance of the means is smaller than the mean of the distances: it is no substitute."""
    given = binned("poise", [0.2] * 4, "rehearsed", off=0.04)
    del given["estimate"]["off"]
    found = table([given])
    assert "est. off ↓" not in {head[1] for _, head, _ in found.entries}


def test_with_two_streams_nothing_is_tested() -> None:
    few = [
        each
        for each in lines()
        if (each["cell"]["target"], each["cell"]["seed"]) in (("mnist", 0), ("usps", 0))
    ]
    found = table([each for each in few if each["cell"]["order"] == "continual"])
    accuracy = column(found, "continual", "acc. ↑")
    assert not any(entry.alike for entry in accuracy.values())
    assert accuracy["poise (raw)"].best
    assert any("not tested" in note for note in found.notes)


def test_a_method_that_lacks_streams_is_no_best() -> None:
    given = [*lines(), binned("eta", [0.01] * 4, target="mnist", seed=0)]
    accuracy = column(table(given), "continual", "acc. ↑")
    assert not accuracy["eta (raw)"].best
    assert accuracy["eta (raw)"].missing == "1 of 6 streams and seeds"
    assert accuracy["poise (raw)"].best


def test_methods_that_lack_different_streams_are_marked_as_incomplete_and_none_is_best() -> None:
    """Each lacks one stream, tent a hard one and norm an easy one: their means are of unlike streams."""
    errors, lacking = {"mnist": 0.1, "usps": 0.4, "svhn": 0.7}, {"tent": "svhn", "norm": "mnist"}
    given = [
        binned(label, [error - (0.02 if label == "norm" else 0)] * 4, target=target)
        for label, lacked in lacking.items()
        for target, error in errors.items()
        if target != lacked
    ]
    found = table(given)
    accuracy = column(found, "continual", "acc. ↑")
    assert {entry.missing for entry in accuracy.values()} == {"2 of 3 streams and seeds"}
    assert not any(entry.best or entry.alike for entry in accuracy.values())
    assert any("has only 2 of 3 streams and seeds" in note for note in found.notes)


def test_marks_in_every_format() -> None:
    found = table(lines())
    assert "*0.799*" in markdown_table(found)
    assert '<span class="alike">0.799</span>' in html_table(found)
    assert r"\underline{0.799}" in latex_table(found)


def test_streams_are_described_where_they_are_shown(tmp_path: Path) -> None:
    one = [each for each in lines() if (each["cell"]["target"], each["cell"]["label"]) == ("usps", "poise")]
    results = made([*one, line("source", data="pacs")])
    page = report_page(results)
    for text in (page, report_markdown(results)):
        assert "400 images recurring and so on (seed 0)." in text
        assert "methods by stream" in text
    assert "Digits-C with SmallCNN, recurring (passes 20)" in page
    assert page.count("error over time, raw answers") == 2
    out = tmp_path / "csv"
    list(write_report(folder(tmp_path / "run", one), csv=out))
    cells = (out / "tables.csv").read_text().splitlines()
    assert cells[0].endswith("best,alike")
    assert any("methods-by-stream,poise (raw),continual,acc. ↑,0.8," in each for each in cells)


def test_shuffled_and_recorded_streams_alone_have_no_such_table() -> None:
    assert stream_tables(parts(made([line("source"), line("source", order="recorded", target="x")]))) == []


def test_over_all_streams_those_compete_that_were_in_all() -> None:
    few = [binned("eta", [0.01] * 4, target=target, seed=seed) for target in TARGETS for seed in SEEDS]
    more = [binned("sotta", [0.01] * 4, target=target, seed=seed) for target in TARGETS for seed in SEEDS]
    accuracy = column(table([*lines(), *few, *more]), "all streams", "acc. ↑")
    assert {row for row, entry in accuracy.items() if entry.best} == {"poise (raw)", "poise (rehearsed)"}
    assert accuracy["eta (raw)"].missing == "6 of 12 streams and seeds"
