"""Confidence-based performance estimation: the mean confidence after isotonic calibration of each class."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.estimators.inputs import Doubles, held_out, result, stream, wide
from equipoise.metrics.keywords import by_name

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
