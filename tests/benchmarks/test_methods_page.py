"""The measured costs of methods, and the tables of docs/methods.md that are made of them."""

import pandas as pd

import equipoise as eq
from benchmarks.methods import cost, methods_page
from benchmarks.speed.cases import BACKBONES, Case
from tests.support.models import drifted, make
from tests.testing.broken import Reading

ROW = {
    "method": "tent",
    "network": "SmallCNN",
    "device": "cpu",
    "batch": 64,
    "plain_forwards": 2.9512,
    "low": 2.7,
    "high": 123.4,
    "forwarded": 1.0,
    "backwards": 1.0,
    "plain_peak_mib": 24.0,
    "peak_mib": 1234.6,
    "captured": True,
    "machine": "a machine",
    "torch": "2.0",
}


def row_of(table: str, name: str) -> str:
    return next(line for line in table.splitlines() if line.startswith(f"| {name} |"))


def test_a_row_has_two_digits_and_what_was_not_measured_is_said() -> None:
    middle = {**ROW, "network": "MobileNet v1", "batch": 4, "captured": False}
    table = methods_page.costs(pd.DataFrame([ROW, middle]))
    few = ", batches of 4"
    cells = ["1, 1", "**3** (2.7 to 123)", f"**3** (2.7 to 123){few}", f"1,235{few}", "yes"]
    assert row_of(table, "`tent`") == f"| `tent` | {' | '.join(cells)} |"
    assert row_of(table, "`source`").count("not measured") == 5
    assert "Measured on a machine with torch 2.0." in table
    assert "GPU" not in table


def test_methods_of_a_second_machine_are_named() -> None:
    rows = [ROW, {**ROW, "method": "eta"}, {**ROW, "method": "sar", "machine": "another", "torch": "2.1"}]
    table = methods_page.costs(pd.DataFrame(rows))
    assert "Measured on a machine with torch 2.0, `sar` on another with torch 2.1." in table


def test_a_gpu_has_a_column_of_its_own() -> None:
    on_gpu = {**ROW, "network": "MobileNet v1", "device": "cuda", "plain_forwards": 3.456}
    table = methods_page.costs(pd.DataFrame([ROW, on_gpu]))
    assert row_of(table, "`tent`").endswith("| yes | **3.5** (2.7 to 123) |")


def test_options_that_rows_above_have_are_left_out() -> None:
    table = methods_page.options()
    assert "`engine` auto" in row_of(table, "every adapter")
    assert "`parameters` norm" in row_of(table, "methods with gradient steps")
    assert (
        row_of(table, "`shot_im`")
        .split(" | ")[1]
        .startswith("`confidence` 0.9, `optimizer` sgd, `parameters`")
    )
    assert row_of(table, "`source`") == "| `source` | no others |"


def test_passes_are_counted_by_the_model() -> None:
    case = Case(BACKBONES["smallcnn"], 4, 10, "cpu")
    assert cost.passes("source", case) == {"forwarded": 1.0, "backwards": 0}
    assert cost.passes("tent", case) == {"forwarded": 1.0, "backwards": 1}


def test_a_step_in_which_the_host_reads_is_not_captured() -> None:
    eq.register(Reading)
    model, source = make()
    for method, can in (("tent", True), (Reading.name, False)):
        adapter = eq.create(method, model, source)
        for seed in range(3):
            adapter(drifted(8, seed))
        assert cost.captured(adapter, drifted(8)) == can
