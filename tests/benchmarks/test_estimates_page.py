"""The programs behind docs/estimates.md: the windows, tempering by an estimate, the goals, and the page."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.estimators import estimates_page, field, measure_estimates
from benchmarks.estimators.field import Spans
from benchmarks.estimators.measure_estimates import measure, tempered
from benchmarks.estimators.subjects import Case, Subject, mlp, tables
from equipoise.calibration.rehearsal import Estimate


def test_spans_are_of_whole_batches_and_chunks() -> None:
    spans = Spans.of(5570)
    assert spans.batches[-1] == slice(5500, 5550)
    assert (len(spans.batches), len(spans.moments)) == (111, 102)
    assert (spans.moments[0], spans.moments[-1]) == (slice(0, 500), slice(5050, 5550))
    assert spans.chunks == [slice(0, 2500), slice(2500, 5000)]
    assert Spans.of(1500).chunks == [slice(0, 1500)]


def test_estimates_of_batches_are_the_newest_at_a_moment_and_the_mean_over_a_chunk() -> None:
    found = field.of_batches([float(value) for value in range(12)], Spans.of(600))
    assert found.moments.tolist() == [9, 10, 11]
    assert found.chunks.tolist() == [5.5]


def test_an_estimate_tempers_the_batch_after_its_window() -> None:
    logits = torch.tensor([[4.0, 0.0]]).repeat(600, 1)
    divided = tempered(logits, torch.tensor([0.75, 0.9, 0.6]), Spans.of(600))
    confidence = divided.softmax(1).amax(1)
    assert torch.equal(divided[:500], logits[:500])
    # Temperatures lie between those of a grid, where confidence is interpolated.
    assert confidence[500:550].mean() == pytest.approx(0.75, abs=0.005)
    assert confidence[550:].mean() == pytest.approx(0.9, abs=0.005)


def test_intervals_count_what_they_hold_and_what_inside_knew() -> None:
    estimates = [
        Estimate(0.1, 0.0, 0.2, True),  # before the first moment
        Estimate(0.5, 0.4, 0.6, True),
        Estimate(0.5, 0.4, 0.7, False),
        Estimate(0.5, 0.4, 0.6, True),
        Estimate(0.5, 0.4, 0.6, False),
    ]
    found = measure_estimates.intervals(estimates, torch.tensor([0.45, 0.68, 0.7, 0.3]))
    assert found["coverage"] == 0.5
    assert found["width"] == pytest.approx((0.2 + 0.3 + 0.2 + 0.2) / 4)
    assert (found["inside"], found["off"], found["off_outside"]) == (0.5, 3, 2)


def rows(
    kind: str, data: str, stream: str, off: float, above: float = 0.0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of a stream: ours is off by so much, CBPE by twice as much, and ECE above no adaptation."""
    key = {"kind": kind, "data": data, "network": "n", "seed": 0, "rehearsal": 0, "stream": stream}
    errors = {"error_moments": off, "error_chunks": off, "ece": off, "bias_chunks": off}
    held = {"coverage": 0.9, "width": 0.1, "inside": 1.0, "off": 0, "off_outside": 0}
    estimates = [
        {
            **key,
            **errors,
            "answers": who,
            "estimator": name,
            "moments": 3,
            "error_chunks": off * more,
            **held,
        }
        for who in ("source", "poise")
        for name, more in (("CBPE", 2), ("rehearsed", 1))
    ]
    facts = {"accuracy_none": 0.8, "accuracy_poise": 0.795, "worst_chunk": -0.06, "by_source": 0.5}
    facts |= {"ece_none": 0.02, "ece_source": 0.02 + above, "ece_poise": 0.02 + above}
    return pd.DataFrame(estimates), pd.DataFrame([key | facts])


def joined(*pairs: tuple[pd.DataFrame, pd.DataFrame]) -> list[pd.DataFrame]:
    return [estimates_page.named(pd.concat(frames)) for frames in zip(*pairs, strict=True)]


def reached(frames: Sequence[pd.DataFrame]) -> list[bool]:
    return [goal.reached for goal in estimates_page.goals(*frames)]


def test_goals_are_of_the_mean_of_the_tables_and_of_the_worst_run() -> None:
    met = joined(
        rows("table", "elec", "in order", 0.07, above=0.016),
        rows("table", "weather", "in order", 0.02),
        rows("table", "weather", "in order", 0.02),
        rows("digits", "mnist", "random order", 0.5, above=0.04),
        rows("under-confident digits", "svhn", "random order", 0.05, above=0.021),
    )
    # The error is (.07 + .02) / 2, whatever the number of runs: too much for source, not for poise.
    # ECE of the worst run is too much for source. Then accuracy (-.005), a chunk (-.06), intervals; ECE
    # of digits (.06) and of doubtful networks (.041, .021 above); errors of both.
    of_tables = [False, True, True, True, False, True, True, False, True, True]
    assert reached(met) == [*of_tables, False, True, False, False, True]


def test_rows_that_an_interrupted_command_left_twice_count_once(tmp_path: Path) -> None:
    estimates, _ = rows("table", "elec", "in order", 0.07)
    measure_estimates.add(tmp_path / "estimates.csv", estimates)
    measure_estimates.add(tmp_path / "estimates.csv", estimates)
    assert len(measure_estimates.read(tmp_path / "estimates.csv")) == len(estimates)


def test_folders_of_commands_side_by_side_are_merged(tmp_path: Path) -> None:
    made = [rows("table", "elec", "in order", 0.07), rows("table", "weather", "in order", 0.05)]
    for place, (estimates, streams) in enumerate(made):
        folder = tmp_path / str(place)
        folder.mkdir()
        measure_estimates.add(folder / "estimates.csv", estimates)
        measure_estimates.add(folder / "streams.csv", streams)
    out = tmp_path / "out"
    measure_estimates.merge([tmp_path / "0", tmp_path / "1"], out)
    for name in ("estimates.csv", "streams.csv"):
        parts = [measure_estimates.read(tmp_path / at / name) for at in ("0", "1")]
        assert measure_estimates.read(out / name).equals(pd.concat(parts, ignore_index=True))


def made_up_table(path: Path) -> None:
    """A table of 600 rows, of which the last third is moved."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(600, 4)).astype(np.float16)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.uint8)
    x[400:] += 0.5
    np.savez(
        path,
        x_train=x[:300],
        y_train=y[:300],
        x_held=x[300:],
        y_held=y[300:],
        x_stream=x,
        y_stream=y,
    )


def test_a_table_is_a_case_for_each_network_and_seed(tmp_path: Path) -> None:
    made_up_table(tmp_path / "made_up.npz")
    cases = list(tables(tmp_path, [0, 1]))
    assert [(case.data, case.network, case.seed) for case in cases] == [
        ("made_up", "MLP, batch norm", 0),
        ("made_up", "MLP, layer norm", 0),
        ("made_up", "MLP, batch norm", 1),
        ("made_up", "MLP, layer norm", 1),
    ]


@pytest.mark.slow
def test_the_command_measures_a_table_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up_table(tmp_path / "made_up.npz")
    monkeypatch.setattr("benchmarks.estimators.subjects.STEPS", 200)
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["", str(out), "--tables", str(tmp_path), "--quick"])
    measure_estimates.main()
    estimates, streams = (measure_estimates.read(out / f"{name}.csv") for name in ("estimates", "streams"))
    assert len(streams) == 2  # a network each
    # Seven on logits, AETTA of the source model alone, ours; no SICL, as tables have no channels.
    assert estimates.groupby(["network", "answers"])["estimator"].count().tolist() == [8, 9] * 2
    assert estimates[["error_moments", "error_chunks", "ece"]].notna().all(axis=None)
    assert (estimates["error_chunks"] < 0.5).all()
    assert "made_up" in estimates_page.parts("tables/estimates.md", out)["methods"]

    capsys.readouterr()
    measure_estimates.main()
    assert capsys.readouterr().err == ""
    assert len(measure_estimates.read(out / "streams.csv")) == 2


def test_what_is_measured_is_not_trained_again(tmp_path: Path) -> None:
    def refuse() -> Subject:
        raise AssertionError("trained again")

    _, facts = rows("table", "elec", "in order", 0.07)
    measure_estimates.add(tmp_path / "streams.csv", facts)
    measure([Case("table", "elec", "n", 0, refuse)], [0], tmp_path, quick=False)


def test_networks_of_tables_have_the_norm_that_is_named() -> None:
    names = [
        {type(part).__name__ for part in mlp(4, 2, norm)} - {"Linear", "ReLU"}
        for norm in ("batch norm", "layer norm")
    ]
    assert names == [{"BatchNorm1d"}, {"LayerNorm"}]
