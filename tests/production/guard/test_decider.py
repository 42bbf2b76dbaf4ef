"""The ladder of decisions."""

import json
from dataclasses import replace
from typing import Any

import pytest

from equipoise.json_form import from_json, to_json
from equipoise.production.guard.decider import (
    REMEMBERED,
    Decision,
    Options,
    Watch,
    decide,
    request,
    take_labels,
)
from equipoise.production.guard.observation import Observation

FINE = Observation(10, 3, ((0, 0, 5), (1, 1, 5)))
BROKEN = Observation(10, 3, ((0, 0, 5), (1, 1, 5)), finite=False)
OPTIONS = Options(cool_down=4)


def run(watch: Watch, stream: list[Observation]) -> tuple[Watch, list[tuple[int, Decision]]]:
    """The watch after a stream, and its actions."""
    found = []
    for seen in stream:
        watch, decision = decide(OPTIONS, watch, seen)
        if decision.action != "none":
            found.append((watch.batch, decision))
    return watch, found


def actions(stream: list[Observation], watch: Watch | None = None) -> list[tuple[int, str, str]]:
    _, found = run(watch or Watch.fresh(OPTIONS), stream)
    return [(batch, decision.action, decision.trigger) for batch, decision in found]


def test_the_first_alarm_rolls_back_to_before_the_evidence_and_holds_for_the_cool_down() -> None:
    watch, found = run(Watch.fresh(OPTIONS), [FINE] * 7 + [BROKEN])
    (batch, decision), held = found[0], watch.held
    assert (batch, decision.action, decision.trigger, decision.calm) == (8, "rollback", "runaway", 7)
    assert "not finite" in held
    assert watch.until == 12
    assert "held for 4 batches" in decision.reason
    _, found = run(watch, [FINE] * 10)
    assert [(batch, decision.action, decision.trigger) for batch, decision in found] == [
        (12, "release", "cool-down")
    ]


def test_the_second_alarm_resets_and_the_third_holds_until_a_person_releases() -> None:
    # No action within the cool-down, and the next rung at its end.
    assert actions([BROKEN] * 5) == [(1, "rollback", "runaway"), (5, "reset", "runaway")]
    again = [BROKEN, *[FINE] * 4]
    found = actions([*again, *again, *again, *[FINE] * 1000])
    assert found == [
        (1, "rollback", "runaway"),
        (5, "release", "cool-down"),
        (6, "reset", "runaway"),
        (10, "release", "cool-down"),
        (11, "reset", "runaway"),
    ]


def test_an_alarm_is_forgotten_after_some_cool_downs() -> None:
    pause = [FINE] * (REMEMBERED * OPTIONS.cool_down)
    assert [name for _, name, _ in actions([BROKEN, *pause, BROKEN])] == ["rollback", "release", "rollback"]
    assert [name for _, name, _ in actions([BROKEN, *pause[1:], BROKEN])] == ["rollback", "release", "reset"]


def test_a_held_model_that_still_collapses_is_reset_at_the_end_of_the_cool_down() -> None:
    collapsed = Observation(50, 3, ((0, 0, 10), (0, 1, 20), (0, 2, 20)), learned=False)
    watch, _ = run(Watch.fresh(OPTIONS), [BROKEN])
    assert actions([collapsed] * 30, replace(watch, until=31)) == [(31, "reset", "collapse")]


def test_answers_of_ten_classes_that_all_go_to_one_lead_to_an_action_within_twenty_batches() -> None:
    fine = Observation(50, 10, tuple((c, c, 5) for c in range(10)))
    collapsed = Observation(50, 10, tuple((0, c, 5) for c in range(10)))
    (batch, action, trigger), *_ = actions([*[fine] * 30, *[collapsed] * 20])
    assert (action, trigger) == ("rollback", "collapse")
    assert 30 < batch <= 50


APART = Observation(50, 10, tuple((c, (c + 1) % 10, 5) for c in range(10)), True, (0.9,) * 3, (0.5,) * 3)
"""All answers differ from the source model's, and the estimates say that all is well."""


def test_answers_that_differ_far_more_than_rehearsed_lead_to_an_action_within_twenty_batches() -> None:
    options = replace(OPTIONS, disagreement=0.3)
    fine = replace(APART, pairs=tuple((c, c, 5) for c in range(10)))
    watch, found = Watch.fresh(options), []
    for seen in [*[fine] * 30, *[APART] * 20]:
        watch, decision = decide(options, watch, seen)
        if decision.action != "none":
            found.append((watch.batch, decision))
    batch, decision = found[0]
    assert (decision.action, decision.trigger) == ("rollback", "disagreement")
    assert 30 < batch <= 50
    assert 30 <= decision.calm <= 34
    assert watch.disagreement.limit == 0.3
    assert from_json(Watch, json.loads(json.dumps(to_json(watch)))) == watch


@pytest.mark.parametrize("seen", [FINE, APART], ids=["no alarm", "no rehearsed disagreement"])
def test_without_an_alarm_there_is_no_action(seen: Observation) -> None:
    assert actions([seen] * 500) == []


def test_a_watch_with_another_rehearsed_disagreement_has_other_tests() -> None:
    watch = Watch.fresh(replace(OPTIONS, disagreement=0.97))
    assert watch.tests_as(replace(OPTIONS, disagreement=0.97))
    for other in (None, 0.3, 0.98):
        assert not watch.tests_as(replace(OPTIONS, disagreement=other))


def test_weights_beyond_the_rehearsed_reach_are_an_alarm_after_which_the_limit_is_the_same() -> None:
    options = replace(OPTIONS, reach=0.1)
    watch, found = Watch.fresh(options), []
    for step in [*range(1, 13), *[0] * 10, *range(1, 13)]:
        watch, decision = decide(options, watch, replace(FINE, weights=0.04 * step))
        found += [(watch.batch, decision.action, decision.trigger)] * (decision.action != "none")
    assert found[0] == (11, "rollback", "runaway")
    assert found[-1] == (33, "reset", "runaway")
    assert watch.runaway.farthest == pytest.approx(0.4)
    assert from_json(Watch, json.loads(json.dumps(to_json(watch)))) == watch
    assert watch.tests_as(options)
    for other in (None, 0.0, 0.11):
        assert not watch.tests_as(replace(OPTIONS, reach=other))


@pytest.mark.parametrize("reach", [None, 0.0])
def test_without_a_reach_weights_may_move_by_their_norm(reach: float | None) -> None:
    options, found = replace(OPTIONS, reach=reach), []
    watch = Watch.fresh(options)
    for step in range(1, 30):
        watch, decision = decide(options, watch, replace(FINE, weights=0.04 * step))
        found += [watch.batch] * (decision.action == "rollback")
    assert found == [26]


def test_an_action_clears_the_evidence() -> None:
    collapsed = Observation(50, 3, ((0, 0, 10), (0, 1, 20), (0, 2, 20)))
    watch, found = run(Watch.fresh(OPTIONS), [collapsed] * 25)
    at, first = found[0]
    assert first.trigger == "collapse"
    watch, _ = run(Watch.fresh(OPTIONS), [collapsed] * at)
    assert all(process.log_wealth == 0 for process in watch.processes.values())
    assert watch.collapse.window == ()


def test_a_rollback_goes_to_no_snapshot_from_before_a_reset() -> None:
    watch, _ = run(Watch.fresh(OPTIONS), [FINE] * 30)
    watch, _ = request(OPTIONS, watch, "reset", "why not")
    _, found = run(watch, [FINE, BROKEN])
    assert found[0][1].origin == 30


def test_labels_lead_to_the_same_ladder_but_not_while_held() -> None:
    watch = Watch.fresh(OPTIONS)
    for _ in range(20):
        watch, decision = take_labels(OPTIONS, watch, [(30, 20, 0)], 0)
        if decision.action != "none":
            break
    assert (decision.action, decision.trigger) == ("rollback", "labels")
    same, decision = take_labels(OPTIONS, watch, [(50, 0, 0)], 1)
    assert same == watch
    assert decision == Decision()


def test_a_person_holds_and_releases() -> None:
    watch, decision = request(OPTIONS, Watch.fresh(OPTIONS), "hold", "the camera moves")
    assert (decision.action, decision.trigger) == ("hold", "request")
    assert actions([FINE] * 100, watch) == []
    watch, _ = run(watch, [FINE] * 100)
    assert watch.held == "the camera moves"
    watch, _ = request(OPTIONS, watch, "release", "")
    assert not watch.held


def test_the_tests_share_delta() -> None:
    processes = Watch.fresh(Options(delta=0.03)).processes
    assert sum(process.delta for process in processes.values()) == pytest.approx(0.03)


def test_a_watch_survives_json() -> None:
    stream = [Observation(50, 3, ((0, 0, 30), (0, 1, 20)), True, (0.6, 0.5, 0.7), (0.8, 0.7, 0.9))] * 3
    watch, _ = run(Watch.fresh(OPTIONS), [*stream, BROKEN, FINE])
    assert from_json(Watch, json.loads(json.dumps(to_json(watch)))) == watch


@pytest.mark.parametrize("broken", [{}, {"estimates": 3}, {"batch": 1}])
def test_another_state_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Watch"):
        from_json(Watch, broken)


def test_labels_of_answers_from_before_the_last_action_do_not_count() -> None:
    watch, _ = run(Watch.fresh(OPTIONS), [FINE, FINE, BROKEN, *[FINE] * 6])
    assert (watch.held, watch.acted) == ("", 3)
    assert take_labels(OPTIONS, watch, [(50, 0, 0)] * 50, 3) == (watch, Decision())
    _, decision = take_labels(OPTIONS, watch, [(50, 0, 0)] * 50, 4)
    assert decision.trigger == "labels"
    for action in ("rollback", "reset"):
        asked, _ = request(OPTIONS, watch, action, "")
        assert take_labels(OPTIONS, asked, [(50, 0, 0)] * 50, 9) == (asked, Decision())


def test_a_request_keeps_the_place_on_the_ladder_and_measures_the_weights_anew() -> None:
    watch, _ = run(Watch.fresh(OPTIONS), [BROKEN, *[FINE] * 5])
    for action in ("rollback", "reset"):
        asked, _ = request(OPTIONS, watch, action, "", 0.3)
        assert (asked.strikes, asked.last_alarm, asked.runaway.weights) == (1, 1, 0.3)
        assert actions([replace(FINE, weights=0.3)] * 5, asked) == []


OF_BEFORE = """
{"estimates": {"process": {"epsilon": 0.525, "delta": 0.0025, "half_life": 10.0, "log_wealth": 0.1,
  "lowest": -0.2, "calm": 10, "weight": 1.0, "total": 0.5, "squares": 0.25}},
 "labels": {"process": {"epsilon": 0.525, "delta": 0.0025, "half_life": 10.0, "log_wealth": 0.0,
  "lowest": 0.0, "calm": 0, "weight": 0.0, "total": 0.0, "squares": 0.0}},
 "collapse": {"process": {"epsilon": 0.5, "delta": 0.0025, "half_life": 10.0, "log_wealth": 0.0,
  "lowest": 0.0, "calm": 10, "weight": 1.0, "total": 0.0, "squares": 0.0},
  "window": [[1, 1, 4.0], [3, 3, 3.0], [4, 4, 1.0]]},
 "disagreement": {"process": {"epsilon": 0.084, "delta": 0.0025, "half_life": 4.0, "log_wealth": 0.0,
  "lowest": 0.0, "calm": 0, "weight": 0.0, "total": 0.0, "squares": 0.0}, "limit": 0.034, "familiar": 0.2},
 "below": {"tolerance": 0.05, "run": 0, "calm": 10, "own": 0.0, "source": 0.0},
 "runaway": {"weights": 0.0, "step": 0.0, "statistics": 0.0127, "finite": true, "calm": 10, "farthest": 1.0},
 "batch": 10, "held": "", "until": null, "strikes": 0, "last_alarm": 0, "origin": 9, "acted": 9, "largest": 8}
"""


def test_a_watch_as_it_has_been_written_since_version_1_is_read() -> None:
    watch = from_json(Watch, json.loads(OF_BEFORE))
    assert (watch.batch, watch.origin, watch.until, watch.runaway.statistics) == (10, 9, None, 0.0127)
    assert json.loads(json.dumps(to_json(watch))) == json.loads(OF_BEFORE)
