"""Labels that come late: on disk before they are acknowledged, counted once, and not lost by a restart."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.production.guard.guarded import Guarded
from equipoise.production.monitor import Monitor
from equipoise.production.server.answers import (
    Answered,
    AnswerLog,
    Journal,
    LabelEntry,
    labels_hash,
    new_token,
)
from equipoise.production.server.errors import InputError, UnknownRequestError, UnknownStreamError
from equipoise.production.server.learner import LateAnswers
from equipoise.production.server.limits import Limits
from equipoise.production.server.served_stream import Live, ServedStream
from tests.production.server.support import adapter, ask, batch, counted, judged, labels, service
from tests.support.waiting import HANG, wait_until


def test_labels_are_compared_with_the_answers_that_were_given(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        answer = ask(own, "a", batch(0))
        taken = own.label("a", answer.request, labels(0))
        right = sum(a == b for a, b in zip(answer.classes, labels(0), strict=True))
        assert (taken.request, taken.rows, taken.right) == (answer.request, 8, right)
        gauges = own.status("a").gauges
        assert gauges["labels"] == 8
        assert gauges["true_accuracy"] == right / 8


def test_the_guard_gets_the_labels_with_both_models_answers(tmp_path: Path) -> None:
    alone = Guarded(adapter())
    with service(tmp_path) as own:
        for seed in range(4):
            x, wrong = batch(seed), [(label + 1) % 4 for label in labels(seed)]
            answer = ask(own, "a", x)
            logits = alone(torch.from_numpy(x))
            assert alone.last is not None
            assert alone.last.source_logits is not None
            own.label("a", answer.request, wrong)
            alone.label(torch.tensor(wrong), logits=logits, source_logits=alone.last.source_logits)
        assert own.status("a").guard.split("\n")[:2] == alone.status().split("\n")[:2]


@pytest.mark.parametrize("guarded", [True, False])
def test_the_adapter_gets_the_labels_once_and_its_estimates_follow(tmp_path: Path, guarded: bool) -> None:
    inner = adapter()
    alone: Any = Guarded(inner) if guarded else inner
    with service(tmp_path, guarded=guarded) as own:
        for seed in range(4):
            x, wrong = batch(seed), [(label + 1) % 4 for label in labels(seed)]
            answer, logits = ask(own, "a", x), alone(torch.from_numpy(x))
            assert answer.accuracy == alone.last.accuracy
            for _ in range(2):
                own.label("a", answer.request, wrong)
            alone.label(torch.tensor(wrong), logits=logits, source_logits=alone.last.source_logits)
            assert counted(own) == inner.labels == 8 * (seed + 1)
        unlabelled = adapter()
        for seed in range(4):
            unlabelled(torch.from_numpy(batch(seed)))
        assert inner.accuracy is not None
        assert unlabelled.accuracy is not None
        assert inner.accuracy.value < unlabelled.accuracy.value, "else these labels show nothing"


def test_labels_of_a_late_answer_are_none_of_the_adapters(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        ask(own, "a", batch(0))
        late, opened = Limits(latency_ms=1), threading.Event()
        own._limits, patient = late, own._limits
        own._queue.run(opened.wait)
        answer = ask(own, "a", batch(1))
        opened.set()
        own._limits = patient
        assert answer.answered_by == "source"
        own.label("a", answer.request, labels(1))
        assert counted(own) == 0
        wait_until(lambda: own.status("a").gauges.get("labels_seen") == 8, "labels counted by the monitor")


def test_the_same_labels_again_count_once_and_others_are_refused(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        answer = ask(own, "a", batch(0))
        first = own.label("a", answer.request, labels(0))
        assert own.label("a", answer.request, labels(0)) == first
        with pytest.raises(InputError, match="other labels"):
            own.label("a", answer.request, [0] * 8 if labels(0) != [0] * 8 else [1] * 8)
        assert own.status("a").gauges["labels"] == 8
    with service(tmp_path) as again:
        assert again.label("a", answer.request, labels(0)) == first
        assert again.status("a").gauges["labels"] == 8


def test_labels_of_requests_before_a_restart_are_taken(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        answers = [ask(own, "a", batch(seed)) for seed in range(3)]
    with service(tmp_path) as again:
        assert ask(again, "a", batch(3)).request not in {answer.request for answer in answers}
        for seed, answer in enumerate(answers):
            assert again.label("a", answer.request, labels(seed)).rows == 8
        assert again.status("a").gauges["labels"] == 24


@pytest.mark.parametrize(
    "bad", [[0] * 7, [4] + [0] * 7, [-1] + [0] * 7, ["a"] * 8, [0.5] * 8, [[0] * 8], [], None, [True] * 8]
)
def test_labels_that_do_not_fit_are_refused(tmp_path: Path, bad: Any) -> None:
    with service(tmp_path, guarded=False) as own:
        answer = ask(own, "a", batch(0))
        with pytest.raises(InputError, match="expected"):
            own.label("a", answer.request, bad)
        assert own.label("a", answer.request, labels(0)).rows == 8


def test_unknown_requests_and_streams_are_refused(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        answer = ask(own, "a", batch(0))
        ask(own, "b", batch(0))
        for request in ("", "x", "1-0-000000000000", "../../lock", answer.request + "0", "ff-0-000000000000"):
            with pytest.raises(UnknownRequestError):
                own.label("a", request, labels(0))
        with pytest.raises(UnknownRequestError, match="not one of the stream"):
            own.label("b", answer.request, labels(0))
        with pytest.raises(UnknownStreamError):
            own.label("c", answer.request, labels(0))


def answered(value: float = 0.5) -> Answered:
    logits = torch.full((3, 2), value)
    return Answered("a", logits, None, logits + 1)


def test_the_log_of_answers_is_bounded_and_gives_back_what_it_got(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path, limit=4000)
    ids = [log.add({new_token(): answered(value)})[0] for value in range(200)]
    assert len(set(ids)) == 200
    found, mark = log.find(ids[-1])
    assert mark is None
    assert torch.equal(found.given, answered(199).given)
    assert found.adapted is None
    assert found.source is not None
    assert torch.equal(found.source, answered(200).given)
    with pytest.raises(UnknownRequestError, match="forgotten"):
        log.find(ids[0])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4000
    log.close()
    again = AnswerLog(tmp_path, limit=4000)
    assert torch.equal(again.find(ids[-1])[0].given, found.given)
    assert again.add({new_token(): answered()})[0] not in ids
    again.close()


def test_restarts_forget_no_answers_below_the_limit(tmp_path: Path) -> None:
    ids = []
    for value in range(12):
        log = AnswerLog(tmp_path, limit=8000)
        ids.append(log.add({new_token(): answered(value)})[0])
        log.close()
    log = AnswerLog(tmp_path, limit=8000)
    for value, name in enumerate(ids):
        assert torch.equal(log.find(name)[0].given, answered(value).given)
    log.close()
    assert len(list(tmp_path.iterdir())) < 4


def test_a_torn_last_answer_is_written_over_at_a_restart(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path, limit=8000)
    first, torn = (log.add({new_token(): answered(value)})[0] for value in range(2))
    log.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    log = AnswerLog(tmp_path, limit=8000)
    third = log.add({new_token(): answered(2)})[0]
    log.mark(third, [0, 1, 0])
    assert torch.equal(log.find(first)[0].given, answered(0).given)
    assert log.find(third)[1] == labels_hash([0, 1, 0])
    with pytest.raises(UnknownRequestError):
        log.find(torn)
    log.close()
    assert path.read_bytes().count(b"\n") == 2


def test_a_torn_last_line_of_the_journal_is_left_out_and_written_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "labels.jsonl")
    for number in (1, 2):
        journal.append(LabelEntry(number, f"r{number}", [0, 1, 0], answered()))
    path = tmp_path / "labels.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert [entry.request for entry in journal.entries()] == ["r1"]
    journal.append(LabelEntry(2, "r3", [1, 1, 0], answered()))
    found = list(journal.entries())
    assert [(entry.number, entry.request, entry.labels) for entry in found] == [
        (1, "r1", [0, 1, 0]),
        (2, "r3", [1, 1, 0]),
    ]
    assert torch.equal(found[1].answered.given, answered().given)
    assert [entry.number for entry in journal.entries(after=1)] == [2]


def test_answers_are_calibrated_probabilities(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        answer = ask(own, "a", batch(0))
        assert answer.probabilities.dtype == np.float32
        np.testing.assert_allclose(answer.probabilities.sum(1), 1, rtol=1e-5)
        assert answer.probabilities.shape == (8, 4)
        assert own.method == "poise"
        assert own.ready
    assert not own.ready


def test_labels_of_a_late_answer_count_whoever_is_first_to_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = service(tmp_path, latency_ms=30)
    ask(own, "a", batch(0))
    own._do(lambda: None)  # the learner has finished
    claimed, learned = threading.Event(), threading.Event()
    reply, bring, observe = LateAnswers._reply, own._cache.bring, Monitor.observe

    def late_reply(*args: Any) -> None:
        claimed.set()
        assert learned.wait(HANG)
        reply(*args)

    def late_bring(stream: ServedStream) -> Live:
        assert claimed.wait(HANG)
        return bring(stream)

    def seen(*args: Any, **kwargs: Any) -> None:
        observe(*args, **kwargs)
        learned.set()

    with monkeypatch.context() as patch:
        patch.setattr(LateAnswers, "_reply", late_reply)
        patch.setattr(own._cache, "bring", late_bring)
        patch.setattr(Monitor, "observe", seen)
        answer = ask(own, "a", batch(1))
    assert answer.answered_by == "source"
    own.label("a", answer.request, labels(1))
    assert own.status("a").gauges["labels"] == 8
    own.close()


def test_labels_count_though_their_answers_have_left_the_window(tmp_path: Path) -> None:
    with service(tmp_path, guarded=False, adapter=adapter("norm")) as own:
        first = ask(own, "a", batch(0))
        for seed in range(1, 12):
            ask(own, "a", batch(seed, 50))
        right = own.label("a", first.request, labels(0)).right
        assert own.status("a").gauges["labels"] == 8
        assert own.status("a").gauges["true_accuracy"] == right / 8
        assert own.status("a").gauges["samples"] == 500
    with service(tmp_path, guarded=False, adapter=adapter("norm")) as again:
        assert again.status("a").gauges["labels"] == 8


def test_a_reader_between_a_batch_and_its_monitor_keeps_no_old_gauges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path) as own:
        answer = ask(own, "a", batch(0))
        observe, take = Monitor.observe, Monitor.observe_labels

        def observed(*args: Any, **kwargs: Any) -> None:
            own.status("a")
            observe(*args, **kwargs)

        def labelled(*args: Any, **kwargs: Any) -> int:
            own.status("a")
            return take(*args, **kwargs)

        monkeypatch.setattr(Monitor, "observe", observed)
        monkeypatch.setattr(Monitor, "observe_labels", labelled)
        own.label("a", answer.request, labels(0))
        assert own.status("a").gauges["labels"] == 8
        ask(own, "a", batch(1))
        own._do(lambda: None)
        assert own.status("a").gauges["samples"] == 16


def test_labels_of_answers_from_before_a_reset_do_not_judge_the_model_after_it(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        before = [ask(own, "a", batch(seed)) for seed in range(3)]
        own.reset("a")
        after = ask(own, "a", batch(3))
        assert [own._answers.find(answer.request)[0].batch for answer in (*before, after)] == [1, 2, 3, 4]
        for seed, answer in enumerate(before):
            own.label("a", answer.request, labels(seed))
        assert judged(own) == 0
        assert own.status("a").gauges["labels"] == 24
        own.label("a", after.request, labels(3))
        assert judged(own) > 0


@pytest.mark.parametrize("guarded", [False, True])
def test_labels_of_answers_from_before_a_reset_are_not_the_adapters(tmp_path: Path, guarded: bool) -> None:
    with service(tmp_path, guarded=guarded) as own:
        before = [ask(own, "a", batch(seed)) for seed in range(3)]
        own.reset("a")
        own.label("a", before[0].request, labels(0))
        after = ask(own, "a", batch(3))
        own.label("a", before[1].request, labels(1))
        assert counted(own) == 0
    with service(tmp_path, guarded=guarded) as own:  # after a restart, too
        own.label("a", before[2].request, labels(2))
        assert counted(own) == 0
        own.label("a", after.request, labels(3))
        assert counted(own) == 8
