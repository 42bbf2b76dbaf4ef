"""Gauges from sums over samples: without labels, and with them when they come."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.metrics.bins import columns, equal_width_cell, expected_error, sum_table
from equipoise.metrics.functional import sample_negative_log_likelihood
from equipoise.metrics.inputs import check_scores
from equipoise.metrics.intervals import bootstrap_expected_error, normal_interval, wilson_interval
from equipoise.production.monitor.samples import UNKNOWN, Rows

LISTED_CLASSES = 100
"""The number of classes up to which each has a gauge; beyond, only the largest share has."""

_BINS = 15

LEVEL = 0.9
"""The level of all intervals: that of the estimates."""

ROW_LIMIT = 512
"""The most rows that are held: beyond it, every second row of the older half is dropped."""

ROW_COLUMNS = (
    "index",
    "time",
    "samples",
    "accuracy",
    "low",
    "high",
    "inside",
    "source_accuracy",
    "confidence",
    "temperature",
    "entropy",
    "agreement",
)
"""The numbers of a row; the shares of the classes follow them."""

_WHOLE = ("index", "samples")


@dataclass
class Sums:
    """Sums over the samples of a stream; those of two streams add up to those of the joined one.

    Attributes:
        histogram: the number of answers of each class.
        samples: all samples.
        answered: samples with an answer; the others were set aside.
        confidence: Σ max p.
        entropy: Σ entropy, in bits.
        compared: samples that the source model answered as well.
        agreed: those of them where both chose the same class.
        estimated: samples with an estimated accuracy.
        accuracy: Σ of the estimates.
        low: Σ of the lower ends of their intervals.
        high: Σ of the upper ends.
        inside: samples whose estimate is inside of what was rehearsed.
        source_estimated: samples with an estimated accuracy of the source model.
        source_accuracy: Σ of these.
        tempered: samples with a temperature.
        temperature: Σ of these.
    """

    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    samples: int = 0
    answered: int = 0
    confidence: float = 0.0
    entropy: float = 0.0
    compared: int = 0
    agreed: int = 0
    estimated: int = 0
    accuracy: float = 0.0
    low: float = 0.0
    high: float = 0.0
    inside: int = 0
    source_estimated: int = 0
    source_accuracy: float = 0.0
    tempered: int = 0
    temperature: float = 0.0

    def add(self, other: "Sums") -> None:
        """Add the sums of more samples."""
        if not len(self.histogram):
            self.histogram = np.zeros_like(other.histogram)
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def shares(self) -> NDArray[np.float64]:
        """The share of each class among the answers; empty without answers."""
        return self.histogram / self.answered if self.answered else np.zeros(0)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {**asdict(self), "histogram": self.histogram.tolist()}

    @classmethod
    def from_json(cls, numbers: dict[str, Any]) -> "Sums":
        """The inverse of `to_json`."""
        return cls(**{**numbers, "histogram": np.array(numbers["histogram"], np.int64)})


def summed(rows: Rows) -> Sums:
    """The sums over rows."""
    predicted, answered = rows["predicted"], rows["predicted"] != UNKNOWN
    compared = rows["source"] != UNKNOWN
    classes = rows.dtype["logits"].shape[0]
    estimated, source_estimated, tempered = (
        ~np.isnan(rows[name]) for name in ("accuracy", "source_accuracy", "temperature")
    )

    def total(name: str, where: NDArray[Any]) -> float:
        return float(rows[name].sum(where=where, dtype=np.float64))

    return Sums(
        histogram=np.bincount(predicted[answered], minlength=classes),
        samples=len(rows),
        answered=int(answered.sum()),
        confidence=total("confidence", answered),
        entropy=total("entropy", answered),
        compared=int(compared.sum()),
        agreed=int((compared & (rows["source"] == predicted)).sum()),
        estimated=int(estimated.sum()),
        accuracy=total("accuracy", estimated),
        low=total("low", estimated),
        high=total("high", estimated),
        inside=int((rows["inside"] == 1).sum()),
        source_estimated=int(source_estimated.sum()),
        source_accuracy=total("source_accuracy", source_estimated),
        tempered=int(tempered.sum()),
        temperature=total("temperature", tempered),
    )


def gauges_of(sums: Sums) -> dict[str, float]:
    """Gauges by name; one that cannot be computed is left out.

    `calibration_gap` is the mean confidence less the mean estimated accuracy.
    """
    found: dict[str, float] = {"samples": float(sums.samples)}
    if sums.samples:
        found["set_aside"] = 1 - sums.answered / sums.samples
    if sums.answered:
        found["confidence"] = sums.confidence / sums.answered
        found["entropy"] = sums.entropy / sums.answered
        found["top_class_share"] = float(sums.shares.max())
    if sums.compared:
        found["agreement"] = sums.agreed / sums.compared
    if sums.tempered:
        found["temperature"] = sums.temperature / sums.tempered
    if sums.estimated:
        found |= {
            "accuracy": sums.accuracy / sums.estimated,
            "accuracy_low": sums.low / sums.estimated,
            "accuracy_high": sums.high / sums.estimated,
            "accuracy_inside": sums.inside / sums.estimated,
        }
    if sums.source_estimated:
        found["source_accuracy"] = sums.source_accuracy / sums.source_estimated
    if "accuracy" in found and "confidence" in found:
        found["calibration_gap"] = found["confidence"] - found["accuracy"]
    if len(sums.shares) <= LISTED_CLASSES:
        found |= {f"class_share_{index}": float(share) for index, share in enumerate(sums.shares)}
    return found


def total_variation(shares: NDArray[Any], others: NDArray[Any]) -> float:
    """½ Σ_c |p_c − q_c|: the share of answers that would have to change, from 0 to 1.

    Two samples of one distribution are not at 0: with n answers in each over C equally frequent classes,
    about √((C − 1) / (π n)).
    """
    return float(np.abs(shares - others).sum() / 2)


@dataclass(frozen=True)
class Truth:
    """Sums over labelled answers.

    Attributes:
        bins: those of `metrics.bins.sum_table`, (15, 4).
        surprise: the number, Σ and Σ² of −ln p_y, (3,).
        estimate: the number and Σ of the accuracies that were estimated without labels, (2,).
    """

    bins: Tensor
    surprise: Tensor
    estimate: Tensor

    def __add__(self, other: "Truth") -> "Truth":
        return Truth(self.bins + other.bins, self.surprise + other.surprise, self.estimate + other.estimate)

    @property
    def labels(self) -> int:
        """The number of labelled answers."""
        return int(self.surprise[0])


def nothing() -> Truth:
    """The sums without a label."""
    return Truth(*(torch.zeros(shape, dtype=torch.float64) for shape in ((_BINS, 4), (3,), (2,))))


def labelled(rows: Rows) -> Rows:
    """The rows that have an answer and a label."""
    found: Rows = rows[(rows["label"] != UNKNOWN) & (rows["predicted"] != UNKNOWN)]
    return found


def truth_of(rows: Rows) -> Truth:
    """The sums over those rows that have an answer and a label."""
    rows = labelled(rows) if len(rows) else rows
    if not len(rows):
        return nothing()
    target = torch.from_numpy(rows["label"].astype(np.int64))
    scores = check_scores(probs=None, logits=torch.from_numpy(rows["logits"].astype(np.float64)))
    confidence = scores.confidence
    cell = equal_width_cell(confidence, _BINS, scores.rounding)
    surprise = sample_negative_log_likelihood(scores, target)
    estimates = rows["accuracy"][~np.isnan(rows["accuracy"])]
    return Truth(
        sum_table(confidence, scores.correct(target), cell, _BINS),
        torch.stack([torch.ones_like(surprise), surprise, surprise.square()]).sum(1),
        torch.tensor([len(estimates), estimates.sum()], dtype=torch.float64),
    )


def truth_gauges(truth: Truth) -> dict[str, float]:
    """Accuracy, ECE and NLL with 90 % intervals, and the error of the estimates for the same samples.

    Wilson's interval for the accuracy, a bootstrap over the bins for the ECE, a normal one for the mean NLL;
    an interval that is not finite is left out. Nothing but `labels` before the first label.
    """
    found: dict[str, float] = {"labels": float(truth.labels)}
    if not truth.labels:
        return found
    sums, (count, total, squares) = columns(truth.bins), truth.surprise
    right = sums.correct.sum()
    named: dict[str, tuple[Any, tuple[Any, Any]]] = {
        "true_accuracy": (right / count, wilson_interval(count, right, LEVEL)),
        "ece": (expected_error(sums), bootstrap_expected_error(sums, LEVEL)),
        "nll": (total / count, normal_interval(count, total, squares, LEVEL, float("inf"))),
    }
    for name, (value, (low, high)) in named.items():
        numbers = {name: value, f"{name}_low": low, f"{name}_high": high}
        found |= {each: float(number) for each, number in numbers.items() if np.isfinite(float(number))}
    if truth.estimate[0]:
        found["estimate_error"] = float(truth.estimate[1] / truth.estimate[0]) - found["true_accuracy"]
    return found


class History:
    """Rows of numbers, oldest first, each (columns + classes); NaN where there is none."""

    def __init__(self, rows: NDArray[np.float64] | None = None) -> None:
        self._rows: list[NDArray[np.float64]] = [] if rows is None else list(rows)

    def add(self, numbers: dict[str, float], shares: NDArray[np.float64]) -> None:
        """Add a row from the numbers that there are."""
        known = [numbers.get(name, np.nan) for name in ROW_COLUMNS]
        self._rows.append(np.concatenate([known, shares]))
        if len(self._rows) > ROW_LIMIT:
            half = ROW_LIMIT // 2
            self._rows = self._rows[:half:2] + self._rows[half:]

    def since(self, index: int) -> list[dict[str, Any]]:
        """The rows after an index as the page takes them: None where there is no number."""
        return [_row(numbers) for numbers in self._rows if numbers[0] > index]

    def table(self) -> NDArray[np.float64]:
        """All rows as one array, (rows, columns + classes); there must be one."""
        return np.stack(self._rows)


def _row(numbers: NDArray[np.float64]) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: None if np.isnan(value) else float(value)
        for name, value in zip(ROW_COLUMNS, numbers, strict=False)
    }
    row |= {name: int(row[name]) for name in _WHOLE}
    row["inside"] = None if row["inside"] is None else bool(row["inside"])
    shares = numbers[len(ROW_COLUMNS) :]
    row["histogram"] = None if np.isnan(shares).any() else shares.tolist()
    return row
