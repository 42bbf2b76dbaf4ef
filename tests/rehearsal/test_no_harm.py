"""What a rehearsal does to a model that is too doubtful, and to one that is honest."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.rehearsals import held_out, samples, trained

NOISE = 2.5
"""With more noise than in training the classifier is about as confident as it is right."""


class Scaled(nn.Module):
    """A classifier with its logits times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = trained(), factor

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.factor * self.inner(x)
        return logits


@cache
def scaled(factor: float) -> tuple[nn.Module, eq.SourceStatistics]:
    """The model with a rehearsal of poise."""
    model = Scaled(factor).eval()
    loader = held_out(1000, 100, NOISE)
    return model, eq.rehearse(model, loader, shifts=8, batch_size=100, progress=False)


def ece(logits: Tensor, labels: Tensor) -> float:
    """The calibration error over 15 bins, written out."""
    confidence, predicted = logits.detach().softmax(1).max(1)
    places, hits = (confidence * 15).ceil().clamp(1, 15).tolist(), (predicted == labels).tolist()
    rows = list(zip(places, confidence.tolist(), hits, strict=True))
    apart = [sum(c - hit for at, c, hit in rows if at == place) for place in range(1, 16)]
    return float(sum(map(abs, apart)) / len(rows))


def errors(factor: float) -> tuple[float, float]:
    """The calibration errors of the model and of poise on a stream without a shift."""
    (model, source), (x, y) = scaled(factor), samples(2000, seed=5, noise=NOISE)
    adapter = eq.Poise(model, source)
    return ece(model(x), y), ece(torch.cat([adapter(part) for part in x.split(100)]), y)


def test_a_model_that_is_too_doubtful_is_sharpened() -> None:
    before, after = errors(0.3)
    assert before > 0.2
    assert after < 0.05


def test_an_honest_model_stays_so() -> None:
    before, after = errors(1.0)
    assert before < 0.03
    assert after < before + 0.01


def temperature(**given: float) -> float:
    model, source = scaled(0.3)
    adapter = eq.Poise(model, source, **given)
    adapter(samples(100, seed=5, noise=NOISE)[0])
    assert adapter.last is not None
    assert adapter.last.temperature is not None
    return adapter.last.temperature


def test_a_range_that_is_given_holds_for_a_model_that_is_too_doubtful() -> None:
    own = temperature()
    assert 0.25 < own < 0.5
    assert temperature(t_min=0.25) == pytest.approx(own)
    assert temperature(t_min=0.9) == pytest.approx(0.9)
    assert temperature(t_min=1.0) == pytest.approx(1.0)
    assert temperature(t_max=0.3) == pytest.approx(0.3)  # below what is right
    assert temperature(t_min=0.6, t_max=0.7) == pytest.approx(0.6)


def test_t_min_changes_the_answers_that_are_too_doubtful() -> None:
    assert temperature(t_min=0.5) == pytest.approx(0.5)
    assert temperature(t_min=0.5) > temperature(t_min=0.3) >= temperature()
