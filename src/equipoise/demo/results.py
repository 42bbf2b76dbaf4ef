"""The shape of results.json, and the few sums the table and the page take from it."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypedDict

from equipoise.bench.schema import RAW, REHEARSED
from equipoise.report.figures.reliability import Bins

SCHEMA = 3
"""The version of results.json; it changes when a reader of the file would have to."""

ENDS: tuple[Literal["low"], Literal["high"]] = ("low", "high")
"""The ends of the interval of an estimate."""

ESTIMATE_HEADINGS = ("held out", "accuracy", "its own estimate", "90 % interval")

Score = Literal["accuracy", "ece", "entropy", "nll"]
CHANGING: tuple[Score, ...] = ("ece", "nll", "entropy")
"""The scores that tempering changes; accuracy stays as it was."""
SCORE_HEADINGS: dict[Score, str] = {
    "accuracy": "accuracy ↑",
    "ece": "ECE ↓",
    "nll": "NLL ↓",
    "entropy": "entropy",
}
_DECIMALS: dict[Score, int] = {"accuracy": 3, "ece": 3, "entropy": 2, "nll": 2}


class DemoScores(TypedDict):
    """Accuracy and ECE in 0..1, entropy in bits, NLL in nats."""

    accuracy: float
    ece: float
    entropy: float
    nll: float


class DomainScores(DemoScores):
    """The scores on one held-out domain, with its reliability bins."""

    reliability: Bins


class MethodResult(TypedDict):
    """What `eq.create(method, model, source, tempering=tempering, **options)` scored.

    `tempering` is "none", "rehearsed", "mean" or "median": what the logits were divided by; rows of one
    method differ in nothing else, since they come from one run with the method's own tempering. `options` are
    those that are not the method's defaults. `name` is what a reader is told for `method`, and `label` is
    that and the tempering, unless it is the method's default.
    """

    method: str
    name: str
    label: str
    tempering: str
    options: dict[str, float]
    mean: DemoScores
    domains: dict[str, DomainScores]


class AccuracyEstimate(TypedDict):
    """An accuracy that a method estimated without labels, with a 90 % interval.

    `inside` is whether the answers were like those of the rehearsal.
    """

    value: float
    low: float
    high: float
    inside: bool


class RehearsalResult(TypedDict):
    """How a method was rehearsed, and what it then estimated on each held-out domain.

    `images` were kept aside from the source images of each held-out domain, and `streams` were made of them.
    """

    method: str
    images: int
    streams: int
    estimates: dict[str, AccuracyEstimate]


class DemoResults(TypedDict):
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
    rehearsal: RehearsalResult


class Pair(NamedTuple):
    """A method before and after its logits are divided: one row of the table."""

    label: str
    raw: MethodResult
    tempered: MethodResult

    def scores(self, domain: str | None = None) -> tuple[DemoScores, DemoScores]:
        """The scores raw and tempered, on one held-out domain or on average."""
        if domain is None:
            return self.raw["mean"], self.tempered["mean"]
        return self.raw["domains"][domain], self.tempered["domains"][domain]


def pairs(results: DemoResults) -> list[Pair]:
    """The rows two by two, called by the method's name; by the tempered one's label where it has several."""
    raw = {row["method"]: row for row in results["methods"] if row["tempering"] == RAW}
    tempered = [row for row in results["methods"] if row["tempering"] != RAW]
    times = Counter(row["method"] for row in tempered)
    return [
        Pair(row["label"] if times[row["method"]] > 1 else row["name"], raw[row["method"]], row)
        for row in tempered
    ]


class EstimateRow(NamedTuple):
    """An estimated accuracy beside the true one, as the table and the page write them."""

    domain: str
    accuracy: str
    estimate: str
    interval: str


def estimate_rows(results: DemoResults) -> list[EstimateRow]:
    """The accuracy that the rehearsed method had on each held-out domain, and its own estimate of it."""
    return [
        EstimateRow(
            domain,
            shown(rehearsed_accuracy(results, domain), "accuracy"),
            shown(estimate["value"], "accuracy"),
            " to ".join(shown(estimate[end], "accuracy") for end in ENDS),
        )
        for domain, estimate in results["rehearsal"]["estimates"].items()
    ]


def rehearsed_accuracy(results: DemoResults, domain: str) -> float:
    """The true accuracy of the rehearsed method on a held-out domain."""
    method = results["rehearsal"]["method"]
    (row,) = [r for r in results["methods"] if r["method"] == method and r["tempering"] == REHEARSED]
    return row["domains"][domain]["accuracy"]


def mean_scores(scores: Iterable[DemoScores]) -> DemoScores:
    """The mean of each score, every domain counting the same."""
    rows = list(scores)
    return DemoScores(
        accuracy=sum(row["accuracy"] for row in rows) / len(rows),
        ece=sum(row["ece"] for row in rows) / len(rows),
        entropy=sum(row["entropy"] for row in rows) / len(rows),
        nll=sum(row["nll"] for row in rows) / len(rows),
    )


def shown(value: float, score: Score) -> str:
    """A score as the table and the page write it."""
    return f"{value:.{_DECIMALS[score]}f}"


def best_shown(rows: Iterable[DemoScores], score: Score) -> str | None:
    """The best of a column as it is written: highest accuracy, lowest ECE and NLL. Entropy has no best.

    Comparing what is written, not the exact values, marks every row that a reader would call a tie.
    """
    if score == "entropy":
        return None
    values = [row[score] for row in rows]
    return shown(max(values) if score == "accuracy" else min(values), score)


def pooled_reliability(parts: Iterable[Bins]) -> Bins:
    """Join the bins of several domains, weighing each bin by how many answers fell into it."""
    groups = list(parts)
    counts = [sum(column) for column in zip(*(part["count"] for part in groups), strict=True)]

    def weighted(values: list[list[float | None]]) -> list[float | None]:
        sums = [
            sum(part["count"][position] * (value or 0.0) for part, value in zip(groups, column, strict=True))
            for position, column in enumerate(zip(*values, strict=True))
        ]
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]

    return Bins(
        lower=groups[0]["lower"],
        upper=groups[0]["upper"],
        count=counts,
        confidence=weighted([part["confidence"] for part in groups]),
        accuracy=weighted([part["accuracy"] for part in groups]),
    )


def mean_confidence(bins: Bins) -> float:
    """The average confidence of all the answers in the bins."""
    return _weighted_mean(bins["count"], bins["confidence"])


def mean_accuracy(bins: Bins) -> float:
    """The share of all the answers in the bins that are right."""
    return _weighted_mean(bins["count"], bins["accuracy"])


def _weighted_mean(counts: list[int], values: list[float | None]) -> float:
    return sum(count * (value or 0.0) for count, value in zip(counts, values, strict=True)) / sum(counts)


def to_json(results: Mapping[str, object]) -> str:
    """Results as JSON text; a NaN is an error, since JSON has none."""
    return json.dumps(results, indent=2, allow_nan=False) + "\n"
