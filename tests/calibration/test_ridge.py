"""Ridge regression, against least squares in numpy."""

import math

import numpy as np
import pytest
import torch

from equipoise.calibration.ridge import Ridge, fit_ridge, left_out

PENALTY = 0.03
FLOORS = torch.tensor([0.1, 0.1, 5.0], dtype=torch.float64)


def drawn(rows: int = 24) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[str]]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=draw, dtype=torch.float64) * torch.tensor([1.0, 4.0, 0.2]) + 3
    noise = torch.randn(rows, generator=draw, dtype=torch.float64)
    y = x @ torch.tensor([0.7, -0.2, 1.0], dtype=torch.float64) + 0.3 * noise
    weight = 0.2 + torch.rand(rows, generator=draw, dtype=torch.float64)
    return x, y, weight, [f"shift {row % 6}" for row in range(rows)]


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
        self.gram = sum(a[i] * np.outer(z[i], z[i]) for i in range(n)) / n + PENALTY * np.eye(f)
        self.low, self.high = y.min(), y.max()

    def __call__(self, x: np.ndarray) -> float:
        z = (x - self.mean) / self.spread
        return float(np.clip(self.bias + z @ self.weights, self.low, self.high))

    def leverage(self, x: np.ndarray) -> float:
        z = (x - self.mean) / self.spread
        return float(z @ np.linalg.solve(self.gram, z))


def both() -> tuple[Ridge, Plain]:
    x, y, weight, groups = drawn()
    return fit_ridge(x, y, weight, groups, FLOORS), Plain(x.numpy(), y.numpy(), weight.numpy())


def test_it_is_weighted_least_squares_with_a_penalty() -> None:
    found, plain = both()
    for name in ("mean", "spread", "bias", "weights", "low", "high"):
        np.testing.assert_allclose(getattr(found, name).numpy(), getattr(plain, name), rtol=1e-9)
    assert float(found.spread[2]) == 5.0  # the floor: it varied less
    np.testing.assert_allclose(found.inverse.numpy(), np.linalg.inv(plain.gram), rtol=1e-8)
    x = drawn()[0]
    assert found(x).tolist() == pytest.approx([plain(row) for row in x.numpy()])


def test_weights_count_by_their_ratios_alone() -> None:
    x, y, weight, groups = drawn()
    found, scaled = fit_ridge(x, y, weight, groups, FLOORS), fit_ridge(x, y, 9 * weight, groups, FLOORS)
    for name, tensor in found.tensors().items():
        torch.testing.assert_close(scaled.tensors()[name], tensor)


def test_it_stays_within_what_it_was_fitted_to() -> None:
    found, _ = both()
    y = drawn()[1]
    far = torch.tensor([[100.0, 0.0, 3.0], [-100.0, 0.0, 3.0]], dtype=torch.float64)
    assert found(far).tolist() == [float(y.max()), float(y.min())]


def test_each_group_is_predicted_by_the_others() -> None:
    x, y, weight, groups = drawn()
    found = left_out(x, y, weight, groups, FLOORS)
    for row, group in enumerate(groups):
        others = [at for at, name in enumerate(groups) if name != group]
        plain = Plain(x.numpy()[others], y.numpy()[others], weight.numpy()[others])
        assert float(found[row]) == pytest.approx(plain(x.numpy()[row]))


def test_margin_and_doubt_are_those_of_the_groups_left_out() -> None:
    x, y, weight, groups = drawn()
    found = fit_ridge(x, y, weight, groups, FLOORS)
    residuals = [float(r) for r in left_out(x, y, weight, groups, FLOORS) - y]
    total = float(weight.sum())
    doubt = math.sqrt(sum(float(a) * r * r for a, r in zip(weight, residuals, strict=True)) / total)
    assert float(found.doubt) == pytest.approx(doubt)
    ordered = sorted((abs(r), float(a)) for r, a in zip(residuals, weight, strict=True))
    covered = [
        size for at, (size, _) in enumerate(ordered) if sum(a for _, a in ordered[: at + 1]) >= 0.9 * total
    ]
    assert float(found.margin) == pytest.approx(covered[0])
    even = fit_ridge(x[:20], y[:20], torch.ones(20, dtype=torch.float64), groups[:20], FLOORS)
    plain = (
        left_out(x[:20], y[:20], torch.ones(20, dtype=torch.float64), groups[:20], FLOORS) - y[:20]
    ).abs()
    assert int((plain <= even.margin).sum()) in (18, 19)  # nine of ten


def test_leverage_and_its_reach() -> None:
    found, plain = both()
    x = drawn()[0]
    expected = [plain.leverage(row) for row in x.numpy()]
    assert found.leverage(x).tolist() == pytest.approx(expected)
    assert float(found.reach) == pytest.approx(max(expected))
    assert float(found.leverage(found.mean)) == pytest.approx(0)


def test_one_group_alone_is_predicted_by_its_mean() -> None:
    x, y, weight, _ = drawn()
    found = left_out(x, y, weight, ["same"] * len(y), FLOORS)
    assert found.tolist() == pytest.approx([float(y.mean())] * len(y))


def test_it_moves_in_single_precision() -> None:
    moved = both()[0].to(torch.device("cpu"))
    assert {tensor.dtype for tensor in moved.tensors().values()} == {torch.float32}
