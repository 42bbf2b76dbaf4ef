"""The threshold of prediction sets on a chunk without labels, from one of held-out rows with labels."""

import torch
from torch import Tensor

from equipoise.calibration.sets import class_scores, set_threshold


def threshold_of(held_out: Tensor, labels: Tensor, recent: Tensor, coverage: float, score: str) -> Tensor:
    """The threshold at which sets cover as much of recent rows as they are meant to.

    Split conformal prediction has the threshold t₀ for held-out rows with labels. Their calibrated
    probabilities p say that it covers

        e = mean over rows of Σ_k p_k · 1[s_k <= t₀],

    with s the scores of the classes; on recent rows the threshold is the least one at which calibrated
    probabilities say e again. So the coverage of rows like held-out ones is that of split conformal
    prediction, whatever calibration lacks, and that of others is as right as their calibration is.

    Args:
        held_out: calibrated probabilities (N, C).
        labels: the right classes, (N).
        recent: calibrated probabilities of the rows that the sets are for, (M, C).
        coverage: of the sets, from 0 to 1.
        score: "lac", "aps" or "raps".
    """
    scores = class_scores(held_out, score)
    threshold = set_threshold(scores.gather(1, labels[:, None]).squeeze(1), coverage)
    if bool(threshold.isinf()):
        return threshold
    expected = (held_out.double() * (scores <= threshold)).sum() / len(held_out)
    ordered, order = class_scores(recent, score).flatten().sort()
    mass = recent.double().flatten()[order].cumsum(0) / len(recent)
    # Sums of the same numbers in another order differ by their rounding.
    at = torch.searchsorted(mass, expected - 1e-9)
    return ordered[at.clamp(max=len(ordered) - 1)]
