"""Labels that come late, on an adapter with a rehearsal made by hand, against numbers written out here."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.calibration.expected import Expectations, LabelScores, Taught
from equipoise.calibration.labels import label_sums
from equipoise.calibration.sets import SCORES, class_scores
from equipoise.core.recent import recent_samples
from equipoise.errors import BatchError, ForgottenRequestError, OptionError, SourceError
from tests.support.models import CLASSES, drifted, make, rehearsed


def adapter_of(method: str = "poise", kind: str = "batch_norm", **options: object) -> eq.Adapter:
    """An adapter with a rehearsal made by hand."""
    model, source = make(kind)
    return eq.create(method, model, rehearsed(source, method, **options), tempering="rehearsed", **options)


def sums_of(adapter: eq.Adapter) -> Tensor:
    """The seven sums of labels of each model."""
    return rows_of(adapter)[:, :7]


def rows_of(adapter: eq.Adapter) -> Tensor:
    """The rows of labels of each model."""
    return adapter.snapshot().temperature["labels"]


def streamed(adapter: eq.Adapter, batches: int = 4, size: int = 8) -> Tensor:
    """The answers to some batches."""
    return torch.cat([adapter(drifted(size, seed)) for seed in range(batches)])


def numbers(ids: range) -> list[int]:
    return list(ids)


def last_ids(adapter: eq.Adapter) -> range:
    assert adapter.last is not None
    return adapter.last.ids


def test_samples_are_numbered_on_and_on() -> None:
    adapter = adapter_of()
    found = []
    for seed, size in enumerate((8, 3, 5)):
        adapter(drifted(size, seed))
        found += numbers(last_ids(adapter))
    assert found == list(range(16))
    adapter.reset()
    adapter(drifted(4))
    assert last_ids(adapter) == range(16, 20)
    adapter(torch.full((2, 3, 6, 6), torch.nan))
    assert last_ids(adapter) == range(20, 22)


def test_an_adapter_without_a_rehearsal_numbers_samples_and_says_how_to_get_one() -> None:
    model, source = make("batch_norm")
    adapter = eq.create("tent", model, source, tempering="none")
    adapter(drifted(8))
    assert last_ids(adapter) == range(8)
    for call in (lambda: adapter.label([0] * 8), lambda: adapter.ask(2), lambda: adapter.labels):
        with pytest.raises(
            SourceError, match=r"needs a rehearsal.*equipoise\.wrap\(model, held_out, method='tent'\)"
        ):
            call()
    assert adapter.footprint().stores_observations is False


@pytest.mark.parametrize(("method", "model"), [("source", 0), ("tent", 0), ("poise", 1)])
def test_the_sums_are_those_of_labels_estimates_and_confidences(method: str, model: int) -> None:
    """The model that answers is the source model in the rehearsal of poise."""
    adapter = adapter_of(method)
    hits, expected, own = [], [], []
    target = torch.arange(8) % CLASSES
    for seed in range(3):
        answers = adapter(drifted(8, seed))
        assert adapter.answered_by == ("student", "source")[model]
        assert adapter.accuracy is not None
        expected.append(torch.full((8,), adapter.accuracy.value))
        own.append(answers.softmax(1).amax(1))
        hits.append((answers.argmax(1) == target).float())
    assert adapter.label(target, range(16, 24)) == 8
    around = torch.cat(own).mean()  # of all 24, which are fewer than 128 to each side
    sums = label_sums(hits[2], expected[2], own[2], around, torch.ones(8))
    torch.testing.assert_close(sums_of(adapter)[model], sums, rtol=1e-4, atol=1e-5)
    before = sums_of(adapter)
    assert adapter.label(target[:4], [0, 1, 2, 3]) == 4
    weight = 2 ** (-16 / 2000)  # 16 samples came after these
    more = label_sums(hits[0][:4], expected[0][:4], own[0][:4], around, torch.full((4,), weight))
    torch.testing.assert_close(sums_of(adapter)[model], before[model] + more, rtol=1e-4, atol=1e-5)
    assert adapter.labels == 12


def test_wrong_ids_and_logits_are_refused_before_anything_changes() -> None:
    adapter = adapter_of()
    streamed(adapter)
    before, logits = rows_of(adapter), torch.randn(2, CLASSES)
    wrong: Any
    for wrong in ([0.9, 1.7], torch.tensor([0.9, 1.7]), ["a", "b"], "12", 3):
        with pytest.raises(OptionError, match="expected ids"):
            adapter.label([0, 1], wrong)
    for wrong in (torch.randn(2, CLASSES + 1), torch.randn(2), logits.tolist(), logits.long()):
        with pytest.raises(BatchError, match=rf"expected logits \(N, {CLASSES}\)"):
            adapter.label([0, 1], logits=wrong)
        with pytest.raises(BatchError, match=rf"expected source_logits \(N, {CLASSES}\)"):
            adapter.label([0, 1], logits=logits, source_logits=wrong)
    with pytest.raises(BatchError, match="same samples as logits, 2, got 1"):
        adapter.label([0, 1], logits=logits, source_logits=logits[:1])
    assert torch.equal(rows_of(adapter), before)
    assert adapter.labels == 0
    assert adapter.label([0, 1], torch.tensor([30, 31])) == 2


def test_the_last_batch_is_labelled_without_ids() -> None:
    one, other = adapter_of(), adapter_of()
    streamed(one), streamed(other)
    target = torch.arange(8) % CLASSES
    one.label(target)
    other.label(target.tolist(), last_ids(other))
    assert torch.equal(rows_of(one), rows_of(other))
    assert bool(rows_of(one).any())


def test_a_label_that_comes_again_replaces_the_first() -> None:
    one, other = adapter_of(), adapter_of()
    streamed(one), streamed(other)
    target = torch.arange(8) % CLASSES
    wrong = (target + 1) % CLASSES
    one.label(wrong)
    assert one.label(target) == 8
    other.label(target)
    torch.testing.assert_close(sums_of(one), sums_of(other), rtol=1e-4, atol=1e-5)
    assert one.labels == other.labels == 8
    assert one.label([0, 1], [30, 30]) == 1
    other.label([1], [30])
    torch.testing.assert_close(sums_of(one), sums_of(other), rtol=1e-4, atol=1e-5)
    third = adapter_of()
    streamed(third)
    third.label([*wrong[:6].tolist(), 1, int(wrong[7])])
    before = sums_of(one)
    one(drifted(8, 7)), third(drifted(8, 7))
    one.label(
        [*wrong[:6].tolist(), 1, int(wrong[7])], range(24, 32)
    )  # beside the answers around them at first
    torch.testing.assert_close(sums_of(one), sums_of(third), rtol=1e-4, atol=1e-5)
    one.label([*target[:6].tolist(), 1, int(target[7])], range(24, 32))
    torch.testing.assert_close(sums_of(one), before * 2 ** (-8 / 2000), rtol=1e-4, atol=1e-5)


def test_forgotten_ids_change_nothing() -> None:
    adapter = adapter_of()
    with pytest.raises(ForgottenRequestError, match="none, got 0"):
        adapter.label([0], [0])
    with pytest.raises(ForgottenRequestError, match="a batch"):
        adapter.label([0])
    streamed(adapter)
    before = adapter.state_dict()
    for bad in (32, -1):
        with pytest.raises(ForgottenRequestError, match=f"0 to 31, got {bad}"):
            adapter.label([0, 1], [3, bad])
    assert adapter.labels == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in adapter.state_dict().items())
    adapter.label([1, 1], [3, 4])
    snapshot = adapter.snapshot()
    adapter.restore(snapshot)
    assert adapter.labels == 2
    with pytest.raises(ForgottenRequestError, match="none, got 5"):
        adapter.label([0], [5])
    with pytest.raises(ForgottenRequestError, match="a batch"):
        adapter.label([])
    assert adapter.ask(5).tolist() == []
    adapter(drifted(4))
    assert sorted(adapter.ask(5).tolist()) == [32, 33, 34, 35]
    assert adapter.label([0] * 4, range(32, 36)) == 4


def test_going_back_takes_no_more_memory() -> None:
    """A server goes back at each change of the stream."""
    adapter = adapter_of()
    before = adapter.footprint().buffers
    adapter(drifted(8))
    held = adapter.footprint().buffers
    assert held.numbers - before.numbers >= 2 * 4096 * CLASSES
    adapter.restore(adapter.snapshot())
    assert adapter.footprint().buffers == held
    adapter.double()
    assert adapter.footprint().buffers.numbers < 2 * before.numbers


def test_only_the_latest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.core.recent._MOST", 20)
    adapter, other = adapter_of(), adapter_of()
    answers = streamed(adapter)  # 32 samples, whose places were written twice
    streamed(other)
    with pytest.raises(ForgottenRequestError, match="12 to 31, got 11"):
        adapter.label([0], [11])
    right = answers.argmax(1)
    assert adapter.label(right[12:], range(12, 32)) == 20
    hits = sums_of(adapter)[0, 0]
    assert adapter.label((right[12:] + 1) % CLASSES, range(12, 32)) == 20
    assert float(sums_of(adapter)[0, 0]) == pytest.approx(float(hits), rel=1e-4)
    assert float(sums_of(adapter)[0, 1]) < 0
    big = torch.cat([drifted(25, 9)])
    right = other(big).argmax(1)
    assert other.label(right[5:], range(37, 57)) == 20
    assert float(sums_of(other)[0, 1]) > 0


def test_a_thousand_classes_take_no_more_memory() -> None:
    assert recent_samples(10) == 4096
    assert recent_samples(10_000) * 10_000 <= 2**22


@pytest.mark.parametrize(
    ("labels", "ids", "words"),
    [
        ([0, 1], [0, 1, 2], "expected 3 labels"),
        ([0.5, 1.0], [0, 1], "whole numbers"),
        ([0, CLASSES], [0, 1], "labels in 0"),
        ([True, False], [0, 1], "whole numbers"),
    ],
)
def test_labels_are_checked(labels: list[float], ids: list[int], words: str) -> None:
    adapter = adapter_of()
    streamed(adapter)
    with pytest.raises(OptionError, match=words):
        adapter.label(torch.tensor(labels), ids)
    assert adapter.labels == 0
    with pytest.raises(OptionError, match="got both"):
        adapter.label([0], [0], logits=torch.zeros(1, CLASSES))
    with pytest.raises(OptionError, match="source_logits beside logits"):
        adapter.label([0], [0], source_logits=torch.zeros(1, CLASSES))


def test_answers_of_nan_are_neither_right_nor_wrong() -> None:
    adapter, clean = adapter_of(), adapter_of()
    x = drifted(8)
    bad = torch.cat([x, torch.full_like(x[:2], torch.nan)])
    adapter(bad), clean(x)
    target = torch.arange(10) % CLASSES
    assert adapter.label(target) == 8
    assert clean.label(target[:8]) == 8
    torch.testing.assert_close(sums_of(adapter), sums_of(clean), rtol=1e-4, atol=1e-5)
    adapter(torch.full((3, 3, 6, 6), torch.nan))
    assert adapter.label([0, 0, 0]) == 0
    assert adapter.labels == 8
    assert bool(rows_of(adapter).isfinite().all())


def test_labels_are_asked_for_over_all_confidences() -> None:
    adapter = adapter_of()
    assert adapter.ask(3).tolist() == []
    confidence = streamed(adapter, batches=8).softmax(1).amax(1)
    chosen = adapter.ask(16)
    assert len(set(chosen.tolist())) == 16
    ranks = confidence.argsort().argsort()[chosen].sort().values
    assert bool((ranks // 4 == torch.arange(16)).all())  # one of each four in the order of confidence
    adapter.label(torch.zeros(16, dtype=torch.long), chosen)
    again = adapter.ask(1000)
    assert len(again) == 48 and not set(again.tolist()) & set(chosen.tolist())
    with pytest.raises(OptionError, match="count"):
        adapter.ask(0)


def test_every_sample_is_asked_for_as_often() -> None:
    adapter = adapter_of("source")
    streamed(adapter, batches=3)
    times = torch.zeros(24)
    for _ in range(600):
        times[adapter.ask(6)] += 1
    assert float((times / 600 - 0.25).abs().max()) < 0.08


def test_labels_correct_the_estimate_and_go_with_the_state(tmp_path: Path) -> None:
    adapter = adapter_of()
    answers = streamed(adapter, batches=12)
    before = adapter.accuracy
    adapter.label((answers.argmax(1) + 1) % CLASSES, range(96))
    after, temperature = adapter.accuracy, adapter.temperature
    assert before is not None and after is not None
    assert after.value < 0.5 * before.value and not after.inside
    model, _ = make("batch_norm")
    adapter.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", model)
    assert (loaded.accuracy, loaded.temperature, loaded.labels) == (after, temperature, 96)
    assert torch.equal(adapter(drifted(8, 30)), loaded(drifted(8, 30)))
    assert adapter.last is not None and adapter.last.accuracy == adapter.accuracy == loaded.accuracy
    adapter.reset()
    assert adapter.labels == 0 and not bool(rows_of(adapter).any())


def test_sets_grow_with_labels_that_they_miss_and_the_levels_go_with_the_state() -> None:
    adapter = adapter_of("tent")
    streamed(adapter, batches=12)
    answers = adapter(drifted(8, 20))
    before, interval = adapter.sets(logits=answers), adapter.coverage()
    adapter.label(answers.argmin(1))
    assert int(adapter.sets(logits=answers).sum()) > int(before.sum())
    assert adapter.coverage() != interval
    levels = adapter.snapshot().temperature["taught"]
    assert bool((levels > 0).any())
    adapter.label(answers.argmin(1), range(96, 104))  # the same labels teach once
    assert torch.equal(adapter.snapshot().temperature["taught"], levels)
    adapter.reset()
    assert not bool(adapter.snapshot().temperature["taught"].any())


def test_a_label_that_replaces_another_takes_back_what_that_one_taught() -> None:
    one, other = adapter_of("tent"), adapter_of("tent")
    answers = streamed(one, batches=12)
    streamed(other, batches=12)
    right, wrong = answers.argmax(1), answers.argmin(1)
    one.label(wrong, range(96))
    one.label(right, range(96))
    other.label(right, range(96))
    assert one.labels == other.labels == 96
    for name in ("taught", "had", "acted"):
        found, expected = (each.snapshot().temperature[name] for each in (one, other))
        torch.testing.assert_close(found, expected, atol=0.03, rtol=0.02)
    assert one.coverage().value == pytest.approx(other.coverage().value, abs=0.01)
    assert one.sets(logits=answers).sum() == pytest.approx(float(other.sets(logits=answers).sum()), abs=4)


def test_labels_of_answers_that_are_wrong_withhold_them() -> None:
    adapter = adapter_of("source")
    answers = streamed(adapter, batches=12)
    before = adapter.decide(logits=answers, accuracy=0.6)
    assert before.reached
    adapter.label((answers.argmax(1) + 1) % CLASSES, range(96))
    after = adapter.decide(logits=answers, accuracy=0.6)
    assert after.share < before.share and int(after.mask.sum()) < int(before.mask.sum())


def test_numbers_go_on_after_a_load(tmp_path: Path) -> None:
    adapter = adapter_of()
    streamed(adapter)
    adapter.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", make("batch_norm")[0])
    loaded(drifted(8, 30))
    assert loaded.last is not None and adapter.last is not None
    assert loaded.last.ids == range(adapter.last.ids.stop, adapter.last.ids.stop + 8)
    with pytest.raises(ForgottenRequestError, match="32 to 39"):
        loaded.label([0], [3])


def test_no_labels_are_none() -> None:
    adapter = adapter_of()
    streamed(adapter)
    before = adapter.accuracy
    assert adapter.label([], []) == 0
    assert adapter.accuracy == before and adapter.labels == 0


def test_labels_of_chosen_answers_that_the_caller_kept_are_no_move_of_the_estimate() -> None:
    adapter = adapter_of("tent")
    answers = streamed(adapter, batches=12)
    assert adapter.accuracy is not None
    estimate = adapter.accuracy.value
    doubtful = answers[answers.softmax(1).amax(1).argsort()[:40]]
    adapter.label(doubtful.argmax(1), logits=doubtful)
    sums = sums_of(adapter)[0]
    assert float((sums[-1] - sums[1]) / sums[0]) == pytest.approx(estimate, abs=1e-4)


@pytest.mark.parametrize("method", ["tent", "poise"])
@pytest.mark.parametrize("kept", [False, True])
def test_the_scores_of_labels_are_those_of_the_answers_as_given(
    method: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source model answers in the rehearsal of poise."""
    adapter, came = adapter_of(method), []
    plain = Expectations.learned

    def learned(
        self: Expectations, labelled: LabelScores, back: Taught | None = None
    ) -> tuple[Taught, Taught]:
        came.append(labelled)
        return plain(self, labelled, back)

    monkeypatch.setattr(Expectations, "learned", learned)
    answers, target = streamed(adapter)[-8:], torch.arange(8) % CLASSES
    adapter.label(target, logits=answers if kept else None)
    expected = [class_scores(answers.softmax(1), score).gather(1, target.unsqueeze(1)) for score in SCORES]
    torch.testing.assert_close(came[0].own, torch.cat(expected, 1), atol=1e-4, rtol=1e-4)
    confidence, classes = answers.softmax(1).max(1)
    torch.testing.assert_close(came[0].first, 1 - confidence, atol=1e-4, rtol=1e-4)
    assert came[0].hits.tolist() == (classes == target).float().tolist()


def test_without_labels_a_stream_is_answered_as_ever() -> None:
    one, other = adapter_of(), adapter_of()
    expected = streamed(one)
    other.ask(2)
    assert torch.equal(streamed(other), expected)
    assert not bool(rows_of(one).any())


@pytest.mark.parametrize(("method", "model"), [("tent", 0), ("poise", 1)])
def test_answers_that_the_caller_kept(method: str, model: int) -> None:
    """Poise, whose source model answers here, has nothing to say of the adapted model then."""
    adapter = adapter_of(method)
    answers = streamed(adapter)
    right = answers.argmax(1)
    before = adapter.accuracy
    assert adapter.last is not None and before is not None
    assert adapter.label(right[-8:], logits=answers[-8:], source_logits=adapter.last.source_logits) == 8
    sums = sums_of(adapter)
    gap = 1 - answers[-8:].softmax(1).amax(1)
    right_now = float(gap.sum()) + 8 * before.value
    expected = [8.0, float(gap.sum()), float(gap.square().sum()), 0.0, 0.0, 0.0, right_now]
    assert sums[model].tolist() == pytest.approx(expected, rel=1e-4)
    assert len(sums) == model + 1 and not bool(sums[:model].any())
    adapter.reset()
    assert adapter.label(right, logits=answers) == 32
    assert adapter.labels == 32
    answers[3] = torch.nan
    assert adapter.label(right, logits=answers) == 31


def test_several_processes_that_adapt_as_one_take_no_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = adapter_of()
    streamed(adapter)
    monkeypatch.setattr(eq.Adapter, "processes", 2)
    for call in (lambda: adapter.label([0] * 8), lambda: adapter.ask(2), lambda: adapter.labels):
        with pytest.raises(OptionError, match="one process"):
            call()


def test_inference_mode_and_moves() -> None:
    adapter = adapter_of()
    with torch.inference_mode():
        streamed(adapter)
        adapter.label(torch.arange(8) % CLASSES)
    streamed(adapter)
    adapter.label(torch.arange(8) % CLASSES)
    assert adapter.labels == 16
    adapter.double()
    with pytest.raises(ForgottenRequestError, match="a batch"):
        adapter.label(torch.arange(8) % CLASSES)
    adapter(drifted(8).double())
    assert adapter.label(torch.arange(8) % CLASSES) == 8


def test_a_tempered_adapter_has_labels_of_its_own() -> None:
    model, source = make("batch_norm")
    made = eq.Tempered(
        eq.create("tent", model, source, tempering="none"), rehearsed(source, "tent"), "rehearsed"
    )
    answers = streamed(made)
    assert made.label(answers.argmax(1)[-8:]) == 8
    assert made.labels == 8
    made.reset()
    assert made.labels == 0
    with pytest.raises(ForgottenRequestError):
        made.label([0], [31])


def test_answers_of_the_source_model_that_the_caller_kept_count_for_it() -> None:
    adapter = adapter_of()
    logits = adapter(drifted(8))
    state = adapter.state_dict()
    name = next(each for each in state if each.endswith("trusts_source"))
    adapter.load_state_dict({**state, name: torch.tensor(True)})
    assert adapter.label(logits.argmax(1), logits=logits) == 8
    counts = rows_of(adapter)[:, 0].tolist()
    assert counts == [0.0, 8.0]


def test_a_change_of_the_stream_weighs_on_labels_once() -> None:
    adapter = adapter_of()
    adapter(drifted(8))
    ids = last_ids(adapter)
    state = adapter.state_dict()
    adapter.responder.state.temperature["changed"].fill_(True)
    for _ in range(2):
        adapter(torch.full((2, 3, 6, 6), torch.nan))
    adapter.label([0] * 8, ids)
    assert float(rows_of(adapter)[0, 0]) == pytest.approx(8, abs=0.1)
    assert state.keys() == adapter.state_dict().keys()
