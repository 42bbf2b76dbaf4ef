"""Sums over samples, from which the gauges of a window and of a whole stream follow alike."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.production.monitor.samples import UNKNOWN, Rows

LISTED_CLASSES = 100
"""The number of classes up to which each has a gauge; beyond, only the largest share has."""


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
