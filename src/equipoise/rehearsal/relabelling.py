"""Which other meaning of held-out labels fits a model's answers better, and the mistake behind it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

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
