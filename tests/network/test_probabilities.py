"""A model that ends in a softmax is refused by whatever sees its outputs first."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.network.forward import are_probabilities
from tests.support.models import drifted, images, make, same, snapshot

WITHOUT_SOURCE = ["source", "norm", "tent", "eta", "sotta", "t3a"]
REFUSED = r"rows of probabilities.*leave the softmax at its end out, or pass outputs=lambda p: p\.clamp.*log"


def logarithm(p: Tensor) -> Tensor:
    return p.clamp(min=1e-12).log()


@pytest.mark.parametrize("method", [*WITHOUT_SOURCE, "dec", "eata", "poise"])
def test_an_adapter_refuses_its_first_batch(method: str) -> None:
    model, source = make()
    behind = nn.Sequential(model, nn.Softmax(1))
    source = eq.SourceStatistics.measure(behind, [images(32)], fisher=True, outputs=logarithm, progress=False)
    adapter = eq.create(method, behind, source)  # without the outputs= that were measured
    before = snapshot(adapter)
    for call in (adapter, adapter, adapter.predict, adapter.predict_proba, adapter.source_logits):
        with pytest.raises(eq.errors.ModelError, match=REFUSED):
            call(drifted(8))
    spoilt = drifted(8)
    spoilt[3] = torch.nan
    with pytest.raises(eq.errors.ModelError, match=REFUSED):
        adapter(spoilt)
    assert same(before, snapshot(adapter))


@pytest.mark.parametrize("method", ["source", "norm", "tent", "dec", "poise"])
def test_the_logarithm_makes_logits_of_probabilities(method: str) -> None:
    model, _ = make()
    behind = nn.Sequential(model, nn.Softmax(1))
    source = eq.SourceStatistics.measure(behind, [images(32)], outputs=logarithm, progress=False)
    adapter = eq.create(method, behind, source, outputs=logarithm, tempering="none")
    for seed in range(2):
        adapter(drifted(8, seed))
    fresh = eq.create("source", behind, outputs=logarithm)
    assert torch.allclose(fresh.predict_proba(drifted(8)), behind(drifted(8)), atol=1e-6)


def test_source_statistics_are_not_measured_on_probabilities() -> None:
    model, spoilt = nn.Sequential(make()[0], nn.Softmax(1)), torch.full_like(images(8), torch.nan)
    for loader in ([images(8)], [spoilt, images(8)]):
        with pytest.raises(eq.errors.ModelError, match=REFUSED):
            eq.SourceStatistics.measure(model, loader, progress=False)


def test_a_batch_without_a_finite_row_tells_nothing() -> None:
    class Dark(nn.Module):
        """Answers NaN to dark images."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = make()[0]

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = self.inner(x).softmax(1)
            return answer.where(x.any(), torch.nan)

    adapter = eq.create("source", Dark())
    assert adapter(torch.zeros_like(drifted(8))).isnan().all()
    with pytest.raises(eq.errors.ModelError, match=REFUSED):
        adapter(drifted(8))


def test_only_the_first_outputs_are_looked_at() -> None:
    class Later(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = make()[0], 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            logits: Tensor = self.inner(x)
            return logits if self.calls == 1 else logits.softmax(1)

    adapter = eq.create("source", Later())
    adapter(drifted(8))
    assert are_probabilities(adapter(drifted(8)))


@pytest.mark.parametrize("method", [*WITHOUT_SOURCE, "dec", "poise"])
def test_logits_of_adapters_and_adapted_models_are_never_taken_for_probabilities(method: str) -> None:
    model, source = make()
    adapter = eq.create(method, model, source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter(drifted(8))
        eq.Tempered(adapter, source)(drifted(8))
        eq.SourceStatistics.measure(adapter.detach(), [images(8)], progress=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rows_of_probabilities(dtype: torch.dtype) -> None:
    logits = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    assert are_probabilities(logits.softmax(1).to(dtype))
    assert not are_probabilities(logits.to(dtype))
    assert not are_probabilities(torch.cat([logits.softmax(1), logits[:1]]).to(dtype))
    assert not are_probabilities(torch.full((2, 3), torch.nan, dtype=dtype))


def test_two_logits_that_nearly_sum_to_one_are_no_probabilities() -> None:
    assert not are_probabilities(torch.tensor([[0.3, 0.7005]]))
    assert are_probabilities(torch.tensor([[0.3, 0.7005]], dtype=torch.float16))
