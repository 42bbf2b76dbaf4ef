"""Held-out samples compared with the model's own answers to them, before anything adapts."""

import math
import warnings
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipoise.errors import RehearsalError, RehearsalWarning, callers_level
from equipoise.functional import at_least_single
from equipoise.network.batch import batches
from equipoise.network.forward import OutputsFunction, are_probabilities, checked_logits, uncompiled
from equipoise.network.modules import device_of
from equipoise.network.normalisation import frozen_statistics
from equipoise.rehearsal.labelled import Labelled
from equipoise.rehearsal.relabelling import better_relabelling
from equipoise.rehearsal.streams import batches_of

ENOUGH_SAMPLES = 1000
"""Samples below which estimates and temperatures of a rehearsal are often far off."""

_FAR_UNDER = 0.5
"""The share of its mean confidence that a model is right in at least; over-fitted networks are at .7."""

_OVERRIDE = "check_held_out=False rehearses all the same"


class CleanAnswers(NamedTuple):
    """The model's answers to samples without any shift.

    Attributes:
        predicted: the class that is answered, (N,).
        confidences: the probability of it, (N,).
        finite: whether the logits are, (N,).
        classes: of the model.
        normalised: whether every output is a row of probabilities.
    """

    predicted: Tensor
    confidences: Tensor
    finite: Tensor
    classes: int
    normalised: bool


def check_answers(
    model: nn.Module, labelled: Labelled, batch_size: int, outputs: OutputsFunction | None
) -> None:
    """Refuse samples whose labels do not fit the model, and a model that returns probabilities.

    Refused, with a RehearsalError, are outputs behind a softmax, and labels under which the model is right no
    more often than by chance (1 / classes, within two standard deviations), in less than half of its mean
    confidence, or clearly more often if they meant other classes. Warned of, with a RehearsalWarning, are
    fewer than 1,000 samples and classes without any.
    """
    given = clean_answers(model, labelled, batch_size, outputs)
    check_known_labels(labelled.labels, given.classes)
    if given.normalised:
        raise RehearsalError(
            "expected a model that returns logits, got rows of probabilities that sum to one: leave the "
            "softmax at its end out, or pass outputs=lambda p: p.clamp(min=1e-12).log(), which makes logits "
            f"of them; {_OVERRIDE}"
        )
    check_labels_fit(given, labelled.labels)
    _warn_of_few(labelled.labels, given.classes)


def clean_answers(
    model: nn.Module, labelled: Labelled, batch_size: int, outputs: OutputsFunction | None
) -> CleanAnswers:
    """The answers of the model in eval mode; the model is left as it was."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    classes, normalised = 0, list[bool]()
    parts = ((part.inputs, part.labels) for part in batches_of(labelled, batch_size))
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad(), frozen_statistics(model), uncompiled(model):
            for batch in batches(parts, model, device_of(model), None, progress=None):
                output = model(*batch.args, **batch.kwargs)
                logits = at_least_single(checked_logits(output, batch.rows, classes or None, outputs))
                classes, finite = logits.shape[1], logits.isfinite().all(1)
                if finite.any():
                    normalised.append(are_probabilities(logits[finite]))
                best = logits.softmax(1).max(1)
                found.append((best.indices.cpu(), best.values.cpu(), finite.cpu()))
    finally:
        for module, training in modes:
            module.training = training
    predicted, confidences, good = map(torch.cat, zip(*found, strict=True))
    return CleanAnswers(predicted, confidences, good, classes, bool(normalised) and all(normalised))


def check_known_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels that are no classes of the model."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        cure = "; labels start at 1: subtract 1" if (low, high) == (1, classes) else ""
        raise RehearsalError(
            f"expected labels from 0 to {classes - 1}, the model's classes, got {low} to {high}{cure}"
        )


def check_labels_fit(given: CleanAnswers, labels: Tensor) -> None:
    """Refuse labels that the answers contradict, with the relabelling that fits."""
    predicted, labels = given.predicted[given.finite], labels[given.finite]
    if not len(labels):
        return  # refused later, as answers that are not finite
    accuracy = float((predicted == labels).double().mean())
    confidence = float(given.confidences[given.finite].double().mean())
    chance = 1 / given.classes
    by_chance = accuracy <= chance + 2 * math.sqrt(chance * (1 - chance) / len(labels))
    better = better_relabelling(predicted, labels, given.classes)
    if better is None and not by_chance and accuracy >= _FAR_UNDER * confidence:
        return
    cure = better or (
        "no relabelling fits: are inputs and labels in the same order, the inputs prepared as for training, "
        "and the trained weights loaded?"
    )
    raise RehearsalError(
        f"expected labels that fit the model, got an accuracy of {accuracy:.3f} at a mean confidence of "
        f"{confidence:.3f} (chance is {chance:.3f}): {cure}; {_OVERRIDE}"
    )


def _warn_of_few(labels: Tensor, classes: int) -> None:
    """Warn of few samples, and of classes without any."""
    if len(labels) < ENOUGH_SAMPLES:
        _warn(
            f"{len(labels)} held-out samples are few: with less than 1,000, estimated accuracies and "
            "temperatures may be far off, and their intervals too narrow; take 1,000 to 2,000"
        )
    absent = (labels.bincount(minlength=classes) == 0).nonzero().flatten().tolist()
    if absent:
        _warn(
            f"held-out samples of {len(absent)} of {classes} classes are missing ({_first(absent)}): what "
            "the model answers to these is never rehearsed, and estimates know nothing of it; add samples "
            "of all classes, or raise samples="
        )


def _warn(message: str) -> None:
    warnings.warn(
        f"{message} (no checks: check_held_out=False)", RehearsalWarning, stacklevel=callers_level()
    )


def _first(places: Iterable[int], count: int = 5) -> str:
    shown = list(map(str, places))
    return ", ".join(shown[:count]) + (", …" if len(shown) > count else "")
