"""Normalisation statistics that follow the stream, against formulas written out here."""

import copy

import pytest
import torch
from torch import nn

from equipoise.network.running_statistics import Return, following_statistics


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


SOURCE = {
    "running_mean": torch.tensor([0.5, -1.0, 2.0]),
    "running_var": torch.tensor([0.3, 1.0, 4.0]),
}


@pytest.mark.parametrize("new", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("rows", [7, 50])
def test_a_batch_is_taken_for_a_mixture_with_the_source(new: float, rows: int) -> None:
    layer, x = norm_layer(), 3 * torch.randn(rows, 3, 4, 5, generator=torch.Generator().manual_seed(1)) + 1
    mean, var = moments(layer)
    back = Return(SOURCE, torch.tensor(new))
    with torch.no_grad(), following_statistics(layer, 0.1, back=back):
        answer = layer(x)
    share, after = 1 - 0.9 ** (rows / 50), moments(layer)
    for channel in range(3):
        values = x[:, channel].flatten().double()
        centre, spread = float(values.mean()), float(values.var(unbiased=False))
        # E[x] and E[x²] of the source and of the batch, then of the running statistics and of that mixture.
        start, width = (float(SOURCE[name][channel]) for name in ("running_mean", "running_var"))
        mixed = (1 - new) * start + new * centre
        squares = (1 - new) * (width + start**2) + new * (spread + centre**2)
        m, v = float(mean[channel]), float(var[channel])
        first = (1 - share) * m + share * mixed
        second = (1 - share) * (v + m**2) + share * squares
        assert float(after[0][channel]) == pytest.approx(first, rel=1e-4, abs=1e-5)
        assert float(after[1][channel]) == pytest.approx(second - first**2, rel=1e-4)
        expected = (x[:, channel].double() - first) / (second - first**2 + layer.eps) ** 0.5
        torch.testing.assert_close(answer[:, channel].double(), expected, rtol=1e-4, atol=1e-4)


def nested() -> nn.Sequential:
    """Two layers with names of their own."""
    return nn.Sequential(norm_layer(), nn.Sequential(nn.Conv2d(3, 3, 1), norm_layer())).eval()


def stream_through(model: nn.Module, back: Return | None, batches: int) -> None:
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad(), following_statistics(model, 0.5, back=back):
        for _ in range(batches):
            model(2 * torch.randn(50, 3, 4, 5, generator=draw) + 3)


def test_what_is_all_new_follows_as_without_a_source() -> None:
    torch.manual_seed(0)
    plain = nested()
    model = copy.deepcopy(plain)
    source = {name: torch.full_like(tensor, 7.0) for name, tensor in plain.named_buffers()}
    stream_through(plain, None, 3)
    stream_through(model, Return(source, torch.ones(())), 3)
    for name, tensor in plain.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), tensor, msg=name)


def test_where_nothing_is_new_every_layer_returns_to_its_own_source_statistics() -> None:
    model = nested()
    source = {
        f"{at}running_{kind}": value + torch.arange(3.0)
        for at, value in (("0.", 1.0), ("1.1.", 5.0))
        for kind in ("mean", "var")
    }
    stream_through(model, Return(source, torch.zeros(())), 40)
    for name, tensor in source.items():
        torch.testing.assert_close(model.get_buffer(name), tensor, rtol=1e-4, atol=1e-4)
