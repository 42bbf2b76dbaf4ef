"""Accuracy, calibration and sharpness of one batch or of a whole stream at once, as pure functions.

Predictions come as `probs=` or as `logits=`, shape (N, C): which one is said, never guessed. The result
has the dtype of the predictions (float32 for half types); sums are taken in float64. No samples give NaN.
Metrics measure: the predictions are detached, and no gradient reaches them.

Rows that are NaN in every class, as an adapter answers samples that it set aside, are left out with their
labels; the classes for streams also count them (`skipped`). NaN in some classes of a row, infinite maxima and
probabilities that do not sum to 1 are errors.
"""

import math

import torch
from torch import Tensor

from equipoise.metrics.bins import (
    BinSums,
    ReliabilityBins,
    classwise_error,
    classwise_gaps,
    columns,
    equal_mass_error,
    equal_width_cell,
    expected_error,
    maximum_error,
    reliability,
    sum_table,
    widest_dtype,
)
from equipoise.metrics.inputs import (
    Scores,
    by_name,
    check_classes,
    check_scores,
    check_sets,
    check_target,
)
from equipoise.metrics.risk_coverage import RiskCoverage, risk_coverage_of
from equipoise.options import integer


@by_name
def accuracy(*, probs: Tensor | None = None, logits: Tensor | None = None, target: Tensor) -> Tensor:
    """The share of samples whose most probable class is the label: mean of 1[argmax_k p_k = y].

    >>> accuracy(probs=torch.tensor([[0.9, 0.1], [0.4, 0.6]]), target=torch.tensor([0, 0]))
    tensor(0.5000)
    """
    scores = check_scores(probs=probs, logits=logits)
    return _mean(scores.correct(check_target(target, scores)))


@by_name
def expected_calibration_error(
    *, probs: Tensor | None = None, logits: Tensor | None = None, target: Tensor, bins: int = 15
) -> Tensor:
    """The mean distance between confidence and accuracy: Σ_b (n_b/N) |acc_b - conf_b|.

    Confidence is the largest probability; the bins are (i/B, (i+1)/B], and 0 is in the first. Guo et al.,
    "On Calibration of Modern Neural Networks", ICML 2017.

    Why not torchmetrics' (1.9): it puts a confidence of exactly 1.0 into a hidden 16th bin (its issue
    3510), uses [lo, hi), takes logits that happen to lie in [0, 1] for probabilities, and its class keeps
    every sample.

    >>> probs = torch.tensor([[0.75, 0.25], [0.75, 0.25]])
    >>> expected_calibration_error(probs=probs, target=torch.tensor([0, 1]))
    tensor(0.2500)
    """
    scores = check_scores(probs=probs, logits=logits)
    return expected_error(_equal_width_sums(scores, target, bins)).to(scores.values.dtype)


@by_name
def maximum_calibration_error(
    *, probs: Tensor | None = None, logits: Tensor | None = None, target: Tensor, bins: int = 15
) -> Tensor:
    """The largest distance between confidence and accuracy: max_b |acc_b - conf_b| over bins with samples.

    The bins are those of `expected_calibration_error`. Naeini et al., "Obtaining Well Calibrated
    Probabilities Using Bayesian Binning", AAAI 2015.

    >>> probs = torch.tensor([[0.75, 0.25], [1.0, 0.0]])
    >>> maximum_calibration_error(probs=probs, target=torch.tensor([0, 1]))
    tensor(1.)
    """
    scores = check_scores(probs=probs, logits=logits)
    return maximum_error(_equal_width_sums(scores, target, bins)).to(scores.values.dtype)


@by_name
def adaptive_calibration_error(
    *, probs: Tensor | None = None, logits: Tensor | None = None, target: Tensor, bins: int = 15
) -> Tensor:
    """The calibration error over bins of equal mass: Σ_b (1/B) |acc_b - conf_b|, each bin N/B samples.

    Samples are ranked by confidence; equally confident ones count as one group, which an edge may split in
    proportion, so their order does not matter. After Nixon et al., "Measuring Calibration in Deep
    Learning", CVPR Workshops 2019, over the largest probability.

    >>> probs = torch.tensor([[0.75, 0.25], [1.0, 0.0]])
    >>> adaptive_calibration_error(probs=probs, target=torch.tensor([0, 1]), bins=2)
    tensor(0.6250)
    """
    bins = integer("bins", bins, low=1)
    scores = check_scores(probs=probs, logits=logits)
    correct = scores.correct(check_target(target, scores))
    confidence = scores.confidence
    levels, group = torch.unique(confidence, return_inverse=True)
    groups = columns(sum_table(confidence, correct, group, len(levels)))
    return equal_mass_error(groups, bins).to(scores.values.dtype)


@by_name
def classwise_calibration_error(
    *, probs: Tensor | None = None, logits: Tensor | None = None, target: Tensor, bins: int = 15
) -> Tensor:
    """The mean over classes of one-against-rest error: (1/C) Σ_k Σ_b (n_kb/N) |freq_kb - conf_kb|.

    Bin b of class k holds the samples whose p_k lies in it, all N samples for each class. Kull et al.,
    "Beyond temperature scaling", NeurIPS 2019.

    >>> probs = torch.tensor([[0.75, 0.25], [0.75, 0.25]])
    >>> classwise_calibration_error(probs=probs, target=torch.tensor([0, 1]))
    tensor(0.2500)
    """
    bins = integer("bins", bins, low=1)
    scores = check_scores(probs=probs, logits=logits)
    cell = equal_width_cell(scores.probs, bins, scores.rounding)
    gaps = classwise_gaps(scores.probs, check_target(target, scores), cell, bins)
    return classwise_error(gaps, gaps.new_tensor(len(scores.values))).to(scores.values.dtype)


@by_name
def negative_log_likelihood(
    *, probs: Tensor | None = None, logits: Tensor | None = None, target: Tensor
) -> Tensor:
    """The mean surprise at the labels in nats: mean of -ln p_y.

    Nothing is clipped: a label that was given probability 0 makes it infinite. Good, "Rational
    Decisions", JRSS B 1952.

    >>> negative_log_likelihood(logits=torch.tensor([[0.0, 0.0]]), target=torch.tensor([1]))
    tensor(0.6931)
    """
    scores = check_scores(probs=probs, logits=logits)
    return _mean(sample_negative_log_likelihood(scores, check_target(target, scores)))


@by_name
def entropy(*, probs: Tensor | None = None, logits: Tensor | None = None) -> Tensor:
    """The mean entropy of the predictions in bits: mean of -Σ_k p_k log2 p_k, with 0 log 0 = 0.

    Shannon, "A Mathematical Theory of Communication", 1948.

    >>> entropy(probs=torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor(0.5000)
    """
    return _mean(sample_entropy(check_scores(probs=probs, logits=logits)))


@by_name
def brier_score(*, probs: Tensor | None = None, logits: Tensor | None = None, target: Tensor) -> Tensor:
    """The mean squared distance to the labels: mean of Σ_k (p_k - 1[y = k])², from 0 to 2.

    Brier, "Verification of Forecasts Expressed in Terms of Probability", Monthly Weather Review 1950.

    >>> brier_score(probs=torch.tensor([[0.5, 0.5], [0.0, 1.0]]), target=torch.tensor([0, 1]))
    tensor(0.2500)
    """
    scores = check_scores(probs=probs, logits=logits)
    return _mean(sample_brier_score(scores, check_target(target, scores)))


@by_name
def reliability_bins(
    *, probs: Tensor | None = None, logits: Tensor | None = None, target: Tensor, bins: int = 15
) -> ReliabilityBins:
    """The points of a reliability diagram: n_b, mean confidence and accuracy of each bin.

    The bins are those of `expected_calibration_error`; means of empty bins are NaN. DeGroot and Fienberg,
    "The Comparison and Evaluation of Forecasters", The Statistician 1983.

    >>> probs = torch.tensor([[0.75, 0.25], [1.0, 0.0]])
    >>> reliability_bins(probs=probs, target=torch.tensor([0, 1]), bins=4).accuracy
    tensor([nan, nan, 1., 0.])
    """
    scores = check_scores(probs=probs, logits=logits)
    return reliability(_equal_width_sums(scores, target, bins), scores.values.dtype)


@by_name
def risk_coverage(
    *, probs: Tensor | None = None, logits: Tensor | None = None, target: Tensor
) -> RiskCoverage:
    """The share of errors among the answered samples, at each confidence from which on they are answered.

    Confidence is the largest probability; equally confident samples are answered together. El-Yaniv and
    Wiener, "On the Foundations of Noise-free Selective Classification", JMLR 2010.

    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> risk_coverage(probs=probs, target=torch.tensor([0, 1, 0])).risk
    tensor([0.0000, 0.5000, 0.3333])
    """
    scores = check_scores(probs=probs, logits=logits)
    return _risk_coverage(scores, target, scores.values.dtype)


@by_name
def area_under_risk_coverage(
    *, probs: Tensor | None = None, logits: Tensor | None = None, target: Tensor
) -> Tensor:
    """The area under the risk-coverage curve (AURC): the mean over samples of the risk at their confidence.

    With n(t) samples of confidence >= t and e(t) errors among them: mean of e(c_i) / n(c_i). The share of
    errors is what confidence gives that tells nothing. Geifman et al., "Bias-Reduced Uncertainty Estimation
    for Deep Neural Classifiers", ICLR 2019, who order equally confident samples as they come.

    >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    >>> area_under_risk_coverage(probs=probs, target=torch.tensor([0, 1]))
    tensor(0.2500)
    """
    scores = check_scores(probs=probs, logits=logits)
    return _risk_coverage(scores, target).area.to(scores.values.dtype)


def set_coverage(sets: Tensor, target: Tensor) -> Tensor:
    """The share of samples whose label is in their set: mean of 1[y in S], for sets as booleans (N, C).

    A sample that an adapter set aside has every class in its set and counts as covered.

    >>> sets = torch.tensor([[True, False], [True, True]])
    >>> set_coverage(sets, torch.tensor([1, 1]))
    tensor(0.5000)
    """
    sets = check_sets(sets)
    labels = check_classes(target, len(sets), sets.shape[1])
    return sets.gather(1, labels[:, None]).to(widest_dtype(sets.device)).mean().float()


def set_size(sets: Tensor) -> Tensor:
    """The mean number of classes in a set: mean of |S|, for sets as booleans (N, C).

    >>> set_size(torch.tensor([[True, False], [True, True]]))
    tensor(1.5000)
    """
    sets = check_sets(sets)
    return sets.sum(1).to(widest_dtype(sets.device)).mean().float()


def sample_negative_log_likelihood(scores: Scores, target: Tensor) -> Tensor:
    """-ln p_y of each sample."""
    return scores.log_probs.gather(1, target[:, None]).squeeze(1).neg()


def sample_entropy(scores: Scores) -> Tensor:
    """-Σ_k p_k log2 p_k of each sample."""
    nats: Tensor = torch.special.entr(scores.probs).sum(dim=1)
    return nats / math.log(2)


def sample_brier_score(scores: Scores, target: Tensor) -> Tensor:
    """Σ_k (p_k - 1[y = k])² of each sample."""
    # Takes 1 off p_y: one_hot would be an int64 matrix, and Σ p² - 2 p_y + 1 cancels where p_y is near 1.
    label = target[:, None]
    gap = scores.probs.scatter_add(1, label, -torch.ones_like(label, dtype=scores.values.dtype))
    return gap.square_().sum(dim=1)


def _mean(values: Tensor) -> Tensor:
    return values.to(widest_dtype(values.device)).mean().to(values.dtype)


def _equal_width_sums(scores: Scores, target: Tensor, bins: int) -> BinSums:
    bins = integer("bins", bins, low=1)
    correct = scores.correct(check_target(target, scores))
    confidence = scores.confidence
    cell = equal_width_cell(confidence, bins, scores.rounding)
    return columns(sum_table(confidence, correct, cell, bins))


def _risk_coverage(scores: Scores, target: Tensor, dtype: torch.dtype | None = None) -> RiskCoverage:
    correct = scores.correct(check_target(target, scores))
    confidence = scores.confidence
    levels, group = torch.unique(confidence, return_inverse=True)
    groups = columns(sum_table(confidence, correct, group, len(levels)))
    return risk_coverage_of(levels, groups.size, groups.correct, dtype)
