"""What prediction sets are held against: an oracle that has the labels, and the field's methods."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.calibration.sets import class_scores, set_threshold
from equipoise.metrics import set_coverage, set_size

BATCH = 50
COVERAGE, ACCURACY = 0.9, 0.95
"""The targets of sets and of decisions."""

ACI_RATE = 0.005
"""The step of adaptive conformal inference, that of its paper."""

QUANTILE = 0.9
"""The quantile of the entropy that scales sets; EACP's for a coverage of 90 %."""


def spans(rows: int) -> list[slice]:
    """The batches of so many rows."""
    return [slice(at, min(at + BATCH, rows)) for at in range(0, rows, BATCH)]


class Tally(NamedTuple):
    """The sets of a stream.

    Attributes:
        coverage: the share that have the right class.
        size: the mean number of classes.
        empty: the share without any.
    """

    coverage: float
    size: float
    empty: float


class Share(NamedTuple):
    """The answers of a stream that are acted upon.

    Attributes:
        share: of all answers.
        accuracy: among them; NaN where there is none.
    """

    share: float
    accuracy: float


def tally(sets: Tensor, labels: Tensor) -> Tally:
    """Coverage and sizes of sets (N, C)."""
    empty = float((~sets.any(1)).double().mean())
    return Tally(float(set_coverage(sets, labels)), float(set_size(sets)), empty)


def shared(mask: Tensor, hits: Tensor) -> Share:
    """The share of answers that are acted upon (N), and how many of them are right."""
    acted = hits[mask].double()
    return Share(float(mask.double().mean()), float(acted.mean()) if len(acted) else float("nan"))


def right_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """The LAC scores of the right classes, 1 − p_y, (N)."""
    return class_scores(logits.softmax(1), "lac").gather(1, labels.unsqueeze(1)).squeeze(1)


def oracle_sets(logits: Tensor, labels: Tensor, coverage: float) -> Tensor:
    """The sets of the smallest LAC threshold that gives a stream that coverage, found with its labels."""
    ordered = right_scores(logits, labels).sort().values
    enough = torch.arange(1, len(ordered) + 1) / len(ordered) >= coverage - 1e-9
    threshold = ordered[int(enough.nonzero()[0])]
    return class_scores(logits.softmax(1), "lac") <= threshold


def split_sets(logits: Tensor, held_out: Tensor, coverage: float) -> Tensor:
    """The sets of split conformal prediction, from the LAC scores of held-out right classes (n)."""
    return class_scores(logits.softmax(1), "lac") <= set_threshold(held_out, coverage)


def aci_sets(
    batches: Iterable[tuple[Tensor, Tensor]], held_out: Tensor, coverage: float, rate: float = ACI_RATE
) -> Iterator[Tensor]:
    """The sets of adaptive conformal inference, where every answer gets its label after its batch.

    With a the level, from that of the target, and e_i whether the set of answer i lacks its label,

        a ← a − rate · Σ_i (e_i − (1 − coverage)),  sets at the held-out quantile of 1 − (error rate a).

    Gibbs and Candès, NeurIPS 2021, LAC scores. A level of 1 has all classes, one of 0 none.
    """
    level = coverage
    for logits, labels in batches:
        scores = class_scores(logits.softmax(1), "lac")
        inside = min(max(level, 0.0), 1.0)
        threshold = set_threshold(held_out, inside) if inside > 0 else torch.tensor(-torch.inf)
        sets = scores <= threshold
        yield sets
        missed = ~sets.gather(1, labels.unsqueeze(1)).squeeze(1)
        level += rate * float((missed.double() - (1 - coverage)).sum())


def entropies(logits: Tensor) -> Tensor:
    """The entropy of each answer in nats, (N)."""
    nats: Tensor = torch.special.entr(logits.softmax(1)).sum(1)
    return nats


def entropy_sets(logits: Tensor, held_out: Tensor, factor: float, coverage: float) -> Tensor:
    """The sets of split conformal prediction for probabilities that are multiplied by a factor.

    The classes with factor · p_c ≥ 1 − (the held-out LAC threshold). That is the idea of ECP and EACP (Kasa
    et al., UAI 2025): the more doubtful the answers of a batch, the lower the bar.
    """
    return factor * logits.softmax(1) >= 1 - set_threshold(held_out, coverage)


def published_factor(logits: Tensor) -> float:
    """EACP's factor for a batch: the square of the .9 quantile of its entropies in nats, at least 1."""
    return float(entropies(logits).quantile(QUANTILE).clamp(min=1).square())


def ratio_factor(logits: Tensor, held_out: Tensor) -> float:
    """The ratio of the .9 quantiles of the entropies of a batch and of held-out ones (n), at least 1.

    A deviation from EACP, which has the same factor for a model of a thousand classes and of two.
    """
    usual = held_out.quantile(QUANTILE).clamp(min=1e-6)
    return float((entropies(logits).quantile(QUANTILE) / usual).clamp(min=1))
