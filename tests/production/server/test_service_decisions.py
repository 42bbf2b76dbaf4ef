"""Sets and decisions: of the model that answered, for the requests that ask, at no cost for others."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.adapter import Adapter
from equipoise.calibration.expected import Expectations
from equipoise.production.server.errors import InputError
from equipoise.production.server.interface import NOTHING_ASKED, Asked, Mode, Prediction, ToActUpon
from equipoise.production.server.learner import Learner
from equipoise.production.server.limits import Limits
from equipoise.production.server.service import Service
from tests.production.server.support import adapter, ask, batch, counted, labels, same, service
from tests.support.rehearsals import trained
from tests.support.waiting import HANG, wait_until

BOTH = Asked(coverage=0.9, accuracy=0.9)


def asking(own: Service, stream: str, inputs: Any, asked: Asked = BOTH) -> Prediction:
    return own.submit(stream, inputs, asked).result(HANG)


def check(answer: Prediction, sets: torch.Tensor, selection: Any) -> None:
    """The fields of an answer are those that an adapter gives for the same logits."""
    assert answer.sets == [[at for at in range(4) if row[at]] for row in sets.tolist()]
    assert answer.decision == ToActUpon(selection.mask.tolist(), selection.share, selection.reached)


def check_expected(answer: Prediction, logits: torch.Tensor, expected: Expectations | None) -> None:
    """The fields of an answer follow from what is expected, by their formulas."""
    assert expected is not None
    p, selected = logits.softmax(1), expected.selected(0.9)
    threshold = expected.set_threshold("lac", 0.9)
    assert answer.sets == [[at for at in range(4) if 1 - row[at] <= threshold] for row in p]
    act = [float(row.max()) >= selected.confidence for row in p]
    assert answer.decision == ToActUpon(act, selected.share, selected.share > 0)


def learned(alone: eq.Guarded, seed: int) -> torch.Tensor:
    logits: torch.Tensor = alone(torch.from_numpy(batch(seed)))
    return logits


def test_sets_and_decision_are_those_of_the_adapter_that_answered(tmp_path: Path) -> None:
    alone = eq.Guarded(adapter())
    with service(tmp_path) as own:
        for seed in range(6):
            logits = learned(alone, seed)
            answer = asking(own, "a", batch(seed))
            inner = alone.adapter
            check(
                answer,
                inner.sets(logits=logits, coverage=0.9),
                inner.decide(logits=logits, accuracy=0.9),
            )
        assert answer.answered_by == "student"
        assert any(len(each) < 4 for each in answer.sets or ())


def test_a_request_gets_what_it_asks_for_and_no_more(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        ask(own, "a", batch(0))
        for asked in (Asked(0.9), Asked(accuracy=0.9), BOTH, NOTHING_ASKED):
            answer = asking(own, "a", batch(1), asked)
            assert (answer.sets is None) is (asked.coverage is None)
            assert (answer.decision is None) is (asked.accuracy is None)


def test_asking_changes_nothing_of_what_is_learned(tmp_path: Path) -> None:
    with service(tmp_path / "one") as own, service(tmp_path / "two") as other:
        for seed in range(3):
            assert same(asking(own, "a", batch(seed)), ask(other, "a", batch(seed)))


def test_nothing_is_computed_where_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for owner, name in (
        (Adapter, "source_window"),
        (Adapter, "source_expectations"),
        (Learner, "_expected"),
    ):
        real = getattr(owner, name)

        def counted(*args: Any, name: str = name, real: Any = real, **options: Any) -> Any:
            called.append(name)
            return real(*args, **options)

        monkeypatch.setattr(owner, name, counted)
    with service(tmp_path, guarded=False) as own:
        for mode in ("adapted", "shadow", "hold"):
            own.set_mode(ask(own, "a", batch(0)).stream, mode)
        assert called == []
        asking(own, "a", batch(2))
        assert called == ["source_window", "source_expectations", "_expected"]


def test_a_change_of_the_stream_counts_once_for_the_source_models_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    real = Adapter.source_window

    def noted(own: Adapter, *args: Any, **options: Any) -> Any:
        seen.append(options["seen"])
        return real(own, *args, **options)

    monkeypatch.setattr(Adapter, "source_window", noted)
    with service(tmp_path) as own:
        asking(own, "a", batch(0))
        own.set_mode("a", "shadow")
        asking(own, "a", batch(1))
        own.set_mode("a", "hold")  # nothing is observed: what the last batch showed is still there
        asking(own, "a", batch(2))
        asking(own, "a", batch(3))
        own.set_mode("a", "adapted")
        asking(own, "a", batch(4))
    assert seen == [True, True, False, False, True]


def test_requests_that_were_joined_get_each_their_own(tmp_path: Path) -> None:
    wishes = [Asked(0.6), NOTHING_ASKED, Asked(0.99, 0.95), Asked(accuracy=0.6)]
    alone = eq.Guarded(adapter())
    joined = np.concatenate([batch(seed) for seed in range(1, 5)])
    learned(alone, 0)
    logits = alone(torch.from_numpy(joined)).float().split(8)
    with service(tmp_path) as own:
        ask(own, "a", batch(0))
        opened = threading.Event()
        own._queue.run(opened.wait)
        waiting = [own.submit("a", batch(seed), asked) for seed, asked in enumerate(wishes, 1)]
        opened.set()
        answers = [future.result(HANG) for future in waiting]
        assert own.status("a").batches == 2  # they were joined
    for answer, asked, rows in zip(answers, wishes, logits, strict=True):
        inner = alone.adapter
        sets = None if asked.coverage is None else inner.sets(logits=rows, coverage=asked.coverage)
        assert (answer.sets is None) is (sets is None)
        if sets is not None:
            assert [len(each) for each in answer.sets or ()] == sets.sum(1).tolist()
        if asked.accuracy is not None:
            assert answer.decision is not None
            selection = inner.decide(logits=rows, accuracy=asked.accuracy)
            assert answer.decision.act == selection.mask.tolist()


def test_in_the_shadow_they_are_of_the_source_model(tmp_path: Path) -> None:
    alone, plain = eq.Guarded(adapter()), trained()
    window = None
    with service(tmp_path) as own:
        for seed in range(8):
            if seed == 4:
                own.set_mode("a", "shadow")
            answer = asking(own, "a", batch(seed, shift=3))
            x = torch.from_numpy(batch(seed, shift=3))
            alone(x)
            heat = alone.adapter.source_temperature
            assert heat is not None
            with torch.no_grad():
                logits = plain(x) / heat
            window = alone.adapter.source_window(window, logits)
        assert window is not None
        theirs, ours = alone.adapter.source_expectations(window), alone.adapter.expectations()
        assert (answer.answered_by, answer.temperature) == ("source", heat)
        check_expected(answer, logits, theirs)
        assert theirs.set_threshold("lac", 0.9) != ours.set_threshold("lac", 0.9), "else this shows nothing"


def test_on_hold_they_are_of_the_adapter_as_it_is(tmp_path: Path) -> None:
    alone = adapter()
    with service(tmp_path, guarded=False) as own:
        for seed in range(3):
            ask(own, "a", batch(seed))
            alone(torch.from_numpy(batch(seed)))
        own.set_mode("a", "hold")
        answer = asking(own, "a", batch(5))
        logits = alone.predict(torch.from_numpy(batch(5))).float()
        check(answer, alone.sets(logits=logits, coverage=0.9), alone.decide(logits=logits, accuracy=0.9))
        assert not answer.learned


def samples(own: Service) -> int:
    known = own._cache.streams.get("a")
    return 0 if known is None else known.samples


def late(own: Service, seed: int) -> Prediction:
    """The answer to a request whose deadline passes while the learner is busy."""
    limits, opened, learned = own._limits, threading.Event(), samples(own)
    own._limits = Limits(latency_ms=1)
    own._queue.run(opened.wait)
    answer = asking(own, "a", batch(seed))
    opened.set()
    own._limits = limits
    wait_until(lambda: samples(own) == learned + 8, "learned from when there is time")
    assert (answer.answered_by, answer.learned) == ("source", False)
    return answer


def test_a_late_answer_has_those_of_the_source_model_as_they_were_last_known(tmp_path: Path) -> None:
    plain = trained()
    with service(tmp_path) as own:
        for seed in range(9):
            asking(own, "a", batch(seed, shift=2))
        known = own._cache.streams["a"].source_expected
        answer = late(own, 20)
        assert answer.temperature is not None
        with torch.no_grad():
            logits = plain(torch.from_numpy(batch(20))) / answer.temperature
        check_expected(answer, logits, known)


@pytest.mark.parametrize("known", [False, True])
def test_a_late_answer_of_a_stream_that_nothing_is_known_of_leaves_everything_open(
    tmp_path: Path, known: bool
) -> None:
    if known:  # and on disk
        with service(tmp_path) as own:
            ask(own, "a", batch(0))
    with service(tmp_path) as own:
        ask(own, "b", batch(0))
        answer = late(own, 1)
        assert answer.sets == [[0, 1, 2, 3]] * 8
        assert answer.decision == ToActUpon([False] * 8, 0.0, reached=False)
        after = late(own, 2)
        assert any(len(each) < 4 for each in after.sets or ())


def test_what_is_known_of_the_source_model_ends_with_a_reset_and_with_the_memory(tmp_path: Path) -> None:
    with service(tmp_path, resident=1) as own:
        asking(own, "a", batch(0))
        known = own._cache.streams["a"]
        assert known.source_expected is not None
        own.reset("a")
        assert known.source_expected is None
        ask(own, "a", batch(1))
        assert known.source_expected is None  # nobody has asked since
        asking(own, "a", batch(2))
        ask(own, "b", batch(0))  # takes its place in memory
        assert known.source_expected is None
        ask(own, "a", batch(3))
        assert known.source_expected is not None


def test_rows_that_cannot_be_answered_have_every_class_and_are_not_acted_upon(tmp_path: Path) -> None:
    spoiled = batch(1)
    spoiled[2] = np.nan
    with service(tmp_path) as own:
        ask(own, "a", batch(0))
        answer = asking(own, "a", spoiled, Asked(0.5, 0.5))
        assert answer.classes[2] == -1
        assert (answer.sets or [])[2] == [0, 1, 2, 3]
        assert answer.decision is not None
        assert not answer.decision.act[2]


def test_without_a_rehearsal_they_are_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with service(tmp_path, adapter=adapter("norm"), guarded=False) as own:
        for asked, name in ((Asked(0.9), "coverage"), (Asked(accuracy=0.9), "accuracy")):
            with pytest.raises(InputError, match=f"without {name}=: it needs a rehearsal.*--source"):
                own.submit("a", batch(0), asked)
        assert own.streams() == []
        assert ask(own, "a", batch(0)).sets is None


@pytest.mark.parametrize("bad", [0.49, 0.995, 0, 1, True, float("nan"), ".9"])
def test_what_no_sets_can_have_is_refused(tmp_path: Path, bad: Any) -> None:
    with service(tmp_path) as own:
        with pytest.raises(InputError, match=r"coverage as a number from 0\.5 to 0\.99"):
            own.submit("a", batch(0), Asked(coverage=bad))
        with pytest.raises(InputError, match=r"accuracy as a number from 0\.5 to 0\.999"):
            own.submit("a", batch(0), Asked(accuracy=1.0 if bad == 0.995 else bad))
        assert own.streams() == []


@pytest.mark.parametrize("mode", ["adapted", "shadow", "hold"])
def test_they_go_on_bit_for_bit_after_a_restart(tmp_path: Path, mode: Mode) -> None:
    answers = []
    for name, restarts in (("one", False), ("two", True)):
        folder = tmp_path / name
        own = service(folder)
        for seed in range(5):
            request = asking(own, "a", batch(seed)).request
        own.label("a", request, [(label + 1) % 4 for label in labels(4)])
        own.set_mode("a", mode)
        if restarts:
            before = own.status("a").gauges
            own.close()
            own = service(folder)
            assert own.status("a").gauges == before
            assert before.keys() >= {"coverage_low", "coverage_high", "answered_share"}
            assert (before["labels_seen"], counted(own)) == (8, 8)
        answers.append([asking(own, "a", batch(seed)) for seed in range(5, 8)])
        own.close()
    for one, other in zip(*answers, strict=True):
        assert same(one, other)
        assert (one.sets, one.decision) == (other.sets, other.decision)
