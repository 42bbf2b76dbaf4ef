"""A small classifier that learned something, labelled samples of it, and rehearsals made by hand."""

import copy
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.calibration.rehearsal import Run
from equipoise.calibration.ridge import Ridge

CLASSES = 4
GRID = [2 ** (step / 4) for step in range(21)]
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


def ridge(
    weights: list[float],
    bias: float = 0.0,
    *,
    low: float = -6.0,
    high: float = 6.0,
    doubt: float = 0.0,
    margin: float = 0.0,
    reach: float = 1e9,
) -> Ridge:
    """A regression with numbers of one's own; features are not standardised."""
    count = len(weights)
    numbers = {"bias": bias, "low": low, "high": high, "reach": reach, "margin": margin, "doubt": doubt}
    return Ridge(
        mean=torch.zeros(count, dtype=torch.float64),
        spread=torch.ones(count, dtype=torch.float64),
        weights=torch.tensor(weights, dtype=torch.float64),
        inverse=torch.eye(count, dtype=torch.float64),
        **{name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()},
    )


def window_rows(logits: Tensor) -> Tensor:
    """What a window has of each sample, (N, width), sample by sample."""
    rows = []
    for z in logits.detach().double().numpy():
        behind = z - z.max()
        p = np.exp(behind) / np.exp(behind).sum()
        c = p.max()
        nats = -(p[p > 0] * np.log(p[p > 0])).sum()
        curve = 1 / np.exp(behind / np.array(GRID)[:, None]).sum(1)
        rows.append(np.concatenate([[1, c, c * c, nats], curve, p]))
    return torch.from_numpy(np.stack(rows))


def window_of(logits: Tensor) -> Tensor:
    """The sums over samples that a window has."""
    return window_rows(logits).sum(0)


def rehearsal(student: Ridge, gap: Ridge | None = None, **others: Any) -> eq.Rehearsal:
    """A rehearsal made by hand: two streams, and a "no shift" with answers of a random model."""
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2, 40, CLASSES, generator=draw)
    models = 1 if gap is None else 2
    parts: dict[str, Any] = {
        "method": "poise",
        "options": {"norm_momentum": 0.1},
        "samples": 100,
        "batch_size": 50,
        "seed": 0,
        "runs": (
            Run("none", "shuffled", 0.9, 0.95, 0.88, 1.2, None if gap is None else 0.9),
            Run("rotate 25", "sorted", 0.5, 0.8, 0.6, 2.0, None if gap is None else 0.7),
        ),
        "source_margin": torch.tensor(0.4, dtype=torch.float64),
        "prior": torch.stack([window_of(z) / 40 for z in logits[:models]]),
        "hottest": torch.full((models,), 32.0, dtype=torch.float64),
        "bins": torch.ones(2, 3, 15, dtype=torch.float64),
    }
    return eq.Rehearsal(student=student, gap=gap, **{**parts, **others})
