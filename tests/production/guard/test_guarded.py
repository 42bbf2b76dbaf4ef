"""An adapter under guard: answers, actions, faults, late labels, state and threads."""

import json
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.errors import BatchError, ForgottenRequestError, OptionError, StateError
from equipoise.production.guard.triggers import LARGEST_STEP
from equipoise.testing.models import drifted_stream
from tests.production.guard.streams import FAULTS, SIZE, accuracy_of, adapter, clean, contented, run_to, small
from tests.support.models import Counting, drifted, make, measured, rehearsed, same
from tests.support.rehearsals import CLASSES, held_out, trained


@pytest.mark.parametrize("method", eq.list_methods())
def test_it_answers_as_the_adapter_does_with_every_method(method: str, tmp_path: Path) -> None:
    alone, guarded = small(method), eq.Guarded(small(method), every=2, folder=tmp_path, log=tmp_path / "log")
    for x in drifted_stream():
        assert torch.equal(guarded(x), alone(x))
    assert guarded.last == alone.last
    assert same(guarded.adapter.state_dict(), alone.state_dict())
    assert torch.equal(guarded.predict(drifted(4)), alone.predict(drifted(4)))
    assert not guarded.events
    assert len(guarded.snapshots) == 3
    assert eq.replay(tmp_path / "log") == []


@pytest.mark.parametrize("method", eq.list_methods())
def test_going_back_is_bit_equal_with_every_method(method: str) -> None:
    guarded = eq.Guarded(small(method), every=2)
    run_to(guarded, 4)
    at_four = guarded.adapter.state_dict()
    run_to(guarded, 1)
    assert guarded.rollback() == guarded.snapshots[-1]
    assert same(guarded.adapter.state_dict(), at_four)
    guarded.reset("a test")
    assert same(guarded.adapter.state_dict(), small(method).state_dict())
    assert [event.action for event in guarded.events] == ["rollback", "reset"]


def test_the_source_model_is_asked_once_a_batch() -> None:
    model = Counting(trained())
    for method, forwards in (("tent", 2), ("dec", 2)):
        inner = eq.create(method, model, measured(model, held_out()), tempering="none")
        guarded = eq.Guarded(inner)
        guarded(clean(1)[0][0])
        Counting.forwards = 0
        guarded(clean(1)[0][0])
        assert Counting.forwards == forwards


def test_while_held_nothing_is_learned_and_the_answers_are_those_of_predict() -> None:
    guarded = eq.Guarded(small())
    run_to(guarded, 3)
    guarded.hold("the camera is cleaned")
    before, x = guarded.adapter.state_dict(), drifted(8, 50)
    assert torch.equal(guarded(x), guarded.adapter.predict(x))
    assert same(guarded.adapter.state_dict(), before)
    assert guarded.holding
    assert guarded.last is not None
    assert not guarded.last.updated
    assert "the camera is cleaned" in guarded.last.reason
    assert "the camera is cleaned" in guarded.status()
    guarded.release()
    guarded(x)
    assert not same(guarded.adapter.state_dict(), before)


def test_tent_at_a_rate_of_one_half_is_stopped_before_it_costs_accuracy() -> None:
    guarded = eq.Guarded(adapter("tent", learning_rate=0.5), cool_down=5)
    bare = adapter("tent", learning_rate=0.5)
    batches, right = clean(60), [0, 0, 0]
    for x, y in batches:
        answers = (guarded(x), bare(x), bare.source_logits(x))
        right = [n + int((z.argmax(1) == y).sum()) for n, z in zip(right, answers, strict=True)]
    assert right[0] >= right[2] - 0.01 * SIZE * len(batches)
    assert [event.action for event in guarded.events] == ["reset", "release", "reset", "release", "reset"]
    assert all("weights moved" in event.reason for event in guarded.events[::2])
    assert guarded.holding
    assert "held until `release`" in guarded.status()


def test_a_slow_collapse_is_found_by_the_classes_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter whose head drifts towards class 0, in steps too small for any limit of weights."""
    guarded = eq.Guarded(adapter("norm"), every=5)
    drift = 0.0
    actual = type(guarded.adapter).forward

    def drifting(self: eq.Adapter, x: Tensor) -> Tensor:
        logits: Tensor = actual(self, x).clone()
        logits[:, 0] += drift
        return logits

    monkeypatch.setattr(eq.Adapter, "forward", drifting)
    for step, (x, _) in enumerate(clean(80)):
        drift = 0.5 * max(step - 20, 0)
        answer = guarded(x)
        if guarded.events:
            break
    (event,) = guarded.events
    assert event.trigger == "collapse"
    assert event.action == "rollback"
    assert "class 0 has" in event.reason
    assert len(answer.argmax(1).unique()) > 1, "the batch is answered again by the model gone back to"
    assert guarded.last is not None
    assert "undone by the guard" in guarded.last.reason


def confuse(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """From when the list is not empty, what adapters answer as they learn is of the next class."""
    now: list[bool] = []
    actual = eq.Adapter.forward

    def confused(self: eq.Adapter, x: Tensor) -> Tensor:
        logits: Tensor = actual(self, x)
        return logits.roll(1, dims=1) if now else logits

    monkeypatch.setattr(eq.Adapter, "forward", confused)
    return now


def test_harm_that_the_estimates_explain_away_is_seen_by_disagreement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every answer turns to the next class, and the estimates go on saying that all is well."""
    guarded = eq.Guarded(contented(0.2), every=5, log=tmp_path / "log")
    now = confuse(monkeypatch)
    for step, (x, _) in enumerate(clean(40), 1):
        now += [True] * (step == 11)
        answer = guarded(x)
        if guarded.events:
            break
    (event,) = guarded.events
    assert (event.action, event.trigger) == ("rollback", "disagreement")
    assert "at most 20 %" in event.reason
    assert "to 000002-batch-10" in event.reason
    assert step <= 30
    assert guarded.holding
    assert guarded.accuracy is not None
    assert guarded.source_accuracy is not None
    assert guarded.accuracy.value > guarded.source_accuracy.value
    assert (answer.argmax(1) == guarded.adapter.source_logits(x).argmax(1)).float().mean() > 0.8
    assert eq.replay(tmp_path / "log") == list(guarded.events)


def test_without_a_rehearsed_disagreement_no_trigger_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = eq.Guarded(contented(None))
    confuse(monkeypatch).append(True)
    for x, _ in clean(40):
        guarded(x)
    assert not guarded.events


def test_a_rollback_after_a_reset_is_no_runaway(tmp_path: Path) -> None:
    guarded = eq.Guarded(small("tent", learning_rate=0.02), log=tmp_path / "log")
    run_to(guarded, 8)
    guarded.snapshot()
    guarded.reset("a test")
    run_to(guarded, 1)
    guarded.rollback()
    guarded(drifted(8, 9))
    assert guarded.state()["watch"]["runaway"]["weights"] > LARGEST_STEP
    assert [event.trigger for event in guarded.events] == ["request"] * 3
    assert eq.replay(tmp_path / "log") == list(guarded.events)


def test_a_rollback_without_a_snapshot_is_refused_and_changes_nothing() -> None:
    guarded = eq.Guarded(small())
    run_to(guarded, 2)
    before = guarded.adapter.state_dict()
    with pytest.raises(OptionError, match="from 1 to 0"):
        guarded.rollback()
    assert same(guarded.adapter.state_dict(), before)
    assert not guarded.events


def test_a_rollback_to_files_that_are_all_damaged_is_refused(tmp_path: Path) -> None:
    guarded = eq.Guarded(small(), folder=tmp_path)
    guarded.snapshot()
    (tmp_path / f"{guarded.snapshots[0]}.safetensors").write_bytes(b"nothing")
    again = eq.Guarded(small(), folder=tmp_path)
    with pytest.raises(StateError, match="cannot be read"):
        again.rollback()


def test_it_goes_on_after_a_break_as_if_there_had_been_none() -> None:
    whole, first = (eq.Guarded(adapter("tent", learning_rate=0.3), cool_down=8) for _ in range(2))
    batches = [x for x, _ in clean(40)]
    answers = [whole(x) for x in batches]
    for x in batches[:13]:
        first(x)
    second = eq.Guarded(adapter("tent", learning_rate=0.3), cool_down=8)
    second.adapter.load_state_dict(first.adapter.state_dict())
    second.load(json.loads(json.dumps(first.state())))
    assert all(torch.equal(second(x), z) for x, z in zip(batches[13:], answers[13:], strict=True))
    kinds = [[(e.batch, e.action, e.reason) for e in guarded.events] for guarded in (whole, second)]
    assert kinds[0] == kinds[1]
    assert len(kinds[0]) == 5
    assert second.state()["watch"] == whole.state()["watch"]


def test_another_state_is_refused_and_the_guards_own_stays() -> None:
    guarded = eq.Guarded(small())
    before = guarded.state()
    another: list[dict[str, Any]] = [
        {},
        {"watch": {}, "events": []},
        {"watch": before["watch"], "events": [{"when": 1}], "snapshots": []},
        {"watch": before["watch"], "events": []},
    ]
    for broken in another:
        with pytest.raises(StateError, match="state of a guard"):
            guarded.load(broken)
    assert guarded.state() == before


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        (small, partial(eq.Guarded, delta=0.1), r"tolerance 0\.05 and delta 0\.01"),
        (small, partial(eq.Guarded, tolerance=0.2), r"tolerance 0\.05 and delta 0\.01"),
        (partial(contented, 0.2), lambda _: eq.Guarded(contented(0.3)), "rehearsal"),
    ],
)
def test_the_state_of_a_guard_that_tests_otherwise_is_refused(own: Any, other: Any, words: str) -> None:
    with pytest.raises(StateError, match=words):
        eq.Guarded(own()).load(other(own()).state())


@pytest.mark.parametrize("name", ["folder", "log"])
def test_a_guard_with_files_is_not_copied(tmp_path: Path, name: str) -> None:
    options: dict[str, Any] = {name: tmp_path / name}
    guarded = eq.Guarded(small(), **options)
    with pytest.raises(OptionError, match="folder and log"):
        deepcopy(guarded)


def test_a_copy_goes_on_by_itself() -> None:
    guarded = eq.Guarded(small(), every=2)
    run_to(guarded, 3)
    before, copied = guarded.state(), deepcopy(guarded)
    assert torch.equal(copied(drifted(8, 9)), deepcopy(guarded)(drifted(8, 9)))
    copied.rollback()
    assert guarded.state() == before
    assert copied.batch == guarded.batch + 1


def test_several_streams_share_an_adapter() -> None:
    """As a service does: the stream's snapshot is restored before the call and taken after it."""
    shared = small("tent", learning_rate=0.02)
    streams = {name: (eq.Guarded(shared, every=3), shared.snapshot()) for name in "ab"}
    alone = {name: eq.Guarded(small("tent", learning_rate=0.02), every=3) for name in "ab"}
    for seed in range(8):
        for shift, name in enumerate("ab"):
            guarded, kept = streams[name]
            shared.restore(kept)
            x = drifted(8, seed + 100 * shift)
            assert torch.equal(guarded(x), alone[name](x))
            streams[name] = guarded, shared.snapshot()
    for name in "ab":
        assert streams[name][0].state() == alone[name].state()


def test_threads_may_share_it() -> None:
    guarded = eq.Guarded(small())
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(guarded, [drifted(8, seed) for seed in range(24)]))
    assert all(answer.isfinite().all() for answer in answers)
    assert guarded.status().startswith("batch 24: learning")


def event_of_bad_statistics(guarded: eq.Guarded) -> eq.Event:
    """The one event of a guard whose adapter's statistics turn bad before the next batch."""
    next(iter(guarded.adapter.responder.student.statistics.values())).fill_(1e6)
    assert guarded(drifted(8, 6)).isfinite().all()
    (event,) = guarded.events
    return event


def test_an_adapter_whose_statistics_turn_bad_goes_back_to_the_last_good_snapshot() -> None:
    guarded = eq.Guarded(small("norm"), every=2)
    run_to(guarded, 5)
    (mean, *_) = guarded.adapter.responder.student.statistics.values()
    good = mean.clone()
    event = event_of_bad_statistics(guarded)
    assert (event.action, event.trigger) == ("rollback", "runaway")
    assert guarded.snapshots[-1] in event.reason
    assert (mean - good).abs().max() < 10


def test_facts_are_those_of_the_adapter() -> None:
    guarded = eq.Guarded(adapter("poise"))
    guarded(clean(1)[0][0])
    inner = guarded.adapter
    assert guarded.accuracy == inner.accuracy
    assert guarded.source_accuracy == inner.source_accuracy
    assert guarded.temperature == inner.temperature
    assert guarded.accuracy is not None


@pytest.mark.parametrize(
    "options",
    [{"tolerance": -1}, {"delta": 0}, {"delta": 0.9}, {"cool_down": 0}, {"every": 0}, {"keep": 0}],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=name):
        eq.Guarded(small(), **options)


def test_anything_but_an_adapter_is_refused() -> None:
    model: Any = trained()
    with pytest.raises(OptionError, match="Sequential"):
        eq.Guarded(model)


def test_the_status_has_the_evidence_of_each_test_and_counts_the_snapshots() -> None:
    guarded = eq.Guarded(contented(0.2))
    guarded(clean(1)[0][0])
    assert "estimates 0%, labels 0%, collapse 0%, disagreement 0%" in guarded.status()
    lines = []
    for _ in range(2):
        guarded.snapshot()
        lines.append(guarded.status().split("\n")[2])
    assert lines[0].startswith("1 snapshot, the newest")
    assert lines[1].startswith("2 snapshots, the newest")


def test_a_state_that_is_loaded_drops_the_snapshots_taken_after_it() -> None:
    guarded = eq.Guarded(adapter("tent"), every=2)
    batches = [x for x, _ in clean(6)]
    for x in batches[:3]:
        guarded(x)
    early = guarded.state()
    for x in batches[3:]:
        guarded(x)
    assert len(guarded.snapshots) == 3
    guarded.load(early)
    assert list(guarded.snapshots) == ["000001-batch-2"]


def test_a_run_in_the_folder_of_an_earlier_one_does_not_go_back_to_its_snapshots(tmp_path: Path) -> None:
    run_to(eq.Guarded(small("norm"), every=1, folder=tmp_path), 3)
    guarded = eq.Guarded(small("norm"), folder=tmp_path)
    run_to(guarded, 4)
    event = event_of_bad_statistics(guarded)
    assert event.action == "reset"
    assert "no snapshot is older than the evidence" in event.reason


def test_a_restart_goes_back_to_the_snapshots_that_its_state_names(tmp_path: Path) -> None:
    first = eq.Guarded(small("norm"), every=2, folder=tmp_path)
    run_to(first, 5)
    second = eq.Guarded(small("norm"), folder=tmp_path)
    second.adapter.load_state_dict(first.adapter.state_dict())
    second.load(json.loads(json.dumps(first.state())))
    event = event_of_bad_statistics(second)
    assert event.action == "rollback"
    assert first.snapshots[-1] in event.reason


FAST = ("poise", "tent")
CLEAN = clean(24, seed=70)


def survives(method: str, fault: str) -> None:
    guarded = eq.Guarded(adapter(method))
    source = accuracy_of(guarded.adapter.source_logits, CLEAN[12:])
    for x in FAULTS[fault]():
        answers = guarded(x)
        assert answers[x.flatten(1).isfinite().all(1)].isfinite().all()
    acted = len(guarded.events)
    accuracy_of(guarded, CLEAN[:12])
    after = accuracy_of(guarded, CLEAN[12:])
    assert after >= source - 0.01 or acted, f"{after} against {source}, and no action"
    assert all(event.reason for event in guarded.events)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", FAST)
def test_a_fault_leaves_the_model_accurate_or_the_guard_has_acted(method: str, fault: str) -> None:
    survives(method, fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", [name for name in eq.list_methods() if name not in FAST])
def test_a_fault_leaves_every_method_accurate_or_the_guard_has_acted(method: str, fault: str) -> None:
    survives(method, fault)


def reversed_logits(rows: int, right: int) -> Tensor:
    """Logits of which the first `right` rows say class 0, the others class 1."""
    logits = torch.zeros(rows, CLASSES)
    logits[:right, 0], logits[right:, 1] = 1.0, 1.0
    return logits


def test_labels_that_say_the_adapted_model_is_worse_lead_to_an_action() -> None:
    guarded = eq.Guarded(small(), every=2)
    run_to(guarded, 5)
    target = torch.zeros(50, dtype=torch.long)
    for _ in range(20):
        guarded.label(target, logits=reversed_logits(50, 20), source_logits=reversed_logits(50, 45))
    (event,) = guarded.events
    assert event.trigger == "labels"
    assert guarded.holding


def test_labels_of_a_better_model_and_rows_without_an_answer_lead_to_none() -> None:
    guarded = eq.Guarded(small())
    target, lost = torch.zeros(50, dtype=torch.long), torch.full((50, CLASSES), torch.nan)
    for _ in range(50):
        guarded.label(target, logits=reversed_logits(50, 45), source_logits=reversed_logits(50, 20))
        guarded.label(target, logits=lost, source_logits=reversed_logits(50, 50))
    assert not guarded.events


def test_a_backlog_of_labels_in_one_call_is_evidence(tmp_path: Path) -> None:
    guarded = eq.Guarded(small(), log=tmp_path / "log")
    run_to(guarded, 1)
    target = torch.zeros(1000, dtype=torch.long)
    guarded.label(target, logits=reversed_logits(1000, 0), source_logits=reversed_logits(1000, 1000))
    assert [event.trigger for event in guarded.events] == ["labels"]
    assert eq.replay(tmp_path / "log") == list(guarded.events)


def test_late_labels_of_the_model_that_was_left_do_not_count_against_the_one_gone_back_to() -> None:
    guarded = eq.Guarded(small(), cool_down=3)
    run_to(guarded, 2)
    at, target = guarded.batch, torch.zeros(400, dtype=torch.long)
    late = {"logits": reversed_logits(400, 0), "source_logits": reversed_logits(400, 400)}
    guarded.label(target, **late, batch=at)
    run_to(guarded, 4)
    assert [event.action for event in guarded.events] == ["reset", "release"]
    guarded.label(target, **late, batch=at)
    assert len(guarded.events) == 2
    guarded.label(target, **late, batch=guarded.batch)
    assert len(guarded.events) == 3


def rehearsed_guard() -> eq.Guarded:
    """A guard of an adapter with a rehearsal made by hand."""
    model, source = make()
    return eq.Guarded(eq.create("poise", model, rehearsed(source, "poise"), tempering="rehearsed"))


def test_labels_are_passed_on_to_the_adapter() -> None:
    guarded, plain = rehearsed_guard(), rehearsed_guard()
    target = torch.zeros(8, dtype=torch.long)
    for seed in range(3):
        answers = guarded(drifted(8, seed))
        plain(drifted(8, seed))
    assert guarded.last is not None
    assert guarded.last.ids == range(16, 24)
    assert guarded.ask(3).tolist() == plain.adapter.ask(3).tolist()
    source_logits = guarded.last.source_logits
    assert source_logits is not None
    assert guarded.label(target, logits=answers, source_logits=source_logits) == 8
    plain.adapter.label(target, logits=answers, source_logits=source_logits)
    assert guarded.accuracy == plain.adapter.accuracy
    assert guarded.label(target, range(8)) == plain.adapter.label(target, range(8)) == 8
    assert guarded.labels == plain.labels == 16
    with pytest.raises(OptionError, match="got both"):
        guarded.label(target, range(8), logits=answers, source_logits=source_logits)


def test_labels_without_the_source_models_answers_are_of_the_batch_that_they_name() -> None:
    guarded, target = rehearsed_guard(), torch.zeros(8, dtype=torch.long)
    answers = guarded(drifted(8))
    guarded.reset()
    assert guarded.label(target, logits=answers, batch=1) == guarded.labels == 0
    answers = guarded(drifted(8))
    assert guarded.label(target, logits=answers, batch=1) == guarded.labels == 0
    assert guarded.label(target, logits=answers, batch=2) == guarded.labels == 8


def test_labels_of_a_batch_that_was_not_learned_from_are_of_no_earlier_one() -> None:
    guarded, target = rehearsed_guard(), torch.zeros(8, dtype=torch.long)
    with pytest.raises(ForgottenRequestError, match="learned from"):
        guarded.label(target)
    guarded(drifted(8))
    assert guarded.label(target) == 8
    guarded.hold()
    answers = guarded(drifted(8, 1))
    with pytest.raises(ForgottenRequestError, match=r"learned from.*logits"):
        guarded.label(target)
    assert guarded.label(target, range(8)) == 8
    assert guarded.labels == 8
    assert guarded.label(target, logits=answers) == 8


def test_labels_of_a_model_that_was_left_do_not_reach_the_adapter() -> None:
    guarded = rehearsed_guard()
    guarded(drifted(8))
    at, target = guarded.batch, torch.zeros(8, dtype=torch.long)
    guarded.reset()
    late = {"logits": reversed_logits(8, 0), "source_logits": reversed_logits(8, 8)}
    assert guarded.label(target, **late, batch=at) == 0
    assert guarded.labels == 0


def test_labels_of_other_shapes_are_refused() -> None:
    with pytest.raises(BatchError, match=r"\(3,\), \(4, 4\), \(4, 4\)"):
        eq.Guarded(small()).label(torch.zeros(3), logits=torch.zeros(4, 4), source_logits=torch.zeros(4, 4))
