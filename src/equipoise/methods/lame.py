"""LAME: let the answers to a batch agree among neighbours, without learning."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from equipoise.core.method import Answer, Context, Method, Update
from equipoise.core.verdict import host_knows
from equipoise.methods.parts.linear_head import HeadAnswers, head_answers
from equipoise.options import choice, option
from equipoise.registry import register

AffinityName: TypeAlias = Literal["knn", "rbf"]
_ROUNDS, _SETTLED = 100, 1e-8  # the authors'


@register
@dataclass(frozen=True, kw_only=True)
class Lame(Method):
    """Laplacian adjusted maximum-likelihood estimation (Boudiaf et al., CVPR 2022): for correlated streams.

        Y ← softmax(z + K Y), from Y = softmax(z), until the energy Σ Y · (ln Y − ln softmax(z) − K Y) moves
        by less than 1e-8 of itself, or 100 times,

    with z the source model's logits for the batch and K the affinity of the samples' unit features: "knn" has
    1 from a sample to each of its nearest neighbours; "rbf" has exp(−d² / 2σ²), d the distance, σ the mean
    distance to the last of the neighbours, 1 on the diagonal. The answer is z + K Y: its softmax is the last
    Y. Samples of one class that come together correct each other; in a shuffled stream accuracy is lost, most
    with "rbf", where every sample pulls at every other. One forward a batch, no backward, nothing is kept;
    `predict` answers as the source model, sample by sample.

    Args:
        affinity: "knn" or "rbf".
        neighbours: of a sample.

    Deviations: the authors return Y itself, which in place of logits would be squashed by a second softmax.
    For σ their code counts a sample as its own first neighbour, and so takes the one before the last.
    A sample with no other (a batch of one) is answered as it is by the source model, and so is one with
    non-finite logits, which no other sample has for a neighbour. Rounds and energy are in double precision
    (not on Apple's GPUs, which have none): in single precision the energy seems to rest while two classes
    nearly balance. The default affinity is "knn"; that of the authors' configuration is "rbf".
    """

    name = "lame"
    moves_statistics = False

    affinity: AffinityName = choice("knn", get_args(AffinityName))
    neighbours: int = option(5, low=1)

    def step(self, context: Context) -> Update:
        """Answer the batch, corrected among neighbours."""
        seen = head_answers(context.student, context.batch)
        with torch.autocast(seen.logits.device.type, enabled=False):
            answer = corrected(seen, self._affinities(seen))
        return Update(answer, idle="nothing is learned from a batch", source_logits=seen.logits)

    def answer(self, context: Context) -> Answer:
        """Answer as the source model does."""
        logits = context.student.frozen(context.batch)
        return Answer(logits, source_logits=logits)

    def _affinities(self, seen: HeadAnswers) -> Tensor:
        """The affinity of each sample (rows) to each (columns); 0 from and to samples that are not good."""
        units, good = normalize(seen.features.detach(), dim=1), seen.good
        each = torch.eye(len(good), dtype=torch.bool, device=good.device)
        others = good & good.unsqueeze(1) & ~each
        apart = torch.cdist(units, units, compute_mode="donot_use_mm_for_euclid_dist")
        near, places = apart.masked_fill(~others, math.inf).topk(
            min(self.neighbours, len(good) - 1), largest=False
        )
        there = near.isfinite()
        if self.affinity == "knn":
            return torch.zeros_like(apart).scatter(1, places, there.to(apart))
        last = torch.where(there, near, 0.0).sort(1).values[:, -1:]
        width = last.sum() / there.any(1).sum().clamp(min=1)
        alike = torch.exp(-(apart**2) / (2 * width**2).clamp(min=torch.finfo(apart.dtype).tiny))
        return torch.where((others | each) & others.any(1, keepdim=True), alike, 0.0)


def corrected(seen: HeadAnswers, affinities: Tensor) -> Tensor:
    """Logits whose softmax is the last Y; all rounds run where the host cannot know that Y has settled."""
    # Apple's GPUs have no double precision.
    precise = torch.float32 if seen.logits.device.type == "mps" else torch.float64
    logits = torch.where(seen.good.unsqueeze(1), seen.logits.to(precise), 0.0)
    affinities = affinities.to(precise)
    log_p = logits.log_softmax(1)
    pull, energy = affinities @ log_p.exp(), torch.full_like(logits[0, 0], math.nan)
    answer, settled = logits, torch.zeros_like(seen.good[0])
    for _ in range(_ROUNDS):
        news = logits + pull
        answer = torch.where(settled, answer, news)
        log_y = news.log_softmax(1)
        pull, before = affinities @ log_y.exp(), energy
        energy = (log_y.exp() * (log_y - log_p - pull)).sum()
        settled = settled | ((energy - before).abs() <= _SETTLED * before.abs())
        if host_knows(settled):
            break
    return torch.where(seen.good.unsqueeze(1), answer.to(seen.logits.dtype), seen.logits)
