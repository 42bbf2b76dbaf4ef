"""One batch of inputs to a classifier: the arguments of a call, checked, and rows of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import BatchError, BatchTypeError
from equipoise.network.images import images_among, not_one_image
from equipoise.network.nested import leaves, map_leaves


@dataclass(frozen=True)
class Batch:
    """The positional and keyword inputs of one forward, with the number of samples in them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Batch":
        """Check the arguments of a model: tensors by position or keyword, or dicts of them by position."""
        for value in args:
            if not isinstance(value, (Tensor, dict)):
                hint = "; arguments that are no tensors go by keyword" if len(args) > 1 else ""
                raise BatchTypeError(f"expected a batch as a torch.Tensor, got {type(value).__name__}{hint}")
        tensors = cls(args, kwargs, 0).tensors()
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

        BatchError where several inputs can be the images (`images.images_among`).
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
