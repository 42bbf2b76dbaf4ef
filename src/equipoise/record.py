"""What an adapter did with a batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.functional import entropy

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Step:
    """One batch as `adapter.last` tells it.

    Attributes:
        samples: samples in the batch.
        used: samples the update learned from; 0 where there was none.
        set_aside: samples kept out of the model's statistics and weights: non-finite input or source logits
            (their logits come back NaN), or source logits of norm zero (theirs come back zero).
        updated: whether something was learned: the weights took a step, or supports joined.
        reason: why nothing was learned, or why samples were set aside; empty otherwise.
        loss: the loss of the step, taken or undone; None where none was computed.
        entropy: mean entropy in bits of the logits returned, over those that are finite.
        temperature: what the logits were divided by (the mean over samples for tempering="sample").
        tau_quantiles: the 5, 25, 50, 75 and 95 % quantiles of the certainty regulariser tau over the batch;
            None where the method needs none.
    """

    samples: int
    used: int
    set_aside: int
    updated: bool
    reason: str
    loss: float | None
    entropy: float | None
    temperature: float | None
    tau_quantiles: tuple[float, float, float, float, float] | None


def record_step(
    samples: int,
    answer: Tensor,
    *,
    set_aside: int,
    used: int = 0,
    reason: str = "",
    loss: Tensor | None = None,
    tau: Tensor | None = None,
    temperature: Tensor | None = None,
) -> Step:
    """Put a batch on record."""
    bits = entropy(answer.detach())
    bits = bits[bits.isfinite()]
    quantiles = None
    if tau is not None and len(tau):
        at = torch.tensor(QUANTILES, dtype=tau.dtype, device=tau.device)
        q05, q25, q50, q75, q95 = torch.quantile(tau, at).tolist()
        quantiles = (q05, q25, q50, q75, q95)
    return Step(
        samples=samples,
        used=used,
        set_aside=set_aside,
        updated=used > 0,
        reason=reason,
        loss=None if loss is None else float(loss),
        entropy=float(bits.mean()) if len(bits) else None,
        temperature=None if temperature is None else float(temperature.mean()),
        tau_quantiles=quantiles,
    )
