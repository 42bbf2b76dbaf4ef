"""Leave one domain out, train on the other two, and let every method adapt to the one left out."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.data.demo import DOMAIN_NAMES, Domain
from equipoise.demo.batches import batch_count, shuffled_batches
from equipoise.demo.contestants import BASELINE, REHEARSED_METHOD, Contestant, DemoTempering, contestants
from equipoise.demo.domains import Pictures, hold_out
from equipoise.demo.progress import Stages
from equipoise.demo.results import (
    AccuracyEstimate,
    DomainScores,
    MethodResult,
    RehearsalResult,
    mean_scores,
)
from equipoise.demo.training import BATCH_SIZE, new_classifier, train
from equipoise.metrics import (
    accuracy,
    entropy,
    expected_calibration_error,
    negative_log_likelihood,
    reliability_bins,
)
from equipoise.report.figures.reliability import Bins

PROTOCOL = "online"
STREAM_BATCH_SIZE = 50
MEASURE_BATCH_SIZE = 64
"""EATA's Fisher diagonal depends on it; this is its authors'."""


@dataclass(frozen=True)
class Size:
    """How much work the demo does; `shifts` are those of the rehearsal, None for all."""

    images_per_domain: int
    epochs: int
    shifts: int | None


FULL_SIZE = Size(images_per_domain=800, epochs=4, shifts=None)
QUICK_SIZE = Size(images_per_domain=250, epochs=4, shifts=12)


class ExperimentResult(NamedTuple):
    """The results of `run_experiment`."""

    methods: list[MethodResult]
    rehearsal: RehearsalResult


class HeldOut(NamedTuple):
    """What was found on one held-out domain.

    Attributes:
        scores: of every method, raw and tempered, by label.
        rehearsal: of poise, on source images.
        estimate: of the accuracy of poise on the held-out domain, by poise itself.
    """

    scores: dict[str, DomainScores]
    rehearsal: eq.Rehearsal
    estimate: AccuracyEstimate


class Answers(NamedTuple):
    """What a method answered to a stream.

    Attributes:
        logits: of each batch, raw.
        temperatures: what the method divided them by.
        estimate: of its own accuracy after the last batch; None without a rehearsal.
    """

    logits: list[Tensor]
    temperatures: list[float]
    estimate: eq.Estimate | None


def run_experiment(domains: list[Domain], size: Size, *, seed: int, stages: Stages) -> ExperimentResult:
    """Hold out each domain in turn and score every method on it, raw and tempered."""
    held_out = {domain.name: score_held_out(domains, domain.name, size, seed, stages) for domain in domains}
    results = []
    for row in contestants():
        for tempering in row.temperings:
            label = row.label(tempering)
            scores = {name: found.scores[label] for name, found in held_out.items()}
            results.append(
                MethodResult(
                    method=row.method,
                    name=row.name,
                    label=label,
                    tempering=tempering,
                    options=row.options,
                    mean=mean_scores(scores.values()),
                    domains=scores,
                )
            )
    rehearsal = next(iter(held_out.values())).rehearsal
    return ExperimentResult(
        results,
        RehearsalResult(
            method=REHEARSED_METHOD,
            images=rehearsal.samples,
            streams=len(rehearsal.runs),
            estimates={name: found.estimate for name, found in held_out.items()},
        ),
    )


def stage_count() -> int:
    """How many stages `run_experiment` reports: four before the methods and each method, for every domain."""
    return len(DOMAIN_NAMES) * (4 + len(contestants()))


def score_held_out(domains: list[Domain], held_out: str, size: Size, seed: int, stages: Stages) -> HeldOut:
    """Train on the other domains, rehearse poise on them, and score every method on this one.

    Every method meets the same batches in the same order. The median of tau comes from the model as trained
    and is the same for all methods; dividing changes nothing that they learn, so one run of each gives its
    raw and its tempered answers.
    """
    split = hold_out(domains, held_out, seed)
    prefix = f"{held_out} held out:"

    model = new_classifier(seed)
    images, labels = split.training.images, split.training.labels
    steps = size.epochs * batch_count(len(images), BATCH_SIZE)
    with stages.stage(f"{prefix} training on {' and '.join(split.sources)}", steps) as after_batch:
        train(model, images, labels, epochs=size.epochs, seed=seed, after_batch=after_batch)
    steps = batch_count(len(images), MEASURE_BATCH_SIZE)
    with stages.stage(f"{prefix} measuring the model on its training images", steps) as after_batch:
        source = measure(model, images, seed, after_batch)
    with stages.stage(f"{prefix} rehearsing {REHEARSED_METHOD} on {len(split.aside)} images kept aside"):
        source = add_rehearsal(model, split.aside, source, size.shifts, seed)

    order = torch.Generator().manual_seed(seed)
    picked = shuffled_batches(len(split.held_out.images), STREAM_BATCH_SIZE, order)
    stream = [split.held_out.images[indices] for indices in picked]
    labels = split.held_out.labels[torch.cat(picked)]
    with stages.stage(f"{prefix} the temperature of each batch", len(stream)) as after_batch:
        medians = answer_online(
            model, source, Contestant(BASELINE), "median", stream, seed, after_batch
        ).temperatures

    scores: dict[str, DomainScores] = {}
    estimates: dict[str, eq.Estimate | None] = {}
    for row in contestants():
        with stages.stage(f"{prefix} answering, {row.name}", len(stream)) as after_batch:
            answers = answer_online(model, source, row, row.own, stream, seed, after_batch)
        estimates[row.method] = answers.estimate
        temperatures = {row.own: answers.temperatures, "none": [1.0] * len(stream), "median": medians}
        for tempering in row.temperings:
            divided = tempered(answers.logits, temperatures[tempering])
            scores[row.label(tempering)] = score_domain(divided, labels)
    return HeldOut(scores, source.rehearsals[REHEARSED_METHOD], noted(estimates[REHEARSED_METHOD]))


def measure(
    model: nn.Module, images: Tensor, seed: int, after_batch: Callable[[], None]
) -> eq.SourceStatistics:
    """The source statistics on training images, in mixed batches as EATA's Fisher diagonal needs them."""

    def loader() -> Iterator[Tensor]:
        for picked in shuffled_batches(len(images), MEASURE_BATCH_SIZE, torch.Generator().manual_seed(seed)):
            yield images[picked]
            after_batch()

    return eq.SourceStatistics.measure(model, loader(), fisher=True, progress=False)


def add_rehearsal(
    model: nn.Module, aside: Pictures, source: eq.SourceStatistics, shifts: int | None, seed: int
) -> eq.SourceStatistics:
    """The source statistics with a rehearsal of poise on images that the model was not trained on."""
    return eq.rehearse(
        model,
        [(aside.images, aside.labels)],
        method=REHEARSED_METHOD,
        shifts=shifts,
        source=source,
        batch_size=STREAM_BATCH_SIZE,
        seed=seed,
        progress=False,
    )


def noted(estimate: eq.Estimate | None) -> AccuracyEstimate:
    """An estimate as results.json has it."""
    if estimate is None:
        raise RuntimeError(f"{REHEARSED_METHOD} was rehearsed and did not estimate its accuracy")
    return AccuracyEstimate(
        value=estimate.value, low=estimate.low, high=estimate.high, inside=estimate.inside
    )


def answer_online(
    model: nn.Module,
    source: eq.SourceStatistics,
    row: Contestant,
    tempering: DemoTempering,
    stream: list[Tensor],
    seed: int,
    after_batch: Callable[[], None],
) -> Answers:
    """What a method answered to each batch while it adapted.

    Every method draws from the same random numbers if it needs any.
    """
    answers, temperatures = [], []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapter = eq.create(row.method, model, source, tempering=tempering, **row.options)
        for images in stream:
            logits = adapter(images)
            divisor = 1.0 if adapter.last is None or tempering == "none" else adapter.last.temperature
            if divisor is None:
                raise RuntimeError("the adapter tempered and did not say by what")
            answers.append(logits * divisor)
            temperatures.append(divisor)
            after_batch()
        return Answers(answers, temperatures, adapter.accuracy)


def tempered(answers: list[Tensor], temperatures: list[float]) -> Tensor:
    """The logits of all batches, each divided by its temperature."""
    return torch.cat([logits / divisor for logits, divisor in zip(answers, temperatures, strict=True)])


def score_domain(logits: Tensor, labels: Tensor) -> DomainScores:
    """The scores and reliability bins of the answers on one domain."""
    bins = reliability_bins(logits=logits, target=labels)
    return DomainScores(
        accuracy=float(accuracy(logits=logits, target=labels)),
        ece=float(expected_calibration_error(logits=logits, target=labels)),
        entropy=float(entropy(logits=logits)),
        nll=float(negative_log_likelihood(logits=logits, target=labels)),
        reliability=Bins(
            lower=bins.lower.tolist(),
            upper=bins.upper.tolist(),
            count=bins.count.tolist(),
            confidence=_without_nan(bins.confidence),
            accuracy=_without_nan(bins.accuracy),
        ),
    )


def _without_nan(values: Tensor) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
