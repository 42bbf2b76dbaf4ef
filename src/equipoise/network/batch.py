"""One batch of inputs to a classifier: from a call or a loader, checked, and rows of it."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from equipoise.errors import BatchError, BatchTypeError, EquipoiseError, OptionError


def map_leaves(value: Any, function: Callable[[str, Any], Any], name: str = "") -> Any:
    """A value with function(name, leaf) in place of each leaf, in tuples and dicts as there are.

    The name of a leaf is its path, positions and keys: "0", "image" or "0.image".
    """
    if type(value) is tuple:
        return tuple(map_leaves(each, function, _path(name, str(at))) for at, each in enumerate(value))
    if isinstance(value, dict):
        return {key: map_leaves(each, function, _path(name, str(key))) for key, each in value.items()}
    return function(name, value)


def leaves(value: Any) -> dict[str, Any]:
    """The leaves of a value by their names, in order."""
    found: dict[str, Any] = {}
    map_leaves(value, found.__setitem__)
    return found


def _path(name: str, step: str) -> str:
    return f"{name}.{step}" if name else step


def is_array(value: Any) -> bool:
    """Whether a value is a NumPy array, or a table or column of pandas or of a library like it."""
    return isinstance(value, np.ndarray) or callable(getattr(value, "to_numpy", None))


def tensor_cure(value: Any) -> str:
    """The call that makes a tensor of an array or a table; empty for anything else."""
    if isinstance(value, np.ndarray):
        return "; torch.from_numpy(x) makes a tensor of an array (with .float() for a float32 model)"
    if is_array(value):
        return '; torch.as_tensor(x.to_numpy(dtype="float32")) makes a tensor of a table'
    return ""


_CHANNELS = (3, 1)  # of several inputs with four dimensions, those in colour are the images, or else the grey


def images_among(samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs that can be the images: (N, C, H, W), of floats or bytes where there are other inputs.

    Of several, those with three channels, or else with one; more than one are left if that does not decide.
    """
    found = {
        name: value
        for name, value in samples.items()
        if value.ndim == 4 and (len(samples) == 1 or value.is_floating_point() or value.dtype == torch.uint8)
    }
    for channels in _CHANNELS:
        chosen = {name: value for name, value in found.items() if value.shape[1] == channels}
        if len(found) > 1 and chosen:
            return chosen
    return found


def not_one_image(asker: str, samples: Mapping[str, Tensor]) -> BatchError:
    """The error of a batch that has no images to make views of, or several inputs that can be the images."""
    images = images_among(samples)
    shown = ", ".join(f"{name} {tuple(value.shape)}" for name, value in (images or samples).items())
    if images:
        expected = "one input of images (N, C, H, W) to make views of, or one of them with three channels"
        advice = "join these in one tensor, which a module around the model splits, or use"
    else:
        expected, advice = "images (N, C, H, W) to make views of", "without images use"
        shown = shown if len(samples) > 1 else f"inputs of shape {tuple(next(iter(samples.values())).shape)}"
    return BatchError(
        f"{asker}: expected {expected}, got {shown}; {advice} a method that makes no views, such as "
        '"poise", "tent", "bn_ema" or "sotta"'
    )


@dataclass(frozen=True)
class Batch:
    """The positional and keyword inputs of one forward, with the number of samples in them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Batch":
        """Check the arguments of a model: tensors by position or keyword, or dicts of them by position."""
        named = cls(args, kwargs, 0).named()
        for name, value in named.items():
            if not isinstance(value, Tensor) and is_array(value):
                raise BatchTypeError(
                    f"expected {_as_tensor(name)}, got {type(value).__name__}{tensor_cure(value)}"
                )
        for value in args:
            if not isinstance(value, (Tensor, dict)):
                hint = "; arguments that are no tensors go by keyword" if len(args) > 1 else ""
                raise BatchTypeError(f"expected a batch as a torch.Tensor, got {type(value).__name__}{hint}")
        tensors = [value for value in named.values() if isinstance(value, Tensor)]
        if not tensors:
            raise BatchTypeError("expected a batch as a torch.Tensor or tensors by keyword, got none")
        sizes = [tensor.shape[0] for tensor in tensors if tensor.ndim > 0]
        if not sizes:
            raise BatchError("expected a batch with the samples in its first dimension, got a single number")
        # Most inputs have a row a sample; some, like position ids of shape (1, L), are for all samples.
        first = bool(args) and isinstance(args[0], Tensor)
        rows = sizes[0] if first else max(sizes, key=sizes.count)
        if rows == 0:
            raise BatchError(f"expected at least one sample, got an empty batch {tuple(tensors[0].shape)}")
        return cls(args, kwargs, rows)

    def _each(self, function: Callable[[str, Any], Any]) -> "Batch":
        """The same batch with function(name, value) in place of each value."""
        kwargs = {name: function(name, value) for name, value in self.kwargs.items()}
        return Batch(map_leaves(self.args, function), kwargs, self.rows)

    def named(self) -> dict[str, Any]:
        """The values of the call, tensors and others, by position ("0"), keyword, or both ("0.image")."""
        return {**leaves(self.args), **self.kwargs}

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The same batch with a function applied to each tensor."""
        return self._each(lambda _, value: function(value) if isinstance(value, Tensor) else value)

    def change(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The same batch with a function applied to its images, or without any to its first input.

        BatchError where several inputs can be the images (`images_among`).
        """
        samples = self.samples()
        images = images_among(samples)
        if len(images) > 1:
            raise not_one_image("a view", samples)
        changed = next(iter(images or samples))
        return self._each(lambda name, value: function(value) if name == changed else value)

    def _per_sample(self, value: Tensor) -> bool:
        """A tensor with another leading size (position ids of shape (1, L), say) belongs to all samples."""
        return value.ndim > 0 and value.shape[0] == self.rows

    def tensors(self) -> list[Tensor]:
        """The tensors among the inputs, in order."""
        return [value for value in self.named().values() if isinstance(value, Tensor)]

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        return self.map(lambda value: value.to(device, non_blocking=True))

    def learnable(self) -> "Batch":
        """The same batch as tensors that autograd may keep, apart from the caller's graph.

        Those made in inference mode are copied.
        """
        return self.map(lambda value: value.clone() if value.is_inference() else value.detach())

    def finite(self) -> Tensor:
        """For each sample, whether its inputs are finite.

        The first tensor is the input proper; in further ones -inf is allowed, as attention masks use it.
        """
        inputs = [value for value in self.tensors() if self._per_sample(value)]
        found: Tensor | None = None
        for position, value in enumerate(inputs):
            if value.is_floating_point():
                fine = (value.abs() if position == 0 else value) < torch.inf
                rows = fine.reshape(self.rows, -1).all(1)
                found = rows if found is None else found & rows
        return torch.ones(self.rows, dtype=torch.bool, device=inputs[0].device) if found is None else found

    def samples(self) -> dict[str, Tensor]:
        """The tensors that have a row for each sample, by position ("0") or keyword."""
        return {name: v for name, v in self.named().items() if isinstance(v, Tensor) and self._per_sample(v)}

    def with_samples(self, samples: Mapping[str, Tensor]) -> "Batch":
        """The same call with other samples, all that `samples` names; what belongs to all samples stays."""
        other = self._each(lambda name, value: samples.get(name, value))
        return Batch(other.args, other.kwargs, len(next(iter(samples.values()))))

    def first(self) -> "Batch":
        """Its first sample alone."""
        one = self.map(lambda value: value[:1] if self._per_sample(value) else value)
        return Batch(one.args, one.kwargs, 1)

    def with_stand_ins(self, good: Tensor) -> "Batch":
        """The same batch with a copy of the first good sample in the place of each that is not good.

        Without any good one, zeros stand in.
        """
        first, some = good.to(torch.uint8).argmax().reshape(1), good.any()

        def fill(value: Tensor) -> Tensor:
            if not self._per_sample(value):
                return value
            one = value.index_select(0, first)
            mask = good.to(value.device).reshape(-1, *[1] * (value.ndim - 1))
            return torch.where(mask, value, torch.where(some, one, torch.zeros_like(one)))

        return self.map(fill)

    def select(self, keep: Tensor) -> "Batch":
        """The samples for which `keep` is true; the batch itself where that is all of them."""
        if bool(keep.all()):
            return self
        chosen = self.map(lambda value: value[keep.to(value.device)] if self._per_sample(value) else value)
        return Batch(chosen.args, chosen.kwargs, int(keep.sum()))


def _as_tensor(name: str) -> str:
    return "a batch as a torch.Tensor" if name.isdigit() else f"{name!r} as a torch.Tensor"


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
    if kwargs:
        return _taken(
            model, args, without_labels(kwargs), "inputs by keyword have the names of its parameters"
        )
    return Batch.of(args, kwargs)


@contextmanager
def unnamed_keywords_told(model: nn.Module, batch: Batch) -> Iterator[None]:
    """Name the keywords of a batch where a forward has a parameter for none of them, takes them and fails.

    A forward with `**kwargs` takes any keyword, a misspelt one as well, and misses the input that it reads.
    One without named parameters may fail for other reasons: there a failed look-up alone is told.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        parameters = inspect.signature(model.forward).parameters
        named = {name for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD}
        if (
            isinstance(error, EquipoiseError)
            or batch.args
            or named & batch.kwargs.keys()
            or not (named or isinstance(error, LookupError))
        ):
            raise
        got = ", ".join(batch.kwargs)
        raise BatchTypeError(
            f"expected inputs that the model takes, ({', '.join(parameters)}), got the keywords {got}; "
            f"it has no parameter {got} and failed with {type(error).__name__}: {error}"
        ) from error


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
    if isinstance(loader, (Tensor, Mapping)) or is_array(loader) or not isinstance(loader, Iterable):
        cure = tensor_cure(loader) or " (put a data set into a DataLoader)"
        raise BatchTypeError(f"expected an iterable of batches, got {type(loader).__name__}{cure}")
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
