"""Expectations of sets and of answers to act upon, against loops and the truth of held-out answers."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from equipoise.calibration.expected import (
    ANSWERED,
    COVERAGES,
    CURVES,
    FINITE,
    RIGHT,
    Curves,
    Expectations,
    LabelScores,
    Taught,
    expected_sums,
    grid,
    true_sums,
)
from equipoise.calibration.sets import SCORES, class_scores, sets


def _answers(count: int, classes: int, heat: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits, and labels drawn from their probabilities at a temperature."""
    draw = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=draw)
    labels = torch.multinomial((logits / heat).softmax(1), 1, generator=draw)[:, 0]
    return logits, labels


@pytest.mark.parametrize("classes", [2, 7])
def test_expected_sums_are_those_of_loops(classes: int) -> None:
    logits, _ = _answers(9, classes)
    good = torch.tensor([True] * 7 + [False] * 2)
    logits[8] = math.nan
    found, expected = expected_sums(logits, good), torch.zeros(len(CURVES), FINITE + 1)
    for row in logits[good]:
        p = row.softmax(0)
        for at, q in enumerate(grid(p)):
            for which, score in enumerate(SCORES):
                expected[which, at] += p[class_scores(p, score) <= q].sum()
            if 1 - p.max() <= q:
                expected[ANSWERED, at] += 1
                expected[RIGHT, at] += p.max()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("classes", [2, 7])
def test_true_sums_are_those_of_loops(classes: int) -> None:
    logits, labels = _answers(9, classes)
    found, expected = true_sums(logits, labels), torch.zeros(len(CURVES), FINITE + 1)
    for row, label in zip(logits, labels, strict=True):
        p = row.softmax(0)
        for at, q in enumerate(grid(p)):
            for which, score in enumerate(SCORES):
                expected[which, at] += float(class_scores(p, score)[label] <= q)
            if 1 - p.max() <= q:
                expected[ANSWERED, at] += 1
                expected[RIGHT, at] += float(p.argmax() == label)
    torch.testing.assert_close(found, expected)


def test_equal_probabilities_and_certain_ones() -> None:
    logits = torch.stack(
        [torch.zeros(4), torch.tensor([100.0, 0, 0, 0]), torch.tensor([0.0, -math.inf, 0, 0])]
    )
    good = torch.ones(3, dtype=torch.bool)
    found = expected_sums(logits, good)
    assert found.isfinite().all()
    assert found[:, -1].tolist() == pytest.approx([3, 3, 3, 3, 1 / 4 + 1 + 1 / 3])
    assert found[SCORES.index("aps"), 0] == pytest.approx(1 / 4 + 1 + 1 / 3)  # the first class of each


def test_a_thousand_classes() -> None:
    logits, labels = _answers(50, 1000)
    good = torch.ones(50, dtype=torch.bool)
    assert (expected_sums(logits, good).diff(dim=1) > -1e-3).all()
    assert (true_sums(logits, labels).diff(dim=1) >= 0).all()


def _expectations(
    rehearsed: tuple[Tensor, Tensor], now: Tensor | None = None, fall: float = 0.0
) -> Expectations:
    def of(logits: Tensor) -> Curves:
        return Curves.of(expected_sums(logits, torch.ones(len(logits), dtype=torch.bool)))

    logits, labels = rehearsed
    window = logits if now is None else now
    true = Curves.of(true_sums(logits, labels))
    return Expectations(of(window), of(logits), true, fall, Taught.nothing())


def _learned(found: Expectations, own: Tensor, back: Taught | None = None) -> Taught:
    """What labelled classes with these scores teach, (N, SCORES); of answers that are not sure."""
    return found.learned(LabelScores(own, torch.ones(len(own)), torch.zeros(len(own))), back)[0]


def _coverage(logits: Tensor, labels: Tensor, threshold: float, score: str) -> float:
    return float(sets(logits, threshold, score=score).gather(1, labels[:, None]).float().mean())


@pytest.mark.parametrize("heat", [0.6, 1.0, 2.5])
@pytest.mark.parametrize("coverage", [0.6, 0.8, 0.9, 0.95, 0.99])
def test_without_shift_the_coverage_is_exact_however_wrong_the_confidence(
    heat: float, coverage: float
) -> None:
    logits, labels = _answers(4000, 6, heat)
    threshold = _expectations((logits, labels)).set_threshold("lac", coverage)
    assert _coverage(logits, labels, threshold, "lac") == pytest.approx(coverage, abs=0.012)
    other, truth = _answers(20_000, 6, heat, seed=1)
    assert _coverage(other, truth, threshold, "lac") == pytest.approx(coverage, abs=0.025)


@pytest.mark.parametrize("score", ["aps", "raps"])
def test_sets_with_the_first_class_cover_at_least_what_was_asked(score: str) -> None:
    logits, labels = _answers(4000, 6)
    accuracy = float((logits.argmax(1) == labels).float().mean())
    for coverage in (0.5, 0.9, 0.97):
        found = _coverage(
            logits, labels, _expectations((logits, labels)).set_threshold(score, coverage), score
        )
        assert found == pytest.approx(max(coverage, accuracy), abs=0.02)


def test_sets_follow_answers_that_have_become_unsure_and_stay_honest() -> None:
    logits, labels = _answers(4000, 6)
    now = logits / 3
    truth = torch.multinomial(now.softmax(1), 1, generator=torch.Generator().manual_seed(3))[:, 0]
    threshold = _expectations((logits, labels), now).set_threshold("lac", 0.9)
    assert _coverage(now, truth, threshold, "lac") == pytest.approx(0.9, abs=0.02)
    fixed = _expectations((logits, labels)).set_threshold("lac", 0.9)
    assert _coverage(now, truth, fixed, "lac") < 0.85


def test_a_fall_of_the_accuracy_makes_sets_larger_by_the_formula() -> None:
    logits, labels = _answers(4000, 6)
    plain, fallen = (_expectations((logits, labels), fall=fall) for fall in (0.0, 1.0))
    assert fallen.set_threshold("lac", 0.9) > plain.set_threshold("lac", 0.9)
    risen = 1 / (1 + math.exp(-math.log(9) - 0.5))
    threshold = fallen.set_threshold("lac", 0.9)
    # Answers are honest, so what is expected of a threshold is true of it.
    assert _coverage(logits, labels, threshold, "lac") == pytest.approx(risen, abs=0.015)


@pytest.mark.parametrize("coverage", [0.9, 0.99])
def test_the_interval_of_a_coverage(coverage: float) -> None:
    logits, labels = _answers(400, 6)
    value, low, high = _expectations((logits, labels), fall=0.5).coverage("lac", coverage)
    spread, middle = coverage * (1 - coverage), math.log(coverage / (1 - coverage))
    half = math.sqrt(1.645**2 / (400 * spread + 1) + (0.35 + 0.9 * 0.5) ** 2)
    assert value == pytest.approx(coverage, abs=1e-4)
    assert math.log(high / (1 - high)) - middle == pytest.approx(half, abs=0.01)
    assert middle - math.log(low / (1 - low)) == pytest.approx(half, abs=0.01)


def test_sets_with_the_first_class_are_known_to_cover_the_accuracy() -> None:
    logits, labels = _answers(4000, 6)
    accuracy = float((logits.argmax(1) == labels).float().mean())
    value, low, high = _expectations((logits, labels)).coverage("aps", 0.5)
    assert value == pytest.approx(accuracy, abs=0.02)
    assert low < value < high
    fallen, *_ = _expectations((logits, labels), fall=0.6).coverage("aps", 0.5)
    assert fallen == pytest.approx(1 / (1 + math.exp(0.5 * 0.6) * (1 - value) / value), abs=1e-6)


def test_full_sets_are_known_to_cover() -> None:
    logits = torch.tensor([[10.2, 0.0]]).repeat(500, 1)  # sure, and wrong in a fiftieth
    labels = (torch.arange(500) % 50 == 0).long()
    found = _expectations((logits, labels), fall=0.4)
    assert found.set_threshold("lac", 0.98) == math.inf
    value, low, high = found.coverage("lac", 0.98)
    assert value > 0.9999 and 0.99 < low < high <= 1


def test_labels_correct_the_coverage_by_how_many_sets_had_them() -> None:
    logits, labels = _answers(4000, 6)
    found = _expectations((logits, labels), fall=0.3)
    p = logits.softmax(1)
    own = torch.stack([class_scores(p, score).gather(1, labels[:, None])[:, 0] for score in SCORES], 1)
    scores = own[own[:, 0].argsort(descending=True)][200:3000:35]  # many of sets that miss them
    taught = _learned(found, scores)
    assert taught.labels == 80
    later = replace(found, taught=taught)
    for score, coverage in (("lac", 0.9), ("lac", 0.6), ("aps", 0.9)):
        threshold = later.set_threshold(score, coverage)
        had = float((scores[:, SCORES.index(score)] <= threshold).sum())
        assert 0 < had < 80
        prior = 1.645**2 / (coverage * (1 - coverage) * (0.35 + 0.9 * 0.3) ** 2)
        before, *_ = found.coverage(score, coverage)
        value, low, high = later.coverage(score, coverage)
        least = max(50.0, prior)
        assert value == pytest.approx((least * before + had) / (least + 80), abs=1e-6)
        spread, middle = value * (1 - value), math.log(value / (1 - value))
        half = 1.645 * math.sqrt(1 / (4000 * spread + 1) + 1 / ((prior + 80) * spread))
        assert math.log(high / (1 - high)) - middle == pytest.approx(half, rel=1e-6)
        assert middle - math.log(low / (1 - low)) == pytest.approx(half, rel=1e-6)


def test_labels_that_are_taken_back_leave_nothing() -> None:
    found = _expectations(_answers(4000, 6))
    wrong, right = torch.full((30, 3), 0.9999), torch.full((30, 3), 0.2)
    taught, each = found.learned(LabelScores(wrong, torch.full((30,), 0.3), torch.zeros(30)))
    assert taught.labels == 30 and float(taught.acted[0, -1]) == 30
    back = Taught(*(part.sum(0) for part in each))
    after, _ = replace(found, taught=taught).learned(
        LabelScores(right, torch.full((30,), 0.3), torch.ones(30)), back
    )
    alone, _ = found.learned(LabelScores(right, torch.full((30,), 0.3), torch.ones(30)))
    for one, other in zip(after, alone, strict=True):
        torch.testing.assert_close(one, other)


def test_labels_say_how_often_answers_acted_upon_are_right() -> None:
    rehearsed = _answers(4000, 4)
    found = _expectations(rehearsed, fall=0.2)
    logits, labels = (each[:300] for each in rehearsed)
    p, hits = logits.softmax(1), (torch.arange(300) % 3 > 0).float()  # two thirds are right
    confidence = p.max(1).values
    own = torch.stack([class_scores(p, score).gather(1, labels[:, None])[:, 0] for score in SCORES], 1)
    later = replace(found, taught=found.learned(LabelScores(own, 1 - confidence, hits))[0])
    confidences, _, before = found.accuracies()
    _, _, after = later.accuracies()
    for place in range(30, FINITE, 7):
        acted = confidence >= confidences[place]
        a = min(max(before[place], 0.5), 0.99)
        prior = max(50.0, 1.645**2 / (a * (1 - a) * (0.35 + 0.9 * 0.2) ** 2))
        expected = (prior * before[place] + float(hits[acted].sum())) / (prior + float(acted.sum()))
        assert after[place] == pytest.approx(expected, abs=1e-5)
    assert later.selected(0.9).share < 0.9 * found.selected(0.9).share


def test_between_the_coverages_that_learn_labels_are_interpolated() -> None:
    found = _expectations(_answers(4000, 6))
    later = replace(found, taught=_learned(found, torch.full((300, 3), 0.9999)))
    low, middle, high = (later.coverage("lac", c)[0] for c in (0.9, 0.925, 0.95))
    assert low < middle < high < 0.8


@pytest.mark.parametrize("heat", [0.7, 1.0, 2.0])
def test_answers_acted_upon_are_as_accurate_as_asked(heat: float) -> None:
    logits, labels = _answers(8000, 4, heat)
    found = _expectations((logits, labels)).selected(0.95)
    confidence, classes = logits.softmax(1).max(1)
    acted = confidence >= found.confidence
    assert float((classes == labels)[acted].float().mean()) == pytest.approx(0.95, abs=0.012)
    assert float(acted.float().mean()) == pytest.approx(found.share, abs=0.02)
    assert found.accuracy == pytest.approx(0.95, abs=0.01)


def test_all_are_acted_upon_where_all_are_accurate_enough() -> None:
    logits = torch.tensor([[9.0, 0.0]]).repeat(300, 1)
    labels = torch.zeros(300, dtype=torch.long)
    labels[:3] = 1
    found = _expectations((logits, labels)).selected(0.9)
    assert (found.confidence, found.share) == (0.0, 1.0)


def test_nothing_is_acted_upon_where_the_accuracy_is_out_of_reach() -> None:
    logits, _ = _answers(3000, 4)
    labels = torch.randint(0, 4, (3000,), generator=torch.Generator().manual_seed(0))
    found = _expectations((logits, labels)).selected(0.95)
    assert (found.confidence, found.share) == (math.inf, 0.0)
    assert math.isnan(found.accuracy)


def test_a_fall_withholds_more() -> None:
    rehearsed = _answers(4000, 4)
    shares = [_expectations(rehearsed, fall=fall).selected(0.95).share for fall in (0.0, 0.5, 1.0)]
    assert shares[0] > shares[1] > shares[2] > 0


def test_the_curve_is_the_true_one_without_shift() -> None:
    logits, labels = _answers(4000, 4, 1.6)
    confidences, shares, accuracies = _expectations((logits, labels)).accuracies()
    found, classes = logits.softmax(1).max(1)
    for confidence, share, accuracy in list(zip(confidences, shares, accuracies, strict=True))[20:]:
        acted = found >= confidence
        assert float(acted.float().mean()) == pytest.approx(share, abs=0.002)
        assert float((classes == labels)[acted].float().mean()) == pytest.approx(accuracy, abs=0.015)


def test_labels_teach_levels_by_steps_of_adaptive_conformal_inference() -> None:
    rehearsed = _answers(4000, 6)
    start = _expectations(rehearsed, fall=0.4)
    scores = torch.tensor([[0.3, 0.2, 0.2], [0.99, 0.9, 0.95], [0.999, 0.99, 1.0]], dtype=torch.float64)
    taught = _learned(start, scores)
    logits, labels = rehearsed
    p = logits.softmax(1).double()
    half = 0.35 + 0.9 * 0.4
    for at, score in enumerate(SCORES):
        own = class_scores(p, score).gather(1, labels[:, None])[:, 0]
        for place, coverage in enumerate(COVERAGES):
            offset, prior = 0.0, max(50.0, (1.645 / half) ** 2 / (coverage * (1 - coverage)))
            risen = 1 / (1 + (1 / coverage - 1) * math.exp(-0.5 * 0.4))
            for n, row in enumerate(scores):
                needed = float((own <= row[at]).double().mean())  # the share of sets that reach this score
                rate = max(0.005 * n / 200, 1 / (prior + n))
                offset += rate * (coverage - float(needed <= risen + offset))
            assert float(taught.levels[at, place]) == pytest.approx(offset, abs=1e-9)
    assert taught.labels == 3


def test_with_a_label_for_every_answer_sets_cover_whatever_the_model_believes() -> None:
    rehearsed = _answers(2000, 4)
    logits, _ = _answers(3000, 4, seed=5)
    labels = torch.multinomial((logits / 4).softmax(1), 1, generator=torch.Generator().manual_seed(6))[:, 0]
    found = _expectations(rehearsed, logits)
    p = logits.softmax(1)
    own = torch.stack([class_scores(p, score).gather(1, labels[:, None])[:, 0] for score in SCORES], 1)
    assert _coverage(logits, labels, found.set_threshold("lac", 0.9), "lac") < 0.75
    covered = []
    for row in own:
        covered.append(float(row[0]) <= found.set_threshold("lac", 0.9))
        found = replace(found, taught=_learned(found, row[None]))
    assert sum(covered[1500:]) / 1500 == pytest.approx(0.9, abs=0.02)
    value, low, high = found.coverage("lac", 0.9)
    assert value == pytest.approx(0.9, abs=0.03)
    assert high - low < 0.08


def test_ten_labels_move_sets_by_little_where_the_rehearsal_is_sure() -> None:
    found = _expectations(_answers(4000, 6))
    for scores in (torch.zeros(10, 3), torch.full((10, 3), 0.99999)):
        moved = _learned(found, scores).levels.abs()
        assert float(moved.max()) < 0.07 and float(moved[:, COVERAGES.index(0.9)].max()) < 0.04


def test_a_few_answers_without_an_error_do_not_promise_that_there_is_none() -> None:
    logits = torch.tensor([[2.2, 0.0]]).repeat(100, 1)  # a confidence of .9
    labels = torch.zeros(100, dtype=torch.long)
    labels[:3] = 1
    now = torch.tensor([[0.6, 0.0]]).repeat(300, 1)
    _, _, accuracies = _expectations((logits, labels), now).accuracies()
    errors = 100 * (1 - 0.9002)
    optimism = (math.log(0.9002 / 0.0998) - math.log(97.5 / 3.5)) * errors / (errors + 5)
    assert accuracies[-1] == pytest.approx(1 / (1 + math.exp(-0.6 + optimism)), abs=1e-3)
    labels[:] = 0
    _, _, accuracies = _expectations((logits, labels), now).accuracies()
    assert accuracies[-1] < 0.95
