"""The two readings of DEC, each with its loss and rate: the paper's text, and the authors' notebook."""

from typing import Any

from torch import Tensor

from equipoise.errors import OptionError
from equipoise.functional import at_least_single, soft_cross_entropy
from equipoise.options import one_of

# The paper does not state its rate. Its loss carries avg(tau)², which makes steps many times longer than the
# rate says: on PACS EfficientNet-B0 collapses at 1e-3, and against rate 0 the worst of eight models loses .12
# of accuracy in one pass at 1e-6, .013 at 1e-7 (docs/methods.md). The notebook uses 1e-3.
LEARNING_RATES = {"paper": 1e-7, "released": 1e-3}

_EPSILON = 1e-7  # Keras's, inside its binary cross-entropy


def checked_reading(name: str, reading: Any) -> str:
    """A reading of the paper; OptionError for any other, and for the former one that is a method now."""
    if reading == "steady":
        known = ", ".join(LEARNING_RATES)
        raise OptionError(
            f'reading="steady" is the method "poise" now, eq.Poise(model, source); dec has {known}'
        )
    return one_of(name, reading, LEARNING_RATES)


def paper_loss(student: Tensor, teacher: Tensor, tau: Tensor) -> Tensor:
    """avg(tau)² · avg_i CE(softmax(teacher_i / tau_i), softmax(student_i)), as the paper's text has it."""
    targets = (at_least_single(teacher) / tau.unsqueeze(1)).softmax(1)
    return tau.mean() ** 2 * soft_cross_entropy(student, targets).mean()


def released_loss(student: Tensor, teacher: Tensor, t: Tensor) -> Tensor:
    """avg(t)² · avg_i BCE(softmax(student_i), softmax(teacher_i / t_i)): the authors' notebook.

    Keras's binary cross-entropy with the student as y_true and the teacher as y_pred; it is linear in the
    student's probabilities, and sharpens them.
    """
    p = (at_least_single(teacher) / t.unsqueeze(1)).softmax(1).clamp(_EPSILON, 1 - _EPSILON)
    s = at_least_single(student).softmax(1)
    each = -(s * (p + _EPSILON).log() + (1 - s) * (1 - p + _EPSILON).log()).mean(1)
    return t.mean() ** 2 * each.mean()
