"""Norms, entropies and confidences of a model's logits on source data, and their quantiles."""

import math
import warnings

import torch
from torch import Tensor

from equipoise.errors import SourceError, callers_level
from equipoise.functional import at_least_single, nats
from equipoise.network.forward import are_probabilities, warn_of_probabilities

_LEVELS = 257
"""The number of equal levels from 0 to 1 at which quantiles are kept."""


def even_quantiles(values: Tensor) -> Tensor:
    """Quantiles of values at 257 equal levels from 0 to 1, interpolated between two values."""
    ordered = values.double().sort().values
    places = torch.linspace(0, len(ordered) - 1, _LEVELS, dtype=torch.float64, device=values.device)
    below = places.floor().long()
    above = (below + 1).clamp(max=len(ordered) - 1)
    return torch.lerp(ordered[below], ordered[above], places - below).float()


class MeasuredAnswers:
    """Three numbers of each source sample, from its logits z: ‖z‖₂, entropy in nats, and confidence.

    Confidence is the largest of softmax(z). Samples with non-finite logits are counted and left out.
    """

    def __init__(self) -> None:
        self._norms: list[Tensor] = []
        self._nats: list[Tensor] = []
        self._confidences: list[Tensor] = []
        self._largest, self._left_out, self._probabilities = 0.0, 0, True

    def observe(self, logits: Tensor) -> None:
        """Take in the logits of a batch."""
        good = at_least_single(logits[logits.isfinite().all(1)])
        self._norms.append(torch.linalg.vector_norm(good, dim=1).cpu())
        self._nats.append(nats(good).cpu())
        self._confidences.append(good.softmax(1).amax(1).cpu())
        self._largest = max(self._largest, float(good.abs().amax())) if len(good) else self._largest
        self._probabilities &= are_probabilities(good)
        self._left_out += len(logits) - len(good)

    def check(self) -> None:
        """Raise SourceError where they are no logits of a trained model; warn of samples left out."""
        norms = self.norms
        _check_norms(norms, self._largest, self._left_out)
        if self._left_out:
            warnings.warn(
                f"{self._left_out} of {self._left_out + len(norms)} source samples gave non-finite logits "
                "and were left out",
                stacklevel=callers_level(),
            )
        if self._probabilities:
            warn_of_probabilities()

    @property
    def norms(self) -> Tensor:
        """The norm of each sample's logits."""
        return torch.cat(self._norms)

    @property
    def nats(self) -> Tensor:
        """The entropy of each sample."""
        return torch.cat(self._nats)

    @property
    def confidences(self) -> Tensor:
        """The largest probability of each sample."""
        return torch.cat(self._confidences)


def _check_norms(norms: Tensor, largest: float, left_out: int) -> None:
    """Raise SourceError where at least half of the logits are zero or overflow, or none is finite."""
    samples, median = len(norms), float(norms.median()) if len(norms) else math.nan
    advice = "are its weights loaded, and the inputs scaled as in training?"
    if not samples:
        raise SourceError(f"{left_out} of {left_out} source samples gave non-finite logits: {advice}")
    if median == 0:
        raise SourceError(
            f"the model's logits are zero for {int((norms == 0).sum())} of {samples} source samples: its "
            "last layer is not trained, or has weights of zero; train it or load its weights first"
        )
    if median == math.inf:
        raise SourceError(
            f"the model's logits overflow for {int(norms.isinf().sum())} of {samples} source samples (the "
            f"largest is {largest:.1e}, the root of its sum of squares is infinite): {advice}"
        )
