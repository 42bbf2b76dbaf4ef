"""Ridge regression, against least squares in numpy."""

import math

import numpy as np
import pytest
import torch

from equipoise.calibration.process import Ridge, fit_ridge

PENALTY = 0.03
FLOORS = torch.tensor([0.1, 0.1, 5.0], dtype=torch.float64)


def drawn(rows: int = 24) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=draw, dtype=torch.float64) * torch.tensor([1.0, 4.0, 0.2]) + 3
    noise = torch.randn(rows, generator=draw, dtype=torch.float64)
    y = x @ torch.tensor([0.7, -0.2, 1.0], dtype=torch.float64) + 0.3 * noise
    weight = 0.2 + torch.rand(rows, generator=draw, dtype=torch.float64)
    return x, y, weight


class Plain:
    """The same by least squares of rows that are put below each other."""

    def __init__(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        n, f = x.shape
        a = weight / weight.mean()
        self.mean = np.array([sum(a[i] * x[i, j] for i in range(n)) / n for j in range(f)])
        variance = [sum(a[i] * (x[i, j] - self.mean[j]) ** 2 for i in range(n)) / n for j in range(f)]
        self.spread = np.maximum(np.sqrt(variance), FLOORS.numpy())
        self.bias = sum(a[i] * y[i] for i in range(n)) / n
        z = (x - self.mean) / self.spread
        rows = np.concatenate([np.sqrt(a)[:, None] * z, math.sqrt(PENALTY * n) * np.eye(f)])
        aims = np.concatenate([np.sqrt(a) * (y - self.bias), np.zeros(f)])
        self.weights = np.linalg.lstsq(rows, aims, rcond=None)[0]

    def __call__(self, x: np.ndarray) -> float:
        return float(self.bias + (x - self.mean) / self.spread @ self.weights)


def both() -> tuple[Ridge, Plain]:
    x, y, weight = drawn()
    return fit_ridge(x, y, weight, FLOORS), Plain(x.numpy(), y.numpy(), weight.numpy())


def test_it_is_weighted_least_squares_with_a_penalty() -> None:
    found, plain = both()
    for name in ("mean", "spread", "bias", "weights"):
        np.testing.assert_allclose(getattr(found, name).numpy(), getattr(plain, name), rtol=1e-9)
    assert float(found.spread[2]) == 5.0  # the floor: it varied less
    x = 3 * drawn()[0]
    assert found(x).tolist() == pytest.approx([plain(row) for row in x.numpy()])


def test_weights_count_by_their_ratios_alone() -> None:
    x, y, weight = drawn()
    found, scaled = fit_ridge(x, y, weight, FLOORS), fit_ridge(x, y, 9 * weight, FLOORS)
    for name, tensor in found.tensors().items():
        torch.testing.assert_close(scaled.tensors()[name], tensor)


def test_it_moves_in_single_precision() -> None:
    moved = both()[0].to(torch.device("cpu"))
    assert {tensor.dtype for tensor in moved.tensors().values()} == {torch.float32}
