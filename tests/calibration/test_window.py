"""Windows of a stream, against sums over single samples written out here."""

import math

import pytest
import torch
from torch import Tensor

from equipoise.calibration import window
from tests.support.rehearsals import GRID, window_of, windows_of


def drawn(*shape: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def all_good(rows: int) -> Tensor:
    return torch.ones(rows, dtype=torch.bool)


@pytest.mark.parametrize("classes", [2, 10, 200])
def test_the_sums_of_a_batch(classes: int) -> None:
    logits = drawn(2, 9, classes)
    found = window.sums(logits, all_good(9))
    assert found.shape == (2, 7 + 29 + classes)
    assert window.width(classes) == 7 + 29 + classes
    torch.testing.assert_close(found.double(), windows_of(logits), rtol=1e-5, atol=1e-5)
    assert list(window.GRID) == pytest.approx(GRID)
    assert (GRID[0], GRID[8], GRID[-1]) == (0.25, 1.0, 32.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
def test_bad_samples_do_not_count(bad: float) -> None:
    logits = drawn(9, 5)
    good = all_good(9)
    good[[1, 6]] = False
    spoilt = logits.clone()
    spoilt[[1, 6]] = bad
    spoilt[6, 2] = 0.0
    other = drawn(9, 5, seed=1)
    found = window.sums(torch.stack([spoilt, other]), good)
    expected = windows_of(torch.stack([logits[good], other[good]]))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(window.sums(spoilt[None], ~all_good(9)), torch.zeros(1, 41))


def test_novelty_is_summed_over_the_samples_that_count() -> None:
    logits, new = drawn(2, 9, 5), 0.4 + drawn(9, seed=3, scale=0.5)
    plain, found = window.sums(logits, all_good(9)), window.sums(logits, all_good(9), new)
    assert plain[:, 6].tolist() == [0.0, 0.0]
    assert found[:, 6].tolist() == pytest.approx([sum(new.tolist())] * 2)
    torch.testing.assert_close(found.double(), windows_of(logits, new), rtol=1e-5, atol=1e-5)
    assert window.means(found)[..., window.NOVEL].tolist() == pytest.approx([sum(new.tolist()) / 9] * 2)
    good = all_good(9)
    good[[2, 5]] = False
    less = [n for place, n in enumerate(new.tolist()) if place not in (2, 5)]
    assert window.means(window.sums(logits, good, new))[..., window.NOVEL].tolist() == pytest.approx(
        [sum(less) / 7] * 2
    )
    assert window.sums(logits, good, new.to(torch.float64)).dtype == torch.float32


def test_half_precision_is_counted_in_single() -> None:
    logits = drawn(2, 9, 5).to(torch.bfloat16)
    found = window.sums(logits, all_good(9))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), windows_of(logits), rtol=1e-5, atol=1e-5)


def test_disagreement_is_the_share_of_samples_that_two_models_put_into_different_classes() -> None:
    mine, other = drawn(9, 5), drawn(9, 5, seed=1)
    other[:4] = 0.1 * mine[:4]
    differ = sum(int(z.argmax() != o.argmax()) for z, o in zip(mine, other, strict=True))
    assert 0 < differ < 6
    both = window.sums(torch.stack([mine, other]), all_good(9))
    assert window.means(both)[..., window.APART].tolist() == pytest.approx([differ / 9] * 2)
    alone = window.sums(mine[None], all_good(9))
    assert window.means(alone)[..., window.APART].tolist() == [0.0]


def test_large_batches_try_one_temperature_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = drawn(2, 9, 5)
    at_once = window.sums(logits, all_good(9))
    monkeypatch.setattr(window, "AT_ONCE", 0)
    torch.testing.assert_close(window.sums(logits, all_good(9)), at_once)


def plain_after(slow: list[float], fast: list[float], fresh: list[float]) -> tuple[list[float], list[float]]:
    """Windows of one model after a batch, number by number; slow is the same as fast after a restart."""
    rows = fresh[0]
    slow = [old * 2 ** (-rows / 300) + new for old, new in zip(slow, fresh, strict=True)]
    fast = [old * 2 ** (-rows / 50) + new for old, new in zip(fast, fresh, strict=True)]
    mean = slow[1] / slow[0]
    variance = max(slow[2] / slow[0] - mean**2, 1e-4)
    errors = abs(fast[1] / fast[0] - mean) / math.sqrt(variance / fast[0])
    return (fast, fast) if errors > 4 else (slow, fast)


def test_both_windows_forget_by_the_samples_that_came_later() -> None:
    sizes = (7, 50, 1, 33)
    batches = [drawn(size, 5, seed=seed) for seed, size in enumerate(sizes)]
    windows = torch.zeros(1, 2, 41)
    for logits in batches:
        windows = window.after(windows, window.sums(logits[None], all_good(len(logits))))[0]
    for place, half_life in enumerate((300, 50)):
        expected = torch.zeros(41, dtype=torch.float64)
        for at, logits in enumerate(batches):
            expected += window_of(logits) * 2 ** (-sum(sizes[at + 1 :]) / half_life)
        torch.testing.assert_close(windows[0, place].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_windows_forget_alike_whatever_the_default_type_is(kind: torch.dtype) -> None:
    fresh, found = window.sums(drawn(1, 5)[None], all_good(1)), []
    before = torch.get_default_dtype()
    for default in (before, kind):
        windows = torch.zeros(1, 2, 41)
        torch.set_default_dtype(default)
        try:
            for _ in range(200):
                windows, _ = window.after(windows, fresh)
        finally:
            torch.set_default_dtype(before)
        found.append(windows)
    assert torch.equal(*found)


def confidences(seed: int, count: int, middle: float) -> list[float]:
    draw = torch.Generator().manual_seed(seed)
    return (middle + 0.2 * (torch.rand(count, generator=draw) - 0.5)).tolist()


def followed(stream: list[float], size: int) -> list[bool]:
    """Go through a stream of confidences in batches; for each, whether the windows started again."""
    windows, restarts = torch.zeros(2, 2, 3), []
    slow, fast = [0.0] * 3, [0.0] * 3
    for start in range(0, len(stream), size):
        part = stream[start : start + size]
        fresh = [float(len(part)), sum(part), sum(c * c for c in part)]
        other = [float(len(part)), 0.5 * len(part), 0.3 * len(part)]  # the second model never changes
        windows, _ = window.after(windows, torch.tensor([fresh, other]))
        slow, fast = plain_after(slow, fast, fresh)
        assert windows[0, 0].tolist() == pytest.approx(slow, rel=1e-3)
        assert windows[0, 1].tolist() == pytest.approx(fast, rel=1e-3)
        restarts.append(slow == fast and start > 0)
        assert torch.equal(windows[1, 0], windows[1, 1]) == (slow == fast)
    return restarts


@pytest.mark.parametrize("size", [1, 10, 50])
def test_a_change_of_the_stream_starts_the_windows_of_all_models_anew(size: int) -> None:
    stream = confidences(0, 400, 0.8) + confidences(1, 200, 0.5)
    restarts = followed(stream, size)
    before = 400 // size
    assert not any(restarts[:before])
    assert any(restarts[before : before + max(1, 40 // size)])


def test_a_stream_that_stays_as_it_is_hardly_ever_starts_anew() -> None:
    started = [any(followed(confidences(seed, 600, 0.7), 20)) for seed in range(60)]
    assert sum(started) <= 1


@pytest.mark.parametrize("towards", [None, -0.9, 0.0, 2.5])
@pytest.mark.parametrize("classes", [2, 10, 200])
def test_features_are_those_of_the_samples(classes: int, towards: float | None) -> None:
    logits = drawn(2, 40, classes).double()
    logits[1, :15] = 0.5 * logits[0, :15]
    differ = sum(int(z.argmax() != o.argmax()) for z, o in zip(*logits, strict=True)) / 40
    new = None if towards is None else towards + drawn(40, seed=5, scale=0.5).double()
    n = 0.0 if new is None else sum(new.tolist()) / 40
    novel = math.copysign(math.log(1 + abs(n) / 0.3), n)
    expected = []
    for z in logits:
        p = z.softmax(1)
        c = p.max(1).values
        mean, variance = float(c.mean()), float(c.var(correction=0))
        nats = float(-(p * p.log()).sum(1).mean())
        q = p.mean(0)
        expected.append(
            [
                math.log(mean / (1 - mean)),
                math.log(nats / (1 - mean)),
                math.log(variance / (mean * (1 - mean))),
                float(-(q * q.log()).sum()) / math.log(classes),
                sum(math.log(float(((row - row.mean()) ** 2).sum()) ** 0.5) for row in z) / 40,
                math.log(differ / (1 - differ)),
                novel,
            ]
        )
    found = window.features(window.sums(logits, all_good(40), new).double())
    again = window.features(0.3 * windows_of(logits, new))  # whatever weight the samples have left
    for model in range(2):
        assert found[model].tolist() == pytest.approx(expected[model], rel=1e-4)
        assert again[model].tolist() == pytest.approx(expected[model])
    assert len(window.FEATURES) == 7


def test_the_norm_has_no_part_of_what_softmax_leaves_out() -> None:
    logits = drawn(1, 30, 5)
    raised = window.features(window.sums(logits + drawn(30, 1, seed=8), all_good(30)))
    torch.testing.assert_close(
        raised, window.features(window.sums(logits, all_good(30))), rtol=1e-4, atol=1e-4
    )
    doubled = window.features(window.sums(2 * logits, all_good(30)))
    assert float(doubled[0, 4] - raised[0, 4]) == pytest.approx(math.log(2), abs=1e-4)


@pytest.mark.parametrize("logits", [torch.zeros(8, 3), 1e4 * torch.eye(3), torch.eye(3)[:1] * 50])
def test_features_are_finite_at_the_ends(logits: Tensor) -> None:
    for both in (torch.stack([logits, logits]), torch.stack([logits, -logits])):
        assert bool(window.features(window.sums(both, all_good(len(logits)))).isfinite().all())
    assert bool(window.features(torch.zeros(7 + 29 + 3)).isfinite().all())


def bisected(logits: Tensor, aim: float) -> float:
    low, high = 0.25, 32.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        sure = float((logits / middle).softmax(1).max(1).values.mean())
        low, high = (middle, high) if sure > aim else (low, middle)
    return low


@pytest.mark.parametrize("classes", [2, 10, 200])
@pytest.mark.parametrize("seed", range(4))
def test_the_temperature_is_that_of_the_logits_themselves(classes: int, seed: int) -> None:
    logits = drawn(60, classes, seed=seed, scale=1 + 2 * seed).double()
    curve = [float((logits / t).softmax(1).max(1).values.mean()) for t in (0.25, 32.0)]
    own = window_of(logits)
    for part in (0.1, 0.35, 0.6, 0.8, 0.97):
        aim = curve[0] + part * (curve[1] - curve[0])
        found = float(window.temperature_for(own, torch.tensor(aim, dtype=torch.float64)))
        assert found == pytest.approx(bisected(logits, aim), rel=0.02)


def test_the_temperature_stays_from_a_quarter_to_32() -> None:
    windows = torch.stack([window_of(drawn(20, 5, seed=seed)) for seed in range(2)])
    found = window.temperature_for(windows, torch.tensor([0.999999, 0.0], dtype=torch.float64))
    assert found.tolist() == pytest.approx([0.25, 32.0])


def test_the_temperature_is_1_where_confidence_is_right_and_less_where_it_is_too_low() -> None:
    own = window_of(drawn(60, 5, scale=1.0))
    sure = float(own[1] / own[0])
    aims = torch.tensor([sure - 0.1, sure, sure + 0.1], dtype=torch.float64)
    found = window.temperature_for(own.expand(3, -1), aims).tolist()
    assert found[1] == pytest.approx(1, abs=1e-6)
    assert found[2] < 0.9 < 1.1 < found[0]


def test_single_confidences_at_a_temperature() -> None:
    logits = drawn(7, 5).double()
    behind = logits - logits.max(1, keepdim=True).values
    cells = window.confidences(behind)
    for place, t in enumerate(GRID):
        torch.testing.assert_close(cells[:, place], (logits / t).softmax(1).max(1).values)
    for t in (0.25, 0.4, 1.0, 1.5, 7.3, 32.0):
        at_one, at_t = window.confidence_at(cells, torch.tensor(t, dtype=torch.float64))
        torch.testing.assert_close(at_one, logits.softmax(1).max(1).values)
        torch.testing.assert_close(at_t, (logits / t).softmax(1).max(1).values, rtol=0.02, atol=0)
