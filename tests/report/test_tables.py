from typing import Any

import numpy as np
import pytest

from equipoise.report.numbers.paper import ROWS, SIGMA
from equipoise.report.numbers.results import RunResults
from equipoise.report.tables.papers import all_tables, paper_tables
from equipoise.report.tables.table import Column, Row, Table, TableEntry, common_gap, written
from tests.report.reading import HOME, ORDER, one, read, row, scores
from tests.report.writer import PAPER_METHODS, grid

CORRUPTIONS = [f"c{number}" for number in range(15)]
TIERS = [1, 2, 3, 4, 5]
FORMS = {"source": "none", "dec": "mean", "t3a": "none", "eta": "none", "tent": "none", "sotta": "none"}
LABELS = dict(zip(ORDER, PAPER_METHODS, strict=True))


def all_of_the_papers() -> list[dict[str, Any]]:
    lines = grid("digits", "smallcnn", ["mnist", "usps", "svhn"], epochs=5)
    for backbone in ("efficientnet_b0", "mobilenet_v1"):
        lines += grid("pacs", backbone, ["art", "cartoon", "photo", "sketch"])
        lines += grid("office-home", backbone, HOME)
        lines += grid(
            "tiny-imagenet-c",
            backbone,
            CORRUPTIONS,
            tiers=TIERS,
            seeds=[0],
            temperings=["none", "mean"],
            epochs=25,
            input_size=256,
        )
    return lines


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[Table]]:
    lines = all_of_the_papers()
    return lines, paper_tables(read(tmp_path_factory.mktemp("all"), lines), "online")


Everything = tuple[list[dict[str, Any]], list[Table]]


def test_every_printed_cell_stands_in_a_table_beside_ours(everything: Everything) -> None:
    _, tables = everything
    cells = [entry for table in tables for each in table.rows for entry in each.entries]
    printed = [entry for entry in cells if entry.printed is not None]
    assert len(printed) == 452 + 16  # and the run-to-run variances, which have no column in a table
    assert cells == printed
    single_seed = [entry for entry in cells if entry.ours is None]
    assert len(single_seed) == 4  # one seed of TIN-C has no run-to-run variance


def test_without_results_there_are_no_tables() -> None:
    nothing = RunResults(())
    assert paper_tables(nothing, "online") == []
    assert all_tables(nothing) == []


def test_the_tables_come_in_the_papers_order_and_layout(everything: Everything) -> None:
    _, tables = everything
    assert [table.key for table in tables] == [
        "office-home-mobilenet_v1-paper-domain-online",
        "digits-smallcnn-paper-average-online",
        "pacs-efficientnet_b0-paper-average-online",
        "tiny-imagenet-c-mobilenet_v1-paper-tier-accuracy-online",
        "tiny-imagenet-c-efficientnet_b0-paper-tier-entropy-ece-nll-online",
        "tiny-imagenet-c-mobilenet_v1-paper-tier-entropy-ece-nll-online",
        "tiny-imagenet-c-efficientnet_b0-paper-tier-accuracy-online",
        "office-home-efficientnet_b0-paper-average-online",
        "office-home-mobilenet_v1-paper-average-online",
        "pacs-mobilenet_v1-paper-average-online",
        "digits-paper-run-to-run-online",
        "office-home-paper-run-to-run-online",
        "pacs-paper-run-to-run-online",
        "tiny-imagenet-c-paper-run-to-run-online",
    ]
    domain, average = tables[0], tables[1]
    assert [each.label for each in domain.rows] == ORDER == list(ROWS)
    assert [(column.metric, column.heading) for column in domain.columns] == [
        (metric, target) for metric in ("Entropy", "ECE ↓", "NLL ↓") for target in HOME
    ]
    assert [each.label for each in average.rows] == [*ORDER, SIGMA]
    assert [(column.metric, column.heading, column.decimals) for column in average.columns] == [
        (metric, "", 3) for metric in ("Accuracy ↑", "ECE ↓", "Entropy", "NLL ↓")
    ]
    tiers = tables[3]
    assert [(column.heading, column.decimals) for column in tiers.columns] == [
        (f"Tier {tier}", 2) for tier in TIERS
    ]
    assert domain.title == "HomeOffice, MobileNet: entropy, ECE and NLL, by domain"
    assert not any("tab:" in table.title for table in tables)  # labels that no reader of the paper sees


def test_by_domain_every_cell_is_a_mean_over_seeds(everything: Everything) -> None:
    lines, tables = everything
    table = tables[0]
    for label in ORDER:
        for position, (metric, target) in enumerate(
            (metric, target) for metric in ("entropy", "ece", "nll") for target in HOME
        ):
            found = scores(
                lines,
                metric,
                data="office-home",
                backbone="mobilenet_v1",
                label=LABELS[label],
                tempering=FORMS[LABELS[label]],
                target=target,
            )
            assert len(found) == 3
            entry = row(table, label)[position]
            assert entry.ours == pytest.approx(np.mean(found))
            assert entry.ours_std is None
            assert entry.missing == ""
    assert row(table, "DEC")[4].printed == 0.080
    assert row(table, "DEC")[4].printed_best


@pytest.mark.parametrize("position", [2, 7, 8, 9])
def test_averages_and_the_largest_variance_over_domains(everything: Everything, position: int) -> None:
    lines, tables = everything
    table = tables[position]
    data = "pacs" if table.key.startswith("pacs") else "office-home"
    backbone = "mobilenet_v1" if "mobilenet_v1" in table.key else "efficientnet_b0"
    for column, metric in enumerate(("accuracy", "ece", "entropy", "nll")):
        variances = []
        for label in ORDER:
            by_domain = np.reshape(
                scores(
                    lines,
                    metric,
                    data=data,
                    backbone=backbone,
                    label=LABELS[label],
                    tempering=FORMS[LABELS[label]],
                ),
                (4, 3),
            ).mean(axis=1)
            assert row(table, label)[column].ours == pytest.approx(by_domain.mean())
            variances.append(np.var(by_domain, ddof=1))
        sigma = row(table, SIGMA)[column]
        assert sigma.ours == pytest.approx(max(variances))
        assert not sigma.best
        assert sigma.missing == ""


def test_by_tier_with_the_spread_over_domains(everything: Everything) -> None:
    lines, tables = everything
    for label in ORDER:
        for tier in TIERS:
            which = {"tempering": FORMS[LABELS[label]], "label": LABELS[label], "tier": tier}
            found = scores(lines, "ece", data="tiny-imagenet-c", backbone="mobilenet_v1", **which)
            entry = row(tables[5], label)[5 + tier - 1]
            assert entry.ours == pytest.approx(np.mean(found))
            assert entry.ours_std == pytest.approx(np.std(found, ddof=1))
            assert entry.missing == "1 of 3 seeds"
    entry = row(tables[5], "DEC")[5]
    assert (entry.printed, entry.printed_std) == (0.05, 0.01)
    assert "Every number of ours has only 1 of 3 seeds." in tables[5].notes


def test_run_to_run_is_the_largest_of_any_algorithm_and_network(everything: Everything) -> None:
    lines, tables = everything
    table = one(tables, "pacs-paper-run-to-run-online")
    for column, metric in enumerate(("accuracy", "ece", "entropy", "nll")):
        variances = [
            np.var(
                np.reshape(
                    scores(
                        lines,
                        metric,
                        data="pacs",
                        backbone=backbone,
                        label=LABELS[label],
                        tempering=FORMS[LABELS[label]],
                    ),
                    (4, 3),
                ).mean(axis=0),
                ddof=1,
            )
            for backbone in ("efficientnet_b0", "mobilenet_v1")
            for label in ORDER
        ]
        assert row(table, SIGMA)[column].ours == pytest.approx(max(variances))
        assert row(table, SIGMA)[column].missing == ""
    assert [entry.printed for entry in row(table, SIGMA)] == [1.21e-3, 1.02e-4, 2.09e-3, 2e-4]
    tiny = row(one(tables, "tiny-imagenet-c-paper-run-to-run-online"), SIGMA)
    assert [entry.missing for entry in tiny] == ["1 of 3 seeds"] * 4


def test_the_best_of_ours_is_the_best_as_written_and_entropy_has_none(everything: Everything) -> None:
    _, tables = everything
    for table in tables[:10]:
        for position, column in enumerate(table.columns):
            entries = [row(table, label)[position] for label in ORDER]
            shown = [written(entry.ours or 0.0, column) for entry in entries]
            if column.metric == "Entropy":
                assert not any(entry.best for entry in entries)
                continue
            best = (max if column.metric == "Accuracy ↑" else min)(shown, key=float)
            assert [entry.best for entry in entries] == [each == best for each in shown]


def test_doubtful_cells_are_marked_and_explained(everything: Everything) -> None:
    _, tables = everything
    home = one(tables, "office-home-mobilenet_v1-paper-average-online")
    marked = {each.label: [bool(entry.suspicious) for entry in each.entries] for each in home.rows}
    assert marked["No Adapt"] == [False, False, False, True]
    assert marked["ETA"] == [False, False, True, True]
    assert marked["DEC"] == [False] * 4
    assert any(note.startswith("† NLL of T3A: 4.321 is also") and "5.629" in note for note in home.notes)
    pacs = one(tables, "pacs-efficientnet_b0-paper-average-online")
    (note,) = [note for note in pacs.notes if note.startswith("†")]
    assert note.startswith("† NLL of No Adapt, DEC, T3A, ETA, TENT and SoTTA: the NLL of all six")
    tiny = one(tables, "tiny-imagenet-c-efficientnet_b0-paper-tier-entropy-ece-nll-online")
    assert any(note.startswith("† NLL of ETA (Tier 2 and Tier 3): falls") for note in tiny.notes)
    run = one(tables, "tiny-imagenet-c-paper-run-to-run-online")
    assert any(note.startswith("† Accuracy, ECE and Entropy of σ²_max: said to be") for note in run.notes)


def test_the_papers_test_is_told_below_its_tables(everything: Everything) -> None:
    _, tables = everything
    told = [note for note in tables[0].notes if "paired t-test over 4 shifts" in note]
    assert [note.split(":")[0] for note in told] == ["ECE", "NLL"]
    assert "ECE: DEC 0." in told[0]
    tiny = [note for note in tables[4].notes if "paired t-test over 75 shifts" in note]
    assert len(tiny) == 2


def test_the_tests_over_tiers_come_with_their_caveat(everything: Everything) -> None:
    _, tables = everything
    caveat = [table.key for table in tables if any("not independent" in note for note in table.notes)]
    assert caveat == [table.key for table in tables[3:7]]


def test_the_papers_claim_stands_beside_the_tests(everything: Everything) -> None:
    _, tables = everything
    claimed = [table.key for table in tables if any("claims p < 0.01" in note for note in table.notes)]
    assert claimed == [tables[0].key, tables[4].key, tables[5].key]


def test_numbers_as_written() -> None:
    column = Column("ECE ↓", "", decimals=2)
    assert [written(value, column) for value in (0.126, 1.0, -0.001, -0.126)] == [
        "0.13",
        "1.00",
        "0.00",
        "-0.13",
    ]
    spread = Column("p", "", significant=3)
    assert [written(value, spread) for value in (4.39e-3, 1.12e-7, 0.05)] == ["0.00439", "1.12e-07", "0.05"]
    least = Column("p", "", significant=3, least=1e-15)
    assert [written(value, least) for value in (0.0, 2e-17, 1e-15, 0.5)] == [
        "<1e-15",
        "<1e-15",
        "1e-15",
        "0.5",
    ]


def test_a_gap_is_common_only_if_every_number_of_ours_has_it() -> None:
    def table(*missing: str) -> Table:
        entries = tuple(TableEntry(ours=1.0, missing=each) for each in missing)
        columns = tuple(Column("a", "") for _ in entries)
        return Table(
            "k",
            "t",
            "online",
            (*columns, Column("b", "")),
            (Row("r", (*entries, TableEntry(missing="no results"))),),
        )

    assert common_gap(table("x", "x")) == "x"
    assert common_gap(table("x", "y")) == ""
    assert common_gap(table("x", "")) == ""
    assert common_gap(table()) == ""
