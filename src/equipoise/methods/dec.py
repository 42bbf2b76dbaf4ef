"""Dynamic Entropy Control: distil the source model's softened answers into the student, then temper."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from equipoise.core.gradient import GradientMethod, Loss
from equipoise.core.method import Context
from equipoise.methods._dec_readings import LEARNING_RATES, checked_reading, paper_loss, released_loss
from equipoise.network.parameters import Parameters, checked_parameters
from equipoise.options import checked_by, option
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class DecMethod(GradientMethod):
    """Dynamic Entropy Control (Amin and Kim, TMLR 2025): adapts and stays calibrated.

    For each sample the frozen source model (the teacher) gives logits z and the certainty regulariser
    tau = t · kappa / ‖z‖ (`functional.certainty_regularizer`). A batch is one step of gradient descent on

        L = avg(tau)² · avg_i CE(softmax(z_i / tau_i), softmax(student_i)),

    over all weights, and its logits are divided by avg(tau). Two forwards and a backward a batch; the answer
    is that of the forward that the step used, before its update. `adapt(loader)` then `predict(x)` is the
    paper's evaluation after one pass. The method "poise" does without the step (docs/results.md).

    Args:
        reading: "paper", the loss above, or "released", that of the authors' notebook (`released_loss`).
        learning_rate: by default 1e-7 for "paper" and 1e-3 for "released".
        norm_momentum: .01 is the default of the paper's framework, in PyTorch's sense.

    Deviations: the paper leaves the rate open, see above. A batch of one sample is normalised by the running
    statistics. Where the paper's text and its Algorithm 2 differ on the direction of the cross-entropy, the
    text is followed: the other direction sharpens.
    """

    name = "dec"
    needs_source = True
    asks_source = True
    default_tempering = "mean"
    default_source_copy = "resident"
    default_momentum = 0.0

    reading: Literal["paper", "released"] = checked_by(checked_reading, "paper")
    parameters: Parameters = checked_by(checked_parameters, "all")
    norm_momentum: float = option(0.01, low=0, high=1)

    @property
    def default_rate(self) -> float:
        """The learning rate where none is given."""
        return LEARNING_RATES[self.reading]

    def loss(self, logits: Tensor, context: Context) -> Loss:
        """The distance from the teacher."""
        if context.view is None:
            raise RuntimeError("expected the source model's answers, as `asks_source` is set")
        teacher, t, tau = context.view
        value = (
            paper_loss(logits, teacher, tau) if self.reading == "paper" else released_loss(logits, teacher, t)
        )
        return Loss(value, used=len(logits))
