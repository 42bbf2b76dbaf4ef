"""The arguments of a model, from a call of an adapter or from an item of a loader."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from tqdm import tqdm

from equipoise.errors import BatchError, BatchTypeError, OptionError
from equipoise.network.batch import Batch

InputsFunction: TypeAlias = Callable[[Any], Any]
"""Turns a batch, without its labels, into the model's arguments: a tensor, a tuple of arguments by position,
or a dict of arguments by keyword."""

LABELS = ("labels", "label")
"""The entries of a dict that hold labels, as loaders of Hugging Face's data sets name them."""


def check_functions(**functions: Any) -> None:
    """Raise OptionError for an argument, given by its name, that is neither a function nor None."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise OptionError(f"expected {name} as a function, got {function!r}")


def called_batch(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: InputsFunction | None
) -> Batch:
    """The batch of a call `adapter(*args, **kwargs)`: the model's own arguments, or one that `inputs` takes.

    A dict by position is keyword inputs, without its labels; `inputs` gets it without labels, too.
    """
    if inputs is not None:
        if len(args) != 1 or kwargs:
            raise BatchTypeError(
                f"an adapter with inputs= takes one batch, got {len(args)} positional and {len(kwargs)} "
                "keyword arguments"
            )
        batch = without_labels(args[0]) if isinstance(args[0], Mapping) else args[0]
        return _converted(model, batch, inputs)
    if len(args) == 1 and isinstance(args[0], Mapping):
        kwargs = {**without_labels(args[0]), **kwargs}
        return _taken(model, (), kwargs, _of_dict(kwargs))
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        raise BatchTypeError(
            f"expected a batch as a torch.Tensor, got {type(args[0]).__name__}; pass the inputs alone, "
            "without labels; several inputs as adapter(*batch)"
        )
    if len(args) > 1:
        return _taken(model, args, kwargs, "an adapter learns without labels: pass the inputs alone")
    return Batch.of(args, kwargs)


def loaded_batch(model: nn.Module, item: Any, inputs: InputsFunction | None) -> Batch:
    """The batch of an item of a loader, without its labels."""
    own = without_labels(item)
    if inputs is not None:
        return _converted(model, own, inputs)
    if isinstance(own, Mapping):
        return _taken(model, (), dict(own), _of_dict(own))
    if isinstance(own, (tuple, list)):
        return _taken(model, tuple(own), {}, _OF_TUPLE)
    return _taken(model, (own,), {}, _OF_TUPLE) if own is not item else Batch.of((own,), {})


def without_labels(item: Any) -> Any:
    """The inputs of an item of a loader: the first of a tuple or list, or a dict without labels."""
    if isinstance(item, (tuple, list)) and item:
        return item[0]
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items() if name not in LABELS}
    return item


def batches(
    loader: Iterable[Any],
    model: nn.Module,
    device: torch.device,
    inputs: InputsFunction | None,
    *,
    progress: str | None,
) -> Iterator[Batch]:
    """The batches of a loader on a device, under a progress bar named `progress` if given."""
    if isinstance(loader, (Tensor, Mapping)) or not isinstance(loader, Iterable):
        raise BatchTypeError(
            f"expected an iterable of batches, got {type(loader).__name__} (put a data set into a DataLoader)"
        )
    empty = True
    # Even a bar that is off makes a lock between processes, which one that is killed would leave behind.
    for item in loader if progress is None else tqdm(loader, desc=progress, unit="batch"):
        empty = False
        yield loaded_batch(model, item, inputs).to(device)
    if empty:
        raise BatchError("expected at least one batch, got an empty loader (an iterator already used up?)")


def _converted(model: nn.Module, batch: Any, inputs: InputsFunction) -> Batch:
    """The batch that `inputs` makes."""
    try:
        made = inputs(batch)
    except (AttributeError, LookupError, TypeError) as error:
        raise BatchTypeError(
            f"inputs= failed on {type(batch).__name__}: {type(error).__name__}: {error}"
        ) from error
    args: tuple[Any, ...] = (made,)
    if isinstance(made, Mapping):
        return _taken(model, (), dict(made), "inputs= returns a dict of keywords, or (dict,)")
    if isinstance(made, (tuple, list)):
        args = tuple(dict(each) if isinstance(each, Mapping) else each for each in made)
    return _taken(model, args, {}, "inputs= returns the model's arguments by position")


def _taken(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], cure: str) -> Batch:
    """A batch of arguments that the model's forward takes; BatchTypeError with a cure if it does not."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # of a forward that is not Python's
        return Batch.of(args, kwargs)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        came = f"{len(args)} positional arguments" if args else f"the keywords {', '.join(kwargs)}"
        takes = ", ".join(signature.parameters)
        raise BatchTypeError(
            f"expected inputs that the model takes, ({takes}), got {came} ({error}); {cure}"
        ) from error
    return Batch.of(args, kwargs)


_OF_TUPLE = (
    "a loader yields inputs, or (inputs, labels), or ((first, second), labels) for a model of several inputs"
)


def _of_dict(batch: Mapping[str, Any]) -> str:
    first = next(iter(batch), "")
    return (
        f"say what it takes of a dict: inputs=lambda batch: batch[{first!r}] for one entry, "
        "inputs=lambda batch: (batch,) for the dict itself"
    )
