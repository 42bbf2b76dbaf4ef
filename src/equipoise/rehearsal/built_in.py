"""The built-in shifts of a model's inputs: images, or tables of floats and codes."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from equipoise.calibration.column_shifts import column_shifts
from equipoise.calibration.columns import COLUMN_KINDS, ColumnKind, TableColumns, columns_of
from equipoise.calibration.shifts import ShiftFunction, image_shifts, scale_of
from equipoise.errors import OptionError, RehearsalWarning, callers_level
from equipoise.network.batch import leaves, map_leaves
from equipoise.rehearsal.labelled import Inputs
from equipoise.rehearsal.streams import Shifts

ColumnKinds: TypeAlias = Sequence[ColumnKind] | Mapping[int | tuple[int | str, int], ColumnKind]
"""Kinds of all columns in order, or of some by index; of several inputs by (position or key, index)."""

_Given: TypeAlias = dict[str, dict[int, ColumnKind]]


def check_columns(columns: Any) -> None:
    """Refuse kinds of columns that are none; OptionError."""
    if columns is None:
        return
    if isinstance(columns, str) or not isinstance(columns, (Mapping, Sequence)):
        raise OptionError(
            f"expected columns as a list of kinds, or as a dict of indices to kinds, got {columns!r}"
        )
    kinds = columns.values() if isinstance(columns, Mapping) else columns
    if wrong := [kind for kind in kinds if kind not in COLUMN_KINDS]:
        raise OptionError(f"expected kinds of columns from {', '.join(COLUMN_KINDS)}, got {wrong[0]!r}")


def built_in_shifts(inputs: Inputs, columns: ColumnKinds | None, caller: str) -> Shifts:
    """The shifts of all images of the inputs or, without an image, of all tables; `caller` is for errors.

    Tables are floats, and integers beside floats or with kinds of columns. A warning names all other inputs.
    """
    entries: dict[str, Tensor] = leaves(inputs)
    images = {name: tensor for name, tensor in entries.items() if _is_image(tensor)}
    if images:
        if columns is not None:
            raise OptionError(f"columns= is for tables, these inputs have an image{_named(images)}")
        found = {name: image_shifts(scale_of(each), each.shape[1]) for name, each in images.items()}
    else:
        found = {name: column_shifts(each) for name, each in _tables(entries, columns).items()}
    if not found:
        got = ", ".join(f"{t.dtype} {tuple(t.shape[1:])}" for t in entries.values())
        raise OptionError(
            f"there are no built-in shifts for these inputs ({got}), only for images and tables of floats "
            'whose values differ; codes of categories need columns=["code", ...]; for tokens and all else '
            f"pass your own, {caller}(..., shifts={{name: lambda inputs, generator: changed, ...}})"
        )
    _warn_of_others(entries, found)
    names = dict.fromkeys(name for shifts in sorted(found.values(), key=len, reverse=True) for name in shifts)
    return {
        name: partial(
            _of_entries,
            shifts={key: shifts[name] for key, shifts in found.items() if name in shifts},
            place=None if images else place,
        )
        for place, name in enumerate(names)
    }


def _is_image(tensor: Tensor) -> bool:
    whole = tensor.ndim == 4 and min(tensor.shape[2:]) >= 8
    return whole and (tensor.is_floating_point() or tensor.dtype == torch.uint8)


def _tables(entries: Mapping[str, Tensor], columns: ColumnKinds | None) -> dict[str, TableColumns]:
    """The columns of the entries that are tables with something to change."""
    shaped = {name: _as_table(tensor) for name, tensor in entries.items()}
    given = _by_entry(shaped, columns)
    found = {
        name: columns_of(table, given.get(name, {}), name)
        for name, table in shaped.items()
        if table.is_floating_point() or name in given
    }
    found = {name: table for name, table in found.items() if bool(table.changing.any())}
    steps = {size for name in found for size in shaped[name].shape[1:-1]}
    for name, table in shaped.items():
        # Integers along the steps of floats are masks or positions, not codes.
        if (
            found
            and name not in found
            and _is_integer(table)
            and table.ndim == 2
            and table.shape[1] not in steps
        ):
            codes = columns_of(table, {}, name)
            if bool(codes.changing.any()):
                found[name] = codes
    return {name: found[name] for name in entries if name in found}


def _as_table(tensor: Tensor) -> Tensor:
    """One value for each sample is a column."""
    return tensor.unsqueeze(1) if tensor.ndim == 1 else tensor


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _by_entry(tables: Mapping[str, Tensor], columns: ColumnKinds | None) -> _Given:
    """The kinds of columns that are given, by the name of the entry and the index; OptionError if wrong."""
    if columns is None:
        return {}
    first, table = next(iter(tables.items()))
    if not isinstance(columns, Mapping):
        if len(tables) > 1:
            raise OptionError(f"{_PAIRS}{_named(tables)}, got a list of kinds")
        if len(columns) != table.shape[-1]:
            raise OptionError(
                f"expected columns with a kind for each of {table.shape[-1]} columns, got {len(columns)}"
            )
        return {first: dict(enumerate(columns))}
    found: _Given = {}
    for key, kind in columns.items():
        name, index = (str(key[0]), key[1]) if isinstance(key, tuple) and len(key) == 2 else (first, key)
        if name not in tables or (len(tables) > 1 and not isinstance(key, tuple)):
            expected = f"{_PAIRS}{_named(tables)}" if len(tables) > 1 else "expected columns by index"
            raise OptionError(f"{expected}, got {key!r}")
        last = tables[name].shape[-1] - 1
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index <= last:
            raise OptionError(f"expected columns from 0 to {last}{_named([name])}, got {index!r}")
        found.setdefault(name, {})[index] = kind
    return found


_PAIRS = "expected columns as a dict of (position or key, index) to kinds, as there are several inputs"


def _named(names: Iterable[str]) -> str:
    """The names of entries in a message; the only input has none."""
    shown = ", ".join(name for name in names if name)
    return f" ({shown})" if shown else ""


def _warn_of_others(entries: Mapping[str, Tensor], found: Mapping[str, Any]) -> None:
    """Warn of entries that no shift changes, unless they are the same in all samples."""
    others = [name for name, t in entries.items() if name not in found and not bool((t == t[:1]).all())]
    if others:
        warnings.warn(
            f"the built-in shifts change{_named(found)} and leave other inputs as they are{_named(others)}; "
            "shifts= of your own can change all, columns= says which integers are codes of categories",
            RehearsalWarning,
            stacklevel=callers_level(),
        )


def _of_entries(
    inputs: Inputs, generator: torch.Generator, *, shifts: Mapping[str, ShiftFunction], place: int | None
) -> Inputs:
    """Change entries: images by the same random numbers, tables each by its own, which differ between shifts.

    What one table draws depends on the number of rows, so the seeds of all are drawn before.
    """
    state = generator.get_state()
    seeds = torch.randint(2**62, (len(shifts),), generator=generator).tolist()
    own = {}
    for name, seed in zip(shifts, seeds, strict=True):
        own[name] = torch.Generator()
        if place is None:
            own[name].set_state(state)
        else:
            own[name].manual_seed(seed + place)

    def changed(name: str, tensor: Tensor) -> Tensor:
        if name not in shifts:
            return tensor
        return shifts[name](_as_table(tensor), own[name]).reshape(tensor.shape)

    found: Inputs = map_leaves(inputs, changed)
    return found
