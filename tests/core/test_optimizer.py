"""The step uphill of sharpness-aware gradients, in every precision."""

import pytest
import torch
from torch import nn

from equipoise.core.optimizer import climbed


def parameters(dtype: torch.dtype) -> tuple[dict[str, nn.Parameter], dict[str, torch.Tensor]]:
    """Weights of a normalisation layer, all near 1, and gradients."""
    generator = torch.Generator().manual_seed(0)
    weights, gradients = {}, {}
    for name, size in (("weight", 9000), ("bias", 1000)):
        weights[name] = nn.Parameter((1 + 0.1 * torch.randn(size, generator=generator)).to(dtype))
        gradients[name] = torch.randn(size, generator=generator).to(dtype)
    return weights, gradients


@pytest.mark.parametrize("rho", [0.05, 0.5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_step_uphill_is_taken_in_every_precision(dtype: torch.dtype, rho: float) -> None:
    weights, gradients = parameters(dtype)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    with climbed(weights, gradients, rho) as (finite,):
        moved = torch.cat([(weights[n].detach().double() - before[n].double()) for n in weights])
    slope = torch.cat([gradients[n].double() for n in weights])
    assert bool(finite.holds)
    assert all(torch.equal(weight, before[name]) for name, weight in weights.items())
    ahead = float(moved @ slope / slope.norm())
    assert 0.5 * rho <= ahead <= 2 * rho
    assert float(moved.norm()) <= 4 * rho
    if dtype in (torch.float32, torch.float64):
        assert (ahead, float(moved.norm())) == pytest.approx((rho, rho), rel=1e-4)


def test_a_gradient_that_is_not_finite_is_reported_and_the_weights_come_back() -> None:
    weights, gradients = parameters(torch.bfloat16)
    gradients["bias"][3] = torch.nan
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    with climbed(weights, gradients, 0.05) as (finite,):
        assert not bool(finite.holds)
    assert all(torch.equal(weight, before[name]) for name, weight in weights.items())
