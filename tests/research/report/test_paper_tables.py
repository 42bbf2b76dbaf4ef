"""The paper's tables beside ours; every number is calculated again from the lines."""

from itertools import product
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
HEADS = {"accuracy": "Accuracy ↑", "ece": "ECE ↓", "entropy": "Entropy", "nll": "NLL ↓"}
AVERAGE = "accuracy, ECE, entropy and NLL, average over the domains, beside the paper"
BY_DOMAIN = "entropy, ECE and NLL, by domain, beside the paper"
BY_TIER = "entropy, ECE and NLL, by tier, beside the paper"
PACS = ["art", "cartoon", "photo", "sketch"]
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
        lines += grid("pacs", backbone, PACS)
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
    assert list(tables) == [
        f"Digits, SmallCNN, online: {AVERAGE}",
        f"HomeOffice, EfficientNetB0, online: {AVERAGE}",
        f"HomeOffice, MobileNet, online: {BY_DOMAIN}",
        f"HomeOffice, MobileNet, online: {AVERAGE}",
        f"PACS, EfficientNetB0, online: {AVERAGE}",
        f"PACS, MobileNet, online: {AVERAGE}",
        f"TIN-C, EfficientNetB0, online: {BY_TIER}",
        "TIN-C, EfficientNetB0, online: accuracy, by tier, beside the paper",
        "TIN-C, MobileNet, online: accuracy, by tier, beside the paper",
        f"TIN-C, MobileNet, online: {BY_TIER}",
        *(
            f"{data}, online: run-to-run variance, the largest of any algorithm and network"
            for data in ("Digits", "HomeOffice", "PACS", "TIN-C")
        ),
    ]


AVERAGES = [
    (f"HomeOffice, MobileNet, online: {AVERAGE}", "office-home", "mobilenet_v1"),
    (f"HomeOffice, EfficientNetB0, online: {AVERAGE}", "office-home", "efficientnet_b0"),
    (f"PACS, MobileNet, online: {AVERAGE}", "pacs", "mobilenet_v1"),
    (f"PACS, EfficientNetB0, online: {AVERAGE}", "pacs", "efficientnet_b0"),
]


@pytest.mark.parametrize(
    ("title", "data", "backbone", "places"),
    [
        *((*average, {"": {}}) for average in AVERAGES),
        (f"HomeOffice, MobileNet, online: {BY_DOMAIN}", *AVERAGES[0][1:], {t: {"target": t} for t in HOME}),
        (
            f"TIN-C, MobileNet, online: {BY_TIER}",
            "tiny-imagenet-c",
            "mobilenet_v1",
            {f"Tier {tier}": {"tier": tier} for tier in TIERS},
        ),
    ],
)
def test_every_cell_is_a_mean_with_its_deviation(
    everything: Everything, title: str, data: str, backbone: str, places: dict[str, dict[str, Any]]
) -> None:
    """Over seeds first; the deviation is over the seeds or, by tier as printed, over the domains."""
    lines, tables = everything
    expected = ("1 of 3 seeds", ".2f") if BY_TIER in title else ("", ".3f")
    for row, metric, (column, where) in product(ORDER, HEADS, places.items()):
        if metric == "accuracy" and AVERAGE not in title:
            continue
        runs = np.array(scores(lines, metric, row, data=data, backbone=backbone, **where))
        runs = runs.reshape((4, 3) if AVERAGE in title else (1, -1))
        mine = entry(tables[title], row, HEADS[metric], column)
        assert (mine.value, mine.std) == pytest.approx((runs.mean(), np.std(runs.mean(axis=0), ddof=1)))
        assert (mine.missing, mine.spec) == expected


@pytest.mark.parametrize(("title", "data", "backbone"), AVERAGES)
def test_the_largest_variance_over_domains(
    everything: Everything, title: str, data: str, backbone: str
) -> None:
    lines, tables = everything
    for metric, head in HEADS.items():
        runs = [scores(lines, metric, row, data=data, backbone=backbone) for row in ORDER]
        variances = np.var(np.reshape(runs, (6, 4, 3)).mean(axis=2), axis=1, ddof=1)
        sigma = entry(tables[title], SIGMA, head)
        assert sigma.value == pytest.approx(variances.max())
        assert (sigma.best, sigma.missing) == (False, "")


def test_printed_numbers_are_beside_ours_and_claims_are_tested(everything: Everything) -> None:
    _, tables = everything
    home, tiny = (
        tables[f"HomeOffice, MobileNet, online: {BY_DOMAIN}"],
        tables[f"TIN-C, MobileNet, online: {BY_TIER}"],
    )
    assert list(home.frame.index) == ORDER == list(ROWS)
    dec = entry(home, "DEC", "ECE ↓", "Art")
    assert (dec.printed, dec.bold) == (0.080, True)
    dec = entry(tiny, "DEC", "ECE ↓", "Tier 1")
    assert (dec.printed, dec.printed_std) == (0.05, 0.01)
    assert "Every number of ours has only 1 of 3 seeds." in tiny.notes
    claim = next(note for note in tiny.notes if "claims p < 0.01" in note)
    assert "paired t-test gives ECE p = " in claim
    assert "not independent" in claim


def test_run_to_run_is_the_largest_of_any_algorithm_and_network(everything: Everything) -> None:
    lines, tables = everything
    table = tables["PACS, online: run-to-run variance, the largest of any algorithm and network"]
    printed = []
    for metric, head in HEADS.items():
        nets = ("efficientnet_b0", "mobilenet_v1")
        runs = [scores(lines, metric, row, data="pacs", backbone=net) for net in nets for row in ORDER]
        mine = entry(table, SIGMA, head.rstrip(" ↑↓"))
        variances = np.var(np.reshape(runs, (12, 4, 3)).mean(axis=1), axis=1, ddof=1)
        assert mine.value == pytest.approx(variances.max())
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
    home = tables[f"HomeOffice, MobileNet, online: {AVERAGE}"]
    assert entry(home, "T3A", "NLL ↓").doubt
    assert not entry(home, "DEC", "NLL ↓").doubt
    assert any(note.startswith("† NLL of T3A: 4.321 is also") and "5.629" in note for note in home.notes)
    tiny = tables[f"TIN-C, EfficientNetB0, online: {BY_TIER}"]
    assert any(note.startswith("† NLL of ETA (Tier 2) and NLL of ETA (Tier 3): falls") for note in tiny.notes)


def test_a_trial_is_called_one_and_kept_apart() -> None:
    trial = grid("pacs", "efficientnet_b0", ["art", "photo"], seeds=[1], limit=500, epochs=1)
    tables = tables_of([*grid("pacs", "efficientnet_b0", PACS), *trial])
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
    lines = grid("pacs", "efficientnet_b0", PACS)
    kept = []
    for each in lines:
        label, target, seed = (each["cell"][key] for key in ("label", "target", "seed"))
        lacking = (label == "tent" and target != "art") or (label, target, seed) == ("eta", "art", 2)
        if label != "sotta" and not lacking:
            each["scores"]["ece"] *= label != "tent"
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
