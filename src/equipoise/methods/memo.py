"""MEMO: each sample is learned from by itself, answered, and forgotten."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from equipoise.core.method import Context, Method, Update
from equipoise.core.optimizer import Optimizer
from equipoise.core.verdict import Check, all_hold
from equipoise.functional import at_least_single, nats
from equipoise.methods.parts.views import AUGMIX_DRAWS, augmix_views, samples_with_views
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import copies, copy_into
from equipoise.network.parameters import Parameters, checked_parameters
from equipoise.options import checked_by, flag, option
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Memo(Method):
    """Marginal entropy minimisation with one test point (Zhang, Levine and Finn, NeurIPS 2022), of images.

    For each sample x with AugMix-like views x_v (`views.augmix_views`), from the source weights

        L = H(mean_v p(x_v)),   θ ← θ − learning_rate · ∂L/∂θ,

    and the answer is that to x with the weights after the step; then they are the source's again. Batch norms
    normalise by (prior · source + sample) / (prior + 1), the sample's statistics those of its views, or of x.

    Nothing is kept from batch to batch, and an answer depends on no other sample of the batch. A sample takes
    a forward and a backward of `views` rows and a forward of one: as much as two forwards and a backward of a
    batch of `views` samples. Samples go one after the other: weights of their own for all of them at once
    would take the memory of as many models.

    Args:
        views: views of each sample; 64 are the authors' for ImageNet, 32 for CIFAR.
        learning_rate: of plain gradient descent; with 64 views 2.5e-4, with 32 the authors use .005.
        prior: samples that the source's statistics of batch norms are worth.
        parameters: which parameters learn: "norm", "all", or a list of name patterns.
        mirrored: whether half of the views are mirrored left to right, as the authors' are; not for digits.
        seed: of the random numbers.

    Deviations: views are shifted by up to ⅛ first, as the authors' for CIFAR; for ImageNet they crop and
    resize at random. A sample whose step is not finite is answered without it. `predict` takes no step and
    answers as the source model.
    """

    name = "memo"
    needs_images = True

    views: int = option(64, low=1, high=2**20)
    learning_rate: float = option(2.5e-4, low=0)
    prior: float = option(16.0, low=0)
    parameters: Parameters = checked_by(checked_parameters, "all")
    mirrored: bool = flag(False)
    seed: int = option(0, low=0, high=2**63 - 1)

    @property
    def learns(self) -> Parameters:
        """The parameters that learn."""
        return self.parameters

    def step(self, context: Context) -> Update:
        """Answer each sample after a step on its views, and restore the weights."""
        student, draws = context.student, context.rand(self.views, AUGMIX_DRAWS)
        before, results = copies(student.adapting), []
        view = partial(augmix_views, mirrored=self.mirrored)
        with student.replicated():  # a process answers its own samples
            for one, views in samples_with_views(context.batch, draws, view):
                results.append(self._answer(context, one, views))
                copy_into(student.adapting, before)
        columns = (torch.cat(column) for column in zip(*results, strict=True))
        answers, losses, steps = (student.gather(column, "answers") for column in columns)
        used = steps.sum()
        some = Check(used > 0, "no sample gave a finite step", on_failure="skip")
        loss = torch.where(steps, losses, 0.0).sum() / used.clamp(min=1)
        return Update(answers, used=used, loss=loss, checks=(some,))

    def _answer(self, context: Context, one: Batch, views: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of a sample after a step on its views, the loss, and whether the step was taken."""
        student = context.student
        logits = at_least_single(student.on_blended_statistics(views, self.prior * self.views, momentum=0.0))
        loss = nats(logits.log_softmax(1).logsumexp(0))
        descent = Optimizer("sgd", self.learning_rate, momentum=0.0)
        _, checks = student.descend(lambda: student.slope(loss), descent, {}, allowed=context.allowed)
        with torch.no_grad():
            answer = student.on_blended_statistics(one, self.prior, momentum=0.0)
        return answer, loss.detach().reshape(1), all_hold(checks).reshape(1)
