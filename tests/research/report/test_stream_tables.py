"""Methods by stream: means, marks and notes, counted by hand."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from equipoise.cli.experiments import write_report
from equipoise.research.report.page import report_markdown, report_page
from equipoise.research.report.part import parts
from equipoise.research.report.table import Entry, Table, html_table, latex_table, markdown_table
from equipoise.research.report.tables import stream_tables
from tests.research.report.written import Line, binned, folder, line, made

TARGETS = ("mnist", "usps", "svhn")
SEEDS = (0, 1)


def lines(targets: Sequence[str] = TARGETS) -> list[Line]:
    """Two streams; tent is far behind, poise ahead of norm by a little that differs in sign by target."""
    found = []
    wobbles = dict(zip(TARGETS, (0.02, -0.02, 0.0), strict=True))
    for order, options in (("continual", None), ("recurring", {"passes": 20})):
        for place, (target, seed) in enumerate(product(targets, SEEDS)):
            where: Line = {"order": order, "options": options, "target": target, "seed": seed}
            for label, tempering, error in (
                ("tent", "none", 0.5 + 0.001 * place),
                ("norm", "none", 0.2 + wobbles[target] + 0.001),
                ("poise", "none", 0.2),
                ("poise", "rehearsed", 0.2),
            ):
                scores: Line = {
                    "ece": error / 10,
                    "nll": 3 * error,
                    "off": 0.04 if tempering != "none" else None,
                }
                found.append(binned(label, [error] * 4, tempering, **where, **scores))
    return found


def table(given: list[Line]) -> Table:
    (found,) = stream_tables(parts(made(given)))
    return found


def column(found: Table, stream: str, metric: str = "acc. ↑") -> dict[str, Entry]:
    return {row: entry for row, head, entry in found.entries if head == (stream, metric)}


def test_a_column_for_each_metric_of_each_stream_and_of_all() -> None:
    """Shuffled streams of the data set, as TinyImageNet-C has them, are not among all streams."""
    shuffled = line("tent", data="digits-c", backbone="smallcnn", accuracy=0.01, target="fog")
    found = table([*lines(), shuffled])
    streams = ["continual", "recurring (passes 20)", "all streams"]
    metrics = ["acc. ↑", "ECE ↓", "NLL ↓", "est. off ↓"]
    assert list(dict.fromkeys(head for _, head, _ in found.entries)) == list(product(streams, metrics))
    assert list(found.frame.index) == ["norm (raw)", "tent (raw)", "poise (raw)", "poise (rehearsed)"]
    assert column(found, "continual")["norm (raw)"].value == pytest.approx(0.799)
    for stream in ("continual", "all streams"):
        assert column(found, stream)["tent (raw)"].value == pytest.approx(1 - 0.5 - 0.0025)
    off = column(found, "all streams", "est. off ↓")
    assert off["poise (rehearsed)"].value == pytest.approx(0.04)
    assert off["tent (raw)"].value is None


def test_the_best_and_those_that_a_test_cannot_tell_from_it_are_marked_in_every_format() -> None:
    found = table(lines())
    marks = {row: (entry.best, entry.alike) for row, entry in column(found, "continual").items()}
    assert marks == {
        "tent (raw)": (False, False),
        "norm (raw)": (False, True),
        "poise (raw)": (True, False),
        "poise (rehearsed)": (True, False),
    }
    assert "*0.799*" in markdown_table(found)
    assert '<span class="alike">0.799</span>' in html_table(found)
    assert r"\underline{0.799}" in latex_table(found)


@pytest.mark.parametrize(("seeds", "orders"), [(SEEDS, ("continual", "recurring")), ((0,), ("continual",))])
def test_seeds_and_streams_of_a_target_are_no_pairs_of_their_own(
    seeds: Sequence[int], orders: Sequence[str]
) -> None:
    """Two targets are two pairs and not tested, even if two seeds in two streams each would be eight."""
    given = [e for e in lines(TARGETS[:2]) if e["cell"]["seed"] in seeds and e["cell"]["order"] in orders]
    found = table(given)
    for stream in ("continual", "all streams")[: len(orders)]:
        accuracy = column(found, stream)
        assert not any(entry.alike for entry in accuracy.values())
        assert accuracy["poise (raw)"].best
    assert any("Fewer than 3 targets are not tested" in note for note in found.notes)
    assert not any("too small" in note for note in found.notes)


def test_tiers_are_pairs_of_their_own_and_a_note_says_that_they_are_not_independent() -> None:
    given = [
        binned("tent", [0.5 + 0.01 * seed] * 4, target="all", tier=tier, seed=seed)
        for tier, seed in product((3, 5), SEEDS)
    ]
    assert any("p is too small" in note for note in table(given).notes)
    assert not any("p is too small" in note for note in table(given[2:]).notes)


def test_streams_of_other_sizes_options_or_origins_have_columns_of_their_own() -> None:
    changing: Line = {"order": "changing", "options": {"severity": 3.0, "paths": None}}
    along: Line = {"order": "changing", "options": {"severity": 3.0, "paths": {"a": [[1.0, 2.0]]}}}
    others: list[Line] = [
        {},
        {"domain_images": 200},
        {"domain_images": 1000, "origin": "made"},
        changing,
        along,
    ]
    found = table([binned("tent", [at / 10] * 4, **other) for at, other in enumerate(others, 1)])
    accuracies = {head[0]: entry.value for _, head, entry in found.entries if head[1] == "acc. ↑"}
    assert {name: round(value or 0, 3) for name, value in accuracies.items()} == {
        "continual, all images, official images": 0.9,
        "continual, 200 images a domain, official images": 0.8,
        "continual, 1,000 images a domain, made images": 0.7,
        "changing (severity 3), no. 1": 0.6,
        "changing (severity 3), no. 2": 0.5,
        "all streams": 0.7,
    }


def test_a_distance_that_was_not_measured_stays_missing() -> None:
    """The distance of the means is smaller than the mean of the distances: it is no substitute."""
    given = binned("poise", [0.2] * 4, "rehearsed", off=0.04)
    del given["estimate"]["off"]
    assert "est. off ↓" not in {head[1] for _, head, _ in table([given]).entries}


def test_a_method_that_lacks_streams_is_no_best() -> None:
    """Of one stream, eta has one of six; over all streams, eta and sotta were in one of two."""
    one = column(table([*lines(), binned("eta", [0.01] * 4, target="mnist", seed=0)]), "continual")
    half = [binned(x, [0.01] * 4, target=t, seed=s) for x, t, s in product(("eta", "sotta"), TARGETS, SEEDS)]
    every = column(table([*lines(), *half]), "all streams")
    for accuracy, missing in ((one, "1 of 6 streams and seeds"), (every, "6 of 12 streams and seeds")):
        best = {row for row, entry in accuracy.items() if entry.best}
        assert best == {"poise (raw)", "poise (rehearsed)"}
        assert accuracy["eta (raw)"].missing == missing


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
    accuracy = column(found, "continual")
    assert {entry.missing for entry in accuracy.values()} == {"2 of 3 streams and seeds"}
    assert not any(entry.best or entry.alike for entry in accuracy.values())
    assert any("has only 2 of 3 streams and seeds" in note for note in found.notes)


def test_streams_are_described_where_they_are_shown(tmp_path: Path) -> None:
    one = [each for each in lines(["usps"]) if each["cell"]["label"] == "poise"]
    results = made([*one, line("source", data="pacs")])
    page = report_page(results)
    for text in (page, report_markdown(results)):
        assert "400 images recurring and so on (seed 0)." in text
        assert "methods by stream" in text
    assert "Digits-C with SmallCNN, recurring (passes 20)" in page
    assert page.count("error over time, raw answers") == 2
    list(write_report(folder(tmp_path / "run", one), csv=tmp_path))
    cells = (tmp_path / "tables.csv").read_text().splitlines()
    assert cells[0].endswith("best,alike")
    assert any("methods-by-stream,poise (raw),continual,acc. ↑,0.8," in each for each in cells)


def test_shuffled_and_recorded_streams_alone_have_no_such_table() -> None:
    assert stream_tables(parts(made([line("source"), line("source", order="recorded", target="x")]))) == []
