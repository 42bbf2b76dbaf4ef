"""The programs behind docs/decisions.md: the rivals, the streams, and which labels arrive."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

import equipoise as eq
from benchmarks.decisions import baselines, decisions_page
from benchmarks.decisions.baselines import Share, shared, spans, tally
from benchmarks.decisions.measure_decisions import labelled_rows, measured
from benchmarks.decisions.record_streams import record
from benchmarks.decisions.replay import Replay, named_cases, read
from benchmarks.decisions.subjects import Case, Stream, Subject, pictures

LOGITS = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.4, 0.35, 0.25], [0.1, 0.1, 0.8]]).log()
LABELS = torch.tensor([0, 1, 2, 2])


def test_a_tally_has_coverage_size_and_empty_sets() -> None:
    sets = torch.tensor([[True, True, False], [False, False, False], [False, True, False]])
    found = tally(sets, torch.tensor([1, 0, 0]))
    assert found == pytest.approx((1 / 3, 1.0, 1 / 3))


def test_nothing_acted_upon_has_no_accuracy() -> None:
    hits = torch.tensor([True, False, True, True])
    assert shared(torch.tensor([True, True, False, False]), hits) == Share(0.5, 0.5)
    share, accuracy = shared(torch.zeros(4, dtype=torch.bool), hits)
    assert share == 0 and math.isnan(accuracy)


def test_scores_are_what_the_right_class_lacks() -> None:
    expected = torch.tensor([0.3, 0.7, 0.75, 0.2])
    torch.testing.assert_close(baselines.right_scores(LOGITS, LABELS), expected)


def test_the_oracle_takes_the_smallest_threshold_with_the_coverage() -> None:
    # Three of four labels are within 1 - p <= .7: classes of .3 and more.
    expected = torch.tensor(
        [[True, False, False], [True, True, False], [True, True, False], [False, False, True]]
    )
    assert torch.equal(baselines.oracle_sets(LOGITS, LABELS, 0.75), expected)
    assert tally(baselines.oracle_sets(LOGITS, LABELS, 0.76), LABELS).coverage == 1


def test_split_sets_have_the_held_out_quantile() -> None:
    # ⌈5 · .6⌉ = 3: the third of four scores.
    sets = baselines.split_sets(LOGITS, torch.tensor([0.1, 0.65, 0.2, 0.9]), 0.6)
    assert torch.equal(sets, LOGITS.softmax(1) >= 0.35)


def test_aci_moves_its_level_by_what_the_batch_missed() -> None:
    held_out = torch.linspace(0.01, 0.99, 99)
    right, wrong = torch.tensor([[5.0, 0.0]]), torch.tensor([[0.0, 5.0]])
    batches = [(wrong, torch.tensor([0])), (wrong, torch.tensor([0])), (right, torch.tensor([0]))]
    first, second, third = baselines.aci_sets(batches, held_out, 0.8, rate=0.15)
    assert first.tolist() == [[False, True]]  # the label has .993, more than the threshold of .8
    assert second.tolist() == [[False, True]]  # the level is .8 + .15 · (1 - .2) = .92
    assert third.all()  # .92 + .12 is more than 1


def test_aci_with_a_level_of_nothing_has_empty_sets() -> None:
    right = torch.tensor([[5.0, 0.0]])
    batches = [(right, torch.tensor([0]))] * 3
    *_, last = baselines.aci_sets(batches, torch.linspace(0.01, 0.99, 99), 0.5, rate=0.6)
    assert not last.any()


def test_doubt_scales_the_probabilities_of_sets() -> None:
    held_out = torch.tensor([0.1, 0.2, 0.4, 0.5])
    plain = baselines.split_sets(LOGITS, held_out, 0.6)  # p >= .6
    assert torch.equal(baselines.entropy_sets(LOGITS, held_out, 1.0, 0.6), plain)
    assert torch.equal(baselines.entropy_sets(LOGITS, held_out, 2.0, 0.6), LOGITS.softmax(1) >= 0.3)


def test_the_factors_of_entropy() -> None:
    sure, doubtful = torch.tensor([[20.0, 0.0, 0.0, 0.0]] * 10), torch.zeros(10, 4)
    assert baselines.published_factor(sure) == 1
    assert baselines.published_factor(doubtful) == pytest.approx(math.log(4) ** 2)
    assert baselines.ratio_factor(doubtful, torch.full((10,), math.log(2))) == pytest.approx(2)
    assert baselines.ratio_factor(sure, torch.full((10,), math.log(2))) == 1


def test_labels_of_that_many_rows_arrive() -> None:
    drawn = [labelled_rows(300, 50, draw) for draw in (0, 1)]
    assert [int(rows.sum()) for rows in drawn] == [50, 50]
    assert not torch.equal(*drawn)
    assert not labelled_rows(300, 0, 0).any()
    assert [each.stop - each.start for each in spans(120)] == [50, 50, 20]


def test_streams_of_pictures_end_where_they_began() -> None:
    x, y = torch.randint(0, 256, (700, 1, 16, 16), dtype=torch.uint8), torch.arange(700) % 3
    streams = pictures(Stream("no drift", x, y), {"target": Stream("natural", 255 - x, y)})
    kinds = [stream.kind for stream in streams.values()]
    assert sorted(set(kinds)) == ["continual", "natural", "no drift", "simple", "sorted"]
    assert torch.equal(streams["unseen, sorted"].labels, y.sort().values)
    mixed = streams["one after another"]
    assert torch.equal(mixed.inputs[:300], x[:300])
    assert torch.equal(mixed.inputs[-300:], x[-300:])
    assert len(mixed.labels) == 4 * 300


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of a network with batch norm on a stream, beside the network and the inputs."""
    torch.manual_seed(0)
    layers = (nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = nn.Sequential(*layers).eval().requires_grad_(False)
    x = torch.randn(700, 4)
    y = model(x).argmax(1)
    stream = Stream("natural", x[400:] + 0.3, y[400:], counts=(0, 50))
    options = {"samples": 400, "shifts": 8, "check_held_out": False}
    subject = Subject(model, (x[:400], y[:400]), {"in order": stream}, options)
    folder = tmp_path_factory.mktemp("records")
    record(Case("tables", "line, MLP", lambda: subject), folder)
    torch.save({"x": stream.inputs, "model": model.state_dict()}, folder / "stream.pt")
    return folder


def test_a_replay_answers_and_estimates_as_the_adapter_did(recorded: Path) -> None:
    records, kept = read(recorded, "line, MLP"), torch.load(recorded / "stream.pt")
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model.load_state_dict(kept["model"])
    adapter, replay, (stream,) = eq.Poise(model.eval(), records.source), Replay(records), records.streams
    for at, span in enumerate(spans(300)):
        answer = adapter(kept["x"][span])
        torch.testing.assert_close(replay.answer(stream, span), answer, atol=1e-4, rtol=1e-4)
        if at % 2:
            ids = torch.arange(span.start, span.stop)[::5]
            adapter.label(stream.labels[ids], ids)
            replay.label(stream.labels[ids], ids)
        assert adapter.accuracy is not None
        assert replay.accuracy.value == pytest.approx(adapter.accuracy.value, abs=1e-4)
        expected, found = adapter.coverage(0.9), replay.expectations().coverage("lac", 0.9)
        assert found == pytest.approx((expected.value, expected.low, expected.high), abs=1e-3)


def test_a_stream_is_met_for_each_number_and_draw_of_labels(recorded: Path) -> None:
    assert named_cases(recorded) == ["line, MLP"]
    first, *others = measured(read(recorded, "line, MLP"))
    assert (first["stream"], first["kind"], first["rows"]) == ("in order", "natural", 300)
    assert [first["labels"], *(row["labels"] for row in others)] == [0, 50, 50, 50, 50]
    assert [row["draw"] for row in others] == [0, 1, 2, 3]
    assert first["sets.oracle.coverage"] == pytest.approx(0.9, abs=0.02)
    for row in others:
        off = abs(row["accuracy.estimate"] - row["accuracy.true"])
        assert off <= abs(first["accuracy.estimate"] - first["accuracy.true"]) + 0.02
    assert "sets.aci.coverage" in first and "sets.aci.coverage" not in others[0]


def rows() -> pd.DataFrame:
    """Two streams of two kinds, met without labels and with 50."""
    own = {
        "data": "digits",
        "model": "digits svhn",
        "by_source": 0.0,
        "sets.oracle.size": 2.0,
        "decide.oracle.share": 0.5,
        "decide.plain.share": 0.9,
        "decide.plain.accuracy": 0.7,
        "accuracy.true": 0.6,
        "last_accuracy.true": 0.6,
        "last_accuracy.estimate": 0.6,
        "accuracy.width": 0.2,
        "last_coverage.true": 0.9,
        "last_coverage.estimate": 0.88,
        "last_coverage.held": True,
    }
    for method in decisions_page.SETS:
        own |= {f"sets.{method}.coverage": 0.8, f"sets.{method}.size": 3.0}
    streams = (("no drift", 0.9, 0.0), ("natural", 0.86, 0.05))
    found = [
        own
        | {"stream": kind, "kind": kind, "labels": count, "sets.lac.coverage": covered}
        | {"accuracy.estimate": 0.6 + off * (0.5 if count else 1), "accuracy.held": True}
        | {"ece": 0.04 if count else 0.03, "decide.ours.share": 0.45, "decide.ours.accuracy": 0.94}
        for kind, covered, off in streams
        for count in (0, 50)
    ]
    return pd.DataFrame(found)


COST = pd.DataFrame([{"device": "cpu", "network": "MLP", "step_ms": 2.0, "sets_ms": 0.02, "decide_ms": 0.06}])


def test_the_tables_of_the_page() -> None:
    made = rows()
    assert "| split conformal | .800 / .800 / .800, size 1.50 |" in decisions_page.sets_table(made)
    assert "natural shifts (1)" in decisions_page.sets_table(made)
    assert decisions_page.worst_table(made).splitlines()[2] == (
        "| Digits | digits svhn | natural | .600 | .860 | .880 | .900 | 1.50 |"
    )
    decided = decisions_page.decisions_table(made).splitlines()[-1]
    assert decided == "| natural shifts | .940 / .940 | .450 | 0 of 1 | .500 | .700 / .700 | .900 |"
    labels = decisions_page.labels_table(made)
    assert "| natural shifts | 50 | .025 | .000 | 100 % | .200 | .040 | .860 | .020 | 100 % |" in labels
    moved = {"kind": "natural", "streams": 2, "moments": 9, "slope": 0.314, "believed 0.0": 0.02}
    moved |= {"believed 0.5": 0.015, "believed 1.0": 0.03}
    table = decisions_page.moves_table(pd.DataFrame([moved]))
    assert table.splitlines()[-1] == "| natural shifts | 2 | 9 | .31 | .030 | .015 | .020 |"
    assert "| CPU | MLP | 2.00 | .020 (1 %) | .060 (3 %) |" in decisions_page.cost_table(COST)


def test_the_goals_say_what_was_reached() -> None:
    found = {goal.text: goal for goal in decisions_page.goals(rows(), COST)}
    assert found["coverage of 90 % sets on source data .89 to .92"].reached
    assert not found["over shifted streams ≥ .88 on average"].reached
    assert found["≥ .85 in nine of ten"].reached
    assert not found["sets at most 1.3 times as large as an oracle's"].reached
    assert found["share answered ≥ .8 times the oracle's"].measured == ".90"
    assert found["50 labels, natural shifts: error of the accuracy ≤ .040"].measured == ".025"
    assert not found["50 labels: ECE not above .030, without labels"].reached
    assert found["sets cost ≤ 2 % of a step"].reached
    assert not found["decisions cost ≤ 2 % of a step"].reached
