import io
from collections.abc import Callable

import pytest
from rich.console import Console
from rich.table import Table

from equipoise.demo.results import DemoResults
from equipoise.demo.table import domain_table, estimate_table, mean_table
from tests.demo.handmade import method, poise, results

RESULTS = results(
    method("no adaptation", accuracy=0.6),
    method("no adaptation", "median", accuracy=0.6, ece=0.15, entropy=2.5, nll=1.7),
    *poise(ece=0.3, mean_ece=0.05, median_ece=0.1),
)


def printed(table: Table) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=80).print(table)
    return text.getvalue().splitlines()


def cells(lines: list[str], label: str) -> list[str]:
    (found,) = [line for line in lines if line.startswith(f"│ {label} ")]
    return [cell.strip() for cell in found.strip("│").split("│")]


def test_a_row_has_accuracy_once_and_the_rest_raw_and_tempered() -> None:
    lines = printed(mean_table(RESULTS))
    assert cells(lines, "no adaptation") == [
        "no adaptation",
        "0.600★",
        "0.200 → 0.150",
        "1.80 → 1.70",
        "1.50 → 2.50",
    ]
    assert cells(lines, "poise  ")[1:4] == ["0.500", "0.300 → 0.050★", "1.80 → 1.50★"]
    assert cells(lines, "poise (median)")[2:4] == ["0.300 → 0.100", "1.80 → 1.50★"]


def test_raw_can_be_best() -> None:
    lines = printed(mean_table(results(method("a", ece=0.1), method("a", "median", ece=0.3))))
    assert cells(lines, "a")[2] == "0.100★→ 0.300"


def test_domains_have_accuracy_and_ece() -> None:
    assert cells(printed(domain_table(RESULTS)), "poise  ")[1:] == ["0.500 0.300→0.050"] * 3


def test_estimates_are_beside_the_accuracy() -> None:
    assert cells(printed(estimate_table(RESULTS)), "mnist") == ["mnist", "0.500", "0.550", "0.450 to 0.650"]


@pytest.mark.parametrize("table", [mean_table, domain_table, estimate_table])
def test_nothing_wraps_or_is_cut_in_80_columns(table: Callable[[DemoResults], Table]) -> None:
    lines = printed(table(RESULTS))
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    assert sum(line.startswith("│") for line in lines) == 3
