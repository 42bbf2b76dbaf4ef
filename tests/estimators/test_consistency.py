import math
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.errors import BatchTypeError, OptionError
from equipoise.estimators import aetta, sicl
from tests.estimators import reference


def answers(samples: int = 20, classes: int = 4, draws: int = 6) -> tuple[Tensor, Tensor]:
    logits, _ = reference.predictions(0, samples, classes)
    noise = torch.randn(
        draws, samples, classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return logits, logits + noise


@pytest.mark.parametrize("before", [None, 0.0, 0.7, 1.0])
@pytest.mark.parametrize(("samples", "classes", "draws"), [(1, 2, 1), (20, 4, 6), (50, 10, 3)])
def test_aetta_is_its_formula(before: float | None, samples: int, classes: int, draws: int) -> None:
    logits, dropped = answers(samples, classes, draws)
    expected = reference.aetta(logits, dropped, before)
    got = aetta(logits=logits, dropout_logits=dropped, previous=before)
    assert float(got) == pytest.approx(expected, rel=1e-10)


def test_aetta_is_low_where_answers_collapse() -> None:
    logits = torch.tensor([[4.0, 0.0, 0.0]]).repeat(10, 1)
    few = logits.repeat(10, 1, 1)
    few[0, 0] = torch.tensor([0.0, 4.0, 0.0])
    other = few.clone()
    other[:, 5:] = torch.tensor([0.0, 0.0, 4.0])
    spread = logits.clone()
    spread[5:] = torch.tensor([0.0, 0.0, 4.0])
    collapsed = aetta(logits=logits, dropout_logits=few, previous=1.0)
    varied = aetta(logits=spread, dropout_logits=other, previous=1.0)  # as many disagree
    assert float(collapsed) < float(varied) < 1


def test_aetta_of_certain_answers() -> None:
    certain = torch.tensor([[0.0, -math.inf, -math.inf]]).repeat(5, 1)
    assert float(aetta(logits=certain, dropout_logits=certain[None])) == 1
    other = certain.roll(1, dims=1)
    worst = aetta(logits=certain, dropout_logits=other[None])
    assert float(worst) == pytest.approx(1 - (0.6 * 1 + 0.4 * 2 / 3))


def test_aetta_averages_over_batches() -> None:
    logits, dropped = answers()
    estimate = aetta(logits=logits, dropout_logits=dropped)
    for _ in range(60):
        estimate = aetta(logits=logits, dropout_logits=dropped, previous=estimate)
    expected = 1 - (1 - reference.aetta(logits, dropped, 1.0)) / 0.4
    assert float(estimate) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("previous", [-0.1, 1.1, math.nan, "none"])
def test_the_previous_estimate_is_an_accuracy(previous: float) -> None:
    logits, dropped = answers()
    with pytest.raises(OptionError, match="previous"):
        aetta(logits=logits, dropout_logits=dropped, previous=previous)


def test_sicl_is_the_share_of_answers_that_agree() -> None:
    logits, styled = answers()
    agree = [
        reference.class_of(row) == reference.class_of(own)
        for draw in styled.tolist()
        for row, own in zip(draw, logits.tolist(), strict=True)
    ]
    assert 0 < sum(agree) < len(agree)
    assert float(sicl(logits=logits, style_logits=styled)) == pytest.approx(sum(agree) / len(agree))


def test_rows_that_are_left_out_are_left_out_of_the_draws() -> None:
    logits, draws = answers()
    whole = (
        aetta(logits=logits[1:], dropout_logits=draws[:, 1:]),
        sicl(logits=logits[1:], style_logits=draws[:, 1:]),
    )
    logits[0] = draws[:, 0] = math.nan
    assert (aetta(logits=logits, dropout_logits=draws), sicl(logits=logits, style_logits=draws)) == whole
    draws[2, 4] = math.nan
    with pytest.raises(OptionError, match="style_logits without NaN where the logits have none, got 1 rows"):
        sicl(logits=logits, style_logits=draws)


def test_draws_have_the_shape_of_the_logits() -> None:
    logits, draws = answers()
    for wrong in (draws[:, 1:], draws[:, :, 1:], draws[0], draws[:0]):
        with pytest.raises(OptionError, match=r"dropout_logits of shape \(K, 20, 4\)"):
            aetta(logits=logits, dropout_logits=wrong)
    a_list: Any = draws.tolist()
    with pytest.raises(BatchTypeError, match="style_logits to be a tensor, got list"):
        sicl(logits=logits, style_logits=a_list)
