"""The scores of a stream of answers, for every tempering at once."""

from collections.abc import Iterator, Sequence
from typing import get_args

import torch
from torch import Tensor

from equipoise.bench.lines import Reliability, Scores
from equipoise.bench.recipe import REHEARSED
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.calibration.temper import Temper, Tempering, divide
from equipoise.metrics import (
    accuracy,
    brier_score,
    entropy,
    expected_calibration_error,
    negative_log_likelihood,
    reliability_bins,
)
from equipoise.network.outcome import SourceView

FIXED = "fixed"


def score(logits: Tensor, labels: Tensor) -> tuple[Scores, Reliability]:
    """Judge a stream of answers."""
    bins = reliability_bins(logits=logits, target=labels)
    scores = Scores(
        accuracy=float(accuracy(logits=logits, target=labels)),
        ece=float(expected_calibration_error(logits=logits, target=labels)),
        entropy=float(entropy(logits=logits)),
        nll=float(negative_log_likelihood(logits=logits, target=labels)),
        brier=float(brier_score(logits=logits, target=labels)),
    )
    counts = bins.count.double()
    reliability = Reliability(
        count=bins.count.long().tolist(),
        confidence=[round(value, 6) for value in (bins.confidence.nan_to_num() * counts).tolist()],
        correct=(bins.accuracy.nan_to_num() * counts).round().long().tolist(),
    )
    return scores, reliability


class Divider:
    """What an adapter with each `tempering` would have answered, from the raw logits of one without.

    Dividing changes nothing that a method learns, so one run tells all; tau comes from the source model.

    Args:
        temperings: which of them.
        source: the statistics of the source model.
        fixed_tau: what "fixed" divides by.
        t_min: lower end of the range of t.
        t_max: its upper end.
        rehearsed: what divides by the rehearsal of the method, for "rehearsed".
    """

    def __init__(
        self,
        temperings: Sequence[str],
        source: SourceStatistics,
        fixed_tau: float,
        t_min: float,
        t_max: float,
        rehearsed: Temper | None = None,
    ) -> None:
        self._fixed = {FIXED: fixed_tau} if FIXED in temperings else {}
        kinds = [kind for kind in get_args(Tempering) if kind in temperings and kind != REHEARSED]
        self._tempers = [Temper(kind, source, t_min, t_max) for kind in kinds]
        if rehearsed is not None:
            self._tempers.append(rehearsed)

    def online(self, logits: Tensor, view: SourceView) -> Iterator[tuple[str, Tensor]]:
        """The answers to the next batch of the stream."""
        for temper in self._tempers:
            divided = temper.divide(logits, view)
            yield temper.kind, divided.logits
            temper.temperature.contents = divided.contents
        for kind, fixed in self._fixed.items():
            yield kind, logits / fixed

    def after_pass(self, logits: Tensor, view: SourceView) -> Iterator[tuple[str, Tensor]]:
        """The answers of `predict` when all of the stream has been seen."""
        for temper in self._tempers:
            if temper.kind == "sample":
                yield temper.kind, temper.divide(logits, view).logits
            else:
                trusted = temper.rehearsed is not None and temper.rehearsed.trusts_source
                answers = view.logits if trusted else logits  # the source model's, where it answers now
                yield temper.kind, divide(answers, temper.temperature.running())
        for kind, fixed in self._fixed.items():
            yield kind, logits / fixed


def quantiles(values: Tensor, levels: Sequence[float]) -> list[float]:
    """Quantiles of any number of values (torch.quantile takes no more than 16 million)."""
    ordered = values.double().sort().values
    at = torch.tensor(levels, dtype=torch.float64) * (len(ordered) - 1)
    low, high = ordered[at.floor().long()], ordered[at.ceil().long()]
    return [float(value) for value in low + (high - low) * (at - at.floor())]
