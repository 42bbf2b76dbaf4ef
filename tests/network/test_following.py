"""Normalisation statistics that follow the stream, against formulas written out here."""

import pytest
import torch
from torch import nn

from equipoise.network.following import following_statistics


def norm_layer() -> nn.BatchNorm2d:
    """A batch norm with statistics that are not the usual ones."""
    layer = nn.BatchNorm2d(3).eval()
    draw = torch.Generator().manual_seed(0)
    layer.get_buffer("running_mean").copy_(torch.randn(3, generator=draw))
    layer.get_buffer("running_var").copy_(1 + torch.rand(3, generator=draw))
    return layer


def moments(layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of its mean and its variance."""
    return layer.get_buffer("running_mean").clone(), layer.get_buffer("running_var").clone()


@pytest.mark.parametrize("rows", [1, 7, 50, 200])
def test_a_batch_joins_the_statistics_by_its_share(rows: int) -> None:
    layer, x = norm_layer(), 3 * torch.randn(rows, 3, 4, 5, generator=torch.Generator().manual_seed(1)) + 1
    mean, var = moments(layer)
    with torch.no_grad(), following_statistics(layer, 0.1):
        answer = layer(x)
    share, after = 1 - 0.9 ** (rows / 50), moments(layer)
    for channel in range(3):
        values = x[:, channel].flatten().double()
        centre, spread = values.mean(), values.var(unbiased=False)
        m, v = float(mean[channel]), float(var[channel])
        # The moments of a mixture: E[x] and E[x²] of both, by their shares.
        first = (1 - share) * m + share * centre
        second = (1 - share) * (v + m**2) + share * (spread + centre**2)
        assert float(after[0][channel]) == pytest.approx(float(first), rel=1e-4, abs=1e-5)
        assert float(after[1][channel]) == pytest.approx(float(second - first**2), rel=1e-4)
        expected = (x[:, channel] - first) / (second - first**2 + layer.eps).sqrt()
        torch.testing.assert_close(answer[:, channel].double(), expected.double(), rtol=1e-4, atol=1e-4)


def test_statistics_do_not_depend_on_the_size_of_batches() -> None:
    x = torch.randn(100, 3, 4, 5, generator=torch.Generator().manual_seed(1)) + 2
    found = []
    for size in (1, 10, 100):
        layer = norm_layer()
        with torch.no_grad(), following_statistics(layer, 0.1):
            for batch in x.split(size):
                layer(batch)
        found.append(torch.cat(moments(layer)))
    torch.testing.assert_close(found[0], found[2], rtol=0.05, atol=0.05)
    torch.testing.assert_close(found[1], found[2], rtol=0.05, atol=0.05)


def test_the_hooks_are_gone_afterwards() -> None:
    layer = norm_layer()
    with following_statistics(layer, 0.1):
        pass
    before = moments(layer)[0]
    layer(torch.randn(4, 3, 2, 2))
    assert torch.equal(moments(layer)[0], before)
