import pytest
import torch

from equipoise.bench.scoring import score
from equipoise.errors import ModelError


def test_answers_that_are_not_numbers_are_refused_and_not_left_out() -> None:
    logits = torch.eye(4)
    logits[2] = torch.nan
    with pytest.raises(ModelError, match="got 1 of 4 that are not"):
        score(logits, torch.arange(4))
