"""What is expected of decisions about the source model's answers, by a caller that gives them itself."""

import math

import pytest
import torch

import equipoise as eq
from equipoise.calibration import window
from equipoise.calibration.expected import ANSWERED, Curves, expected_sums
from equipoise.calibration.temper import STREAM_CHANGED
from equipoise.errors import SourceError
from tests.support.rehearsals import rehearsed, samples, trained


def test_the_window_begins_without_shift_and_forgets_as_that_of_the_answers() -> None:
    adapter = eq.Poise(trained(), rehearsed())
    assert adapter.rehearsal is not None
    rest = adapter.rehearsal.expected[1].float()
    batches = [3 * torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)) for rows in (5, 12)]
    batches[1][3] = math.nan  # set aside: it counts nowhere
    found = None
    expected = rest * window.PRIOR_SAMPLES / rest[ANSWERED, -1]
    for logits, count in zip(batches, (5, 11), strict=True):
        found = adapter.source_window(found, logits)
        good = logits.isfinite().all(1)
        expected = expected * 2 ** (-count / window.HALF_LIFE) + expected_sums(logits, good)
        torch.testing.assert_close(found[0].view_as(rest), expected)


def test_expectations_are_of_the_source_models_window_and_of_its_own_accuracy() -> None:
    adapter = eq.Poise(trained(), rehearsed())
    at_rest, found = adapter.source_accuracy, None
    for seed in range(8):
        x, _ = samples(16, seed)
        adapter(x + 3)
        with torch.no_grad():
            logits = trained()(x + 3) / (adapter.source_temperature or 1)
        found = adapter.source_window(found, logits)
    assert found is not None
    own, known, now = adapter.source_expectations(found), adapter.rehearsal, adapter.source_accuracy
    assert known is not None
    assert at_rest is not None
    assert now is not None
    low, low_now = (math.log(each / (1 - each)) for each in (at_rest.low, now.low))
    assert own.fall == pytest.approx(max(0.0, low - low_now), abs=1e-4)
    assert own.fall > 0
    assert own.expected == Curves.of(known.expected[1])
    assert own.true == Curves.of(known.true[1])
    assert own.now == Curves.of(found[0].view_as(known.expected[1]))
    assert adapter.expectations().expected == Curves.of(known.expected[0])


def test_what_labels_taught_of_the_adapters_sets_is_not_of_the_source_models() -> None:
    adapter = eq.Poise(trained(), rehearsed())
    seen = None
    for seed in range(4):
        x, labels = samples(16, seed)
        seen = adapter.source_window(seen, adapter(x))
        adapter.label((labels + 1) % 4)
    assert seen is not None
    assert bool(adapter.expectations().taught.levels.any())
    found = adapter.source_expectations(seen)
    assert not bool(found.taught.levels.any())
    assert found.taught.labels == 0


def test_a_change_of_the_stream_counts_with_the_batch_that_showed_it() -> None:
    adapter = eq.Poise(trained(), rehearsed())
    assert adapter.rehearsal is not None
    rehearsed_of = adapter.responder.temper.rehearsed
    assert rehearsed_of is not None
    observed = {**adapter.responder.state.temperature, STREAM_CHANGED: torch.ones((), dtype=torch.bool)}
    before = rehearsed_of.source_window(observed, None, torch.zeros(3, 4), seen=False)
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    slow, fast = rehearsed_of.source_window(observed, before, logits)
    assert slow.equal(fast)
    slow, fast = rehearsed_of.source_window(observed, before, logits, seen=False)
    assert not slow.equal(fast)


def test_the_first_window_is_where_the_answers_are() -> None:
    adapter = eq.Poise(trained(), rehearsed())
    assert adapter.source_window(None, torch.zeros(2, 4, device="meta")).device.type == "meta"


@pytest.mark.parametrize("method", ["tent", "norm"])
def test_a_method_that_does_not_compare_itself_is_told_so(method: str) -> None:
    adapter = eq.create(method, trained(), rehearsed() if method == "tent" else None)
    with pytest.raises(SourceError, match=r"compares itself with the source model \(poise does\)"):
        adapter.source_window(None, torch.zeros(2, 4))
    with pytest.raises(SourceError, match="compares itself"):
        adapter.source_expectations(torch.zeros(2, 5 * 74))
