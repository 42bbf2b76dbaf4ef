"""Labels that come late: what they say about estimates made without them, in sums that forget.

A label says whether an answer was right. Of each labelled answer of a model, with h its hit (1 or 0), v the
accuracy that was estimated for it without labels, g its confidence, c the mean confidence of answers at that
time and w its weight, seven sums are kept, with d = h − v and q = g − c:

    Σw,  Σw·d,  Σw·d²,  Σw·q,  Σw·q²,  Σw·q·d,  Σw·h.

d is the error of the estimate, q what chance in the choice of the labelled samples explains of it: sums of
both give a prediction-powered estimate of the error (`rectified`), and `posterior` how much is believed. The
state of an adapter has a row for each model: the sums, and three numbers that say what is believed of them
(`believing`), so that a batch has little to do: a row forgets by a factor, and `correction` reads it.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.errors import OptionError

LABEL_HALF_LIFE = 2000.0
"""The answered samples after which a label counts half: a shift lasts longer than a window."""

KEPT_AT_CHANGE = 1 / 2
"""The weight that labels keep where the stream has changed (`window.after`): they may be of another shift."""

MOVED = 0.5
"""The part of a move of the estimate since the labels that is believed.

Over 202 streams of 20 models (benchmarks/decisions/moves.csv), accuracies moved as far as their estimates
where one shift came after another, .7 as far where streams were sorted by class, and hardly anywhere else.
"""

SUMS, WIDTH = 7, 10
"""The number of sums of a model, and of the numbers of its row: three more (`believing`)."""

CAUTION = 10
"""The samples as which calibrated answers count beside the labelled ones, in a slope and in a variance."""

TAIL, TAIL_WIDTH, TAIL_LEAST = 0.05, 3.0, 0.1
"""The chance that a shift is none that the doubt knows, how many times larger errors are then, and their
least standard deviation, as a share: an estimate of .97 may be one of a model that is right in .77."""

_TINY = 1e-12
_EDGE = 1e-3


def checked_labels(labels: Any, count: int, classes: int) -> Tensor:
    """Labels on the CPU; OptionError unless they are `count` whole numbers below `classes`."""
    try:
        target = torch.as_tensor(labels).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"expected labels as whole numbers, got {repr(labels)[:80]}") from error
    if not target.numel():
        target = target.long()  # of an empty list it is a tensor of floats
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise OptionError(f"expected labels as whole numbers, got {target.dtype}")
    if target.shape != (count,):
        raise OptionError(f"expected {count} labels, one for each row, got {tuple(target.shape)}")
    if count and not 0 <= int(target.min()) <= int(target.max()) < classes:
        raise OptionError(
            f"expected labels in 0..{classes - 1}, got {int(target.min())}..{int(target.max())}"
        )
    return target.long()


def prediction_powered(
    hits: Tensor, scores: Tensor, population_mean: Tensor | float, population: float
) -> tuple[Tensor, Tensor]:
    """An accuracy from a few labels and the scores of all samples; the value and its variance.

    Of n labelled samples with hits h and scores g (a confidence, say), and ḡ the mean score of all N:

        value = λ · ḡ + avg (h − λ · g),   variance = var(h − λ · g) / n + λ² · var(g) / N.

    PPI++ (Angelopoulos, Duchi and Zrnic, 2023): for every fixed λ the value is unbiased, whatever the scores
    are worth. λ is the slope cov(g, h) / var(g) / (1 + n / N), from 0 to 1, drawn towards 1, that of
    calibrated scores, as by ten samples. The variance counts ten samples more, of an accuracy between the one
    seen and a half (Agresti and Coull, 1998, add four), so that ten hits of ten are not certain. Without
    labels: the mean of the scores, and an infinite variance.

    Args:
        hits: of the labelled samples, 1 for right and 0 for wrong; (…, n).
        scores: of the same samples, (…, n).
        population_mean: the mean score of all samples.
        population: their number N.

    >>> hits = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    >>> value, variance = prediction_powered(hits, torch.full_like(hits, 0.7), 0.7, 1000)
    >>> round(float(value), 3), round(float(variance), 4)
    (0.75, 0.0615)
    """
    mean = torch.as_tensor(population_mean, dtype=scores.dtype, device=scores.device)
    sums = label_sums(hits, torch.full_like(hits, 0.5), scores, mean.unsqueeze(-1), torch.ones_like(hits))
    half = torch.full_like(sums[..., 0], 0.5)
    found = rectified(sums, half, 1 + sums[..., 0] / population)
    value = torch.where(found.weight > 0, half + found.value, mean)
    return value, found.spread / found.weight + found.slope.square() * found.scatter / population


def label_sums(hits: Tensor, expected: Tensor, scores: Tensor, mean: Tensor, weights: Tensor) -> Tensor:
    """The seven sums over labelled answers, (…, 7), of tensors (…, N).

    Args:
        hits: 1 for right answers and 0 for wrong ones.
        expected: the accuracy that was estimated without labels when they were given.
        scores: their confidence.
        mean: the mean confidence of the answers of that time.
        weights: what each counts; 0 for an answer without a label.
    """
    d, q = hits - expected, scores - mean
    terms = torch.stack([torch.ones_like(d), d, d.square(), q, q.square(), q * d, hits], -1)
    return (weights.unsqueeze(-1) * terms).sum(-2)


def kept(samples: Tensor, changed: Tensor) -> Tensor:
    """The weight that labels keep after n samples: 2^(−n / 2000), a half of it at a change."""
    share = torch.exp2(-samples / LABEL_HALF_LIFE)
    return torch.where(changed, KEPT_AT_CHANGE * share, share)


class Rectified(NamedTuple):
    """A mean error from labels.

    Attributes:
        value: the mean of d − λ · q.
        slope: λ.
        scatter: the variance of q.
        spread: the variance of d − λ · q of one sample.
        weight: Σw, the labels as which they count.
    """

    value: Tensor
    slope: Tensor
    scatter: Tensor
    spread: Tensor
    weight: Tensor


def rectified(sums: Tensor, around: Tensor, flattening: Tensor | float = 1.0) -> Rectified:
    """The mean of d − λ · q from seven sums (…, 7), 0 without labels; `prediction_powered` has the formulas.

    An old label counts less than a fresh one: its weight is the share of a label that it is worth. `around`
    is the accuracy from which d is measured, and towards which the ten samples of the variance are drawn; the
    slope is divided by `flattening`.
    """
    count, d, dd, q, qq, qd, _ = sums.unbind(-1)
    some = count.clamp(min=_TINY)
    scatter = (qq / some - (q / some).square()).clamp(min=0)
    together = qd / some - q * d / some.square()
    slope = (count * together / scatter.clamp(min=_TINY) / flattening + CAUTION) / (count + CAUTION)
    slope = slope.clamp(0, 1)
    value = (d - slope * q) / some
    rest = dd - 2 * slope * qd + slope.square() * qq - count * value.square()
    seen = (around + d / (count + CAUTION)).clamp(0, 1)
    spread = (rest.clamp(min=0) + CAUTION * seen * (1 - seen)) / (count - 1 + CAUTION).clamp(min=CAUTION - 1)
    return Rectified(value, slope, scatter, spread, count)


class LabelledError(NamedTuple):
    """The error of an estimate by labels.

    Attributes:
        value: accuracy less estimate, as a share; 0 without labels.
        precision: the inverse of its variance; 0 without labels.
        sampled: the same, of the choice of labelled samples alone.
    """

    value: Tensor
    precision: Tensor
    sampled: Tensor


def labelled_error(sums: Tensor, accuracy: Tensor) -> LabelledError:
    """The error of an estimate of accuracy (…), a share, by the labels in sums (…, 7).

    The estimate may have moved since the labels came, by m from the mean ā of the estimates of their time. Of
    that, a half is believed (`MOVED`), as accuracies move less than their estimates do:

        r = avg (d − λ · q) − ½ · m,   m = a − ā.

    Its variance is s² / Σw + (½ · m)², with s² that of d − λ · q (`rectified`), and at least the one that
    calibrated answers of accuracy a would have, a · (1 − a) − λ · (2 − λ) · var(q): ten labels without a
    miss, common where nine in ten answers are right, do not say that the variance is nought.
    """
    found = rectified(sums, accuracy)
    calibrated = accuracy * (1 - accuracy) - found.slope * (2 - found.slope) * found.scatter
    labels, errors, hits = sums[..., 0], sums[..., 1], sums[..., -1]
    before = torch.where(labels > 0, (hits - errors) / labels.clamp(min=_TINY), accuracy)
    doubted = (1 - MOVED) * (accuracy - before)
    sampled = found.spread.maximum(calibrated)
    variance = sampled + found.weight * doubted.square()
    return LabelledError(found.value - doubted, found.weight / variance, found.weight / sampled)


def posterior(sums: Tensor, estimate: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """The share ω of the labelled error that is believed, and the offset to the logit of an estimate (…).

    With a the estimate as a share, r its error by the labels in sums (…, 7) and L the variance of r
    (`labelled_error`), the prior of the error is that of the rehearsal with a tail, as no rehearsal knows
    every shift:

        r ~ .95 · N(0, σ²) + .05 · N(0, τ²),   σ = a · (1 − a) · deviation,   τ = max(.1, 3σ).

    The corrected accuracy is a + ω · r, the posterior mean: ω = (1 − ρ) · σ² / (σ² + L) + ρ · τ² / (τ² + L)
    with ρ the probability of the tail given r. So a few labels change little, many replace the estimate, and
    labels that contradict it are believed soon. It is no further from a than the share of labelled answers
    that were right, but for two standard errors: where the estimate itself has come nearer to the truth since
    then, the error that the labels saw is no more. A posterior mean has no larger
    mean squared error than the prior's where the prior is honest and L not too small: that is how ten labels
    are kept from making things worse than none. Measured, they cost .005 where nothing has shifted.

    Args:
        sums: of labels.
        estimate: without labels, in logits.
        deviation: the standard deviation of the estimate's error, in logits.
    """
    a = estimate.sigmoid()
    error, precision, sampled = labelled_error(sums, a)
    sigma = a * (1 - a) * deviation
    near, far = sigma.square() * precision, (TAIL_WIDTH * sigma).clamp(min=TAIL_LEAST).square() * precision
    # Log odds of the tail: both densities of r have the variance (1 + near or far) / precision.
    evidence = error.square() * precision * (1 / (1 + near) - 1 / (1 + far)) / 2
    tail = (evidence + ((1 + near) / (1 + far)).log() / 2 + math.log(TAIL / (1 - TAIL))).sigmoid()
    weight = torch.lerp(near / (1 + near), far / (1 + far), tail)
    right = torch.where(sums[..., 0] > 0, sums[..., -1] / sums[..., 0].clamp(min=_TINY), a)
    room = 2 * sampled.clamp(min=_TINY).rsqrt()
    after = (a + weight * error).maximum(a.minimum(right) - room).minimum(a.maximum(right) + room)
    after = after.clamp(_EDGE, 1 - _EDGE)
    return weight, after.logit() - a.clamp(_EDGE, 1 - _EDGE).logit()


def believing(sums: Tensor, weight: Tensor, offset: Tensor, estimate: Tensor) -> Tensor:
    """The row of a model, (…, 10): its sums and what is believed of them, o, o · offset / ω and o · estimate.

    o = ω / (1 − ω) are the odds of belief: where all labels lose a part of their weight, so do the odds, as L
    grows by what n loses. The estimate, in logits, is the one that was corrected.
    """
    odds = weight / (1 - weight).clamp(min=_EDGE)
    believed = torch.stack([odds, offset * (1 + odds), odds * estimate], -1)
    return torch.cat([sums, believed], -1)


def correction(rows: Tensor, estimate: Tensor) -> tuple[Tensor, Tensor]:
    """The offset to the logits of estimates (…) by rows (…, 10), and the share 1 − ω of doubt that stays.

    Where the estimate has moved by m since it was corrected, ½ · ω · m is taken back (`MOVED`).
    """
    odds, offset, corrected = rows[..., SUMS:].unbind(-1)
    left = (1 + odds).reciprocal()
    return (offset + (1 - MOVED) * (corrected - odds * estimate)) * left, left


def aci(level: Tensor, covered: Tensor, coverage: Tensor | float, rate: Tensor | float) -> Tensor:
    """A level after one label, by adaptive conformal inference: level + rate · (coverage − covered).

    `covered` is 1 where the set at that level had the label, else 0. Whatever the stream does, the share
    covered comes to `coverage` in the long run: over T labels it differs by at most (1 + rate) / (rate · T).
    Gibbs and Candès, NeurIPS 2021, whose α is 1 − level.

    >>> aci(torch.tensor(0.9), torch.tensor(0.0), 0.9, 0.1)
    tensor(0.9900)
    """
    return level + rate * (coverage - covered.to(level))
