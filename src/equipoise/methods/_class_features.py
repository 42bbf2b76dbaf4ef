"""Means of features by class, and how far they are from the source's."""

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import Memory
from equipoise.methods._linear_head import HeadAnswers, on_student
from equipoise.network.student import Student

CLASS_MEANS = "class_means"
"""The memory of the mean of the features of each class."""

_SUMS, _COUNTS = "class_sums", "class_counts"
_SOURCE_MEANS, _VARIANCES, _KNOWN = "source_means", "variances", "known"
_FOLLOWS = 0.05  # share of an update in the means, the authors'
_FLOOR = 0.01  # of the mean variance: a feature that never varies on the source would decide alone


def source_classes(student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
    """The source's means and variances by class, and which classes it has, as constants of a method."""
    features = {} if source is None else source.features
    means, variances = (on_student(features[n], student) for n in ("class_means", "class_variances"))
    known = features["class_counts"].to(student.device) > 0
    floor = _FLOOR * variances[known].mean()
    tiny = torch.finfo(variances.dtype).tiny
    return {_SOURCE_MEANS: means, _VARIANCES: variances.clamp(min=floor).clamp(min=tiny), _KNOWN: known}


def first_means(constants: Memory) -> dict[str, Tensor]:
    """The memory before the first batch: the source's means, and no features since the last update."""
    means = {CLASS_MEANS: constants[_SOURCE_MEANS].clone()}
    return {**means, **no_sums(means)}


def no_sums(memory: Memory) -> dict[str, Tensor]:
    """The memory of no features since the last update."""
    means = memory[CLASS_MEANS]
    return {_SUMS: torch.zeros_like(means), _COUNTS: means.new_zeros(len(means))}


def joined_sums(memory: Memory, seen: HeadAnswers, inside: Tensor) -> dict[str, Tensor]:
    """The memory after the features of good samples that are `inside` have joined their predicted classes.

    A class whose sum would not be finite is left as it is.
    """
    sums, counts, taken = memory[_SUMS], memory[_COUNTS], seen.good & inside
    labels = torch.where(taken, seen.logits.argmax(1), -1)
    own = (labels == torch.arange(len(sums), device=sums.device).unsqueeze(1)).to(sums)
    news = sums + own @ torch.where(taken.unsqueeze(1), seen.features, 0.0).to(sums)
    fine = news.isfinite().all(1)
    return {
        _SUMS: torch.where(fine.unsqueeze(1), news, sums),
        _COUNTS: counts + torch.where(fine, own.sum(1), 0.0),
    }


def feature_divergence(memory: Memory, constants: Memory) -> Tensor:
    """The distance from the source of the classes that came since the last update: 0 as there, towards 1 far.

    1 − exp(−mean_{c,d} (μ_cd − μ⁰_cd)² / σ²_cd) over those of them that the source has, with its means μ⁰ and
    variances σ², and μ the means before these samples have joined them; 0 without any.
    """
    apart = ((memory[CLASS_MEANS] - constants[_SOURCE_MEANS]) ** 2 / constants[_VARIANCES]).mean(1)
    there = (memory[_COUNTS] > 0) & constants[_KNOWN]
    return -torch.expm1(-torch.where(there, apart, 0.0).sum() / there.sum().clamp(min=1))


def followed_means(memory: Memory) -> dict[str, Tensor]:
    """μ_c ← .95 μ_c + .05 · mean of the features of class c since the last update, if any came."""
    means, counts = memory[CLASS_MEANS], memory[_COUNTS].unsqueeze(1)
    followed = torch.lerp(means, memory[_SUMS] / counts.clamp(min=1), _FOLLOWS)
    return {CLASS_MEANS: torch.where(counts > 0, followed, means)}
