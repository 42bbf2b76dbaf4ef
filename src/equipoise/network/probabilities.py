"""A model that ends in a softmax: the warning about it."""

import warnings

from torch import Tensor

from equipoise.errors import callers_level
from equipoise.functional import at_least_single


def are_probabilities(logits: Tensor) -> bool:
    """Whether every row has no negative value and sums to one, as behind a softmax."""
    wide = at_least_single(logits)
    return bool((wide >= 0).all() and ((wide.sum(1) - 1).abs() < 1e-3).all())


def warn_of_probabilities() -> None:
    """Warn the first caller outside of this package that the outputs of its model are no logits."""
    warnings.warn(
        "every output of the model is a row of probabilities: does it end in a softmax? Entropies and "
        "temperatures need the logits before it: leave the softmax out",
        stacklevel=callers_level(),
    )
