"""The printed numbers against the paper's text, typed in here by hand."""

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest

from equipoise.research.report.paper import (
    ROWS,
    VARIANCE,
    Printed,
    experiments,
    paper_name,
    paper_variants,
    printed_tables,
    run_to_run,
)
from equipoise.research.report.results import Scope
from tests.research.report.written import line, made

RUN_TO_RUN = ("accuracy", "ece", "entropy", "nll")
"""The order of the four numbers of a list of run-to-run variances, as far as the paper says."""
TARGETS = ["Art", "Clipart", "Product", "Real World"]
HOME, TINY = "office-home", "tiny-imagenet-c"
EFFICIENT, MOBILE = "efficientnet_b0", "mobilenet_v1"


@pytest.mark.parametrize(
    ("data", "backbone", "metric", "row", "column", "value", "std", "bold"),
    [
        (HOME, MOBILE, "entropy", "No Adapt", "Art", 0.950, None, False),
        (HOME, MOBILE, "ece", "DEC", "Real World", 0.018, None, True),
        (HOME, MOBILE, "nll", "SoTTA", "Clipart", 3.240, None, False),
        (HOME, MOBILE, "accuracy", "T3A", "average", 0.617, None, True),
        (HOME, MOBILE, "nll", VARIANCE, "average", 6.467, None, False),
        (HOME, EFFICIENT, "entropy", "ETA", "average", 0.422, None, False),
        (HOME, EFFICIENT, "accuracy", VARIANCE, "average", 0.060, None, False),
        ("digits", "smallcnn", "nll", "No Adapt", "average", 4.465, None, False),
        ("digits", "smallcnn", "accuracy", "DEC", "average", 0.648, None, True),
        ("digits", "smallcnn", "nll", VARIANCE, "average", 46.240, None, False),
        ("pacs", EFFICIENT, "accuracy", "T3A", "average", 0.897, None, True),
        ("pacs", EFFICIENT, "ece", "SoTTA", "average", 0.096, None, False),
        ("pacs", MOBILE, "ece", "SoTTA", "average", 0.102, None, False),
        ("pacs", MOBILE, "entropy", VARIANCE, "average", 0.099, None, False),
        (TINY, MOBILE, "accuracy", "SoTTA", "Tier 5", 0.25, 0.08, True),
        (TINY, MOBILE, "accuracy", "DEC", "Tier 5", 0.24, 0.08, False),
        (TINY, MOBILE, "nll", "T3A", "Tier 5", 19.55, 15.24, False),
        (TINY, EFFICIENT, "accuracy", "DEC", "Tier 4", 0.35, 0.10, False),
        (TINY, EFFICIENT, "entropy", "DEC", "Tier 5", 5.32, 0.80, False),
        (TINY, EFFICIENT, "ece", "DEC", "Tier 5", 0.04, 0.03, True),
        (TINY, EFFICIENT, "nll", "ETA", "Tier 3", 4.89, 0.64, False),
    ],
)
def test_numbers_are_those_of_the_paper(
    data: str, backbone: str, metric: str, row: str, column: str, value: float, std: float | None, bold: bool
) -> None:
    assert _printed(data, backbone, metric, row, column)[:3] == (value, std, bold)


def test_run_to_run_variances_are_those_of_the_paper() -> None:
    values = {data: [found[metric].value for metric in RUN_TO_RUN] for data, found in run_to_run().items()}
    assert values == {
        "digits": [4.39e-3, 5.51e-3, 3.85e-3, 1.00e-3],
        HOME: [5.00e-2, 1.12e-5, 1.66e-5, 7.29e-3],
        "pacs": [1.21e-3, 1.02e-4, 2.09e-3, 2.00e-4],
        TINY: [1.39e-3, 1.12e-7, 2.46e-3, 2.40e-1],
    }


def test_all_452_cells_are_there_in_ten_tables_in_the_papers_order() -> None:
    tables = [(table.label, table.data, table.backbone, len(table.cells)) for table in printed_tables()]
    assert tables == [
        ("tab:HO_metrics", HOME, MOBILE, 72),
        ("tab::numbers_avg", "digits", "smallcnn", 28),
        ("tab:pacs_avg_mob", "pacs", EFFICIENT, 28),
        ("tab:mobilenet_accuracy", TINY, MOBILE, 30),
        ("tab:TIN_C_metrics", TINY, EFFICIENT, 90),
        ("tab:TIN_C_metrics_mobilenet", TINY, MOBILE, 90),
        ("tab:tin_eff_accuracy", TINY, EFFICIENT, 30),
        ("tab:HO_eff_avg", HOME, EFFICIENT, 28),
        ("tab:HO_avg_mob", HOME, MOBILE, 28),
        ("tab:pacs_avg_mob", "pacs", MOBILE, 28),
    ]
    assert sum(cells for *_, cells in tables) == 452
    keys = [(table.data, table.backbone, *key) for table in printed_tables() for key in table.cells]
    assert len(set(keys)) == 452


def test_every_table_has_the_six_algorithms_and_bold_is_the_best() -> None:
    for table in printed_tables():
        for metric, column in product(table.metrics, table.columns):
            cells = [table.cells[metric, row, column] for row in ROWS]
            best = (max if metric == "accuracy" else min)(cell.value for cell in cells)
            assert [cell.bold for cell in cells] == [
                cell.value == best and metric != "entropy" for cell in cells
            ]


def test_names_are_ours() -> None:
    assert {table.data for table in printed_tables()} == {"digits", "pacs", HOME, TINY}
    assert {table.backbone for table in printed_tables()} == {"smallcnn", EFFICIENT, MOBILE}
    assert [paper_name(name) for name in (TINY, MOBILE, "demo")] == ["TIN-C", "MobileNet", "demo"]


def found(*lines: dict[str, Any]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    variants, notes = paper_variants(made(lines).frame)
    return {row: tuple(variant) for row, variant in variants.items()}, notes


def test_the_papers_algorithms_are_found_by_method_and_options() -> None:
    lines = [line(method) for method in ROWS.values()] + [line(method, "mean") for method in ROWS.values()]
    assert found(*lines) == (
        {row: (method, "mean" if row == "DEC" else "none") for row, method in ROWS.items()},
        [],
    )
    released = line("dec", "mean", options={"reading": "released"})
    mine = line("mine", "mean", method="dec", options={"reading": "paper", "learning_rate": 1e-7})
    assert found(released, mine) == ({"DEC": ("mine", "mean")}, [])
    assert found(released, line("dec-2", method="dec")) == ({}, [])


def test_between_several_that_fit_the_label_decides_or_none_is_taken() -> None:
    slow = line("dec-slow", "mean", method="dec", options={"learning_rate": 1e-9})
    variants, notes = found(line("dec", "mean"), slow)
    assert variants == {"DEC": ("dec", "mean")}
    assert notes == ["Several results are DEC as in the paper (dec, dec-slow): dec is shown."]
    variants, notes = found(line("tent", batch_size=16), line("tent", batch_size=64))
    assert variants == {}
    assert "none is shown; call one tent in the recipe" in notes[0]


def test_the_variances_of_the_paper_are_those_of_a_sample() -> None:
    largest: dict[str, float] = {"entropy": 0.116, "ece": 0.011, "nll": 6.467}
    for metric, expected in largest.items():
        rows = [[_printed(HOME, MOBILE, metric, row, target).value for target in TARGETS] for row in ROWS]
        assert _printed(HOME, MOBILE, metric, VARIANCE, "average").value == expected
        sample, population = (np.var(rows, axis=1, ddof=ddof).max() for ddof in (1, 0))
        assert abs(sample - expected) < 0.0025
        assert abs(population - expected) > 0.002
        assert abs(population - expected) > 3 * abs(sample - expected)


def test_doubtful_cells_carry_their_reason() -> None:
    doubtful = Counter(
        (table.data, table.backbone, key[0], key[1])
        for table in printed_tables()
        for key, cell in table.cells.items()
        if cell.doubt
    )
    expected = {("pacs", backbone, "nll", row): 1 for backbone in (EFFICIENT, MOBILE) for row in ROWS}
    expected |= {(HOME, MOBILE, "nll", row): 1 for row in ("No Adapt", "T3A", "ETA")}
    expected |= {
        (HOME, MOBILE, "entropy", "ETA"): 1,
        (TINY, EFFICIENT, "nll", "ETA"): 2,
        (TINY, MOBILE, "entropy", "No Adapt"): 2,
        (TINY, MOBILE, "entropy", "ETA"): 2,
        ("digits", "smallcnn", "entropy", "T3A"): 1,
        ("digits", "smallcnn", "nll", VARIANCE): 1,
    }
    assert doubtful == expected
    assert "2.485" in _printed(HOME, MOBILE, "nll", "No Adapt", "average").doubt
    assert _printed(HOME, EFFICIENT, "nll", "No Adapt", "average").doubt == ""
    assert _printed(HOME, MOBILE, "entropy", "ETA", "Art").doubt == ""


def test_the_reasons_are_true() -> None:
    for row in ROWS:
        assert _printed("pacs", EFFICIENT, "nll", row, "average").value == (
            _printed("pacs", MOBILE, "nll", row, "average").value
        )
    for row, mean in (("No Adapt", 2.485), ("T3A", 5.629), ("ETA", 2.588)):
        values = [_printed(HOME, MOBILE, "nll", row, target).value for target in TARGETS]
        assert np.mean(values) == pytest.approx(mean, abs=6e-4)
        copies = {_printed(HOME, backbone, "nll", row, "average").value for backbone in (EFFICIENT, MOBILE)}
        assert len(copies) == 1
    entropies = [_printed(HOME, MOBILE, "entropy", "ETA", target).value for target in TARGETS]
    assert np.mean(entropies) == pytest.approx(0.830, abs=6e-4)
    # Three numbers that are not negative and have mean m vary by 3m² at most: one has all of the sum.
    means = {row: _printed("digits", "smallcnn", "nll", row, "average").value for row in ROWS}
    assert [row for row, mean in means.items() if 3 * mean**2 >= 46.24] == ["No Adapt"]
    share = 0.9 * 3 * means["No Adapt"]
    assert np.var([share, 3 * means["No Adapt"] - share, 0.0], ddof=1) < 46.24


def test_doubts_about_run_to_run_lists() -> None:
    doubts = {
        (data, metric): bool(cell.doubt)
        for data, cells in run_to_run().items()
        for metric, cell in cells.items()
    }
    assert [key for key, doubtful in doubts.items() if doubtful] == [
        ("digits", "nll"),
        (HOME, "accuracy"),
        (HOME, "nll"),
        ("pacs", "nll"),
        *((TINY, metric) for metric in RUN_TO_RUN),
    ]
    both = run_to_run()[TINY]["nll"].doubt
    assert "names three metrics" in both
    assert "15 domains in 5 tiers" in both


@pytest.mark.parametrize(
    ("scope", "differences"),
    [
        (("pacs", None, 15, None, "shuffled"), []),
        (("pacs", None, 15, 227, "shuffled"), []),
        ((TINY, None, 25, 256, "shuffled"), []),
        ((TINY, None, 25, None, "shuffled"), ["images of 64 px (the paper: 256)"]),
        (
            ("digits", 500, 1, None, "shuffled"),
            ["at most 500 images of a part", "1 epoch (the paper: 5)"],
        ),
        (
            (HOME, None, 15, 96, "sorted"),
            ["images of 96 px (the paper: 128)", "a sorted stream (the paper's is taken to be shuffled)"],
        ),
    ],
)
def test_differences_from_the_paper(
    scope: tuple[str, int | None, int, int | None, str], differences: list[str]
) -> None:
    assert experiments()[scope[0]].differences(Scope(*scope, "official", "net", "online")) == differences


@pytest.mark.parametrize(
    ("data", "domains", "tiers", "seeds", "told"),
    [
        ("pacs", 4, 0, [0, 1, 2], ""),
        ("pacs", 2, 0, [1], "2 of 4 domains, 1 of 3 seeds"),
        ("pacs", 4, 0, [0, 1, 7], "2 of 3 seeds"),
        ("digits", 2, 0, [0, 1, 2], "2 of 3 domains"),
        (HOME, 3, 0, [0, 1, 2], "3 of 4 domains"),
        (TINY, 15, 3, [0, 1, 2], "3 of 5 tiers"),
        (TINY, 14, 5, [0, 1, 2], "14 of 15 domains"),
    ],
)
def test_what_results_lack_of_the_papers(
    data: str, domains: int, tiers: int, seeds: list[int], told: str
) -> None:
    assert experiments()[data].lacking(domains, tiers, seeds) == told
    assert experiments()[data].seeds == [0, 1, 2]


def _printed(data: str, backbone: str, metric: str, row: str, column: str) -> Printed:
    (found,) = (
        table.cells[metric, row, column]
        for table in printed_tables()
        if (table.data, table.backbone) == (data, backbone) and (metric, row, column) in table.cells
    )
    return found
