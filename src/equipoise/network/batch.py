"""One batch of inputs to a classifier: the arguments of a call, checked, and rows of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from equipoise.errors import BatchError, BatchTypeError, ModelError


@dataclass(frozen=True)
class Batch:
    """The positional and keyword inputs of one forward, with the number of samples in them."""

    args: tuple[Tensor, ...]
    kwargs: dict[str, Any]
    rows: int

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Batch":
        """Check the arguments of a call: one tensor, keyword inputs, or both."""
        if len(args) > 1:
            raise BatchTypeError(
                f"expected one batch of inputs, got {len(args)} positional arguments; "
                "an adapter learns without labels: pass the inputs alone, further inputs by keyword"
            )
        if args and not isinstance(args[0], Tensor):
            hint = "; pass a dict as keywords: adapter(**batch)" if isinstance(args[0], Mapping) else ""
            hint = "; pass the inputs alone" if isinstance(args[0], (tuple, list)) else hint
            raise BatchTypeError(f"expected a batch as a torch.Tensor, got {type(args[0]).__name__}{hint}")
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if not tensors:
            raise BatchTypeError("expected a batch as a torch.Tensor or tensors by keyword, got none")
        sizes = [tensor.shape[0] for tensor in tensors if tensor.ndim > 0]
        if not sizes:
            raise BatchError("expected a batch with the samples in its first dimension, got a single number")
        # Most inputs have a row a sample; some, like position ids of shape (1, L), are for all samples.
        rows = sizes[0] if args else max(sizes, key=sizes.count)
        if rows == 0:
            raise BatchError(f"expected at least one sample, got an empty batch {tuple(tensors[0].shape)}")
        return cls(args, kwargs, rows)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The same batch with a function applied to each tensor."""

        def each(value: Any) -> Any:
            return function(value) if isinstance(value, Tensor) else value

        args = tuple(each(value) for value in self.args)
        return Batch(args, {name: each(value) for name, value in self.kwargs.items()}, self.rows)

    def change(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The same batch with a function applied to its first tensor, the input proper: an augmented view."""
        if self.args:
            return Batch((function(self.args[0]), *self.args[1:]), self.kwargs, self.rows)
        first = next(name for name, value in self.kwargs.items() if isinstance(value, Tensor))
        return Batch((), {**self.kwargs, first: function(self.kwargs[first])}, self.rows)

    def _per_sample(self, value: Tensor) -> bool:
        """A tensor with another leading size (position ids of shape (1, L), say) belongs to all samples."""
        return value.ndim > 0 and value.shape[0] == self.rows

    def tensors(self) -> list[Tensor]:
        """The tensors among the inputs, in order."""
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]

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
        inputs = [
            value
            for value in (*self.args, *self.kwargs.values())
            if isinstance(value, Tensor) and self._per_sample(value)
        ]
        good = torch.ones(self.rows, dtype=torch.bool, device=inputs[0].device)
        for position, value in enumerate(inputs):
            if value.is_floating_point():
                fine = value.isfinite() if position == 0 else value < torch.inf
                good &= fine.reshape(self.rows, -1).all(1)
        return good

    def samples(self) -> dict[str, Tensor]:
        """The tensors that have a row for each sample, by position ("0") or keyword."""
        named = {**{str(place): value for place, value in enumerate(self.args)}, **self.kwargs}
        return {name: v for name, v in named.items() if isinstance(v, Tensor) and self._per_sample(v)}

    def with_samples(self, samples: Mapping[str, Tensor]) -> "Batch":
        """The same call with other samples, all that `samples` names; what belongs to all samples stays."""
        args = tuple(samples.get(str(place), value) for place, value in enumerate(self.args))
        kwargs = {name: samples.get(name, value) for name, value in self.kwargs.items()}
        return Batch(args, kwargs, len(next(iter(samples.values()))))

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


def batches(loader: Iterable[Any], device: torch.device, *, progress: str | None) -> Iterator[Batch]:
    """The batches of a loader on a device, under a progress bar named `progress` if given.

    A tuple or list yields its first element and the rest (labels, say) is ignored; a dict is keyword inputs.
    """
    if isinstance(loader, (Tensor, Mapping)) or not isinstance(loader, Iterable):
        raise BatchTypeError(
            f"expected an iterable of batches, got {type(loader).__name__} (put a data set into a DataLoader)"
        )
    empty = True
    # Even a bar that is off makes a lock between processes, which one that is killed would leave behind.
    for item in loader if progress is None else tqdm(loader, desc=progress, unit="batch"):
        empty = False
        while isinstance(item, (tuple, list)) and item:
            item = item[0]
        args, kwargs = ((), dict(item)) if isinstance(item, Mapping) else ((item,), {})
        yield Batch.of(args, kwargs).to(device)
    if empty:
        raise BatchError("expected at least one batch, got an empty loader (an iterator already used up?)")


def logits_of(output: Any) -> Tensor:
    """The logits in a model's output: a tensor itself, or the `.logits` of an object."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise ModelError(
            f"expected the model to return logits as a tensor or an object with .logits, "
            f"got {type(output).__name__}"
        )
    return logits


def checked_logits(output: Any, rows: int, classes: int | None = None) -> Tensor:
    """The (N, C) logits in a model's output, C ≥ 2 and equal to `classes` where that is known."""
    logits = logits_of(output)
    if logits.ndim != 2 or logits.shape[0] != rows or not logits.is_floating_point():
        raise ModelError(
            f"expected the model to return floating-point logits of shape (N, C) with N = {rows}, "
            f"got {logits.dtype} of shape {tuple(logits.shape)}"
        )
    if logits.shape[1] < 2:
        raise ModelError(
            "expected logits of at least 2 classes, got 1; a binary classifier with one output z is "
            "the two-class classifier with logits (0, z)"
        )
    if classes is not None and logits.shape[1] != classes:
        raise ModelError(f"expected {classes} classes as in the source statistics, got {logits.shape[1]}")
    return logits
