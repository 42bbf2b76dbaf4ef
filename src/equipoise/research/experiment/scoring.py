"""The scores of a stream of answers, for every tempering at once."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.calibration.temper import TRUSTS, SourceView, Temper, Tempering, divide
from equipoise.errors import ModelError
from equipoise.metrics import (
    accuracy,
    brier_score,
    entropy,
    expected_calibration_error,
    negative_log_likelihood,
    reliability_bins,
)
from equipoise.research.experiment.schema import (
    REHEARSED,
    CellScores,
    EstimatedAccuracy,
    OracleScores,
    ReliabilitySums,
)

FIXED = "fixed"
TEMPERATURES = (0.05, 1e4)
"""The range of the oracle temperature: at its upper end answers are uniform."""


def score(logits: Tensor, labels: Tensor) -> tuple[CellScores, ReliabilitySums]:
    """The scores and reliability sums of a stream of answers; ModelError where an answer is not a number.

    Metrics leave such rows out, and a method must not gain by them.
    """
    bad = int((~logits.isfinite().all(1)).sum())
    if bad:
        raise ModelError(f"expected finite answers to score, got {bad} of {len(logits)} that are not")
    bins = reliability_bins(logits=logits, target=labels)
    scores = CellScores(
        accuracy=float(accuracy(logits=logits, target=labels)),
        ece=float(expected_calibration_error(logits=logits, target=labels)),
        entropy=float(entropy(logits=logits)),
        nll=float(negative_log_likelihood(logits=logits, target=labels)),
        brier=float(brier_score(logits=logits, target=labels)),
    )
    counts = bins.count.double()
    reliability = ReliabilitySums(
        count=bins.count.long().tolist(),
        confidence=[round(value, 6) for value in (bins.confidence.nan_to_num() * counts).tolist()],
        correct=(bins.accuracy.nan_to_num() * counts).round().long().tolist(),
    )
    return scores, reliability


def oracle(logits: Tensor, labels: Tensor) -> OracleScores:
    """The scores at argmin_T NLL(z / T), T from .05 to 10,000, found with the labels of the whole stream.

    No other single temperature has a lower NLL. A temperature that changes along the stream may.
    """
    precise = logits.double()

    def loss(log_temperature: float) -> float:
        return float(cross_entropy(precise / math.exp(log_temperature), labels))

    bounds = tuple(math.log(end) for end in TEMPERATURES)
    temperature = math.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-3}).x)
    divided = precise / temperature
    return OracleScores(
        temperature=temperature,
        ece=float(expected_calibration_error(logits=divided, target=labels)),
        nll=float(negative_log_likelihood(logits=divided, target=labels)),
    )


class RawAnswer(NamedTuple):
    """An adapter's raw answers to a batch, and what else a rehearsal looks at.

    Attributes:
        logits: the answers.
        novelty: of the inputs; None where that is not measured.
        weight_distance: of the weights that learn from the source model's, after the batch.
    """

    logits: Tensor
    novelty: Tensor | None = None
    weight_distance: float = 0.0


class Divider:
    """The logits of an adapter with each `tempering`, from the raw logits of an adapter without.

    Dividing changes nothing that a method learns, so one run gives all; tau comes from the source model.

    Args:
        temperings: the temperings to apply.
        source: the statistics of the source model.
        fixed_tau: the divisor of "fixed".
        t_min: lower end of the range of t.
        t_max: its upper end.
        rehearsed: the temper of the method's rehearsal, for "rehearsed".
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
        self._observed = {temper.kind: temper.initial() for temper in self._tempers}
        self._far = 0.0

    def online(self, answered: RawAnswer, view: SourceView) -> Iterator[tuple[str, Tensor]]:
        """The answers to the next batch of the stream."""
        logits, self._far = answered.logits, answered.weight_distance
        for temper in self._tempers:
            observed = self._observed[temper.kind]
            tempered = temper.divide(observed, logits, view, _every(logits), answered.novelty)
            self._observed[temper.kind] = dict(tempered.observed)  # before the caller asks for the estimate
            yield temper.kind, tempered.logits
        for kind, fixed in self._fixed.items():
            yield kind, logits / fixed

    def estimate(self, kind: str) -> EstimatedAccuracy | None:
        """The accuracy that a rehearsal estimates after the batches so far; None for other temperings."""
        for temper in self._tempers:
            if temper.kind == kind and temper.rehearsed is not None:
                observed = self._observed[kind]
                both = temper.rehearsed.estimates(observed, self._far)
                found = both[1 if bool(observed[TRUSTS]) else 0]
                if found is not None:
                    return EstimatedAccuracy(value=found.value, low=found.low, high=found.high)
        return None

    def after_pass(self, answered: RawAnswer, view: SourceView) -> Iterator[tuple[str, Tensor]]:
        """The answers of `predict` when all of the stream has been seen."""
        logits = answered.logits
        for temper in self._tempers:
            observed = self._observed[temper.kind]
            if temper.kind == "sample":
                yield temper.kind, temper.divide(observed, logits, view, _every(logits)).logits
            else:
                trusted = temper.rehearsed is not None and bool(observed[TRUSTS])
                answers = view.logits if trusted else logits  # the source model's, where it answers now
                yield temper.kind, divide(answers, float(temper.level(observed)))
        for kind, fixed in self._fixed.items():
            yield kind, logits / fixed


def _every(logits: Tensor) -> Tensor:
    return torch.ones(len(logits), dtype=torch.bool, device=logits.device)


def quantiles(values: Tensor, levels: Sequence[float]) -> list[float]:
    """Quantiles of any number of values (torch.quantile takes no more than 16 million)."""
    ordered = values.double().sort().values
    at = torch.tensor(levels, dtype=torch.float64) * (len(ordered) - 1)
    low, high = ordered[at.floor().long()], ordered[at.ceil().long()]
    return [float(value) for value in low + (high - low) * (at - at.floor())]
