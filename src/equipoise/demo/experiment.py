"""Leave one domain out, train on the other two, and let every method adapt to the one left out."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.demo.batches import batch_count, shuffled_batches
from equipoise.demo.domains import DOMAIN_NAMES, Domain, leave_one_out
from equipoise.demo.progress import Stages
from equipoise.demo.results import DomainScores, MethodResult, Reliability, mean_scores
from equipoise.demo.training import BATCH_SIZE, new_model, train
from equipoise.metrics import (
    accuracy,
    entropy,
    expected_calibration_error,
    negative_log_likelihood,
    reliability_bins,
)

PROTOCOL = "online"
BASELINE = "source"
BASELINE_LABEL = "no adaptation"
STREAM_BATCH_SIZE = 50


@dataclass(frozen=True)
class Size:
    """How much work the demo does."""

    images_per_domain: int
    epochs: int


FULL = Size(images_per_domain=800, epochs=4)
QUICK = Size(images_per_domain=250, epochs=4)


@dataclass(frozen=True)
class Contestant:
    """A method with its options, and what the table calls it."""

    method: str
    label: str
    options: dict[str, str]


def contestants() -> list[Contestant]:
    """Every registered method, the baseline first, and DEC with the median too."""
    others = [name for name in eq.list_methods() if name != BASELINE]
    rows = [Contestant(BASELINE, BASELINE_LABEL, {})]
    for name in others:
        rows.append(Contestant(name, name, {}))
        if name == "dec":
            rows.append(Contestant(name, "dec (median)", {"tempering": "median"}))
    return rows


def run_experiment(domains: list[Domain], size: Size, *, seed: int, stages: Stages) -> list[MethodResult]:
    """Hold out each domain in turn and score every method on it."""
    rows = contestants()
    scores: dict[str, dict[str, DomainScores]] = {row.label: {} for row in rows}
    for domain in domains:
        for label, result in score_held_out(domains, domain.name, rows, size, seed, stages).items():
            scores[label][domain.name] = result
    return [
        MethodResult(
            method=row.method,
            label=row.label,
            options=row.options,
            mean=mean_scores(scores[row.label].values()),
            domains=scores[row.label],
        )
        for row in rows
    ]


def stage_count() -> int:
    """How many stages `run_experiment` reports: training, measuring and each method, for every domain."""
    return len(DOMAIN_NAMES) * (2 + len(contestants()))


def score_held_out(
    domains: list[Domain], held_out: str, rows: list[Contestant], size: Size, seed: int, stages: Stages
) -> dict[str, DomainScores]:
    """Train on the other domains and score every contestant on this one, by label."""
    split = leave_one_out(domains, held_out)
    prefix = f"{held_out} held out:"

    model = new_model(seed)
    steps = size.epochs * batch_count(len(split.images), BATCH_SIZE)
    with stages.stage(f"{prefix} training on {' and '.join(split.sources)}", steps) as after_batch:
        train(model, split.images, split.labels, epochs=size.epochs, seed=seed, after_batch=after_batch)
    with stages.stage(f"{prefix} measuring how certain the model is on its training images"):
        source = eq.SourceStatistics.measure(model, split.images.split(STREAM_BATCH_SIZE), progress=False)

    scores: dict[str, DomainScores] = {}
    for row in rows:
        steps = batch_count(len(split.held_out.images), STREAM_BATCH_SIZE)
        with stages.stage(f"{prefix} answering, {row.label}", steps) as after_batch:
            logits, labels = answer_online(model, source, row, split.held_out, seed, after_batch)
        scores[row.label] = score(logits, labels)
    return scores


def answer_online(
    model: nn.Module,
    source: eq.SourceStatistics,
    row: Contestant,
    stream: Domain,
    seed: int,
    after_batch: Callable[[], None],
) -> tuple[Tensor, Tensor]:
    """The logits a method gave while it adapted, and their labels, which it never saw.

    Every method meets the same batches in the same order, and draws from the same random numbers if it needs
    any.
    """
    answers, labels = [], []
    order = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapter = eq.create(row.method, model, source, **row.options)
        for picked in shuffled_batches(len(stream.images), STREAM_BATCH_SIZE, order):
            answers.append(adapter(stream.images[picked]))
            labels.append(stream.labels[picked])
            after_batch()
    return torch.cat(answers), torch.cat(labels)


def score(logits: Tensor, labels: Tensor) -> DomainScores:
    """Judge a stream of answers."""
    bins = reliability_bins(logits=logits, target=labels)
    return DomainScores(
        accuracy=float(accuracy(logits=logits, target=labels)),
        ece=float(expected_calibration_error(logits=logits, target=labels)),
        entropy=float(entropy(logits=logits)),
        nll=float(negative_log_likelihood(logits=logits, target=labels)),
        reliability=Reliability(
            lower=bins.lower.tolist(),
            upper=bins.upper.tolist(),
            count=bins.count.tolist(),
            confidence=_without_nan(bins.confidence),
            accuracy=_without_nan(bins.accuracy),
        ),
    )


def _without_nan(values: Tensor) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
