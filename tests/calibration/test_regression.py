"""Gaussian-process regression, against covariances of single rows written out in numpy."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.calibration.regression import Posteriors, Process, Ridge, fit_process, fit_ridge

TREND, BEND, LENGTH, OFFSET, NOISE, ROOM = 1.0, 0.5, 1.0, 0.4, 0.1, 0.3
FLOORS = torch.tensor([0.1, 0.1, 5.0, math.inf], dtype=torch.float64)
NONE = "none"


class Drawn:
    """Rows of six shifts and of none, with a target that is a line, a bend and something of each shift."""

    def __init__(self, rows: int = 28) -> None:
        draw = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw, dtype=torch.float64)

        self.x = normal(rows, 4) * torch.tensor([1.0, 4.0, 0.2, 1.0]) + 3
        self.shifts = [NONE if row % 7 == 0 else f"shift {row % 7}" for row in range(rows)]
        own = {name: float(value) for name, value in zip(sorted(set(self.shifts)), normal(7), strict=True)}
        slopes = torch.tensor([0.7, -0.2, 1.0, 0.0], dtype=torch.float64)
        offsets = torch.tensor([0.3 * own[name] for name in self.shifts], dtype=torch.float64)
        self.y = self.x @ slopes + self.x[:, 0].sin() + offsets + 0.1 * normal(rows)
        self.weight = 0.2 + torch.rand(rows, generator=draw, dtype=torch.float64)
        self.variance = 0.1 * torch.rand(rows, generator=draw, dtype=torch.float64)
        self.origin = self.x[::7].mean(0)
        self.exact = torch.tensor([4.2, 1e-4], dtype=torch.float64)

    def fit(self, weight: Tensor | None = None) -> Process:
        return fit_process(
            self.x,
            self.y,
            variance=self.variance,
            weight=self.weight if weight is None else weight,
            shifts=self.shifts,
            none=NONE,
            floors=FLOORS,
            origin=self.origin,
            exact=self.exact,
        )


class Plain:
    """The same, row by row; `left` are the places that are left out of the fit, the last is the exact one."""

    def __init__(self, drawn: Drawn, left: Sequence[int] = ()) -> None:
        x, y, weight = drawn.x.numpy(), drawn.y.numpy(), drawn.weight.numpy()
        n, f = x.shape
        share = weight / weight.sum()
        self.mean = np.array([sum(share[i] * x[i, j] for i in range(n)) for j in range(f)])
        variance = [sum(share[i] * (x[i, j] - self.mean[j]) ** 2 for i in range(n)) for j in range(f)]
        finite = [j for j in range(f) if math.isfinite(float(FLOORS[j]))]
        self.scale = np.array(
            [
                1 / (max(math.sqrt(variance[j]), float(FLOORS[j])) * math.sqrt(len(finite)))
                if j in finite
                else 0.0
                for j in range(f)
            ]
        )
        self.bias = sum(share[i] * y[i] for i in range(n))
        self.start = (drawn.origin.numpy() - self.mean) * self.scale
        rows = [*((x - self.mean) * self.scale), self.start]
        targets = [*y, float(drawn.exact[0])]
        noise = [*(drawn.variance.numpy() + NOISE**2), float(drawn.exact[1]) + (NOISE / 10) ** 2]
        shifts = [*drawn.shifts, NONE]
        self.low, self.high = min(targets), max(targets)
        kept = [at for at in range(n + 1) if at not in left]
        self.rows = [rows[at] for at in kept]
        self.shifts, self.noise = [shifts[at] for at in kept], [noise[at] for at in kept]
        self.residuals = np.array([targets[at] - self.bias for at in kept])
        size = len(kept)
        covariance = np.zeros((size, size))
        for i in range(size):
            for j in range(size):
                covariance[i, j] = self.of_two(self.rows[i], self.rows[j])
                if self.shifts[i] == self.shifts[j] != NONE:
                    covariance[i, j] += OFFSET**2
            covariance[i, i] += self.noise[i]
        self.covariance = covariance

    @staticmethod
    def of_two(left: np.ndarray, right: np.ndarray) -> float:
        apart = sum((a - b) ** 2 for a, b in zip(left, right, strict=True))
        return float(TREND**2 * (left @ right + 1) + BEND**2 * math.exp(-apart / (2 * LENGTH**2)))

    def near(self, z: np.ndarray) -> np.ndarray:
        return np.array([self.of_two(z, row) for row in self.rows])

    def z(self, x: np.ndarray) -> np.ndarray:
        return np.asarray((x - self.mean) * self.scale)

    def unclamped(self, z: np.ndarray) -> float:
        return float(self.bias + self.near(z) @ np.linalg.solve(self.covariance, self.residuals))

    def __call__(self, x: np.ndarray) -> float:
        return float(np.clip(self.unclamped(self.z(x)), self.low, self.high))

    def variance(self, z: np.ndarray) -> float:
        near = self.near(z)
        return self.of_two(z, z) - float(near @ np.linalg.solve(self.covariance, near))


def left_out(drawn: Drawn) -> tuple[list[float], list[float], list[float]]:
    """For each row, the estimate by a fit without its shift, its error and the deviation expected of that."""
    estimates, errors, deviations = [], [], []
    names = [*drawn.shifts, NONE]
    targets, noise = [*drawn.y.tolist(), float(drawn.exact[0])], Plain(drawn).noise
    for row, name in enumerate(names):
        plain = Plain(drawn, [at for at, other in enumerate(names) if other == name])
        z = plain.start if row == len(drawn.y) else plain.z(drawn.x[row].numpy())
        found = plain.unclamped(z)
        estimates.append(float(np.clip(found, plain.low, plain.high)))
        errors.append(targets[row] - found)
        deviations.append(math.sqrt(plain.variance(z) + (name != NONE) * OFFSET**2 + noise[row]))
    return estimates, errors, deviations


def test_estimates_are_those_of_the_covariance_written_out() -> None:
    drawn = Drawn()
    found, plain = drawn.fit(), Plain(drawn)
    np.testing.assert_allclose(found.mean.numpy(), plain.mean)
    np.testing.assert_allclose(found.scale.numpy(), plain.scale)
    np.testing.assert_allclose(found.inverse.numpy(), np.linalg.inv(plain.covariance), atol=1e-6)
    assert float(found.bias) == pytest.approx(plain.bias)
    assert found(drawn.x).tolist() == pytest.approx([plain(row) for row in drawn.x.numpy()])
    between = (drawn.x[1:] + drawn.x[:-1]) / 2
    assert found(between).tolist() == pytest.approx([plain(row) for row in between.numpy()])
    assert found(between.reshape(3, 9, 4)).shape == (3, 9)


def test_each_shift_is_estimated_by_a_fit_without_it() -> None:
    drawn = Drawn()
    estimates, errors, _ = left_out(drawn)
    found = drawn.fit()
    assert found.left_out().tolist() == pytest.approx(estimates)
    assert min(abs(error) for error in errors) > 0
    with_it = found(drawn.x) - drawn.y
    assert float(with_it.abs().mean()) < sum(abs(error) for error in errors[:-1]) / len(drawn.y)


def test_margin_and_doubt_are_those_of_the_shifts_left_out() -> None:
    drawn = Drawn()
    found, (_, errors, deviations) = drawn.fit(), left_out(drawn)
    weight = drawn.weight.tolist()
    total = sum(weight)
    doubt = math.sqrt(sum(a * e**2 for a, e in zip(weight, errors, strict=False)) / total)
    assert float(found.doubt) == pytest.approx(doubt)
    ordered = sorted(zip([abs(e) / d for e, d in zip(errors, deviations, strict=True)], weight, strict=False))
    covered = [
        ratio for at, (ratio, _) in enumerate(ordered) if sum(a for _, a in ordered[: at + 1]) >= 0.9 * total
    ]
    assert float(found.margin) == pytest.approx(covered[0])


def test_the_limit_is_what_95_percent_of_the_rows_keep_from_other_shifts() -> None:
    drawn = Drawn()
    found, plain = drawn.fit(), Plain(drawn)
    nearest = [
        min(
            math.dist(row, other)
            for other, name in zip(plain.rows, plain.shifts, strict=True)
            if name != plain.shifts[at]
        )
        for at, row in enumerate(plain.rows)
    ]
    assert float(found.limit) == pytest.approx(float(np.quantile(nearest, 0.95)))
    x = drawn.x[3] + 2
    apart = min(math.dist(plain.z(x.numpy()), row) for row in plain.rows)
    assert found.at(x).distance == pytest.approx(apart / float(found.limit))


@pytest.mark.parametrize("far", [0.0, 0.5, 3.0, 30.0])
def test_the_half_width_written_out(far: float) -> None:
    drawn = Drawn()
    found, plain = drawn.fit(), Plain(drawn)
    x = drawn.origin + far * torch.tensor([1.0, -2.0, 0.5, 7.0], dtype=torch.float64)
    z = plain.z(x.numpy())
    own = OFFSET * (1 - math.exp(-(math.dist(z, plain.start) ** 2) / 2))
    deviation = math.sqrt(plain.variance(z) + own**2 + NOISE**2)
    own = float(found.margin) * deviation * max(1.0, found.at(x).distance)
    expected = math.sqrt(own**2 + ROOM**2)
    assert found.at(x).half_width == pytest.approx(expected, rel=1e-6)


def test_no_interval_is_narrower_than_03_on_either_side() -> None:
    drawn = Drawn()
    certain = replace(drawn.fit(), margin=torch.tensor(0.0, dtype=torch.float64))
    for x in (drawn.origin, drawn.x[2], drawn.x[2] + 50):
        assert certain.at(x).half_width == pytest.approx(ROOM)


def test_the_target_at_rest_is_the_exact_one() -> None:
    drawn = Drawn()
    for value in (-2.0, 4.2):
        drawn.exact = torch.tensor([value, 1e-4], dtype=torch.float64)
        assert float(drawn.fit().at_rest) == value


def test_the_interval_is_narrow_where_nothing_shifted_and_widens_with_the_distance() -> None:
    drawn = Drawn()
    found = drawn.fit()
    along = torch.tensor([1.0, 4.0, 1.0, 0.0], dtype=torch.float64)
    widths = [found.at(drawn.origin + step * along).half_width for step in (0, 3, 6, 20)]
    assert widths == sorted(widths)
    assert widths[0] < 0.5 * widths[1]
    assert found.at(drawn.origin).distance == pytest.approx(0, abs=1e-6)


def test_the_estimate_is_exact_where_nothing_shifted() -> None:
    drawn = Drawn()
    for value in (0.0, 1.5, 3.0):  # whatever the rows nearby say
        drawn.exact = torch.tensor([value, 1e-5], dtype=torch.float64)
        assert float(drawn.fit()(drawn.origin)) == pytest.approx(value, abs=0.03)
    assert float(drawn.y[::7].min()) > 3.1


def test_far_away_it_follows_the_line() -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(40, 2, generator=draw, dtype=torch.float64)
    bump = 2 * (-(x - 0.5).square().sum(1)).exp()
    y = x[:, 0] - x[:, 1] + bump
    made = fit_process(
        x,
        y,
        variance=torch.zeros_like(y),
        weight=torch.ones_like(y),
        shifts=[f"shift {row}" for row in range(40)],
        none=NONE,
        floors=torch.full((2,), 0.1, dtype=torch.float64),
        origin=torch.zeros(2, dtype=torch.float64),
        exact=torch.tensor([1.2, 1e-4], dtype=torch.float64),
    )
    steps = [torch.full((2,), 20.0 * step, dtype=torch.float64) for step in range(1, 4)]
    first, second, third = (float(made(step)) for step in steps)
    assert third - second == pytest.approx(second - first, abs=1e-6)  # no bend is left
    tilted = torch.tensor([1.0, 0.0], dtype=torch.float64)
    slope = float(made(steps[0] + 0.2 * tilted) - made(steps[0] - 0.2 * tilted)) / 0.4
    assert slope == pytest.approx(1, abs=0.25)


def test_it_stays_within_what_it_was_fitted_to() -> None:
    drawn = Drawn()
    found = drawn.fit()
    far = drawn.origin + 1000 * torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]], dtype=torch.float64)
    targets = [*drawn.y.tolist(), float(drawn.exact[0])]
    assert sorted(found(far).tolist()) == pytest.approx([min(targets), max(targets)])
    on_device, _ = Posteriors([found], [slice(0, 4)], 4, torch.device("cpu"))(far.float())
    assert sorted(on_device[:, 0].tolist()) == pytest.approx([min(targets), max(targets)])


def test_a_floor_of_infinity_leaves_a_feature_out() -> None:
    drawn = Drawn()
    found = drawn.fit()
    other = drawn.x.clone()
    other[:, 3] += 100
    assert torch.equal(found(other), found(drawn.x))
    assert found.at(other[2]).half_width == found.at(drawn.x[2]).half_width


def test_tensors_make_it_again() -> None:
    found = Drawn().fit()
    again = Process(**{name: tensor.clone() for name, tensor in found.tensors().items()})
    x = Drawn().x
    assert torch.equal(again(x), found(x))
    assert torch.equal(again.left_out(), found.left_out())
    assert again.at(x[0]).half_width == found.at(x[0]).half_width


def test_posteriors_of_a_device_agree_in_single_precision_each_at_its_own_features() -> None:
    first, second = Drawn(), Drawn()
    found, other = first.fit(), second.fit(4 * second.weight + 1)
    x = torch.cat([first.x, first.x * 1.5 - 2, first.origin.unsqueeze(0)])
    both = torch.cat([x, x.flip(0)], 1)
    made = Posteriors([found, other], [slice(0, 4), slice(4, 8)], 8, torch.device("cpu"))
    on_device, far = made(both.float())
    assert on_device.dtype == far.dtype == torch.float32
    expected = torch.stack([found(x), other(x.flip(0))], 1)
    torch.testing.assert_close(on_device.double(), expected, rtol=1e-4, atol=1e-4)
    apart = [[found.at(own).distance, other.at(its).distance] for own, its in zip(x, x.flip(0), strict=True)]
    torch.testing.assert_close(far.double(), torch.tensor(apart).double(), rtol=1e-3, atol=1e-3)
    assert [part.shape for part in made(both[:28].float().reshape(4, 7, 8))] == [(4, 7, 2)] * 2
    assert made(both[0].float())[0].shape == (2,)


PENALTY = 0.03
RIDGE_FLOORS = torch.tensor([0.1, 0.1, 5.0], dtype=torch.float64)


def rows_drawn(rows: int = 24) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=draw, dtype=torch.float64) * torch.tensor([1.0, 4.0, 0.2]) + 3
    noise = torch.randn(rows, generator=draw, dtype=torch.float64)
    y = x @ torch.tensor([0.7, -0.2, 1.0], dtype=torch.float64) + 0.3 * noise
    weight = 0.2 + torch.rand(rows, generator=draw, dtype=torch.float64)
    return x, y, weight


class PlainRidge:
    """The same by least squares of rows that are put below each other."""

    def __init__(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        n, f = x.shape
        a = weight / weight.mean()
        self.mean = np.array([sum(a[i] * x[i, j] for i in range(n)) / n for j in range(f)])
        variance = [sum(a[i] * (x[i, j] - self.mean[j]) ** 2 for i in range(n)) / n for j in range(f)]
        self.spread = np.maximum(np.sqrt(variance), RIDGE_FLOORS.numpy())
        self.bias = sum(a[i] * y[i] for i in range(n)) / n
        z = (x - self.mean) / self.spread
        rows = np.concatenate([np.sqrt(a)[:, None] * z, math.sqrt(PENALTY * n) * np.eye(f)])
        aims = np.concatenate([np.sqrt(a) * (y - self.bias), np.zeros(f)])
        self.weights = np.linalg.lstsq(rows, aims, rcond=None)[0]

    def __call__(self, x: np.ndarray) -> float:
        return float(self.bias + (x - self.mean) / self.spread @ self.weights)


def both() -> tuple[Ridge, PlainRidge]:
    x, y, weight = rows_drawn()
    return fit_ridge(x, y, weight, RIDGE_FLOORS), PlainRidge(x.numpy(), y.numpy(), weight.numpy())


def test_it_is_weighted_least_squares_with_a_penalty() -> None:
    found, plain = both()
    for name in ("mean", "spread", "bias", "weights"):
        np.testing.assert_allclose(getattr(found, name).numpy(), getattr(plain, name), rtol=1e-9)
    assert float(found.spread[2]) == 5.0  # the floor: it varied less
    x = 3 * rows_drawn()[0]
    assert found(x).tolist() == pytest.approx([plain(row) for row in x.numpy()])


def test_it_moves_in_single_precision() -> None:
    moved = both()[0].to(torch.device("cpu"))
    assert {tensor.dtype for tensor in moved.tensors().values()} == {torch.float32}


def test_weights_count_by_their_ratios_alone() -> None:
    drawn, (x, y, weight) = Drawn(), rows_drawn()
    processes = drawn.fit(), drawn.fit(9 * drawn.weight)
    ridges = fit_ridge(x, y, weight, RIDGE_FLOORS), fit_ridge(x, y, 9 * weight, RIDGE_FLOORS)
    for found, scaled in (processes, ridges):
        for name, tensor in found.tensors().items():
            torch.testing.assert_close(scaled.tensors()[name], tensor)
