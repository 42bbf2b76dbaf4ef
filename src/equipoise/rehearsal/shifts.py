"""Made-up shifts of a model's inputs: those of the caller, or built-in ones of images and of tables."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from equipoise.errors import OptionError, RehearsalError, RehearsalWarning, callers_level
from equipoise.network.batch import leaves, map_leaves
from equipoise.options import integer
from equipoise.rehearsal.image_shifts import ShiftFunction, image_shifts, scale_of
from equipoise.rehearsal.labelled import Inputs, tensors_of
from equipoise.rehearsal.table_shifts import COLUMN_KINDS, ColumnKind, TableColumns, column_shifts, columns_of

NO_SHIFT = "none"
"""The name of the shift that changes nothing."""


FEWEST_SHIFTS = 8
"""The shifts below which a regression would learn noise, the one that changes nothing among them."""


Shifts: TypeAlias = Mapping[str, Callable[[Any, torch.Generator], Any]]
"""Names to functions (inputs, generator) → inputs."""

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


_KINDS = {Tensor: "a tensor", tuple: "a tuple of tensors", dict: "a dict of tensors"}


def shifted_inputs(inputs: Inputs, shift: Callable[..., Any], seed: int) -> Inputs:
    """Inputs after a shift, with the same random numbers for each batch, so that a stream is one domain."""
    shapes = [(name, t.shape, t.dtype) for name, t in leaves(inputs).items()]
    changed = shift(inputs, torch.Generator().manual_seed(seed))
    kind = Tensor if isinstance(inputs, Tensor) else type(inputs)
    if not isinstance(changed, kind) or not all(isinstance(t, Tensor) for t in tensors_of(changed)):
        raise RehearsalError(f"expected inputs as they came, {_KINDS[kind]}, got {type(changed).__name__}")
    if [(name, t.shape, t.dtype) for name, t in leaves(changed).items()] != shapes:
        raise RehearsalError(f"expected inputs of the shapes and types {shapes} again, got others")
    first, *others = tensors_of(changed)
    fine = [first.isfinite().all(), *((t < torch.inf).all() for t in others if t.is_floating_point())]
    if not all(bool(flag) for flag in fine):
        raise RehearsalError("expected finite inputs, got some that are NaN or infinite")
    return changed


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Raise errors of a shift, or of the model on it, with the name of the shift."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise  # no fault of the shift or the model: smaller batches may help
    except Exception as error:
        raise RehearsalError(f"the shift {name!r} failed: {type(error).__name__}: {error}") from error


def check_shifts(shifts: int | Shifts | None, columns: ColumnKinds | None) -> None:
    """Refuse shifts that are no functions, or too few, and columns that are of no kind."""
    check_columns(columns)
    if columns is not None and isinstance(shifts, Mapping):
        raise OptionError("expected columns= for the built-in shifts alone, got it with shifts of your own")
    if isinstance(shifts, Mapping):
        if not all(callable(shift) for shift in shifts.values()):
            raise OptionError("expected shifts as names to functions (inputs, generator) -> inputs")
        if len(shifts.keys() - {NO_SHIFT}) < FEWEST_SHIFTS - 1:
            raise OptionError(
                f"expected at least {FEWEST_SHIFTS - 1} shifts, better 16, got "
                f"{len(shifts.keys() - {NO_SHIFT})}: fewer are not enough to estimate accuracy from answers"
            )
    elif shifts is not None:
        integer("shifts", shifts, low=FEWEST_SHIFTS)


def chosen_shifts(
    shifts: int | Shifts | None,
    inputs: Inputs,
    columns: ColumnKinds | None = None,
    caller: str = "rehearse",
) -> Shifts:
    """The shifts to rehearse, the one that changes nothing first; errors name the `caller`."""
    if isinstance(shifts, Mapping):
        found: Shifts = dict(shifts)
    else:
        found = built_in_shifts(inputs, columns, caller)
        if shifts is not None:
            found = dict(list(found.items())[: int(shifts) - 1])
    return {NO_SHIFT: lambda x, _: x, **{name: shift for name, shift in found.items() if name != NO_SHIFT}}
