"""Made-up shifts of tables, which change each column by what it holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from equipoise.errors import OptionError
from equipoise.rehearsal.image_shifts import ShiftFunction

ColumnKind: TypeAlias = Literal["continuous", "flag", "constant", "code"]
"""The contents of a column: numbers, two values, one value, or codes of categories."""

COLUMN_KINDS: tuple[ColumnKind, ...] = get_args(ColumnKind)

_AT_ONCE = 4096  # rows that are checked at once
_MOST_ROWS = 2000  # rows to draw values from


@dataclass(frozen=True, eq=False)
class TableColumns:
    """The columns of a table, the last dimension of (N, F) or (N, …, F) inputs; all on the CPU.

    Attributes:
        kinds: what each of the F columns holds.
        mean: mean values, (F,).
        spread: standard deviations, (F,); for a column of one value the median of those of the others.
        whole: whether all values are whole numbers, (F,).
        rows: some rows of the table, (M, F).
        usual: the most common value of each flag and code, (F,).
        values: the different values of each flag and code, (K, F), filled up with zeros.
        counts: the number of different values, (F,).
        steps: whether there are dimensions between samples and columns, such as time.
    """

    kinds: tuple[ColumnKind, ...]
    mean: Tensor
    spread: Tensor
    whole: Tensor
    rows: Tensor
    usual: Tensor
    values: Tensor
    counts: Tensor
    steps: bool

    def __len__(self) -> int:
        return len(self.kinds)

    def are(self, *kinds: ColumnKind) -> Tensor:
        """Whether each column is of one of these kinds, (F,)."""
        return torch.tensor([kind in kinds for kind in self.kinds])

    @property
    def changing(self) -> Tensor:
        """Whether a column has more than one value, (F,)."""
        return self.are("continuous") | (self.are("flag", "code") & (self.counts > 1))


def columns_of(inputs: Tensor, given: Mapping[int, ColumnKind], name: str = "") -> TableColumns:
    """Measure the columns of a table; those whose kind is not given are guessed.

    A column of an integer tensor is a code. Of floats, a column with one value is constant, one with two
    values is a flag, all others are continuous.

    Args:
        inputs: (N, F) or (N, …, F).
        given: kinds of columns, by index.
        name: of the table in errors, if there are several.
    """
    table = inputs.detach().cpu().reshape(-1, inputs.shape[-1])
    low, high = table.amin(0), table.amax(0)
    parts = table.split(_AT_ONCE)  # all at once would be copies of everything
    two, whole = [], []
    for part in parts:
        two.append(((part == low) | (part == high)).all(0))
        whole.append((part == part.round()).all(0) if part.is_floating_point() else torch.ones_like(low) > 0)
    few = torch.stack(two).all(0)
    one = low == high
    kinds = tuple(
        _kind_of(column, given.get(column), *facts, table.dtype, name)
        for column, facts in enumerate(zip(one.tolist(), few.tolist(), strict=True))
    )
    mean = torch.stack([part.double().sum(0) for part in parts]).sum(0) / len(table)
    squares = torch.stack([(part.double() - mean).square().sum(0) for part in parts]).sum(0)
    spread = (squares / len(table)).sqrt()
    typical = spread[~one].median() if not bool(one.all()) else torch.ones((), dtype=torch.double)
    discrete = [column for column, kind in enumerate(kinds) if kind in ("flag", "code")]
    usual, counts = low.clone(), torch.ones(len(kinds), dtype=torch.long)
    different = [low[column : column + 1] for column in range(len(kinds))]
    for column in discrete:
        each, times = table[:, column].unique(return_counts=True)
        usual[column], counts[column], different[column] = each[times.argmax()], len(each), each
    return TableColumns(
        kinds=kinds,
        mean=mean,
        spread=torch.where(one, typical, spread),
        whole=torch.stack(whole).all(0),
        rows=table[:: max(1, len(table) // _MOST_ROWS)],
        usual=usual,
        values=pad_sequence(different),
        counts=counts,
        steps=inputs.ndim > 2,
    )


def _kind_of(
    column: int, given: ColumnKind | None, one: bool, few: bool, dtype: torch.dtype, name: str
) -> ColumnKind:
    """The kind of a column with one value or few, two at most, as given or guessed; OptionError if wrong."""
    where = f"column {column} of {name!r}" if name else f"column {column}"
    if (given == "constant" and not one) or (given == "flag" and not few):
        most = "one value" if given == "constant" else "at most two values"
        raise OptionError(f'columns=: expected {most} in {where}, which is to be "{given}", got more')
    if given in ("continuous", "constant") and dtype == torch.bool:
        raise OptionError(f'columns=: expected "flag" or "code" for {where}, which is boolean, got "{given}"')
    if given is not None:
        return given
    if not dtype.is_floating_point:
        return "code"
    return "constant" if one else "flag" if few else "continuous"


FEWEST_PERMUTED = 8
"""The continuous columns below which none of them change places."""

_Change: TypeAlias = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""Changes (…, F) values in units of their spread, with F normal numbers that were drawn for the columns."""


@dataclass(frozen=True)
class _Shift:
    """The effect of a shift on each kind of column.

    Attributes:
        change: what it does to continuous columns.
        redrawn: the share of entries of flags and codes that come from other rows.
        one_value: the share of rows that get one value of a flag or code, the same in the whole stream.
        constants: the strength of offsets of constant columns.
        share: of the columns that it changes, but for constant ones; at least one of them.
    """

    change: _Change
    redrawn: float = 0.0
    one_value: float = 0.0
    constants: float = 0.0
    share: float = 1.0

    def __call__(self, x: Tensor, generator: torch.Generator, *, columns: TableColumns) -> Tensor:
        """Change each column by its kind; numbers for columns are drawn before numbers for rows."""
        normal, uniform = torch.randn(len(columns), generator=generator), _uniform(columns, generator)
        chosen = _chosen(columns, self.share, generator)
        changed = _continuous(x, columns, chosen, lambda z: self.change(z, normal.to(z), generator))
        constant = columns.are("constant")
        if self.constants and bool(constant.any()):
            offsets = (self.constants * columns.spread * normal).to(_exact(x)).to(x.device)
            changed = torch.where(constant.to(x.device), _plus(changed, offsets.expand(x.shape)), changed)
        places = (chosen & columns.are("flag", "code")).nonzero().flatten()
        if len(places) and (self.redrawn or self.one_value):
            part = changed[..., places.to(x.device)]
            if self.redrawn:
                part = _redrawn(part, columns.rows[:, places], self.redrawn, generator)
            if self.one_value:
                counts = columns.counts[places]
                value = columns.values[(uniform[places] * counts).long().minimum(counts - 1), places]
                rows = (len(part), *(1 for _ in part.shape[1:-1]), len(places))
                part = torch.where(_drawn(generator, rows, x) < self.one_value, value.to(part), part)
            changed = changed.index_copy(-1, places.to(x.device), part)
        return changed


def column_shifts(columns: TableColumns) -> dict[str, ShiftFunction]:
    """Changes of a table, (N, F) or (N, …, F), in all columns or, as drift often is, in a share of them.

    Continuous columns get noise, offsets and factors in units of their spread, are set to their mean, or
    change places; whole numbers stay whole. Flags and codes keep to their own values: noise and dropping
    redraw a share of their entries, moving, scaling and stretching set a share of the rows to one value.
    Constant columns get offsets where all columns move, and alone. The first few shifts are a fair choice of
    all. What is drawn for a column is the same for batches of any size.
    """
    left_out = _left_out(columns)
    made: dict[str, ShiftFunction] = {
        name: partial(shift, columns=columns) for name, shift in _SHIFTS.items() if name not in left_out
    }
    return made | ({"reverse": _reverse, "permute steps": _permute_steps} if columns.steps else {})


def _left_out(columns: TableColumns) -> set[str]:
    """The shifts that change nothing in such columns, or the same as another."""
    changing, continuous = int(columns.changing.sum()), int(columns.are("continuous").sum())
    names: set[str] = set()
    if changing < 2:
        names |= {
            name for name, shift in _SHIFTS.items() if isinstance(shift, _Shift) and 0 < shift.share < 1
        }
        names |= {"freeze .1", "drop columns .1"}
    if _count(0.3, changing) == _count(0.1, changing):
        names |= {"freeze .3", "drop columns .3"}
    if continuous < FEWEST_PERMUTED:
        names |= {"permute .1", "permute .3"}
    if continuous == 0:
        names |= {"saturate", "round"}
    if not columns.are("constant").any():
        names.add("move constants")
    return names


# ---------------------------------------------------------------------- all kinds of columns


def _freeze(x: Tensor, generator: torch.Generator, *, columns: TableColumns, share: float) -> Tensor:
    """Hold a share of the columns at one of their values, as sensors that are stuck."""
    rows = (_uniform(columns, generator) * len(columns.rows)).long().clamp(max=len(columns.rows) - 1)
    value = columns.rows.gather(0, rows.unsqueeze(0)).squeeze(0)
    return torch.where(_chosen(columns, share, generator).to(x.device), value.to(x), x)


def _drop_columns(x: Tensor, generator: torch.Generator, *, columns: TableColumns, share: float) -> Tensor:
    """Set a share of the columns to their mean, flags and codes to their most common value."""
    chosen = _chosen(columns, share, generator)
    changed = _continuous(x, columns, chosen, torch.zeros_like)
    return torch.where((chosen & columns.are("flag", "code")).to(x.device), columns.usual.to(x), changed)


def _reverse(x: Tensor, _: torch.Generator) -> Tensor:
    return x.flip(1)


def _permute_steps(x: Tensor, generator: torch.Generator) -> Tensor:
    return x[:, torch.randperm(x.shape[1], generator=generator).to(x.device)]


def _chosen(columns: TableColumns, share: float, generator: torch.Generator) -> Tensor:
    """Whether a column is of the share of those with more than one value that change, (F,)."""
    order = torch.randperm(len(columns), generator=generator)
    changing = order[columns.changing[order]]
    found = torch.zeros(len(columns), dtype=torch.bool)
    found[changing[: _count(share, len(changing))]] = True
    return found


def _count(share: float, columns: int) -> int:
    return max(1, round(share * columns)) if share else 0


def _uniform(columns: TableColumns, generator: torch.Generator) -> Tensor:
    return torch.rand(len(columns), generator=generator)


def _drawn(generator: torch.Generator, shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.rand(shape, generator=generator).to(like.device)


def _redrawn(x: Tensor, rows: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Take a share of the entries from other rows, each column from its own values."""
    other = torch.randint(len(rows), x.shape, generator=generator)
    values = rows.gather(0, other.flatten(0, -2)).reshape(x.shape)
    return torch.where(_drawn(generator, x.shape, x) < share, values.to(x), x)


# ---------------------------------------------------------------------- continuous columns


def _continuous(
    x: Tensor, columns: TableColumns, chosen: Tensor, change: Callable[[Tensor], Tensor]
) -> Tensor:
    """Change the chosen continuous columns in units of their spread; whole numbers stay whole."""
    chosen = chosen & columns.are("continuous")
    if not chosen.any():
        return x
    mean, spread = (each.to(_exact(x)).to(x.device) for each in (columns.mean, columns.spread))
    before = (x.to(_exact(x)) - mean) / spread
    by = spread * (change(before) - before)
    by = torch.where(columns.whole.to(x.device), by.round(), by)
    return torch.where(chosen.to(x.device), _plus(x, by), x)


def _exact(x: Tensor) -> torch.dtype:
    """The type to calculate in; some devices lack doubles."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _plus(x: Tensor, by: Tensor) -> Tensor:
    """The sum in the type of x; of whole numbers exact, and within the limits of their type."""
    if x.is_floating_point():
        return (x.to(by.dtype) + by).to(x.dtype)
    limits = torch.iinfo(x.dtype)
    return (x.long() + by.round().long()).clamp(limits.min, limits.max).to(x.dtype)


def _noise(z: Tensor, _: Tensor, generator: torch.Generator, *, strength: float) -> Tensor:
    return z + strength * torch.randn(z.shape, generator=generator).to(z)


def _drop(z: Tensor, _: Tensor, generator: torch.Generator, *, share: float) -> Tensor:
    """Set a share of the entries to the mean of their column."""
    return torch.where(_drawn(generator, z.shape, z) < share, 0.0, z)


def _scale(z: Tensor, _: Tensor, __: torch.Generator, *, factor: float) -> Tensor:
    return factor * z


def _saturate(z: Tensor, _: Tensor, __: torch.Generator) -> Tensor:
    return z.clamp(-1, 1)


def _round(z: Tensor, _: Tensor, __: torch.Generator) -> Tensor:
    return z.round()


def _move(z: Tensor, normal: Tensor, _: torch.Generator, *, strength: float) -> Tensor:
    """Add an offset of its own to each column."""
    return z + strength * normal


def _stretch(z: Tensor, normal: Tensor, _: torch.Generator, *, strength: float) -> Tensor:
    """Multiply each column by a factor of its own."""
    return z * (strength * normal).exp()


def _unchanged(z: Tensor, _: Tensor, __: torch.Generator) -> Tensor:
    return z


def _permute(x: Tensor, generator: torch.Generator, *, columns: TableColumns, share: float) -> Tensor:
    """Let a share of the continuous columns, at least two of them, change places."""
    places = columns.are("continuous").nonzero().flatten()
    count = max(2, round(share * len(places)))
    some = places[torch.randperm(len(places), generator=generator)[:count]]
    order, chosen = torch.arange(len(columns)), torch.zeros(len(columns), dtype=torch.bool)
    order[some], chosen[some] = some.roll(1), True
    return _continuous(x, columns, chosen, lambda z: z[..., order.to(z.device)])


_SHIFTS: dict[str, _Shift | partial[Tensor]] = {
    "noise .5": _Shift(partial(_noise, strength=0.5), redrawn=0.15),
    "move .5": _Shift(partial(_move, strength=0.5), one_value=0.1, constants=0.5),
    "move 1 in .3": _Shift(partial(_move, strength=1), one_value=0.25, share=0.3),
    "drop .3": _Shift(partial(_drop, share=0.3), redrawn=0.3),
    "scale .5": _Shift(partial(_scale, factor=0.5), one_value=0.2),
    "freeze .1": partial(_freeze, share=0.1),
    "stretch .5": _Shift(partial(_stretch, strength=0.5), one_value=0.15),
    "noise 1": _Shift(partial(_noise, strength=1), redrawn=0.25),
    "move 1": _Shift(partial(_move, strength=1), one_value=0.25, constants=1),
    "drop columns .1": partial(_drop_columns, share=0.1),
    "permute .3": partial(_permute, share=0.3),
    "noise 1 in .3": _Shift(partial(_noise, strength=1), redrawn=0.5, share=0.3),
    "scale 2": _Shift(partial(_scale, factor=2), one_value=0.35),
    "move constants": _Shift(_unchanged, constants=1, share=0),
    "saturate": _Shift(_saturate),
    "freeze .3": partial(_freeze, share=0.3),
    "drop .1": _Shift(partial(_drop, share=0.1), redrawn=0.1),
    "move 2 in .1": _Shift(partial(_move, strength=2), one_value=0.5, share=0.1),
    "stretch 1 in .3": _Shift(partial(_stretch, strength=1), one_value=0.4, share=0.3),
    "noise .25": _Shift(partial(_noise, strength=0.25), redrawn=0.05),
    "round": _Shift(_round),
    "stretch 1": _Shift(partial(_stretch, strength=1), one_value=0.3),
    "permute .1": partial(_permute, share=0.1),
    "noise 2 in .1": _Shift(partial(_noise, strength=2), redrawn=0.8, share=0.1),
    "drop columns .3": partial(_drop_columns, share=0.3),
    "move 2": _Shift(partial(_move, strength=2), one_value=0.5, constants=2),
    "noise 2": _Shift(partial(_noise, strength=2), redrawn=0.45),
    "drop .6": _Shift(partial(_drop, share=0.6), redrawn=0.6),
}
