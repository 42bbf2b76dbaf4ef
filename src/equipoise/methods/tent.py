"""TENT: minimise the entropy of the answers."""

from dataclasses import dataclass

from torch import Tensor

from equipoise.core.gradient import Loss, Targets
from equipoise.core.method import Context
from equipoise.core.optimizer import OPTIMIZERS, OptimizerName
from equipoise.methods.parts.lone_samples import WindowedMethod
from equipoise.methods.parts.objectives import OBJECTIVES, Objective, objective
from equipoise.options import choice
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Tent(WindowedMethod):
    """Fully test-time adaptation by entropy minimisation (Wang et al., ICLR 2021).

        L = mean_i H(softmax(z_i)), H in nats,

    over the weights and biases of the normalisation layers, which normalise by the batch's own statistics.
    One forward and one backward a batch; the answer is that forward's, before its update.

    Args:
        optimizer: "adam" (the authors, on CIFAR) or "sgd" (on ImageNet).
        learning_rate: by default 1e-3 for "adam" and 2.5e-4 for "sgd", the authors' values.
        momentum: .9 by default: of "sgd" (never Nesterov), or Adam's β₁.
        steps: steps a batch; with more than one the last forward's logits are the answer.
        objective: H, or "come", an entropy that lets answers stay undecided (`objectives.opinion_entropy`).
        parameters: "norm" (all normalisation layers), "all", or a list of name patterns.
        norm_momentum: how fast the running statistics, which only `predict` uses, follow the stream, at each
            forward.
        window: a batch of one sample is normalised together with the last that came alone, up to this many,
            and a step is taken on all of them each time so many have come. Without batch norm it learns
            alone.

    Deviations: layers of every normalisation type adapt, not 2-d batch norm alone. Dropout and stochastic
    depth stay off. The authors' code drops the running statistics; here they follow the stream, for
    `predict`.
    """

    name = "tent"
    optimizer: OptimizerName = choice("adam", OPTIMIZERS)
    objective: Objective = choice("entropy", OBJECTIVES)

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The mean of the objective."""
        return Loss(objective(self.objective, logits).mean(), used=len(logits))
