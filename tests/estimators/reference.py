"""The estimators again, as loops over samples, and the data that the tests share."""

import itertools
import math

import torch
from torch import Tensor

Rows = list[list[float]]


def predictions(seed: int, samples: int, classes: int, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    """Logits, and labels that follow them, mostly."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0]
    return logits, labels


def softmax(row: list[float], temperature: float = 1.0) -> list[float]:
    top = max(row)
    weights = [math.exp((value - top) / temperature) for value in row]
    return [weight / sum(weights) for weight in weights]


def rows_of(logits: Tensor, temperature: float = 1.0) -> Rows:
    return [softmax(row, temperature) for row in logits.tolist()]


def class_of(row: list[float]) -> int:
    return max(range(len(row)), key=lambda c: (row[c], -c))


def mean_confidence(logits: Tensor, temperature: float = 1.0) -> float:
    return sum(max(row) for row in rows_of(logits, temperature)) / len(logits)


def nll(logits: Tensor, labels: Tensor, temperature: float) -> float:
    rows = rows_of(logits, temperature)
    return -sum(math.log(row[y]) for row, y in zip(rows, labels.tolist(), strict=True)) / len(rows)


def scores(logits: Tensor, score: str) -> list[float]:
    rows = rows_of(logits)
    if score == "confidence":
        return [max(row) for row in rows]
    return [sum(p * math.log(p) for p in row if p > 0) for row in rows]


def best_match(rows: Rows, places: list[int]) -> float:
    """The largest mean of row[label] over all ways to give labels, each class its places; for a few rows."""
    labels = [c for c, count in enumerate(places) for _ in range(count)]
    orders = itertools.permutations(labels)
    return max(sum(row[c] for row, c in zip(rows, order, strict=True)) for order in orders) / len(rows)


def aetta(logits: Tensor, draws: Tensor, before: float | None) -> float:
    classes = [class_of(row) for row in logits.tolist()]
    total = len(draws) * len(logits)
    other, mean = 0.0, [0.0] * logits.shape[1]
    for draw in draws.tolist():
        for predicted, row in zip(classes, draw, strict=True):
            other += (class_of(row) != predicted) / total
            mean = [m + p / total for m, p in zip(mean, softmax(row), strict=True)]
    spread = -sum(m * math.log(m) for m in mean) / math.log(len(mean))
    error = min(other * spread**-3, 1 - 1 / len(mean))
    return 1 - (0.6 * (other if before is None else 1 - before) + 0.4 * error)
