"""The metrics again, as loops over samples, and the data the tests share."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Probs = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def as_numpy(probs: Tensor) -> Probs:
    values: Probs = probs.double().numpy()
    return values


def labels_of(target: Tensor) -> Labels:
    values: Labels = target.long().numpy()
    return values


def bin_of(confidence: float, bins: int) -> int:
    """The b with b/bins < confidence <= (b+1)/bins, and 0 for confidence 0."""
    for b in range(bins - 1):
        if confidence <= (b + 1) / bins:
            return b
    return bins - 1


def gaps_by_bin(probs: Probs, target: Labels, bins: int) -> list[list[float]]:
    gaps: list[list[float]] = [[] for _ in range(bins)]
    for row, label in zip(probs, target, strict=True):
        predicted = int(row.argmax())
        gaps[bin_of(row[predicted], bins)].append(float(predicted == label) - float(row[predicted]))
    return gaps


def accuracy(probs: Probs, target: Labels) -> float:
    return sum(int(row.argmax() == label) for row, label in zip(probs, target, strict=True)) / len(target)


def expected_error(probs: Probs, target: Labels, bins: int = 15) -> float:
    return sum(abs(sum(gaps)) for gaps in gaps_by_bin(probs, target, bins)) / len(target)


def maximum_error(probs: Probs, target: Labels, bins: int = 15) -> float:
    return max(abs(sum(gaps) / len(gaps)) for gaps in gaps_by_bin(probs, target, bins) if gaps)


def adaptive_error(probs: Probs, target: Labels, bins: int = 15, cells: int | None = None) -> float:
    """Each sample is a unit of length at its rank; equally confident ones carry their common mean gap.

    With cells, confidences in the same of that many cells count as equal.
    """
    confidence = probs.max(axis=1)
    gap = (probs.argmax(axis=1) == target) - confidence
    level = confidence if cells is None else np.ceil(confidence * cells)
    shared = [gap[level == level[i]].mean() for i in np.argsort(level)]
    total = 0.0
    for b in range(bins):
        start, stop = b * len(target) / bins, (b + 1) * len(target) / bins
        total += abs(
            sum(max(0.0, min(rank + 1, stop) - max(rank, start)) * g for rank, g in enumerate(shared))
        )
    return total / len(target)


def area_under_risk_coverage(probs: Probs, target: Labels, *, cells: bool = False) -> float:
    """The mean over samples of the share of errors among those that are at least as confident.

    With cells, confidences whose log-odds are in the same cell of 1/128 count as equal.
    """
    confidence = probs.max(axis=1)
    wrong = probs.argmax(axis=1) != target
    with np.errstate(divide="ignore"):
        level = np.floor(128 * np.log(confidence / (1 - confidence))) if cells else confidence
    return sum(float(wrong[level >= mine].mean()) for mine in level) / len(target)


def classwise_error(probs: Probs, target: Labels, bins: int = 15) -> float:
    classes = int(probs.shape[1])
    total = 0.0
    for k in range(classes):
        gaps = [0.0] * bins
        for row, label in zip(probs, target, strict=True):
            gaps[bin_of(row[k], bins)] += float(label == k) - float(row[k])
        total += sum(abs(gap) for gap in gaps) / len(target)
    return total / classes


def negative_log_likelihood(probs: Probs, target: Labels) -> float:
    return sum(-math.log(row[label]) for row, label in zip(probs, target, strict=True)) / len(target)


def entropy(probs: Probs) -> float:
    return sum(-float(p) * math.log2(p) for row in probs for p in row if p > 0) / len(probs)


def brier_score(probs: Probs, target: Labels) -> float:
    total = 0.0
    for row, label in zip(probs, target, strict=True):
        total += sum((float(p) - float(k == label)) ** 2 for k, p in enumerate(row))
    return total / len(target)


def random_logits(
    seed: int, samples: int, classes: int = 4, *, scale: float = 2.0, ties: bool = False
) -> tuple[Tensor, Tensor]:
    """Logits in float64 and labels; with ties, many samples are equally confident."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, classes, generator=generator, dtype=torch.float64) * scale
    target = torch.randint(classes, (samples,), generator=generator)
    return (logits.round() if ties else logits), target


def calibrated_stream(
    seed: int, samples: int, *, sharpness: float = 1.0, classes: int = 4
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits times a sharpness, labels drawn from the unsharpened ones, and their true probabilities."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, classes, generator=generator, dtype=torch.float64) * 1.5
    truth = logits.softmax(dim=1)
    target = torch.multinomial(truth, 1, generator=generator).squeeze(1)
    return logits * sharpness, target, truth


def gather_twice(state: Tensor, group: object) -> list[Tensor]:
    """Stands for two processes with the same batch each; gathering is torchmetrics' own business."""
    return [state, state]
