"""Estimates from confidence: its mean, plain, tempered or calibrated, and the share above a threshold."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import OptionError
from equipoise.estimators.inputs import Doubles, held_out, result, stream, wide
from equipoise.metrics.inputs import Scores, by_name
from equipoise.options import number, one_of

FITTED_TEMPERATURES = (0.05, 1e4)
"""The range of a fitted temperature: at its upper end answers are uniform."""

ATC_SCORES = ("entropy", "confidence")
"""The scores that a threshold can be for: the negative entropy, or the largest probability."""

_HALVINGS = 60  # of the range of ln T, after which 12.2 is below the rounding of float64


@by_name
def mean_confidence(*, logits: Tensor) -> Tensor:
    """The mean of the largest probability: mean of max_c softmax(z)_c.

    It is the accuracy of a calibrated classifier. Hendrycks and Gimpel, "A Baseline for Detecting
    Misclassified and Out-of-Distribution Examples in Neural Networks", ICLR 2017; "average confidence" in
    Garg et al., ICLR 2022.

    >>> mean_confidence(logits=torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log())
    tensor(0.7500)
    """
    scores = stream(logits)
    return result(wide(scores).softmax(1).amax(1).mean(), scores)


@by_name
def fit_temperature(*, logits: Tensor, target: Tensor) -> Tensor:
    """The temperature of the lowest NLL on held-out labels: argmin_T mean of -ln softmax(z / T)_y.

    The NLL is convex in 1 / T, and T is where its slope, mean of Σ_c softmax(z / T)_c z_c - z_y, is zero:
    below 1 for a classifier that is not confident enough, above 1 for one that is too confident. Guo et al.,
    "On Calibration of Modern Neural Networks", ICML 2017.

    Deviations: T stays in [0.05, 10000], since a classifier without an error has no lowest NLL, nor has one
    whose logits say nothing of the label; T is found by halving the range of ln T, where the
    authors use L-BFGS.

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> fit_temperature(logits=logits, target=torch.tensor([0, 0, 0, 1]))  # 3 of 4: 4 / ln 3
    tensor(3.6410)
    """
    scores, labels = held_out(logits, target)
    at_label = wide(scores).gather(1, labels[:, None])
    if impossible := int(at_label.isneginf().sum()):
        raise OptionError(
            f"expected finite logits at the labels, got -inf at {impossible} of {len(labels)}: no "
            "temperature gives them a probability"
        )
    # From the logit of the label, so that none is lost to rounding; -inf weighs nothing at any temperature.
    apart = wide(scores) - at_label
    low, high = (math.log(end) for end in FITTED_TEMPERATURES)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        weights = (apart / math.exp(middle)).softmax(1)
        slope = torch.where(weights > 0, weights * apart, 0).sum(1).mean()
        low, high = (middle, high) if slope > 0 else (low, middle)
    return result(math.exp((low + high) / 2), scores)


@dataclass(frozen=True)
class TemperatureScaledConfidence:
    """The mean confidence at the temperature of held-out data: mean of max_c softmax(z / T)_c.

    Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, whose T stays as it is under shift.

    Attributes:
        temperature: T, as `fit_temperature` finds it.

    >>> held_out = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> fitted = TemperatureScaledConfidence.fit(logits=held_out, target=torch.tensor([0, 0, 0, 1]))
    >>> fitted.accuracy(logits=torch.tensor([[4.0, 0.0], [0.0, 8.0]]))  # 3/4 and 9/10
    tensor(0.8250)
    """

    temperature: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", number("temperature", self.temperature))
        if self.temperature <= 0:
            raise OptionError(f"expected temperature > 0, got {self.temperature}")

    @classmethod
    @by_name
    def fit(cls, *, logits: Tensor, target: Tensor) -> "TemperatureScaledConfidence":
        """The estimator with the temperature of held-out logits and labels."""
        return cls(float(fit_temperature(logits=logits, target=target)))

    @by_name
    def accuracy(self, *, logits: Tensor) -> Tensor:
        """The estimate for unlabelled logits."""
        scores = stream(logits)
        return result((wide(scores) / self.temperature).softmax(1).amax(1).mean(), scores)


@dataclass(frozen=True)
class ATC:
    """The share of samples whose score reaches a threshold: mean of 1[s(x) >= t].

    The score s is the negative entropy Σ_c p_c ln p_c or the confidence max_c p_c; t is such that the share
    of held-out samples below it is their error rate: mean of 1[s(x) < t] = mean of 1[argmax_c p_c ≠ y].
    Garg et al., "Leveraging Unlabeled Data to Predict Out-of-Distribution Performance", ICLR 2022, who prefer
    the entropy, and temper the logits by `fit_temperature` before either; divide them by it to do the same.

    Deviations: of n held-out errors the threshold is the score of rank n + 1 from below, so that the
    estimate for the held-out samples is their accuracy. The authors' code takes rank n, which counts one more
    as right, and 0 where there are no errors. Samples of equal scores are on one side together.

    Attributes:
        threshold: t.
        score: "entropy" or "confidence".

    >>> held_out = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]).log()
    >>> fitted = ATC.fit(logits=held_out, target=torch.tensor([0, 0, 1, 1]), score="confidence")
    >>> round(fitted.threshold, 4)
    0.7
    >>> fitted.accuracy(logits=torch.tensor([[0.65, 0.35], [0.2, 0.8]]).log())
    tensor(0.5000)
    """

    threshold: float
    score: str = "entropy"

    def __post_init__(self) -> None:
        one_of("score", self.score, ATC_SCORES)

    @classmethod
    @by_name
    def fit(cls, *, logits: Tensor, target: Tensor, score: str = "entropy") -> "ATC":
        """The estimator with the threshold of held-out logits and labels."""
        one_of("score", score, ATC_SCORES)
        scores, labels = held_out(logits, target)
        errors = len(labels) - int(scores.correct(labels).sum())
        ranked = _atc_score(scores, score).sort().values
        return cls(float(ranked[errors]) if errors < len(ranked) else math.inf, score)

    @by_name
    def accuracy(self, *, logits: Tensor) -> Tensor:
        """The estimate for unlabelled logits."""
        scores = stream(logits)
        reached = _atc_score(scores, self.score) >= self.threshold
        return result(reached.to(scores.values.dtype).mean(), scores)


def _atc_score(scores: Scores, score: str) -> Tensor:
    """The score of each sample, shape (N,)."""
    probs = wide(scores).softmax(1)
    return probs.amax(1) if score == "confidence" else -torch.special.entr(probs).sum(1)


_DECIMALS = 12  # of a probability: the softmax of equal distances of logits differs beyond them


class Isotonic(NamedTuple):
    """A rising function: straight between its points, constant outside of them.

    Attributes:
        inputs: of the points, rising.
        outputs: at the points, never falling.
    """

    inputs: Doubles
    outputs: Doubles

    def __call__(self, values: Doubles) -> Doubles:
        """The function at each of the values."""
        return np.interp(values, self.inputs, self.outputs)


_SAME = Isotonic(np.array([0.0, 1.0]), np.array([0.0, 1.0]))


@dataclass(frozen=True, eq=False)
class CBPE:
    """The mean calibrated probability of the predicted class: mean of q_ŷ with ŷ = argmax_c p_c.

    q_c = f_c(p_c) / Σ_k f_k(p_k), uniform where the sum is 0; f_c is the isotonic regression of 1[y = c] on
    p_c over held-out data: the rising function with the least squared error, straight between its points.
    NannyML's confidence-based performance estimation, for accuracy; its multi-class reading, which for two
    classes equals its binary one. The estimate is right as long as the f_c hold for the stream, too.

    Deviations: every class is calibrated that some held-out samples have and others do not; other
    classes keep p_c, as in NannyML. NannyML also keeps p_c where its AUROC is above 0.999, or where the
    regression has no lower ECE on ten random tenths of the reference data: tests that take sklearn's random
    splits, so that an estimate without them is repeatable. No chunks, thresholds or sampling errors.

    Attributes:
        calibration: f_c of each class.

    >>> held_out = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.2, 0.8]]).log()
    >>> fitted = CBPE.fit(logits=held_out, target=torch.tensor([0, 1, 1, 1]))
    >>> fitted.accuracy(logits=torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log())  # 1/2 and 1
    tensor(0.7500)
    """

    calibration: tuple[Isotonic, ...]

    @classmethod
    @by_name
    def fit(cls, *, logits: Tensor, target: Tensor) -> "CBPE":
        """The estimator with the calibration of held-out logits and labels."""
        scores, labels = held_out(logits, target)
        probs = wide(scores).softmax(1).cpu().double().numpy()
        hits = labels.cpu().numpy()[:, None] == np.arange(probs.shape[1])
        known = hits.any(0) & ~hits.all(0)
        pairs = zip(probs.T, hits.T.astype(np.float64), known, strict=True)
        return cls(tuple(isotonic(p, hit) if two else _SAME for p, hit, two in pairs))

    @by_name
    def accuracy(self, *, logits: Tensor) -> Tensor:
        """The estimate for unlabelled logits."""
        scores = stream(logits, len(self.calibration))
        probs = wide(scores).softmax(1).cpu().double().numpy()
        rows = [curve(p) for curve, p in zip(self.calibration, probs.T, strict=True)]
        calibrated = torch.from_numpy(np.stack(rows, axis=1))
        total = calibrated.sum(1, keepdim=True)
        shares = torch.where(total > 0, calibrated / total, 1 / calibrated.shape[1])
        predicted = scores.values.argmax(1, keepdim=True).cpu()
        return result(shares.gather(1, predicted).mean(), scores)


def isotonic(inputs: Doubles, outputs: Doubles) -> Isotonic:
    """The rising function of the least squared error, by pooling adjacent violators.

    Outputs of inputs that are equal to 12 decimals are averaged first. Ayer et al., "An Empirical
    Distribution Function for Sampling with Incomplete Information", Annals of Mathematical Statistics 1955.
    """
    rounded = inputs.round(_DECIMALS)
    points, place, weights = np.unique(rounded, return_inverse=True, return_counts=True)
    means = np.bincount(place, weights=outputs) / weights
    blocks: list[tuple[float, int, int]] = []  # mean, weight and number of points of each
    for mean, weight in zip(means.tolist(), weights.tolist(), strict=True):
        block = (mean, weight, 1)
        while blocks and blocks[-1][0] >= block[0]:
            before, heavy, length = blocks.pop()
            both = heavy + block[1]
            block = ((before * heavy + block[0] * block[1]) / both, both, length + block[2])
        blocks.append(block)
    levels = np.repeat([block[0] for block in blocks], [block[2] for block in blocks])
    return Isotonic(points, levels)
