"""Labelled samples in whatever form they come, as batches (inputs, labels)."""

from collections.abc import Iterable, Mapping, Sized
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from equipoise.errors import RehearsalError

_READ_AT_ONCE = 64


def labelled_batches(held_out: Any, samples: int, seed: int) -> Iterable[Any]:
    """Batches of labelled samples: those of a loader, one of a pair (x, y), or some of a data set.

    A data set of known length is read in `samples` places at most, drawn by the seed. Two items are a pair if
    the second is labels and no batch itself: a tensor, an array, or a list of numbers.
    """
    if isinstance(held_out, Dataset) and isinstance(held_out, Sized) and not isinstance(held_out, Iterable):
        order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(seed))
        places = order[:samples].tolist()
        return DataLoader(held_out, batch_size=_READ_AT_ONCE, sampler=places, collate_fn=_collated)
    if is_pair(held_out):
        return [tuple(held_out)]
    unfit = isinstance(held_out, (Tensor, Mapping)) or is_array(held_out)
    if unfit or not isinstance(held_out, Iterable):
        raise RehearsalError(
            "expected a loader of (inputs, labels), a pair (x, y) of tensors or a data set of such items, "
            f"got {type(held_out).__name__}{tensor_cure(held_out)}"
        )
    return held_out


def is_pair(held_out: Any) -> bool:
    """Whether all inputs and all labels came as they are, instead of batch by batch."""
    if not isinstance(held_out, (tuple, list)) or len(held_out) != 2:
        return False
    inputs, labels = held_out
    if isinstance(labels, (tuple, list)):  # a batch (inputs, labels), or one label after the other
        return bool(labels) and all(isinstance(label, (Number, str)) for label in labels)
    if not isinstance(labels, Tensor) and not is_array(labels):
        return False
    shapes = [tuple(getattr(each, "shape", ())) for each in (inputs, labels)]
    return len(shapes[1]) < 2 or shapes[0][1:] != shapes[1][1:]  # else two batches without labels


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


def _collated(items: list[Any]) -> Any:
    """A batch of the items of a data set."""
    try:
        return default_collate(items)
    except (RuntimeError, TypeError) as error:
        raise RehearsalError(
            "expected a data set of (inputs, label) with tensors of one shape, got items that make no batch "
            f"({str(error).splitlines()[0]}): give it a transform to tensors, or pass a DataLoader with a "
            "collate_fn"
        ) from error
