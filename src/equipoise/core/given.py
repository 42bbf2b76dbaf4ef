"""What a decision is about: logits, the batch that was answered last, or inputs that are to be answered."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.errors import BatchError, OptionError, SourceError
from equipoise.network.batch import leaves
from equipoise.network.forward import logits_of


def needs_rehearsal(call: str, method: str) -> SourceError:
    """The error of a call of an adapter of some method that is not rehearsed."""
    return SourceError(
        f"adapter.{call} needs a rehearsal, which knows how often answers are right: equipoise.wrap(model, "
        f"held_out, method={method!r}) makes a rehearsed adapter, and so does create({method!r}, model, "
        'source, tempering="rehearsed") with the source of equipoise.rehearse'
    )


class LastBatch(NamedTuple):
    """The last batch and its answer; of the batch only references that keep nothing alive.

    Attributes:
        inputs: the tensors of the batch.
        versions: how often each had been written to.
        logits: the answer, (N, C).
    """

    inputs: tuple["weakref.ReferenceType[Tensor]", ...]
    versions: tuple[int, ...]
    logits: Tensor

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any], logits: Tensor) -> "LastBatch | None":
        """The batch of some arguments; None for one that could not be told from another.

        Tensors of inference mode do not say whether they were written to.
        """
        own = list(_tensors(args, kwargs))
        if not own or any(each.is_inference() for each in own):
            return None
        refs, versions = tuple(map(weakref.ref, own)), tuple(each._version for each in own)
        return cls(refs, versions, logits.detach())

    def is_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether arguments are the same tensors, unchanged since."""
        own = list(_tensors(args, kwargs))
        if len(own) != len(self.inputs) or any(each.is_inference() for each in own):
            return False
        same = all(ref() is each for ref, each in zip(self.inputs, own, strict=True))
        return same and self.versions == tuple(each._version for each in own)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Tensor]:
    """The tensors of the arguments of a model, labels and all."""
    return (each for each in leaves((args, kwargs)).values() if isinstance(each, Tensor))


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
        own = logits
    elif len(args) == 1 and not kwargs and _is_logits(args[0], classes, source):
        own = logits_of(args[0])
    elif last is not None and last.is_of(args, kwargs):
        own = last.logits
    else:
        own = logits_of(answer(*args, **kwargs))
    if not isinstance(own, Tensor) or own.ndim != 2 or own.shape[1] != classes or not own.is_floating_point():
        came = f"{own.dtype} {tuple(own.shape)}" if isinstance(own, Tensor) else type(own).__name__
        raise BatchError(f"expected logits (N, {classes}) as this adapter gives them, got {came}")
    return own.detach()


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
