"""Modes, going back, and refusals that change nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.errors import OptionError
from equipoise.production.server.errors import ClosedError, InputError, UnknownSnapshotError
from equipoise.production.server.limits import Limits
from equipoise.production.server.served_stream import Live
from equipoise.production.server.service import Service
from tests.production.server.support import PATIENT, adapter, ask, batch, probabilities, same, service
from tests.support.rehearsals import trained
from tests.support.waiting import HANG


def live_of(own: Service, name: str) -> Live:
    live = own._cache.streams[name].live
    assert live is not None
    return live


def test_in_the_shadow_the_source_model_answers_and_the_adapter_learns(tmp_path: Path) -> None:
    alone, plain = eq.Guarded(adapter()), trained()
    with service(tmp_path) as own:
        ask(own, "a", batch(0))
        alone(torch.from_numpy(batch(0)))
        own.set_mode("a", "shadow")
        for seed in range(1, 4):
            x = torch.from_numpy(batch(seed))
            answer = ask(own, "a", batch(seed))
            alone(x)
            heat = alone.adapter.source_temperature
            assert heat is not None
            with torch.no_grad():
                np.testing.assert_allclose(
                    answer.probabilities, probabilities(plain(x) / heat), rtol=1e-5, atol=1e-7
                )
            assert (answer.answered_by, answer.mode, answer.learned) == ("source", "shadow", True)
            assert answer.temperature == heat
            assert answer.accuracy == alone.source_accuracy
        own.set_mode("a", "adapted")
        assert np.array_equal(
            ask(own, "a", batch(9)).probabilities, probabilities(alone(torch.from_numpy(batch(9))))
        )
        assert [(event.action, event.reason) for event in own.status("a").events] == [
            ("mode", "from adapted to shadow"),
            ("mode", "from shadow to adapted"),
        ]


def test_on_hold_the_adapter_answers_as_it_is(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        ask(own, "a", batch(0))
        own.set_mode("a", "hold")
        first, second = ask(own, "a", batch(1)), ask(own, "a", batch(1))
        assert same(first, second)
        assert not first.learned
        assert "hold" in first.reason
    with service(tmp_path) as again:
        assert again.status("a").mode == "hold"
        assert same(ask(again, "a", batch(1)), first)
        unknown: Any = "sleep"
        with pytest.raises(InputError, match="expected a mode"):
            again.set_mode("a", unknown)


def test_a_reset_goes_back_to_the_source_model(tmp_path: Path) -> None:
    with service(tmp_path / "one") as own, service(tmp_path / "two") as fresh:
        for seed in range(5):
            ask(own, "a", batch(seed, shift=3))
        own.reset("a")
        first = own.submit("a", batch(7)).result(HANG)
        assert np.array_equal(first.probabilities, ask(fresh, "a", batch(7)).probabilities)
        assert [event.action for event in own.status("a").events] == ["reset"]


def test_a_rollback_goes_back_to_a_snapshot_also_after_a_restart(tmp_path: Path) -> None:
    own = service(tmp_path)
    ask(own, "a", batch(0))
    name = own.snapshot("a")
    own.set_mode("a", "hold")
    expected = ask(own, "a", batch(9))
    own.set_mode("a", "adapted")
    ask(own, "a", batch(1, shift=4))
    own.close()
    with service(tmp_path) as again:
        assert again.status("a").snapshots == (name,)
        wrong: list[Any] = [0, 2, True, "1"]
        for steps in wrong:
            with pytest.raises(UnknownSnapshotError, match="expected to go back by 1 to 1"):
                again.rollback("a", steps)
        assert again.rollback("a") == name
        again.set_mode("a", "hold")
        np.testing.assert_array_equal(ask(again, "a", batch(9)).probabilities, expected.probabilities)


def test_without_a_guard_there_are_no_snapshots(tmp_path: Path) -> None:
    alone = adapter()
    with service(tmp_path, guarded=False) as own:
        answer = ask(own, "a", batch(0))
        assert np.array_equal(answer.probabilities, probabilities(alone(torch.from_numpy(batch(0)))))
        with pytest.raises(UnknownSnapshotError, match="guard"):
            own.snapshot("a")
        with pytest.raises(UnknownSnapshotError):
            own.rollback("a")
        own.reset("a")
        assert own.status("a").guard.startswith("unguarded")


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((0, 3, 8, 8), np.float32),
        np.zeros((33, 3, 8, 8), np.float32),
        np.zeros(4, np.float32),
        np.zeros((2, 3, 8, 8), np.complex64),
        np.array([["a"]]),
        np.array([[None]]),
        np.zeros((2, 3, 9, 9), np.float32),
    ],
)
def test_bad_inputs_are_refused_and_change_nothing(tmp_path: Path, bad: np.ndarray[Any, Any]) -> None:
    with service(tmp_path / "one", rows=32) as own, service(tmp_path / "two", rows=32) as other:
        ask(own, "a", batch(0))
        ask(other, "a", batch(0))
        with pytest.raises(InputError, match="expected"):
            own.submit("a", bad)
        assert same(ask(own, "a", batch(1)), ask(other, "a", batch(1)))
        if bad.ndim == 4 and bad.dtype == np.float32 and 0 < len(bad) < 33:
            with pytest.raises(InputError, match="expected samples of shape"):
                own.submit("b", bad).result(HANG)
        assert [status.name for status in own.streams()] == ["a"]


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a\n", "../a", ".a", "ä", "\ud800", 3, None])
def test_names_that_cannot_be_kept_are_refused(tmp_path: Path, name: Any) -> None:
    with service(tmp_path, guarded=False) as own:
        with pytest.raises(InputError, match="name of a stream"):
            own.submit(name, batch(0))
        assert own.streams() == []


def test_integers_and_doubles_are_taken_as_numbers(tmp_path: Path) -> None:
    whole = np.arange(2 * 192).reshape(2, 3, 8, 8) % 7
    with service(tmp_path, guarded=False) as own:
        answers = [ask(own, f"{kind}", whole.astype(kind)) for kind in ("u1", "i8", "f8", "f4", "f2")]
        assert all(np.array_equal(each.probabilities, answers[0].probabilities) for each in answers)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.table(x).mean(1))
        return logits


def test_indices_of_a_table_stay_integers(tmp_path: Path) -> None:
    with Service(eq.create("source", Words()), tmp_path, limits=Limits(latency_ms=PATIENT)) as own:
        assert len(ask(own, "a", np.arange(6).reshape(2, 3)).classes) == 2


def test_a_closed_service_takes_nothing(tmp_path: Path) -> None:
    own = service(tmp_path)
    pending = [own.submit("a", batch(seed)) for seed in range(6)]
    own.close()
    assert all(len(future.result(0).classes) == 8 for future in pending)
    with pytest.raises(ClosedError):
        own.submit("a", batch(0))
    with pytest.raises(ClosedError):
        own.streams()
    own.close()


def test_limits_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for name in ("rows", "waiting", "latency_ms", "streams", "resident", "save_every"):
        with pytest.raises(OptionError, match=name):
            Limits(**{name: 0})
    model: Any = trained()
    with pytest.raises(OptionError, match="adapter"):
        Service(model, tmp_path)


def test_a_stream_that_its_guard_holds_learns_again_after_a_release(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        ask(own, "a", batch(0))
        own.release("a")  # nothing is held: no event
        assert own.status("a").events == ()
        guard = live_of(own, "a").guard
        assert isinstance(guard, eq.Guarded)
        guard.hold("three alarms")
        assert not ask(own, "a", batch(1)).learned
        own.release("a")
        assert ask(own, "a", batch(2)).learned
        assert [event.action for event in own.status("a").events] == ["hold", "release"]
    with service(tmp_path) as again:
        assert ask(again, "a", batch(3)).learned


def test_a_release_without_a_guard_changes_nothing(tmp_path: Path) -> None:
    with service(tmp_path, guarded=False) as own:
        ask(own, "a", batch(0))
        own.release("a")
        assert ask(own, "a", batch(1)).learned


def test_in_the_shadow_the_gauges_are_of_the_source_model_and_agreement_of_both(tmp_path: Path) -> None:
    alone = eq.Guarded(adapter())
    with service(tmp_path) as own:
        own.set_mode(ask(own, "a", batch(0, 32, 3.0)).stream, "shadow")
        alone(torch.from_numpy(batch(0, 32, 3.0)))
        agreed = []
        for seed in range(1, 18):
            answer = ask(own, "a", batch(seed, 32, 3.0))
            adapted = alone(torch.from_numpy(batch(seed, 32, 3.0))).argmax(1).tolist()
            agreed += [a == b for a, b in zip(answer.classes, adapted, strict=True)]
        own._do(lambda: None)  # the learner has finished
        gauges = own.status("a").gauges
        assert alone.source_accuracy is not None
        assert alone.accuracy is not None
        assert gauges["accuracy"] == gauges["source_accuracy"] == alone.source_accuracy.value
        assert gauges["accuracy"] != alone.accuracy.value
        assert gauges["agreement"] == pytest.approx(np.mean(agreed[-500:]))
        assert gauges["agreement"] < 1
        last = live_of(own, "a").monitor._window_rows[-32:]
        assert set(last["temperature"]) == {answer.temperature}


def test_on_hold_the_gauges_go_on(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        for seed in range(3):
            learned = ask(own, "a", batch(seed, 32, 3.0))
        own.set_mode("a", "hold")
        for seed in range(3, 20):
            held = ask(own, "a", batch(seed, 32, 3.0))
        own._do(lambda: None)  # the learner has finished
        gauges = own.status("a").gauges
        assert learned.accuracy is not None
        assert gauges["accuracy"] == learned.accuracy.value
        assert gauges["temperature"] == pytest.approx(held.temperature)
        plain = trained()
        with torch.no_grad():
            theirs = plain(torch.from_numpy(batch(19, 32, 3.0))).argmax(1).tolist()
        last = live_of(own, "a").monitor._window_rows[-32:]
        assert last["source"].tolist() == theirs
        assert 0 < gauges["agreement"] < 1


def test_events_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    with service(tmp_path) as own:
        ask(own, "a", batch(0))
        own.set_mode("a", "hold")
        for seed in range(3):  # the guard does not count these batches
            ask(own, "a", batch(seed))
        own.set_mode("a", "adapted")
        own.snapshot("a")
        own.set_mode("a", "shadow")
        assert [event.action for event in own.status("a").events] == ["mode", "mode", "snapshot", "mode"]
