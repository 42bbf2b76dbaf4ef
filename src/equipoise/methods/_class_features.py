"""Means of features by class, and how far they are from the source's."""

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import Memory
from equipoise.methods._linear_head import HeadAnswers, on_student
from equipoise.network.student import Student

CLASS_MEANS = "class_means"
"""The memory of the mean of the features of each class."""

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
    """The memory of the means before the first batch: the source's."""
    return {CLASS_MEANS: constants[_SOURCE_MEANS].clone()}


def followed_classes(means: Tensor, constants: Memory, seen: HeadAnswers) -> tuple[Tensor, Tensor]:
    """The means after features have joined their predicted classes, and the divergence from the source.

    μ_c ← .95 μ_c + .05 · mean of the features of class c, for the classes that are there; the divergence is
    1 − exp(−mean_{c,d} (μ_cd − μ⁰_cd)² / σ²_cd) over those of them that the source has, with its means and
    variances: 0 as on the source, towards 1 far from it.
    """
    labels = torch.where(seen.good, seen.logits.argmax(1), -1)
    own = (labels == torch.arange(len(means), device=means.device).unsqueeze(1)).to(means)
    counts = own.sum(1, keepdim=True)
    centres = own @ torch.where(seen.good.unsqueeze(1), seen.features, 0.0).to(means) / counts.clamp(min=1)
    news = torch.where(counts > 0, torch.lerp(means, centres, _FOLLOWS), means)
    apart = ((news - constants[_SOURCE_MEANS]) ** 2 / constants[_VARIANCES]).mean(1)
    there = (counts.squeeze(1) > 0) & constants[_KNOWN]
    return news, -torch.expm1(-torch.where(there, apart, 0.0).sum() / there.sum().clamp(min=1))
