"""Scores of a stream of answers: as a whole, with a tempering, batch by batch, in segments and in bins."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy

from equipoise.calibration.temper import TRUSTS, SourceView, Temper, divide
from equipoise.errors import DataError, ModelError
from equipoise.evaluation import Answers
from equipoise.metrics import (
    accuracy,
    brier_score,
    entropy,
    expected_calibration_error,
    negative_log_likelihood,
    reliability_bins,
)
from equipoise.research.experiment.schema import (
    BatchTrace,
    BinnedSegment,
    Bins,
    CellScores,
    EstimatedAccuracy,
    OracleScores,
    ReliabilitySums,
    SegmentScores,
    StreamEstimate,
    Trace,
)
from equipoise.streams import Segment

TEMPERATURES = (0.05, 1e4)
"""The range of the oracle temperature: at its upper end answers are uniform."""
RECENT_IMAGES = 500
"""The images before the end of a batch whose accuracy an interval is held against: an estimate forgets."""
MOST_BINS = 320
"""Sixteen domains twenty times have one bin each; a line of results stays at a few kilobytes."""
MOST_NAMED = 40
"""More segments than these are divided into bins, but not named."""


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


class Divider:
    """The logits of an adapter with a tempering, from the raw logits of an adapter without.

    Dividing changes nothing that a method learns, so one run gives all; tau comes from the source model.

    Args:
        by: the temper, or one temperature for all answers.
    """

    def __init__(self, by: Temper | float) -> None:
        self._by = by
        self._observed = by.initial() if isinstance(by, Temper) else {}
        self._far = 0.0

    def online(self, raw: Answers, view: SourceView, weight_distance: float = 0.0) -> Tensor:
        """The answers to the next batch of the stream, after which the weights have this distance."""
        logits, self._far = raw.logits, weight_distance
        if not isinstance(self._by, Temper):
            return logits / self._by
        tempered = self._by.divide(self._observed, logits, view, _every(logits), raw.novelty)
        self._observed = dict(tempered.observed)
        return tempered.logits

    def after_pass(self, raw: Answers, view: SourceView) -> Tensor:
        """The answers of `predict` when all of the stream has been seen."""
        logits = raw.logits
        if not isinstance(self._by, Temper):
            return logits / self._by
        if self._by.kind == "sample":
            return self._by.divide(self._observed, logits, view, _every(logits)).logits
        trusted = self._by.rehearsed is not None and bool(self._observed[TRUSTS])
        answers = view.logits if trusted else logits  # the source model's, where it answers now
        return divide(answers, float(self._by.level(self._observed)))

    def estimate(self) -> EstimatedAccuracy | None:
        """The accuracy that a rehearsal estimates after the batches so far; None for other temperings."""
        if not isinstance(self._by, Temper) or self._by.rehearsed is None:
            return None
        both = self._by.rehearsed.estimates(self._observed, self._far)
        found = both[1 if bool(self._observed[TRUSTS]) else 0]
        return None if found is None else EstimatedAccuracy(value=found.value, low=found.low, high=found.high)


def _every(logits: Tensor) -> Tensor:
    return torch.ones(len(logits), dtype=torch.bool, device=logits.device)


def quantiles(values: Tensor, levels: Sequence[float]) -> list[float]:
    """Quantiles of any number of values (torch.quantile takes no more than 16 million)."""
    ordered = values.double().sort().values
    at = torch.tensor(levels, dtype=torch.float64) * (len(ordered) - 1)
    low, high = ordered[at.floor().long()], ordered[at.ceil().long()]
    return [float(value) for value in low + (high - low) * (at - at.floor())]


def trace_stream(
    answers: Sequence[Tensor],
    labels: Tensor,
    estimates: Sequence[EstimatedAccuracy | None],
    segments: Sequence[Segment],
) -> Trace:
    """The trace of a stream.

    Args:
        answers: the logits of each batch.
        labels: of the whole stream; images of no class (-1) are left out of all numbers.
        estimates: of the accuracy, after each batch.
        segments: the stretches of the stream, in order; without any, the whole stream is one.
    """
    parts = labels.split([len(batch) for batch in answers])
    batches = [_batch(*of_batch) for of_batch in zip(answers, parts, estimates, strict=True)]
    return Trace(batches=batches, segments=_segments(torch.cat(list(answers)), labels, segments))


def _batch(logits: Tensor, labels: Tensor, estimate: EstimatedAccuracy | None) -> BatchTrace:
    counted = labels >= 0
    confidence, answer = logits[counted].double().softmax(1).max(1)
    return BatchTrace(
        images=len(answer),
        correct=int((answer == labels[counted]).sum()),
        confidence=round(float(confidence.mean()), 6) if len(answer) else 0.0,
        estimate=estimate,
    )


def _segments(logits: Tensor, labels: Tensor, segments: Sequence[Segment]) -> list[SegmentScores]:
    stretches = [segment for segment in segments if segment.images] or [Segment("all", len(labels))]
    names = [segment.name for segment in stretches]
    if len(set(names)) < len(names):
        raise DataError(f"expected segments of different names, got {', '.join(names)}")
    if sum(segment.images for segment in stretches) != len(labels):
        raise DataError(
            f"expected segments of {len(labels)} images in all, got "
            f"{', '.join(f'{segment.images} of {segment.name}' for segment in stretches)}"
        )
    found, sizes = [], [segment.images for segment in stretches]
    for name, rows, classes in zip(names, logits.split(sizes), labels.split(sizes), strict=True):
        counted = classes >= 0
        if counted.any():
            scores, bins = score(rows[counted], classes[counted])
            found.append(SegmentScores(name=name, images=len(rows[counted]), scores=scores, reliability=bins))
    return found


def bin_stream(
    answers: Sequence[Tensor],
    labels: Tensor,
    estimates: Sequence[EstimatedAccuracy | None],
    segments: Sequence[Segment],
) -> Bins:
    """Counts of right answers, confidence, NLL and estimate in each bin.

    A bin's estimate is the mean of those after the batches that end in it, or the last one before.

    Args:
        answers: the logits of each batch.
        labels: of the whole stream; images of no class (-1) are left out of all numbers.
        estimates: of the accuracy, after each batch.
        segments: the stretches of the stream, in order.
    """
    stretches = [segment for segment in segments if segment.images]
    if len(stretches) > MOST_BINS or not stretches:
        stretches = [Segment("all", len(labels))]
    cut = [_cut(segment.images, max(1, MOST_BINS // len(stretches))) for segment in stretches]
    sizes = torch.tensor([size for several in cut for size in several])
    where = torch.arange(len(sizes)).repeat_interleave(sizes)
    logits, counted = torch.cat(list(answers)), labels >= 0
    confidence, answer = logits.softmax(1).max(1)
    losses = cross_entropy(logits[counted], labels[counted], reduction="none")
    images = _sums(where[counted], torch.ones(int(counted.sum())), len(sizes))
    correct = _sums(where[counted], (answer == labels)[counted], len(sizes))
    sure = _sums(where[counted], confidence[counted], len(sizes)) / images.clamp(min=1)
    nll = _sums(where[counted], losses, len(sizes)) / images.clamp(min=1)
    found = Bins(
        images=images.long().tolist(),
        correct=correct.long().tolist(),
        confidence=[round(value, 4) for value in sure.tolist()],
        nll=[round(value, 4) for value in nll.tolist()],
        segments=[
            BinnedSegment(name=segment.name, bins=len(several))
            for segment, several in zip(stretches, cut, strict=True)
        ]
        if len(stretches) <= MOST_NAMED
        else [BinnedSegment(name="all", bins=len(sizes))],
    )
    if any(estimate is not None for estimate in estimates):
        ends = accumulate(len(batch) for batch in answers)
        found["estimate"] = _estimates([int(where[end - 1]) for end in ends], estimates, len(sizes))
    return found


def _cut(images: int, pieces: int) -> list[int]:
    """Nearly equal sizes, at most so many and none of them zero, that add up to a number of images."""
    pieces = min(pieces, images)
    ends = [images * piece // pieces for piece in range(pieces + 1)]
    return [high - low for low, high in pairwise(ends)]


def _sums(where: Tensor, values: Tensor, bins: int) -> Tensor:
    return torch.zeros(bins, dtype=torch.float64).index_add(0, where, values.double())


def _estimates(
    where: Sequence[int], estimates: Sequence[EstimatedAccuracy | None], bins: int
) -> list[float | None]:
    inside: dict[int, list[float]] = {}
    for place, estimate in zip(where, estimates, strict=True):
        if estimate is not None:
            inside.setdefault(place, []).append(estimate["value"])
    found: list[float | None] = []
    for place in range(bins):
        last = found[-1] if found else None
        found.append(round(sum(inside[place]) / len(inside[place]), 4) if place in inside else last)
    return found


def stream_estimate(
    answers: Sequence[Tensor], labels: Tensor, estimates: Sequence[EstimatedAccuracy | None]
) -> StreamEstimate | None:
    """The means of the estimates after each batch, and the share of the intervals that were right.

    Args:
        answers: the logits of each batch.
        labels: of the whole stream; images of no class (-1) count neither as right nor as wrong.
        estimates: of the accuracy, after each batch.

    Returns:
        None where no batch has an estimate.
    """
    counted = labels >= 0
    hits = (torch.cat(list(answers)).argmax(1) == labels)[counted].double()
    total = torch.cat([hits.new_zeros(1), hits.cumsum(0)])
    ends = counted.cumsum(0)[torch.tensor([len(batch) for batch in answers]).cumsum(0) - 1]
    starts = (ends - RECENT_IMAGES).clamp(min=0)
    recent = (total[ends] - total[starts]) / (ends - starts)
    known = [(e, r) for e, r in zip(estimates, recent.tolist(), strict=True) if e is not None and r == r]
    if not known:
        return None
    return StreamEstimate(
        value=sum(e["value"] for e, _ in known) / len(known),
        low=sum(e["low"] for e, _ in known) / len(known),
        high=sum(e["high"] for e, _ in known) / len(known),
        covered=sum(e["low"] <= r <= e["high"] for e, r in known) / len(known),
        off=sum(abs(e["value"] - r) for e, r in known) / len(known),
    )
