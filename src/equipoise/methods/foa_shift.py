"""FOA's activation shift: bring the mean of the stream's features back to that of the source."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.calibration.source_moments import feature_spread
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import Answer, Context, Memory, Method, Update
from equipoise.core.student import Student
from equipoise.core.verdict import Check
from equipoise.errors import StateError
from equipoise.functional import at_least_single
from equipoise.methods.parts.linear_head import HeadAnswers, head_answers, on_student
from equipoise.network.head import linear_layer, with_head
from equipoise.options import option
from equipoise.registry import register

_SHIFT, _COUNT, _SOURCE_MEAN, _REACH = "shift", "count", "source_mean", "reach"
_OUTLIER = 10  # times the source's spread: the distance from its mean that a sample counts for at most
_BATCH = 64  # samples that `decay` is for, and that the source's mean counts for at first: the authors' batch


@register
@dataclass(frozen=True, kw_only=True)
class FoaShift(Method):
    """The back-to-source activation shifting of FOA (Niu et al., ICML 2024), without its prompts.

        answer = W (f + μ_source − μ) + b,   μ ← (1 − a) μ + a · mean of the batch's f,

    with f the features of the linear head (W, b), for any model that has one. A batch of n samples has the
    share a = max(1 − decay^(n/64), n / (N + n)) in μ, with N samples before it: a plain mean at first, then
    an exponential one. One forward a batch, no backward; the network stays the source's.

    Args:
        decay: the share that μ keeps of itself over 64 samples.

    Deviations: the authors decay μ once for each batch, of whatever size, and start from the mean of the
    first one, so that after a first batch of one sample all others are shifted by its distance from the mean;
    here μ starts as the source's mean, which counts for 64 samples. Their code shifts a batch by the mean of
    those before it, their formula, as here, by one with the batch itself. A sample further from the source's
    mean than ten times the spread of its features counts as one at that distance: one frame of huge values
    would move the mean for good.
    """

    name = "foa_shift"
    needs_source = True
    needs_features = True
    moves_statistics = False
    measuring = "equipoise.SourceStatistics.measure(model, source_loader, features=True)"

    decay: float = option(0.9, low=0, high=1)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """No shift, and the number of samples that the source's mean counts for."""
        shift = torch.zeros_like(self.constants(student, source)[_SOURCE_MEAN])
        return {_SHIFT: shift, _COUNT: torch.tensor(_BATCH, device=shift.device)}

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The mean of the source's features, and the largest distance from it that counts."""
        features = {} if source is None else source.features
        reach = on_student(_OUTLIER * feature_spread(features), student)
        return {_SOURCE_MEAN: on_student(features["mean"], student), _REACH: reach}

    def step(self, context: Context) -> Update:
        """Let the mean follow the batch, and answer with it."""
        memory, seen = context.memory, head_answers(context.student, context.batch)
        count, before = seen.good.sum(), memory[_COUNT]
        share = torch.maximum(1 - self.decay ** (count / _BATCH), count / (before + count))
        offset = mean_offset(seen, context.constants[_SOURCE_MEAN], context.constants[_REACH])
        shift = torch.lerp(memory[_SHIFT], -offset, share.to(offset))
        answer = _shifted(seen.logits, seen.head, shift)
        finite = (answer.isfinite().all(1) | ~seen.good).all() & shift.isfinite().all()
        fine = Check(finite, "non-finite mean of the features")
        some = Check(count > 0, "non-finite logits", on_failure="skip")
        news = {_SHIFT: shift, _COUNT: (before + count).clamp(max=2**40)}
        return Update(answer, news, count, checks=(fine, some), source_logits=seen.logits)

    def answer(self, context: Context) -> Answer:
        """Answer with the mean as it is."""
        seen = head_answers(context.student, context.batch)
        shifted = _shifted(seen.logits, seen.head, context.memory[_SHIFT])
        return Answer(shifted, source_logits=seen.logits)

    def export(self, student: Student, memory: Memory) -> nn.Module:
        """The network with the shift in the bias of its head."""
        if student.head is None:
            raise StateError("foa_shift finds the head in a forward: answer a batch before detach()")
        layer = linear_layer(student.model, student.head)
        bias = layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias.detach()
        return with_head(student.model, student.head, layer.weight, _shifted(bias, layer, memory[_SHIFT]))


def _shifted(logits: Tensor, head: nn.Linear, shift: Tensor) -> Tensor:
    """Logits (or a bias) after a shift of the features, by the head's weight in single precision at least."""
    return (at_least_single(logits) + (at_least_single(head.weight.detach()) * shift).sum(1)).to(logits.dtype)


def mean_offset(seen: HeadAnswers, centre: Tensor, reach: Tensor) -> Tensor:
    """The mean of the features of good samples minus a centre; zero without any.

    A sample further from the centre than `reach` counts as one at that distance, in its direction.
    """
    apart = torch.where(seen.good.unsqueeze(1), seen.features - centre, 0.0)
    far: Tensor = torch.linalg.vector_norm(apart, dim=1, keepdim=True)
    clipped = apart * (reach / far.clamp(min=torch.finfo(far.dtype).tiny)).clamp(max=1)
    return clipped.sum(0) / seen.good.sum().clamp(min=1)
