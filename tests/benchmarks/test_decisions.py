"""What prediction sets and decisions are measured against, and the streams."""

import math

import pytest
import torch

from benchmarks.decisions import baselines
from benchmarks.decisions.baselines import Share, shared, tally
from benchmarks.decisions.subjects import Stream, pictures

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
