"""The paper's tables beside ours; every number is calculated again from the lines."""

from typing import Any

import numpy as np
import pytest

from equipoise.research.report.paper import ROWS, SIGMA
from equipoise.research.report.part import parts
from equipoise.research.report.table import Table
from equipoise.research.report.tables import paper_tables, run_to_run_tables
from tests.research.report.written import PAPER_METHODS, entry, grid, line, made

HOME = ["Art", "Clipart", "Product", "Real World"]
ORDER = ["No Adapt", "DEC", "T3A", "ETA", "TENT", "SoTTA"]
METHODS = dict(zip(ORDER, PAPER_METHODS, strict=True))
CORRUPTIONS = [f"c{number}" for number in range(15)]
TIERS = [1, 2, 3, 4, 5]
Everything = tuple[list[dict[str, Any]], dict[str, Table]]


def tables_of(lines: list[dict[str, Any]]) -> dict[str, Table]:
    every = parts(made(lines))
    found = [table for part in every for table in paper_tables(part)] + run_to_run_tables(every)
    assert len({table.title for table in found}) == len(found)
    return {table.title: table for table in found}


@pytest.fixture(scope="module")
def everything() -> Everything:
    lines = grid("digits", "smallcnn", ["mnist", "usps", "svhn"], epochs=5)
    for backbone in ("efficientnet_b0", "mobilenet_v1"):
        lines += grid("pacs", backbone, ["art", "cartoon", "photo", "sketch"])
        lines += grid("office-home", backbone, HOME)
        tiny: dict[str, Any] = {"tiers": TIERS, "seeds": [0], "temperings": ["none", "mean"], "epochs": 25}
        lines += grid("tiny-imagenet-c", backbone, CORRUPTIONS, input_size=256, **tiny)
    return lines, tables_of(lines)


def scores(lines: list[dict[str, Any]], metric: str, row: str, **which: Any) -> list[float]:
    wanted = {"method": METHODS[row], "tempering": "mean" if row == "DEC" else "none", **which}
    matching = [each for each in lines if all(each["cell"][name] == value for name, value in wanted.items())]
    return [each["scores"][metric] for each in matching]


def test_every_printed_cell_stands_in_a_table_beside_ours(everything: Everything) -> None:
    _, tables = everything
    cells = [each for table in tables.values() for _, _, each in table.entries]
    assert len(cells) == 452 + 16  # and the run-to-run variances, which have no column in a table
    assert all(each.printed is not None for each in cells)
    assert sum(each.value is None for each in cells) == 4  # one seed of TIN-C has no run-to-run variance


def test_the_titles_name_data_network_and_protocol(everything: Everything) -> None:
    _, tables = everything
    average = "accuracy, ECE, entropy and NLL, average over the domains, beside the paper"
    assert list(tables) == [
        f"Digits, SmallCNN, online: {average}",
        f"HomeOffice, EfficientNetB0, online: {average}",
        "HomeOffice, MobileNet, online: entropy, ECE and NLL, by domain, beside the paper",
        f"HomeOffice, MobileNet, online: {average}",
        f"PACS, EfficientNetB0, online: {average}",
        f"PACS, MobileNet, online: {average}",
        "TIN-C, EfficientNetB0, online: entropy, ECE and NLL, by tier, beside the paper",
        "TIN-C, EfficientNetB0, online: accuracy, by tier, beside the paper",
        "TIN-C, MobileNet, online: accuracy, by tier, beside the paper",
        "TIN-C, MobileNet, online: entropy, ECE and NLL, by tier, beside the paper",
        *(
            f"{data}, online: run-to-run variance, the largest of any algorithm and network"
            for data in ("Digits", "HomeOffice", "PACS", "TIN-C")
        ),
    ]


def test_by_domain_every_cell_is_a_mean_over_seeds(everything: Everything) -> None:
    lines, tables = everything
    table = tables["HomeOffice, MobileNet, online: entropy, ECE and NLL, by domain, beside the paper"]
    assert list(table.frame.index) == ORDER == list(ROWS)
    for row in ORDER:
        for metric, head in (("entropy", "Entropy"), ("ece", "ECE ↓"), ("nll", "NLL ↓")):
            for target in HOME:
                where = {"data": "office-home", "backbone": "mobilenet_v1", "target": target}
                found = scores(lines, metric, row, **where)
                assert len(found) == 3
                mine = entry(table, row, head, target)
                assert mine.value == pytest.approx(np.mean(found))
                assert mine.std == pytest.approx(np.std(found, ddof=1))
                assert mine.missing == ""
    dec = entry(table, "DEC", "ECE ↓", "Art")
    assert (dec.printed, dec.bold, dec.spec) == (0.080, True, ".3f")


@pytest.mark.parametrize("data", ["pacs", "office-home"])
@pytest.mark.parametrize("backbone", ["efficientnet_b0", "mobilenet_v1"])
def test_averages_and_the_largest_variance_over_domains(
    everything: Everything, data: str, backbone: str
) -> None:
    lines, tables = everything
    names = {"pacs": "PACS", "office-home": "HomeOffice", "efficientnet_b0": "EfficientNetB0"}
    start = f"{names[data]}, {names.get(backbone, 'MobileNet')}, online: accuracy"
    (table,) = [table for title, table in tables.items() if title.startswith(start)]
    heads = {"accuracy": "Accuracy ↑", "ece": "ECE ↓", "entropy": "Entropy", "nll": "NLL ↓"}
    for metric, head in heads.items():
        variances = []
        for row in ORDER:
            runs = np.reshape(scores(lines, metric, row, data=data, backbone=backbone), (4, 3))
            assert entry(table, row, head).value == pytest.approx(runs.mean())
            assert entry(table, row, head).std == pytest.approx(np.std(runs.mean(axis=0), ddof=1))
            variances.append(np.var(runs.mean(axis=1), ddof=1))
        sigma = entry(table, SIGMA, head)
        assert sigma.value == pytest.approx(max(variances))
        assert (sigma.best, sigma.missing) == (False, "")


def test_by_tier_with_the_spread_over_domains(everything: Everything) -> None:
    lines, tables = everything
    table = tables["TIN-C, MobileNet, online: entropy, ECE and NLL, by tier, beside the paper"]
    for row in ORDER:
        for tier in TIERS:
            found = scores(lines, "ece", row, data="tiny-imagenet-c", backbone="mobilenet_v1", tier=tier)
            mine = entry(table, row, "ECE ↓", f"Tier {tier}")
            assert (mine.value, mine.std) == pytest.approx((np.mean(found), np.std(found, ddof=1)))
            assert (mine.missing, mine.spec) == ("1 of 3 seeds", ".2f")
    dec = entry(table, "DEC", "ECE ↓", "Tier 1")
    assert (dec.printed, dec.printed_std) == (0.05, 0.01)
    assert "Every number of ours has only 1 of 3 seeds." in table.notes
    claim = next(note for note in table.notes if "claims p < 0.01" in note)
    assert "paired t-test gives ECE p = " in claim
    assert "not independent" in claim


def test_run_to_run_is_the_largest_of_any_algorithm_and_network(everything: Everything) -> None:
    lines, tables = everything
    table = tables["PACS, online: run-to-run variance, the largest of any algorithm and network"]
    heads = {"accuracy": "Accuracy", "ece": "ECE", "entropy": "Entropy", "nll": "NLL"}
    printed = []
    for metric, head in heads.items():
        variances = [
            np.var(
                np.reshape(scores(lines, metric, row, data="pacs", backbone=net), (4, 3)).mean(axis=0), ddof=1
            )
            for net in ("efficientnet_b0", "mobilenet_v1")
            for row in ORDER
        ]
        mine = entry(table, SIGMA, head)
        assert mine.value == pytest.approx(max(variances))
        assert mine.missing == ""
        printed.append(mine.printed)
    assert printed == [1.21e-3, 1.02e-4, 2.09e-3, 2e-4]
    tiny = tables["TIN-C, online: run-to-run variance, the largest of any algorithm and network"]
    assert {each.missing for _, _, each in tiny.entries} == {"1 of 3 seeds"}


def test_the_best_of_ours_is_the_best_as_written_and_entropy_has_none(everything: Everything) -> None:
    _, tables = everything
    for title, table in tables.items():
        if "run-to-run" in title:
            continue
        for metric, column in dict.fromkeys(head for _, head, _ in table.entries):
            cells = [entry(table, row, metric, column) for row in ORDER]
            shown = [each.written(each.value or 0.0) for each in cells]
            best = (max if metric == "Accuracy ↑" else min)(shown, key=float)
            expected = [each == best and metric != "Entropy" for each in shown]
            assert [each.best for each in cells] == expected


def test_doubtful_cells_are_marked_and_explained(everything: Everything) -> None:
    _, tables = everything
    (home,) = [
        table for title, table in tables.items() if title.startswith("HomeOffice, MobileNet, online: acc")
    ]
    assert entry(home, "T3A", "NLL ↓").doubt
    assert not entry(home, "DEC", "NLL ↓").doubt
    assert any(note.startswith("† NLL of T3A: 4.321 is also") and "5.629" in note for note in home.notes)
    tiny = tables["TIN-C, EfficientNetB0, online: entropy, ECE and NLL, by tier, beside the paper"]
    assert any(note.startswith("† NLL of ETA (Tier 2) and NLL of ETA (Tier 3): falls") for note in tiny.notes)


def test_a_trial_is_called_one_and_kept_apart() -> None:
    targets = ["art", "cartoon", "photo", "sketch"]
    trial = grid("pacs", "efficientnet_b0", ["art", "photo"], seeds=[1], limit=500, epochs=1)
    tables = tables_of([*grid("pacs", "efficientnet_b0", targets), *trial])
    whole, small = [table for title, table in tables.items() if "run-to-run" not in title]
    assert whole.setting == (
        "15 epochs, as in the paper. 10 images a stream of 7 classes. Means over the seeds 0, 1 and 2."
    )
    assert small.title.startswith(
        "PACS, EfficientNetB0, online (at most 500 images of a part, 1 epoch): accuracy"
    )
    assert small.setting == (
        "At most 500 images of a part and 1 epoch (the paper: 15): a trial, not comparable with the paper. "
        "10 images a stream of 7 classes. Seed 1."
    )
    assert entry(small, "TENT", "ECE ↓").value == pytest.approx(np.mean(scores(trial, "ece", "TENT")))
    assert entry(small, "TENT", "ECE ↓").missing == "2 of 4 domains, 1 of 3 seeds"


def test_gaps_are_said_and_do_not_compete() -> None:
    lines = grid("pacs", "efficientnet_b0", ["art", "cartoon", "photo", "sketch"])
    kept = []
    for each in lines:
        cell = each["cell"]
        if cell["label"] == "tent":
            each["scores"]["ece"] = 0.0
        if not (
            cell["label"] == "sotta"
            or (cell["label"] == "tent" and cell["target"] != "art")
            or (cell["label"], cell["target"], cell["seed"]) == ("eta", "art", 2)
        ):
            kept.append(each)
    table, run = tables_of(kept).values()
    tent = entry(table, "TENT", "ECE ↓")
    assert (tent.value, tent.missing, tent.best) == (0.0, "1 of 4 domains", False)
    assert entry(table, "ETA", "ECE ↓").missing == "on some domains 2 of 3 seeds"
    sotta = entry(table, "SoTTA", "ECE ↓")
    assert (sotta.value, sotta.missing, sotta.printed) == (None, "no results", 0.096)
    assert sum(entry(table, row, "ECE ↓").best for row in ORDER) == 1
    assert entry(table, SIGMA, "ECE ↓").missing == "5 of 6 methods"
    assert "‡ Only 1 of 4 domains: TENT." in table.notes
    assert entry(run, SIGMA, "Accuracy").missing == "1 of 2 networks, 5 of 6 methods"


def test_images_made_here_are_in_the_title() -> None:
    tiny: dict[str, Any] = {"tiers": [1, 2], "epochs": 25, "input_size": 256, "seeds": [0]}
    tables = tables_of(grid("tiny-imagenet-c", "mobilenet_v1", ["fog"], origin="made", **tiny))
    assert all("images made here" in title for title in tables)
    assert "a frost that is drawn" in next(iter(tables.values())).setting


def test_other_data_sets_and_networks_have_none_of_the_papers_tables() -> None:
    assert tables_of([line(data="demo"), line(data="digits", backbone="resnet18", epochs=5)]) == {}
