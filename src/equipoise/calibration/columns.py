"""The columns of tables, by what they hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from equipoise.errors import OptionError

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
