"""DeYO: minimise the entropy of the answers that depend on the shape of what is in an image."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core.gradient import Loss, Targets
from equipoise.core.method import Context
from equipoise.core.verdict import Check, host_knows
from equipoise.functional import at_least_single, nats
from equipoise.methods.parts.lone_samples import WindowedMethod
from equipoise.methods.parts.objectives import kept_rows, mean_over
from equipoise.methods.parts.views import patch_shuffle
from equipoise.options import option
from equipoise.registry import register

_GRID = 4  # patches in a row and in a column, the authors'
_REFERENCE = 0.4  # E₁ as a multiple of ln C, the authors'


@register
@dataclass(frozen=True, kw_only=True)
class Deyo(WindowedMethod):
    """Destroy your object (Lee et al., ICLR 2024): learns where shuffled patches make an answer less sure.

    With H the entropy in nats, k the class answered, x' the image cut into 4 × 4 patches in random order, and
    D = p_k(x) − p_k(x') ("PLPD"), a sample is kept if H < E₀ = margin · ln C and D > min_drop;

        L = mean over the kept of H · (exp(E₁ − H) + exp(D)),   E₁ = .4 ln C, the factor taken as a constant.

    Two forwards, the second without gradients, and one backward a batch. With none kept there is no step.

    Args:
        margin: E₀ as a multiple of ln C.
        min_drop: the least D of a sample that is learned from. The authors use .2 to .5, by data set: digits
            and textures lose little when they are shuffled.
        seed: of the random order of patches.
        learning_rate: by default 2.5e-4 for "sgd" and 1e-3 for "adam". The authors' follow the batch size,
            as those of `sar.Sar`.

    Deviations: the authors shuffle the samples of low entropy alone, so that batch norm sees another batch
    than in the first forward; here all are shuffled, and running statistics do not move by them. They leave
    out layers by parts of their names; here every normalisation layer adapts. The rate does not follow the
    batch size: set it.
    """

    name = "deyo"
    needs_images = True

    margin: float = option(0.5, low=0)
    min_drop: float = option(0.2, low=-1, high=1)
    seed: int = option(0, low=0, high=2**63 - 1)

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The weighted entropy of the samples kept."""
        entropies, scale = nats(logits.detach()), math.log(logits.shape[1])
        draws = context.rand(_GRID**2)
        shuffled = context.batch.change(lambda images: patch_shuffle(images, draws, _GRID))
        kept, drops = entropies < self.margin * scale, torch.zeros_like(entropies)
        if host_knows(kept.any()) is not False:
            with torch.no_grad():
                others = context.student.on_batch_statistics(shuffled, momentum=0.0)
            drops = _drops(logits.detach(), others)
            kept = kept & (drops > self.min_drop)
        weights = (_REFERENCE * scale - entropies).exp() + drops.exp()
        reason = f"none of {len(logits)} samples is reliable and depends on its shape"
        some = Check(kept.any(), reason, on_failure="skip")
        return Loss(mean_over(kept, weights * nats(kept_rows(kept, logits))), kept.sum(), checks=(some,))


def _drops(logits: Tensor, others: Tensor) -> Tensor:
    """The largest probabilities of one answer, less those of the same classes in another."""
    sure, classes = at_least_single(logits).softmax(1).max(1, keepdim=True)
    return (sure - at_least_single(others).softmax(1).gather(1, classes)).squeeze(1)
