"""FOA's activation shift against formulas written out here."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import MODELS, drifted, images, make, measured, step_of


def features_of(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        features: Tensor = nn.Sequential(*list(model.children())[:-1])(x)
    return features


class ByHand:
    """The shift with loops over samples."""

    def __init__(self, model: nn.Module, source: list[Tensor], decay: float = 0.9) -> None:
        self.model, self.decay, self.seen = model, decay, 64
        self.source = features_of(model, torch.cat(source)).mean(0)
        self.mean = self.source.clone()

    def answer(self, x: Tensor) -> Tensor:
        head: Any = list(self.model.children())[-1]
        with torch.no_grad():
            answers: Tensor = head(features_of(self.model, x) + self.source - self.mean)
        return answers

    def step(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(self.mean)
        for feature in features_of(self.model, x):
            total = total + feature
        slow, plain = 1 - self.decay ** (len(x) / 64), len(x) / (self.seen + len(x))
        share = max(slow, plain)
        self.mean = (1 - share) * self.mean + share * total / len(x)
        self.seen += len(x)
        return self.answer(x)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("sizes", "decay"), [([8, 5, 64, 1, 200, 3], 0.9), ([64, 64, 64], 0.5), ([4, 4], 1.0)]
)
def test_a_stream_is_exact(kind: str, sizes: list[int], decay: float) -> None:
    model, _ = make(kind)
    loader = [images(20, seed=1), images(12, seed=2)]
    adapter = eq.create("foa_shift", model, measured(model, loader), decay=decay)
    expected = ByHand(model, loader, decay)
    for seed, rows in enumerate(sizes):
        x = drifted(rows, seed)
        assert torch.allclose(adapter(x), expected.step(x), rtol=1e-5, atol=1e-5)
        assert (step_of(adapter).updated, step_of(adapter).used) == (True, rows)
    x = drifted(7, seed=99)
    assert torch.allclose(adapter.predict(x), expected.answer(x), rtol=1e-5, atol=1e-5)
    assert torch.allclose(adapter.detach()(x), expected.answer(x), rtol=1e-5, atol=1e-5)


def test_a_constant_shift_of_the_features_is_taken_back() -> None:
    model, x = nn.Sequential(nn.Identity(), nn.Linear(6, 4)), torch.randn(2048, 6)
    adapter = eq.create(
        "foa_shift", model, eq.SourceStatistics.measure(model, [x], features=True, progress=False)
    )
    for batch in (x + 3).split(64):
        adapter(batch)
    with torch.no_grad():
        assert torch.allclose(adapter.predict(x + 3), model(x), atol=0.3)
        assert not torch.allclose(model(x + 3), model(x), atol=0.5)


def test_without_a_shift_the_answers_are_nearly_those_of_the_source_model() -> None:
    model, source = make("layer_norm")
    adapter = eq.create("foa_shift", model, source)
    x = images(32, seed=7)  # what the source statistics were measured on
    with torch.no_grad():
        assert torch.allclose(adapter(x), model(x), atol=1e-5)


def test_a_first_batch_of_one_sample_moves_the_mean_by_a_65th() -> None:
    model, source = make("layer_norm")
    adapter, x = eq.create("foa_shift", model, source), drifted(1)
    adapter(x)
    back = source.features["mean"] - features_of(model, x)[0]
    assert torch.allclose(adapter.memory["shift"], back / 65, atol=1e-6)


def test_the_mean_does_not_depend_on_how_a_long_stream_is_cut_into_batches() -> None:
    model, source = make("layer_norm")
    whole, cut = (eq.create("foa_shift", model, source) for _ in range(2))
    x = drifted(1280)
    for batch in x.split(64):
        whole(batch)
    for batch in x.split(16):
        cut(batch)
    assert torch.allclose(whole.memory["shift"], cut.memory["shift"], atol=0.02)


def test_a_frame_of_huge_values_moves_the_mean_no_further_than_ten_spreads() -> None:
    model, source = make("norm_free")
    model = nn.Sequential(*list(model.children())[:2], nn.Linear(8, 5)).eval()  # nothing bounds its features
    loader = [images(32, seed=7)]
    source = measured(model, loader)
    features = features_of(model, loader[0])
    spread = float((features - features.mean(0)).square().sum(1).mean().sqrt())
    adapter, x = eq.create("foa_shift", model, source), drifted(1)
    adapter(1e6 * x)
    assert adapter.memory["shift"].norm() == pytest.approx(10 * spread / 65, rel=1e-4)
    offset = features_of(model, 1e6 * x)[0] - features.mean(0)
    assert torch.allclose(-adapter.memory["shift"] / (10 * spread / 65), offset / offset.norm(), atol=1e-4)


def test_a_head_without_bias_gets_one_when_it_is_detached() -> None:
    model = nn.Sequential(nn.Tanh(), nn.Linear(6, 4, bias=False))
    source = eq.SourceStatistics.measure(model, [torch.randn(32, 6)], features=True, progress=False)
    adapter, x = eq.create("foa_shift", model, source), torch.randn(8, 6) + 1
    adapter(x)
    assert torch.allclose(adapter.detach()(x), adapter.predict(x), atol=1e-6)
