"""The paper's tables from results that are not all there, or not of one kind."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.report.numbers.paper import SIGMA
from equipoise.report.tables.papers import all_tables, paper_tables
from tests.report.reading import ORDER, read, row, scores
from tests.report.writer import grid, line


def test_a_trial_is_called_one_and_kept_apart(tmp_path: Path) -> None:
    lines = grid("pacs", "efficientnet_b0", ["art", "cartoon", "photo", "sketch"])
    trial = grid("pacs", "efficientnet_b0", ["art", "photo"], seeds=[1], limit=500, epochs=1)
    tables = paper_tables(read(tmp_path, [*lines, *trial]), "online")
    assert [table.key for table in tables] == [
        "pacs-efficientnet_b0-paper-average-online",
        "pacs-efficientnet_b0-paper-average-online-limit500-epochs1",
        "pacs-paper-run-to-run-online",
        "pacs-paper-run-to-run-online-limit500-epochs1",
    ]
    whole, small = tables[:2]
    assert whole.title.startswith("PACS, EfficientNetB0: accuracy")
    assert whole.notes[0] == "All images, 15 epochs, as in the paper. Means over the seeds 0, 1 and 2."
    assert small.title.startswith("PACS, EfficientNetB0 (at most 500 images of a part, 1 epoch): accuracy")
    assert small.notes[0] == (
        "At most 500 images of a part and 1 epoch (the paper: 15): a trial, not comparable with the paper. "
        "Seed 1."
    )
    assert row(small, "TENT")[1].ours == pytest.approx(
        np.mean(scores(trial, "ece", label="tent", tempering="none"))
    )
    assert row(small, "TENT")[1].missing == "2 of 4 domains, 1 of 3 seeds"
    assert row(whole, "TENT")[1].missing == ""
    assert "Every number of ours has only 2 of 4 domains, 1 of 3 seeds." in small.notes


def test_images_made_here_are_in_the_title_and_not_as_in_the_paper(tmp_path: Path) -> None:
    tiny: dict[str, Any] = {"tiers": [1, 2], "epochs": 25, "input_size": 256}
    official, made = (
        grid("tiny-imagenet-c", "mobilenet_v1", ["fog"], seeds=[0], origin=origin, **tiny)
        for origin in ("official", "made")
    )
    tables = all_tables(read(tmp_path, [*official, *made]))
    titles = [table.title for table in tables]
    assert len(set(titles)) == len(titles)
    assert sum("images made here" in title for title in titles) == len(titles) / 2
    for table in tables:
        if "images made here" in table.title:
            assert table.notes[0].startswith(
                "All images, 25 epochs, 256 px, as in the paper, but for the corrupted images, which were "
                "made here, with a frost that is drawn."
            )
        else:
            assert table.notes[0].startswith("All images, 25 epochs, 256 px, as in the paper.")
    trial = read(tmp_path / "trial", [line(data="tiny-imagenet-c", epochs=1, origin="made")])
    assert (
        all_tables(trial)[0]
        .notes[0]
        .endswith(
            "a trial, not comparable with the paper. The corrupted images were made here, with a frost that "
            "is drawn. Seed 0."
        )
    )


def test_what_is_missing_is_said_and_does_not_compete(tmp_path: Path) -> None:
    lines = grid("pacs", "efficientnet_b0", ["art", "cartoon", "photo", "sketch"])
    lines = [
        each
        for each in lines
        if each["cell"]["label"] != "sotta"
        and (each["cell"]["label"] != "tent" or each["cell"]["target"] == "art")
        and (each["cell"]["label"] != "eta" or (each["cell"]["target"], each["cell"]["seed"]) != ("art", 2))
    ]
    for each in lines:
        if each["cell"]["label"] == "tent":
            each["scores"]["ece"] = 0.0
    table, run = paper_tables(read(tmp_path, lines), "online")
    tent = row(table, "TENT")[1]
    assert (tent.ours, tent.missing, tent.best) == (0.0, "1 of 4 domains", False)
    assert row(table, "ETA")[1].missing == "on some domains 2 of 3 seeds"
    sotta = row(table, "SoTTA")[1]
    assert (sotta.ours, sotta.missing, sotta.printed) == (None, "no results", 0.096)
    assert [entry.best for entry in (row(table, label)[1] for label in ORDER)].count(True) == 1
    assert row(table, SIGMA)[1].missing == "5 of 6 methods"
    assert "‡ Only 1 of 4 domains: TENT." in table.notes
    assert "‡ Only on some domains 2 of 3 seeds: ETA." in table.notes
    assert any(
        "(but for ETA, TENT, of which runs are missing)" in note.replace("TENT, ETA", "ETA, TENT")
        for note in table.notes
    )
    assert row(run, SIGMA)[0].missing == "1 of 2 networks, 5 of 6 methods"


def test_an_incomplete_method_makes_the_largest_variance_incomplete(tmp_path: Path) -> None:
    lines = grid("digits", "smallcnn", ["mnist", "usps", "svhn"], epochs=5)
    lines = [each for each in lines if (each["cell"]["label"], each["cell"]["seed"]) != ("t3a", 0)]
    table, run = paper_tables(read(tmp_path, lines), "online")
    assert {entry.missing for entry in row(table, SIGMA)} == {"2 of 3 seeds"}
    assert {entry.missing for entry in row(run, SIGMA)} == {""}
    assert "‡ Only 2 of 3 seeds: T3A and σ²_max." in table.notes


def test_only_the_papers_form_of_a_method_is_in_its_tables(tmp_path: Path) -> None:
    lines = [line("dec", "none"), line("tent", "mean"), line("dec-released", "mean", method="dec")]
    table, _ = paper_tables(read(tmp_path, lines), "online")
    assert all(entry.ours is None for each in table.rows for entry in each.entries)


def test_a_label_that_stands_for_several_methods_is_not_guessed_at(tmp_path: Path) -> None:
    lines = [line("tent", batch_size=16), line("tent", batch_size=64), line("source")]
    table, _ = paper_tables(read(tmp_path, lines), "online")
    assert row(table, "TENT")[0].ours is None
    assert any(
        "several methods tent; they are kept apart as tent [batch_size=16] and" in note
        for note in table.notes
    )


def test_protocols_have_tables_of_their_own(tmp_path: Path) -> None:
    results = read(tmp_path, [line(ece=0.1), line(protocol="after-pass", ece=0.3)])
    online, after = (paper_tables(results, protocol)[0] for protocol in ("online", "after-pass"))
    assert (online.protocol, row(online, "No Adapt")[1].ours) == ("online", 0.1)
    assert (after.protocol, row(after, "No Adapt")[1].ours) == ("after-pass", 0.3)
    assert after.key == "pacs-efficientnet_b0-paper-average-after-pass"


def test_other_data_sets_and_networks_have_none_of_the_papers_tables(tmp_path: Path) -> None:
    results = read(tmp_path, [line(data="demo"), line(data="digits", backbone="resnet18", epochs=5)])
    assert paper_tables(results, "online") == []


def test_below_the_papers_tables_only_its_algorithms_are_rivals(tmp_path: Path) -> None:
    lines = grid("digits", "smallcnn", ["mnist", "usps", "svhn"], epochs=5)
    lines += [
        line("norm", data="digits", backbone="smallcnn", target=target, seed=seed, epochs=5, ece=0.0)
        for target in ("mnist", "usps", "svhn")
        for seed in (0, 1, 2)
    ]
    table, _ = paper_tables(read(tmp_path, lines), "online")
    (told,) = [note for note in table.notes if note.startswith("ECE: DEC")]
    assert any(f"of {name}, the best of the others" in told for name in ORDER)
