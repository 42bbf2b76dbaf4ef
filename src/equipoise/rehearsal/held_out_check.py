"""Held-out samples compared with the model's own answers to them, before anything adapts."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipoise.errors import ModelError, RehearsalError, RehearsalWarning, callers_level
from equipoise.functional import at_least_single
from equipoise.network.batch import batches
from equipoise.network.forward import (
    PROBABILITIES,
    OutputsFunction,
    are_probabilities,
    checked_logits,
    uncompiled,
)
from equipoise.network.modules import device_of
from equipoise.network.normalisation import evaluation_mode
from equipoise.rehearsal.labelled import Labelled

_LEAST_GAIN = 0.05
"""The share of the samples that a relabelling must gain; a model may confuse a few classes for good."""

_AS_GOOD = 0.02
"""How much worse a known mistake may fit than pairs chosen from the answers, and still be told instead."""

_SHOWN = 6


@dataclass(frozen=True)
class Relabelling:
    """A class for every label.

    Attributes:
        classes: the class of each label, (C,); -1 where none is left.
        accuracy: of the model, if labels meant these classes.
        cause: the mistake and its cure; empty for a relabelling that was found in the answers.
    """

    classes: Tensor
    accuracy: float
    cause: str = ""

    def __str__(self) -> str:
        """The mistake, or the classes of the first labels, and the accuracy."""
        said = self.cause
        if not said:
            moved = [(k, c) for k, c in enumerate(self.classes.tolist()) if c not in (k, -1)]
            shown = ", ".join(f"{label} → {answer}" for label, answer in moved[:_SHOWN])
            said = f"other classes for {len(moved)} labels fit: {shown}{', …' if len(moved) > _SHOWN else ''}"
        return f"{said} (accuracy {self.accuracy:.3f} then)"


def better_relabelling(answers: Tensor, labels: Tensor, classes: int) -> Relabelling | None:
    """The relabelling under which a model is clearly more often right; None where there is none.

    Samples are expected in random order. The known mistakes are tried first. Otherwise labels and classes are
    paired one to one, the most frequent pairs first, and the accuracy is that on the half of the samples that
    the pairs were not chosen from: of a model that is merely wrong, no relabelling is right there. Clearly:
    by 5 % of the samples, and by three standard deviations of the difference.
    """
    right = answers == labels
    found: list[Relabelling] = []
    for cause, meant in known_mistakes(classes).items():
        hits = meant[labels] == answers
        if _gains(hits, right):
            found.append(Relabelling(meant, float(hits.double().mean()), cause))
    known = max(found, key=lambda one: one.accuracy, default=None)
    half = torch.arange(len(labels)) % 2 == 0
    hits = torch.zeros_like(right)
    for part in (half, ~half):
        hits[part] = _paired(answers[~part], labels[~part], classes)[labels[part]] == answers[part]
    share = float(hits.double().mean())
    if not _gains(hits, right) or (known is not None and known.accuracy > share - _AS_GOOD):
        return known
    return Relabelling(_paired(answers, labels, classes), share)


def known_mistakes(classes: int) -> dict[str, Tensor]:
    """Causes of wrong labels, with the class that each label stands for then."""
    if classes == 2:
        return {"the two classes are swapped: take 1 - labels": torch.tensor([1, 0])}
    places = torch.arange(classes)
    mistakes = {
        "labels start at 1: subtract 1": (places - 1) % classes,
        "labels are one too low: add 1": (places + 1) % classes,
    }
    for start in (0, 1):
        names = sorted(map(str, range(start, classes + start)))
        sorted_as_text = torch.tensor([int(name) - start for name in names])
        shown = ", ".join(names[:5])
        mistakes[
            f"labels are places among names sorted as text ({shown}, …), the model's classes are sorted as "
            "numbers: sort the names by int(name)"
        ] = sorted_as_text
        mistakes[
            f"the model's classes are places among names sorted as text ({shown}, …), labels are sorted as "
            "numbers: sort the names as text"
        ] = sorted_as_text.argsort()
    return {cause: meant for cause, meant in mistakes.items() if not torch.equal(meant, places)}


def _gains(hits: Tensor, right: Tensor) -> bool:
    """Whether a relabelling's hits are clearly more than those of the labels as they are."""
    gained, lost = int((hits & ~right).sum()), int((right & ~hits).sum())
    return gained - lost > max(_LEAST_GAIN * len(hits), 3 * math.sqrt(gained + lost))


def _paired(answers: Tensor, labels: Tensor, classes: int) -> Tensor:
    """A class for each label, by the most frequent pairs; others keep theirs, or get -1 where it is taken."""
    keys, counts = (labels * classes + answers).unique(return_counts=True)
    as_labelled = keys // classes == keys % classes
    order = (counts + 0.5 * as_labelled).argsort(descending=True, stable=True)
    meant, taken = dict[int, int](), set[int]()
    for key in keys[order].tolist():
        label, answer = divmod(key, classes)
        if label not in meant and answer not in taken:
            meant[label] = answer
            taken.add(answer)
    rest = {label: -1 if label in taken else label for label in range(classes)}
    return torch.tensor(list({**rest, **meant}.values()))


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

    Refused are, with a ModelError, outputs behind a softmax; with a RehearsalError, labels under which the
    model is right no more often than by chance (1 / classes, within two standard deviations), in less than
    half of its mean confidence, or clearly more often if they meant other classes. Warned of, with a
    RehearsalWarning, are fewer than 1,000 samples and classes without any.
    """
    given = clean_answers(model, labelled, batch_size, outputs)
    check_known_labels(labelled.labels, given.classes)
    if given.normalised:
        raise ModelError(PROBABILITIES)
    for mistake in mistakes(given, labelled.labels):
        raise RehearsalError(f"{mistake}; {_OVERRIDE}")
    for doubt in doubts(labelled.labels, given.classes):
        message = f"{doubt} (no checks: check_held_out=False)"
        warnings.warn(message, RehearsalWarning, stacklevel=callers_level())


def mistakes(given: CleanAnswers, labels: Tensor) -> list[str]:
    """What makes a rehearsal worthless, with the cures, the first to be mended first."""
    found = [PROBABILITIES] if given.normalised else []
    return [*found, *filter(None, [_unknown_labels(labels, given.classes) or _unfit_labels(given, labels)])]


def clean_answers(
    model: nn.Module, labelled: Labelled, batch_size: int, outputs: OutputsFunction | None
) -> CleanAnswers:
    """The answers of the model in eval mode; the model is left as it was."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    classes, normalised = 0, list[bool]()
    parts = ((part.inputs, part.labels) for part in labelled.batches(batch_size))
    with evaluation_mode(model), uncompiled(model):
        for batch in batches(parts, model, device_of(model), None, progress=None):
            output = model(*batch.args, **batch.kwargs)
            logits = checked_logits(output, batch.rows, classes or None, outputs)
            classes, finite = logits.shape[1], logits.isfinite().all(1)
            if finite.any():
                normalised.append(are_probabilities(logits[finite]))
            best = at_least_single(logits).softmax(1).max(1)
            found.append((best.indices.cpu(), best.values.cpu(), finite.cpu()))
    predicted, confidences, good = map(torch.cat, zip(*found, strict=True))
    return CleanAnswers(predicted, confidences, good, classes, bool(normalised) and all(normalised))


def check_known_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels that are no classes of the model."""
    if unknown := _unknown_labels(labels, classes):
        raise RehearsalError(unknown)


def _unknown_labels(labels: Tensor, classes: int) -> str:
    """Why labels are no classes of the model; empty if they are."""
    low, high = int(labels.min()), int(labels.max())
    if low >= 0 and high < classes:
        return ""
    cure = "; labels start at 1: subtract 1" if (low, high) == (1, classes) else ""
    return f"expected labels from 0 to {classes - 1}, the model's classes, got {low} to {high}{cure}"


def _unfit_labels(given: CleanAnswers, labels: Tensor) -> str:
    """How the answers contradict the labels, with the relabelling that fits; empty if they do not."""
    predicted, labels = given.predicted[given.finite], labels[given.finite]
    if not len(labels):
        return ""  # refused later, as answers that are not finite
    accuracy = float((predicted == labels).double().mean())
    confidence = float(given.confidences[given.finite].double().mean())
    chance = 1 / given.classes
    by_chance = accuracy <= chance + 2 * math.sqrt(chance * (1 - chance) / len(labels))
    better = better_relabelling(predicted, labels, given.classes)
    if better is None and not by_chance and accuracy >= _FAR_UNDER * confidence:
        return ""
    cure = better or (
        "no relabelling fits: are inputs and labels in the same order, the inputs prepared as for training, "
        "and the trained weights loaded?"
    )
    return (
        f"expected labels that fit the model, got an accuracy of {accuracy:.3f} at a mean confidence of "
        f"{confidence:.3f} (chance is {chance:.3f}): {cure}"
    )


def doubts(labels: Tensor, classes: int) -> list[str]:
    """What makes a rehearsal doubtful: few samples, and classes without any."""
    found = []
    if len(labels) < ENOUGH_SAMPLES:
        found.append(
            f"{len(labels)} held-out samples are few: with less than 1,000, estimated accuracies and "
            "temperatures may be far off, and their intervals too narrow; take 1,000 to 2,000"
        )
    present = labels[(labels >= 0) & (labels < classes)]
    absent = (present.bincount(minlength=classes) == 0).nonzero().flatten().tolist()
    if absent:
        found.append(
            f"held-out samples of {len(absent)} of {classes} classes are missing ({_first(absent)}): what "
            "the model answers to these is never rehearsed, and estimates know nothing of it; add samples "
            "of all classes, or raise samples="
        )
    return found


def _first(places: Iterable[int], count: int = 5) -> str:
    shown = list(map(str, places))
    return ", ".join(shown[:count]) + (", …" if len(shown) > count else "")
