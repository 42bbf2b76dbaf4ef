"""A model that ends in a softmax is pointed out by whatever sees its outputs first."""

import warnings

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.network.forward import are_probabilities
from tests.support.models import drifted, images, make

WITHOUT_SOURCE = ["source", "norm", "tent", "eta", "sotta", "t3a"]


@pytest.mark.parametrize("method", WITHOUT_SOURCE[:-1])  # t3a refuses the model: no linear head
def test_an_adapter_without_source_statistics_warns_once(method: str) -> None:
    model, _ = make()
    adapter = eq.create(method, nn.Sequential(model, nn.Softmax(1)))
    with pytest.warns(UserWarning, match="does it end in a softmax") as warned:
        adapter(drifted(8))
    assert [warning.filename for warning in warned] == [__file__]
    adapter(drifted(8))  # warnings are errors
    with pytest.warns(UserWarning, match="does it end in a softmax"):
        eq.create(method, nn.Sequential(model, nn.Softmax(1))).predict(drifted(8))


def test_where_statistics_were_measured_the_adapter_is_silent() -> None:
    model = nn.Sequential(make()[0], nn.Softmax(1))
    with pytest.warns(UserWarning, match="does it end in a softmax") as warned:
        source = eq.SourceStatistics.measure(model, [images(8)], progress=False)
    assert [warning.filename for warning in warned] == [__file__]
    eq.create("dec", model, source)(drifted(8))
    eq.Tempered(eq.create("dec", model, source), source)(drifted(8))


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
    assert are_probabilities(logits.softmax(1).to(dtype)) or dtype is torch.bfloat16
    assert not are_probabilities(logits.to(dtype))
    assert not are_probabilities(torch.cat([logits.softmax(1), logits[:1]]).to(dtype))
    assert not are_probabilities(torch.full((2, 3), torch.nan, dtype=dtype))
