"""Pseudo-labels: learn from the model's own confident answers."""

from dataclasses import dataclass

from torch import Tensor

from equipoise.core.gradient import Loss, Targets
from equipoise.core.method import Context
from equipoise.methods.parts.lone_samples import WindowedMethod
from equipoise.methods.parts.objectives import pseudo_labelled
from equipoise.options import option
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class PseudoLabel(WindowedMethod):
    """Pseudo-labels (Lee, ICML workshop 2013), online, on the normalisation layers.

        L = mean over {i: max_c p_ic > confidence} of −ln p_ik,  k = argmax_c p_ic,

    with p the softmax of the batch's logits, by the weights and biases of the normalisation layers, which
    normalise by the batch's own statistics. One forward and, if any sample is confident, one backward a
    batch. With none there is no step.

    Args:
        confidence: the largest probability that is not enough for a pseudo-label; .9 in public comparisons.
        learning_rate: by default 2.5e-4 for "sgd" and 1e-3 for "adam", as for `tent`.

    Deviations: the paper learns from labelled and unlabelled data together, takes all unlabelled samples, and
    raises their weight from epoch to epoch; without labels, a threshold takes the place of that weight. The
    other deviations are those of `tent`.
    """

    name = "pseudo_label"

    confidence: float = option(0.9, low=0, high=1)

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The mean cross-entropy of the confident samples."""
        return pseudo_labelled(logits, self.confidence)
