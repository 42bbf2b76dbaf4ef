"""Probabilities and labels of any framework as tensors, checked once, and back in the kind they came in."""

import sys
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import BatchTypeError, OptionError

TOLERANCE = 0.02
"""By which the sum of a row may miss 1: probabilities are often written with two decimals. The row is divided
by its sum."""

_ROUNDING = 1e-4  # a sum that misses 1 by less is that of the arithmetic of floats


class Given(NamedTuple):
    """The checked probabilities of a chunk.

    Attributes:
        values: of all classes on the CPU, (N, C), in float32 or float64; rows of NaN are among them.
        known: whether each row has numbers, (N); None where all rows have.
        names: those of the columns of a table; None where the probabilities were none. Where `single`, that
            of the second class alone.
        single: whether the probability of the second of two classes alone was given, (N).
    """

    values: Tensor
    known: Tensor | None
    names: tuple[Hashable, ...] | None
    single: bool

    @property
    def usable(self) -> Tensor:
        """The rows that have numbers."""
        return self.values if self.known is None else self.values[self.known]


def answers_of(probabilities: Any) -> Given:
    """The probabilities of arrays, tensors, tables or lists; OptionError where they are none.

    (N, C) of all classes, or (N) of the second of two. A row that is NaN in every class is the answer to a
    sample that could not be judged.
    """
    values, names = _tensor("probabilities", probabilities), _columns(probabilities)
    single = values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)
    if single:
        second = values.reshape(-1)
        values, names = torch.stack([1 - second, second], 1), names
    if values.ndim != 2 or not len(values):
        raise OptionError(
            "expected probabilities (N, C) of all classes, or (N) of the second of two, with at least one "
            f"row; got the shape {tuple(np.shape(probabilities))}"
        )
    values = values if values.dtype == torch.float64 else values.float()
    known = _known(values)
    sums = values.sum(1, keepdim=True)
    if bool(((sums - 1).abs() > _ROUNDING).any()):
        values = values / sums
    return Given(values, known, names, single)


def labels_of(labels: Any, classes: int, names: Sequence[Hashable] | None, rows: int) -> Tensor:
    """The numbers of the classes that labels name, (N) int64; OptionError where one names none.

    Text names the columns of a table of probabilities; so do numbers, where the columns have no text for
    names. All other labels are whole numbers from 0.
    """
    given = np.asarray(labels.to_numpy() if hasattr(labels, "to_numpy") else _on_cpu(labels))
    if given.shape != (rows,):
        raise OptionError(f"expected {rows} labels, one for each row, got the shape {given.shape}")
    own = given.tolist()
    text = any(isinstance(each, str) for each in own)
    named = names is not None and (text or not any(isinstance(name, str) for name in names))
    known = tuple(names) if named and names is not None else tuple(range(classes))
    places = {name: place for place, name in enumerate(known)}
    found = [places.get(each, -1) for each in own]
    if -1 in found:
        row = found.index(-1)
        whole = "" if named else ", or the names of the columns where the probabilities are a table"
        shown = f"{known[0]!r} to {known[-1]!r}" if len(known) > 20 else ", ".join(map(repr, known))
        raise OptionError(f"expected labels among {shown}{whole}; got {own[row]!r} in row {row}")
    return torch.tensor(found, dtype=torch.int64)


def in_kind(values: Tensor, like: Any) -> Any:
    """Values (N, …) in the kind of what was given: a table, a series, a tensor, a list, else an array."""
    pandas = sys.modules.get("pandas")  # where a table was given, it is loaded
    if isinstance(like, Tensor):
        return values.to(like.device)
    array = values.numpy()
    if pandas is not None and isinstance(like, pandas.DataFrame) and values.ndim == 2:
        columns = like.columns if values.shape[1] == like.shape[1] else None
        return pandas.DataFrame(array, index=like.index, columns=columns)
    if pandas is not None and isinstance(like, (pandas.DataFrame, pandas.Series)) and values.ndim == 1:
        return pandas.Series(array, index=like.index)
    return array.tolist() if isinstance(like, list) else array


def _known(values: Tensor) -> Tensor | None:
    """Which rows have numbers, (N); None where all have. OptionError for rows that are no probabilities."""
    sums = values.sum(1)
    missing = sums.isnan()
    some = bool(missing.any())
    if some and (spoiled := int((~values[missing].isnan().all(1)).sum())):
        raise OptionError(f"expected rows of numbers or of NaN alone, got NaN among others in {spoiled}")
    if some and bool(missing.all()):
        raise OptionError(f"expected at least one row of numbers, got NaN in all {len(values)} rows")
    off = (sums - 1).abs() > TOLERANCE
    if bool(off.any()) or bool((values < 0).any()):
        wrong = off | (values < 0).any(1)
        raise OptionError(
            f"expected rows of numbers from 0 to 1 with a sum of 1 (within {TOLERANCE:g}), got "
            f"{int(wrong.sum())} others among {len(values)}, {values[wrong][0].tolist()[:4]} first; of "
            "logits give the softmax"
        )
    return ~missing if some else None


def _tensor(name: str, values: Any) -> Tensor:
    """Numbers of any framework as a tensor on the CPU."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        try:
            array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
            array = np.require(array, np.float32 if array.dtype == np.float32 else np.float64, ["C"])
            # Not the caller's memory where it is read-only, which PyTorch warns of.
            tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        except (TypeError, ValueError) as error:
            raise BatchTypeError(
                f"expected {name} as an array, a tensor, a table or a list of numbers, got "
                f"{type(values).__name__}: {error}"
            ) from error
    if not tensor.is_floating_point():
        tensor = tensor.double()
    return tensor


def _on_cpu(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def _columns(values: Any) -> tuple[Hashable, ...] | None:
    """The names of the columns of a table; whole numbers of NumPy as those of Python."""
    columns = getattr(values, "columns", None)
    if columns is None:
        return None
    return tuple(int(name) if isinstance(name, np.integer) else name for name in columns)
