"""What a decision is about: logits, the batch that was answered last, or inputs that are to be answered."""

import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.calibration.sets import SCORES
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import BatchError, OptionError, SourceError
from equipoise.network.batch import leaves
from equipoise.network.forward import are_probabilities, logits_of
from equipoise.options import integer, number, one_of

COVERAGES_ASKED = (0.5, 0.99)
"""The least and the largest coverage that sets can be asked for."""

ACCURACIES_ASKED = (0.5, 0.999)
"""The least and the largest accuracy that decisions can be asked for."""

_PLAIN = (bool, int, float, str, type(None))


def needs_rehearsal(call: str, method: str) -> SourceError:
    """The error of a call of an adapter of some method that is not rehearsed."""
    return SourceError(
        f"adapter.{call} needs a rehearsal, which knows how often answers are right: equipoise.wrap(model, "
        f"held_out, method={method!r}) makes a rehearsed adapter, and so does create({method!r}, model, "
        'source, tempering="rehearsed") with the source of equipoise.rehearse'
    )


def checked_score(score: str) -> str:
    """A score of classes; OptionError for an unknown one."""
    return one_of("score", score, SCORES)


def checked_coverage(coverage: float) -> float:
    """A coverage that sets can be asked for; OptionError for another."""
    return number("coverage", coverage, low=COVERAGES_ASKED[0], high=COVERAGES_ASKED[1])


def checked_accuracy(accuracy: float) -> float:
    """An accuracy that decisions can be asked for; OptionError for another."""
    return number("accuracy", accuracy, low=ACCURACIES_ASKED[0], high=ACCURACIES_ASKED[1])


def checked_ids(ids: Iterable[int] | Tensor) -> list[int]:
    """The numbers of samples; OptionError unless they are whole."""
    own = ids.tolist() if isinstance(ids, Tensor) else ids
    if isinstance(own, str) or not isinstance(own, Iterable):
        raise OptionError(f"expected ids as whole numbers, one for each label, got {ids!r}")
    return [integer("ids", each, low=-math.inf) for each in own]


def checked_answers(name: str, logits: Any, classes: int) -> Tensor:
    """Logits (N, classes) that take part in no gradient; BatchError for anything else."""
    if (
        not isinstance(logits, Tensor)
        or logits.ndim != 2
        or logits.shape[1] != classes
        or not logits.is_floating_point()
    ):
        came = (
            f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        )
        raise BatchError(f"expected {name} (N, {classes}) as this adapter gives them, got {came}")
    return logits.detach()


def _no_probabilities(logits: Tensor, last: "LastBatch | None") -> Tensor:
    """The same logits, the last answer or others; BatchError for rows of probabilities in their place."""
    # Both are so as a rule: a device is not waited for, or once.
    if (last is not None and last.gave(logits)) or bool(((logits < 0) & (logits > -torch.inf)).any()):
        return logits
    finite = logits[logits.isfinite().all(1)]
    if len(finite) and are_probabilities(finite):
        raise BatchError("expected logits, got rows of probabilities that sum to one: their .log() does")
    return logits


class LastBatch(NamedTuple):
    """The last batch and its answer; of its tensors only references that keep nothing alive.

    A pickle has None in its place, as the tensors of another process are others.

    Attributes:
        tensors: those of the batch.
        facts: of each leaf of the arguments its path and its type; of a tensor how often it had been written
            to, of others the value.
        logits: the answer, (N, C).
    """

    tensors: tuple["weakref.ReferenceType[Tensor]", ...]
    facts: tuple[tuple[str, type, object], ...]
    logits: Tensor

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any], logits: Tensor) -> "LastBatch | None":
        """The batch of some arguments; None for one that could not be told from another.

        Tensors of inference mode do not say whether they were written to, nor do arrays.
        """
        facts, tensors = _facts(args, kwargs), _tensors(args, kwargs)
        if facts is None or not tensors:
            return None
        return cls(tuple(map(weakref.ref, tensors)), facts, logits.detach())

    def gave(self, logits: Tensor) -> bool:
        """Whether logits are the answer itself, the same memory."""
        return logits.data_ptr() == self.logits.data_ptr() and logits.shape == self.logits.shape

    def is_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether arguments are the same tensors, unchanged since, in the same places, with equal others."""
        if self.facts != _facts(args, kwargs):
            return False
        own = _tensors(args, kwargs)
        return all(ref() is each for ref, each in zip(self.tensors, own, strict=True))

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def __deepcopy__(self, memo: dict[int, Any]) -> "LastBatch":
        return self._replace(logits=self.logits.clone())


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors of the arguments of a model, labels and all."""
    return [each for each in leaves((args, kwargs)).values() if isinstance(each, Tensor)]


def _facts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[str, type, object], ...] | None:
    """What tells the arguments of a model from others (`LastBatch.facts`); None where something cannot."""
    found: list[tuple[str, type, object]] = []
    for path, leaf in leaves((args, kwargs)).items():
        if isinstance(leaf, Tensor) and not leaf.is_inference():
            found.append((path, type(leaf), leaf._version))
        elif isinstance(leaf, _PLAIN):
            found.append((path, type(leaf), leaf))
        elif isinstance(leaf, list) and all(isinstance(each, _PLAIN) for each in leaf):
            found.append((path, list, tuple(leaf)))  # of file names, say
        else:
            return None
    return tuple(found)


def logits_given(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    logits: Tensor | None,
    *,
    classes: int,
    source: SourceStatistics | None,
    last: LastBatch | None,
    answer: Callable[..., Any],
) -> Tensor:
    """The logits (N, classes) to decide about, which take part in no gradient.

    Those given by name; one argument that is logits, or has them; those of the last batch, if it is given
    again, unchanged; or the answer to inputs.

    Args:
        args: logits, or inputs by position.
        kwargs: inputs by keyword.
        logits: given by name.
        classes: their number.
        source: knows the shape of inputs, where they are one tensor.
        last: the batch that was answered last.
        answer: answers inputs.
    """
    if logits is not None:
        if args or kwargs:
            raise BatchError("expected logits= or inputs to answer, got both")
        return _no_probabilities(checked_answers("logits", logits, classes), last)
    if len(args) == 1 and not kwargs and _is_logits(args[0], classes, source):
        return _no_probabilities(checked_answers("logits", logits_of(args[0]), classes), last)
    if last is not None and last.is_of(args, kwargs):
        return last.logits
    return logits_of(answer(*args, **kwargs)).detach()


def _is_logits(value: Any, classes: int, source: SourceStatistics | None) -> bool:
    """Whether the one argument has logits; OptionError where it could be inputs as well."""
    if not isinstance(value, Tensor):
        return isinstance(getattr(value, "logits", None), Tensor)
    if value.ndim != 2 or value.shape[1] != classes or not value.is_floating_point():
        return False
    shape = source.inputs.get("shape") if source else None
    if shape is not None and tuple(shape.tolist()) == (classes,):
        raise OptionError(
            f"expected logits by name, as inputs of this model have their shape {tuple(value.shape)}: "
            "adapter.sets(logits=adapter(x)), adapter.decide(logits=adapter(x))"
        )
    return True
