"""Cross-entropy against the model's own confident answers."""

from typing import NamedTuple

from torch import Tensor

from equipoise.functional import at_least_single
from equipoise.methods._objectives import kept_rows, mean_over


class PseudoLabelled(NamedTuple):
    """The samples of a batch that have a pseudo-label.

    Attributes:
        loss: their mean cross-entropy against it; 0 without any.
        used: how many there are.
    """

    loss: Tensor
    used: Tensor


def pseudo_labelled(logits: Tensor, confidence: float) -> PseudoLabelled:
    """Label the samples whose largest probability is above `confidence` by the class that has it.

    L = mean over {i: max_c p_ic > confidence} of −ln p_ik, k = argmax_c p_ic, p = softmax(z).
    """
    sure = at_least_single(logits.detach()).softmax(1).amax(1) > confidence
    log_p = at_least_single(kept_rows(sure, logits)).log_softmax(1).amax(1)
    return PseudoLabelled(mean_over(sure, -log_p), sure.sum())
