"""The shape of results.json, and the few sums the table and the page take from it."""

import json
from collections.abc import Iterable, Mapping
from typing import Literal, TypedDict

SCHEMA = 1
"""The version of results.json; it changes when a reader of the file would have to."""

Score = Literal["accuracy", "ece", "entropy", "nll"]
SCORES: tuple[Score, ...] = ("accuracy", "ece", "entropy", "nll")
HEADINGS: dict[Score, str] = {
    "accuracy": "accuracy ↑",
    "ece": "ECE ↓",
    "entropy": "entropy (bits)",
    "nll": "NLL ↓",
}
DECIMALS: dict[Score, int] = {"accuracy": 3, "ece": 3, "entropy": 2, "nll": 2}


class Reliability(TypedDict):
    """Answers sorted into bins by confidence; an empty bin has no confidence and no accuracy."""

    lower: list[float]
    upper: list[float]
    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


class Scores(TypedDict):
    """Accuracy and ECE in 0..1, entropy in bits, NLL in nats."""

    accuracy: float
    ece: float
    entropy: float
    nll: float


class DomainScores(Scores):
    """The scores on one held-out domain, with its reliability bins."""

    reliability: Reliability


class MethodResult(TypedDict):
    """One row of the table: a method with its options."""

    method: str
    label: str
    options: dict[str, str]
    mean: Scores
    domains: dict[str, DomainScores]


class Results(TypedDict):
    """Everything the demo measured."""

    schema: int
    equipoise: str
    torch: str
    threads: int
    seed: int
    quick: bool
    protocol: str
    images_per_domain: int
    epochs: int
    seconds: float
    domains: list[str]
    methods: list[MethodResult]


def mean_scores(scores: Iterable[Scores]) -> Scores:
    """The mean of each score, every domain counting the same."""
    rows = list(scores)
    return Scores(
        accuracy=sum(row["accuracy"] for row in rows) / len(rows),
        ece=sum(row["ece"] for row in rows) / len(rows),
        entropy=sum(row["entropy"] for row in rows) / len(rows),
        nll=sum(row["nll"] for row in rows) / len(rows),
    )


def shown(value: float, score: Score) -> str:
    """A score as the table and the page write it."""
    return f"{value:.{DECIMALS[score]}f}"


def best_shown(rows: Iterable[Scores], score: Score) -> str | None:
    """The best of a column as it is written: highest accuracy, lowest ECE and NLL. Entropy has no best.

    Comparing what is written, not the exact values, marks every row that a reader would call a tie.
    """
    if score == "entropy":
        return None
    values = [row[score] for row in rows]
    return shown(max(values) if score == "accuracy" else min(values), score)


def pooled_reliability(parts: Iterable[Reliability]) -> Reliability:
    """Join the bins of several domains, weighing each bin by how many answers fell into it."""
    groups = list(parts)
    counts = [sum(column) for column in zip(*(part["count"] for part in groups), strict=True)]

    def weighted(values: list[list[float | None]]) -> list[float | None]:
        sums = [
            sum(part["count"][position] * (value or 0.0) for part, value in zip(groups, column, strict=True))
            for position, column in enumerate(zip(*values, strict=True))
        ]
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]

    return Reliability(
        lower=groups[0]["lower"],
        upper=groups[0]["upper"],
        count=counts,
        confidence=weighted([part["confidence"] for part in groups]),
        accuracy=weighted([part["accuracy"] for part in groups]),
    )


def mean_confidence(bins: Reliability) -> float:
    """The average confidence of all the answers in the bins."""
    return _weighted_mean(bins["count"], bins["confidence"])


def mean_accuracy(bins: Reliability) -> float:
    """The share of all the answers in the bins that are right."""
    return _weighted_mean(bins["count"], bins["accuracy"])


def _weighted_mean(counts: list[int], values: list[float | None]) -> float:
    return sum(count * (value or 0.0) for count, value in zip(counts, values, strict=True)) / sum(counts)


def to_json(results: Mapping[str, object]) -> str:
    """Results as JSON text; a NaN is an error, since JSON has none."""
    return json.dumps(results, indent=2, allow_nan=False) + "\n"
