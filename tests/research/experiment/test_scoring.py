import math

import pytest
import torch

from equipoise.errors import ModelError
from equipoise.metrics import expected_calibration_error
from equipoise.research.experiment.scoring import oracle, score


def test_answers_that_are_not_numbers_are_refused_and_not_left_out() -> None:
    logits = torch.eye(4)
    logits[2] = torch.nan
    with pytest.raises(ModelError, match="got 1 of 4 that are not"):
        score(logits, torch.arange(4))


@pytest.mark.parametrize("factor", [0.2, 1.0, 7.0])
def test_the_oracle_is_the_temperature_with_the_least_nll(factor: float) -> None:
    draw = torch.Generator().manual_seed(0)
    honest = torch.randn(4000, 5, generator=draw) * 2
    labels = torch.multinomial(honest.softmax(1), 1, generator=draw).squeeze(1)
    found = oracle(honest * factor, labels)
    grid = [factor * math.exp(step / 200) for step in range(-60, 61)]
    losses = [
        -float((honest * factor / t).double().log_softmax(1)[torch.arange(4000), labels].mean()) for t in grid
    ]
    assert found["temperature"] == pytest.approx(grid[losses.index(min(losses))], rel=0.006)
    assert found["nll"] == pytest.approx(min(losses), abs=1e-5)
    divided = honest.double() * factor / found["temperature"]
    assert found["ece"] == pytest.approx(float(expected_calibration_error(logits=divided, target=labels)))


def test_the_oracle_of_answers_that_are_all_right_stays_in_its_range() -> None:
    found = oracle(torch.eye(4) * 9, torch.arange(4))
    assert 0.05 <= found["temperature"] <= 1
    assert found["nll"] < 1e-6
