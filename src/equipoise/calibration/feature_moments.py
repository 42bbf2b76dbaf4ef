"""Means and variances of the inputs of a model's linear head on source data, by predicted class."""

from collections.abc import Mapping

import torch
from torch import Tensor

from equipoise.errors import ModelError
from equipoise.network.head import SeenHead


class FeatureMoments:
    """The mean of the linear head's inputs, and their mean and variance for each class that is predicted.

    Sums in double precision are all that is kept. A variance is that of the samples measured (divided by
    their number), for each feature by itself; a class that is never predicted has zeros and a count of 0.
    """

    def __init__(self) -> None:
        self._sums = torch.zeros(0)
        self._squares = torch.zeros(0)
        self._counts = torch.zeros(0)

    def observe(self, seen: SeenHead, logits: Tensor) -> None:
        """Take in the features of the forward that returned these logits; ModelError without a linear head.

        Samples with non-finite logits are left out.
        """
        head = seen.note(logits)
        if head.features is None:
            raise ModelError(
                "features=True needs a linear head, an nn.Linear that turns (N, D) features into the "
                f"model's logits: {head.refusal or 'no linear layer returned them'}; measure without it for "
                "methods that do not need features"
            )
        good = logits.isfinite().all(1)
        features, classes = head.features[good].double(), logits[good].argmax(1)
        if not len(self._counts):
            self._sums = features.new_zeros(logits.shape[1], features.shape[1])
            self._squares = torch.zeros_like(self._sums)
            self._counts = features.new_zeros(logits.shape[1])
        self._sums.index_add_(0, classes, features)
        self._squares.index_add_(0, classes, features.square())
        self._counts.index_add_(0, classes, features.new_ones(len(features)))

    def result(self) -> dict[str, Tensor]:
        """The mean (D), class_means and class_variances (C, D), and class_counts (C), on the CPU."""
        counts = self._counts[:, None]
        means = self._sums / counts.clamp(min=1)
        variances = (self._squares / counts.clamp(min=1) - means.square()).clamp(min=0)
        found = {
            "mean": self._sums.sum(0) / counts.sum().clamp(min=1),
            "class_means": means,
            "class_variances": variances,
            "class_counts": self._counts,
        }
        return {name: tensor.float().cpu() for name, tensor in found.items()}


def feature_spread(features: Mapping[str, Tensor]) -> Tensor:
    """The root mean square distance of source features from their mean, by their `FeatureMoments`."""
    counts = features["class_counts"]
    apart = (features["class_means"] - features["mean"]).square() + features["class_variances"]
    return ((counts * apart.sum(1)).sum() / counts.sum()).sqrt()
