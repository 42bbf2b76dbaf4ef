"""A small classifier that learned something, labelled samples of it, and rehearsals made by hand."""

import copy
from dataclasses import astuple
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.calibration.expected import expected_sums, true_sums
from equipoise.calibration.regression import Process, Ridge
from equipoise.calibration.rehearsal import Estimate, Run

CLASSES = 4
FEATURES = 7
"""The features of a window of one model."""

GRID = [2 ** (step / 4) for step in range(-8, 21)]
"""The temperatures that a window knows confidence at, written out again."""


def samples(rows: int, seed: int = 0, noise: float = 1.6) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 8, 8) of four patterns in noise, with their classes."""
    patterns = torch.randn(CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(99))
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (rows,), generator=draw)
    return patterns[labels] + noise * torch.randn(rows, 3, 8, 8, generator=draw), labels


def held_out(rows: int = 200, size: int = 50, noise: float = 1.6) -> list[tuple[Tensor, Tensor]]:
    """Labelled batches that the model was not trained on."""
    x, y = samples(rows, seed=1, noise=noise)
    return list(zip(x.split(size), y.split(size), strict=True))


@cache
def _trained() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(36, 8),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Linear(8, CLASSES),
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for step in range(60):
            x, y = samples(50, seed=1000 + step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.eval()


def trained() -> nn.Sequential:
    """A classifier with batch norm that is mostly right."""
    return copy.deepcopy(_trained())


def plain_model() -> nn.Sequential:
    """A classifier of (N, 6) features without batch norm."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def rows_of_features(rows: int = 120, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Features (N, 6) of three classes in turn; `plain_model`, which never answers the first, knows two."""
    labels = torch.arange(rows) % 3
    answered = torch.where(labels == 0, 1 + torch.arange(rows) % 2, labels)
    drawn = torch.randn(20 * rows, 6, generator=torch.Generator().manual_seed(seed))
    answers = plain_model()(drawn).argmax(1)
    found = {k: iter((answers == k).nonzero().flatten().tolist()) for k in range(3)}
    return drawn[[next(found[k]) for k in answered.tolist()]], labels


@cache
def rehearsed() -> eq.SourceStatistics:
    """The statistics of `trained`, with a rehearsal of poise and one of tent."""
    once = eq.rehearse(_trained(), held_out(), shifts=8, progress=False)
    return eq.rehearse(_trained(), held_out(), method="tent", source=once, shifts=8, progress=False)


def ridge(weights: list[float], bias: float = 0.0) -> Ridge:
    """A linear regression with numbers of one's own; features are not standardised."""
    return Ridge(
        mean=torch.zeros(len(weights), dtype=torch.float64),
        spread=torch.ones(len(weights), dtype=torch.float64),
        weights=torch.tensor(weights, dtype=torch.float64),
        bias=torch.tensor(bias, dtype=torch.float64),
    )


def line(
    weights: list[float],
    bias: float = 0.0,
    *,
    low: float = -6.0,
    high: float = 6.0,
    doubt: float = 0.0,
    margin: float = 0.0,
    limit: float = 1e9,
    at_rest: float | None = None,
) -> Process:
    """A process whose estimate is bias + weights · x, clamped.

    Two rows of each feature, at ±.1, have targets on that line; z = 10,000 x, so that the smooth part is
    nothing anywhere else. All other rows have so much noise that they only say what low and high are,
    and the last of them what the target was without a shift: at_rest; or else high, which nothing exceeds.
    Half of an interval is in proportion to the margin, and wide, as the rows are near each other.
    """
    count, far, at, rows = len(weights), 1e4, 0.1, 4 * FEATURES + 2
    places = at * far * torch.eye(count, dtype=torch.float64)
    slopes = at * torch.tensor(weights, dtype=torch.float64)
    ends = torch.tensor([low, high], dtype=torch.float64).repeat(rows)[: rows - 2 * count]
    if at_rest is not None:
        ends[-1] = at_rest
    assert {low, high} <= set(ends.tolist())
    return Process(
        mean=torch.zeros(count, dtype=torch.float64),
        scale=torch.full((count,), far, dtype=torch.float64),
        rows=torch.cat([places, -places, torch.zeros(len(ends), count, dtype=torch.float64)]),
        targets=torch.cat([bias + slopes, bias - slopes, ends]),
        noise=torch.tensor([1e-4] * (2 * count) + [1e8] * len(ends), dtype=torch.float64),
        shifts=torch.arange(rows),
        origin=torch.zeros(count, dtype=torch.float64),
        bias=torch.tensor(bias, dtype=torch.float64),
        margin=torch.tensor(margin, dtype=torch.float64),
        doubt=torch.tensor(doubt, dtype=torch.float64),
        limit=torch.tensor(limit, dtype=torch.float64),
    )


def flat(value: float, **numbers: float) -> Process:
    """A process with one estimate for all windows of a model."""
    return line([0.0] * FEATURES, value, **numbers)


def flat_lead(ahead: float) -> Process:
    """A process by which the source model is always so much more accurate, by its share of right answers."""
    return line([0.0] * (2 * FEATURES), ahead / 0.2)


def flat_gap(value: float) -> Ridge:
    """A linear regression with one estimate for all windows of two models."""
    return ridge([0.0] * (2 * FEATURES), value)


def plain_novelty(source: eq.SourceStatistics, x: Tensor) -> Tensor:
    """The novelty of rows of a table or of images (N), one by one; 0 where nothing is known of the source."""
    if not source.inputs:
        return torch.zeros(len(x), dtype=torch.float64)
    known = {name: tensor.double().cpu().numpy() for name, tensor in source.inputs.items()}
    found = []
    for row in x.double().numpy():
        if row.ndim == 3:
            numbers = [c.mean() for c in row] + [c.std() for c in row]
            numbers += [np.abs(c[:, 1:] - c[:, :-1]).mean() for c in row]
            numbers += [np.abs(c[1:] - c[:-1]).mean() for c in row]
        else:
            numbers = list(row)
        z = (np.array(numbers) - known["mean"]) / known["scale"]
        apart = ((z - known["kept"]) ** 2).sum(1) ** 0.5
        new = np.log(max(sorted(apart)[1], 0.05)) - known["usual"]
        found.append(min(max(float(new), -4.0), 4.0))
    return torch.tensor(found, dtype=torch.float64)


def window_rows(logits: Tensor, other: Tensor | None = None, new: Tensor | None = None) -> Tensor:
    """What a window has of each sample, (N, width), sample by sample.

    `other` are logits of another model, `new` the novelty of the inputs.
    """
    rows = []
    others = (logits if other is None else other).detach().double().numpy()
    novelty = [0.0] * len(logits) if new is None else new.tolist()
    for z, beside, n in zip(logits.detach().double().numpy(), others, novelty, strict=True):
        behind = z - z.max()
        p = np.exp(behind) / np.exp(behind).sum()
        c = p.max()
        nats = -(p[p > 0] * np.log(p[p > 0])).sum()
        norm = 0.5 * np.log(max(((z - z.mean()) ** 2).sum(), 1e-12))
        apart = float(z.argmax() != beside.argmax())
        curve = 1 / np.exp(behind / np.array(GRID)[:, None]).sum(1)
        rows.append(np.concatenate([[1, c, c * c, nats, norm, apart, n], curve, p]))
    return torch.from_numpy(np.stack(rows))


def window_of(logits: Tensor, other: Tensor | None = None, new: Tensor | None = None) -> Tensor:
    """The sums over samples that a window has."""
    return window_rows(logits, other, new).sum(0)


def windows_of(logits: Tensor, new: Tensor | None = None) -> Tensor:
    """The same of (models, N, C) logits, (models, width)."""
    pairs = zip(logits, logits.flip(0), strict=True)
    return torch.stack([window_of(mine, other, new) for mine, other in pairs])


def rehearsal(student: Process, source: Process | None = None, **others: Any) -> eq.Rehearsal:
    """A rehearsal made by hand: two streams, and a "no shift" with answers of a random model.

    With a source model both models are as accurate, and their disagreement says nothing.
    """
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2, 40, CLASSES, generator=draw)
    models = 1 if source is None else 2
    every = torch.ones(40, dtype=torch.bool)
    likely = torch.multinomial(logits[0].softmax(1), 1, generator=draw)[:, 0]
    parts: dict[str, Any] = {
        "method": "poise",
        "options": {"norm_momentum": 0.1},
        "samples": 100,
        "batch_size": 50,
        "seed": 0,
        "runs": (
            Run("none", "shuffled", 0.9, 0.95, 0.88, 1.2, None if source is None else 0.9),
            Run("rotate 25", "sorted", 0.5, 0.8, 0.6, 2.0, None if source is None else 0.7),
        ),
        "compared": None if source is None else student,
        "lead": None if source is None else flat_lead(0.0),
        "gap": None if source is None else flat_gap(0.0),
        "familiar": 0.2,
        "reach": 0.0,
        "disagreement": None if source is None else 1.0,
        "prior": windows_of(logits[:models]) / 40,
        "coolest": torch.full((models,), 0.25, dtype=torch.float64),
        "hottest": torch.full((models,), 32.0, dtype=torch.float64),
        "expected": torch.stack([expected_sums(each, every) for each in logits[:models]]).double(),
        "true": torch.stack([true_sums(each, likely) for each in logits[:models]]).double(),
        "bins": torch.ones(2, 3, 15, dtype=torch.float64),
    }
    return eq.Rehearsal(student=student, source=source, **{**parts, **others})


def alike(left: Any, right: Any) -> bool:
    """Whether two rehearsals, or two source statistics, have the same text and the same tensors."""
    mine, other = left.tensors(), right.tensors()
    return (
        left.to_json() == right.to_json()
        and mine.keys() == other.keys()
        and all(torch.equal(mine[name], other[name]) for name in mine)
    )


def temperature_at(window: Tensor, aim: float) -> float:
    """Where mean confidence at the temperatures of the grid crosses an aim, by a walk along them."""
    curve = (window[7:36] / window[0]).tolist()
    for low in range(28):
        if curve[low] > aim >= curve[low + 1]:
            return float(GRID[low] * 2 ** (0.25 * (curve[low] - aim) / (curve[low] - curve[low + 1])))
    return 0.25 if curve[0] <= aim else 32.0


def check_alike(found: Estimate | None, expected: Estimate | None) -> None:
    """Check that an estimate made in single precision is the same one as another in double."""
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert astuple(found) == pytest.approx(astuple(expected), abs=1e-5)
