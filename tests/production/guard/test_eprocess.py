"""The e-process against its formula, its false alarms and its power."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from equipoise.production.guard.eprocess import EProcess


def by_hand(losses: np.ndarray, epsilon: float, half_life: float) -> np.ndarray:
    """ln M after each loss, written out from the formula."""
    wealth, logs = 1.0, []
    for t, loss in enumerate(losses):
        bet = 0.0
        if t:
            weights = 0.5 ** (np.arange(t)[::-1] / half_life)
            mean = (weights * losses[:t]).sum() / weights.sum()
            variance = (weights * losses[:t] ** 2).sum() / weights.sum() - mean**2
            if mean > epsilon:
                bet = np.clip((mean - epsilon) / (variance + (mean - epsilon) ** 2), 0, 0.9 / epsilon)
        wealth *= 1 + bet * (loss - epsilon)
        logs.append(math.log(wealth))
    return np.array(logs)


def run(losses: np.ndarray, epsilon: float, delta: float = 0.01, half_life: float = 10.0) -> list[EProcess]:
    process, all_of_them = EProcess(epsilon, delta, half_life), []
    for batch, loss in enumerate(losses, 1):
        process = process.after(float(loss), batch)
        all_of_them.append(process)
    return all_of_them


@pytest.mark.parametrize(("epsilon", "high"), [(0.525, 1.0), (0.45, 0.9), (0.1, 0.3)])
def test_the_wealth_is_the_product_of_the_bets(epsilon: float, high: float) -> None:
    losses = np.random.default_rng(0).uniform(0, high, 60)
    found = [process.log_wealth for process in run(losses, epsilon)]
    np.testing.assert_allclose(found, by_hand(losses, epsilon, 10.0), rtol=0, atol=1e-9)
    assert len(set(found)) > 10


def test_a_bet_that_was_made_elsewhere_is_taken() -> None:
    start = EProcess(0.5, 0.01, 5.0).after(0.8, 1)
    assert start.after(0.9, 2, 0.3).log_wealth == pytest.approx(math.log(1 + 0.3 * 0.4), abs=1e-12)
    assert start.after(0.9, 2, 0.0).log_wealth == 0


def test_the_first_loss_is_not_bet_on() -> None:
    assert run(np.array([1.0]), 0.1)[0].log_wealth == 0


def test_wealth_stays_while_losses_are_tolerable() -> None:
    assert run(np.full(1000, 0.3), 0.5)[-1].log_wealth == 0


@pytest.mark.parametrize("stream", ["coins", "uniform", "bursts"])
def test_false_alarms_are_at_most_delta_on_the_boundary(stream: str) -> None:
    delta, streams, length, epsilon = 0.1, 200, 200, 0.5
    draw = np.random.default_rng(7)
    if stream == "coins":
        losses = draw.integers(0, 2, (streams, length)).astype(float)
    elif stream == "uniform":
        losses = draw.uniform(0, 1, (streams, length))
    else:  # the spread changes with the past, the mean does not
        losses = 0.5 + np.sign(draw.normal(size=(streams, length))) * np.where(
            np.arange(length) // 20 % 2, 0.5, 0.02
        )
    alarms = sum(any(p.alarm for p in run(row, epsilon, delta)) for row in losses)
    assert alarms / streams <= delta


def test_losses_above_the_tolerated_are_found_soon() -> None:
    draw = np.random.default_rng(3)
    delays = []
    for _ in range(50):
        losses = np.concatenate([draw.uniform(0, 0.6, 50), draw.uniform(0.5, 1.0, 100)])
        first = next(t for t, p in enumerate(run(losses, 0.525), 1) if p.alarm)
        delays.append(first - 50)
    assert min(delays) > 0
    assert np.mean(delays) < 50


def test_the_evidence_began_where_the_wealth_was_last_lowest() -> None:
    losses = np.concatenate([np.full(40, 0.3), np.full(60, 0.9)])
    process = run(losses, 0.5)[-1]
    # After the change the window's mean has to come above ε before anything is bet.
    assert process.alarm
    assert 40 <= process.calm <= 52


def test_the_alarm_is_at_one_over_delta() -> None:
    quiet = EProcess(0.5, 0.01, 10.0, log_wealth=math.log(100) - 1e-9)
    assert not quiet.alarm
    assert EProcess(0.5, 0.01, 10.0, log_wealth=math.log(100)).alarm
    assert quiet.evidence == pytest.approx(1.0)


def test_its_numbers_survive_json() -> None:
    process = run(np.random.default_rng(1).uniform(0, 1, 20), 0.4)[-1]
    assert EProcess(**json.loads(json.dumps(asdict(process)))) == process
