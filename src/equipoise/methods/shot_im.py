"""SHOT-IM: certain and diverse answers by the encoder, under the source's head."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core.gradient import Loss, Targets
from equipoise.core.method import Context, Update
from equipoise.core.student import Student
from equipoise.core.verdict import Check
from equipoise.errors import ModelError, callers_level
from equipoise.functional import at_least_single, nats
from equipoise.methods.parts.lone_samples import WindowedMethod
from equipoise.methods.parts.objectives import pseudo_labelled
from equipoise.network.parameters import Parameters, checked_parameters
from equipoise.options import checked_by, option
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class ShotIm(WindowedMethod):
    """Source hypothesis transfer by information maximisation (Liang, Hu and Feng, ICML 2020), online.

        L = mean_i H(p_i) − H(mean_i p_i) + pseudo_weight · P,  H in nats,

    each answer certain, the answers of a batch diverse; P is the mean cross-entropy of the samples whose
    largest probability is above `confidence` against their own answers. All parameters but those of the
    linear head learn. One forward and one backward a batch; the answer is that forward's.

    H(mean p) assumes batches of at least C samples with about as many of each class: a smaller batch is
    learned from with a UserWarning. A single sample has no diversity: with batch norm it is learned from in
    its window, else not at all.

    Args:
        pseudo_weight: the weight of P; the authors have .1 for digits and .3 for photographs.
        confidence: the largest probability that is not enough for a pseudo-label.
        learning_rate: by default 1e-3 for "sgd", the authors' for pre-trained layers, and 5e-5 for "adam",
            which they do not use.
        parameters: "encoder" (all but those of the last linear layer, which must be the one that returns the
            logits), "all", "norm", or a list of name patterns.

    Deviations: the authors adapt offline in 15 epochs with a decaying rate, weight decay and Nesterov's
    momentum, label samples by clusters of the whole target set, and add 1e-5 inside of the logarithms.
    """

    name = "shot_im"
    default_rates: ClassVar[Mapping[str, float]] = {"sgd": 1e-3, "adam": 5e-5}

    pseudo_weight: float = option(0.0, low=0)
    confidence: float = option(0.9, low=0, high=1)
    parameters: Parameters = checked_by(checked_parameters, "encoder")

    def step(self, context: Context) -> Update:
        """Take a step; the first makes sure that the layer that is frozen is the head."""
        student = context.student
        if self.parameters != "encoder" or _freezes_head(student):
            return super().step(context)
        with student.watched() as head:
            update = super().step(context)
        if not _freezes_head(student):
            none = head.refusal or "no nn.Linear that returns the logits was found"
            raise ModelError(
                'shot_im with parameters="encoder" freezes the last linear layer as the head: expected it to '
                f"return the logits, but {none if head.name is None else f'{head.name!r} does'}; choose the "
                'parameters that learn by name, parameters=["features*"]'
            )
        return update

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The mean entropy less the entropy of the mean, and the loss of the pseudo-labels."""
        rows, classes = logits.shape
        if 1 < rows < classes:
            words = f"shot_im has batches of {rows} samples for {classes} classes"
            warnings.warn(f"{words}: their answers cannot be of all", stacklevel=callers_level())
        log_p = at_least_single(logits).log_softmax(1)
        diversity = nats(log_p.clamp(min=torch.finfo(log_p.dtype).min).logsumexp(0))
        loss = nats(logits).mean() - diversity
        if self.pseudo_weight:
            loss = loss + self.pseudo_weight * pseudo_labelled(logits, self.confidence).value
        several = torch.full((), rows > 1, device=logits.device)
        return Loss(
            loss, rows, checks=(Check(several, "a single sample has no diversity", on_failure="skip"),)
        )


def _freezes_head(student: Student) -> bool:
    """Whether the head is known and does not learn."""
    return student.head is not None and f"{student.head}.weight" not in student.learned
