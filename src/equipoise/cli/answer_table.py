"""Tables of a model's answers in files: a column of probabilities for each class, labels and times.

The columns are named by the user or found: by the beginnings of their names, and by rows that sum to 1. All
errors name the file, what it has, and the option that helps.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from gzip import BadGzipFile
from itertools import takewhile
from pathlib import Path
from string import ascii_letters, digits
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from equipoise.errors import DataError, MissingExtraError
from equipoise.probabilities.rows import TOLERANCE

BEGINNINGS = ("probability_", "proba_", "prob_", "p_", "y_pred_proba_", "y_proba_")
"""Of the names of columns of probabilities, one for each class."""
OF_THE_SECOND_CLASS = ("y_pred_proba", "y_proba", "probability", "proba", "prob")
"""Names of a single column of probabilities."""
TARGETS = ("target", "label", "y_true", "y", "truth")
TIMES = ("time", "timestamp", "date", "datetime")
NO_LABEL = -1
"""The class of a row whose label has not come."""

_SECOND_OF = (("0", "1"), ("False", "True"))
_FIRST_ROWS = 1000
_OTHER_SEPARATORS = (";", "\t", "|")
_ROWS_AT_ONCE = 200_000
_SHOWN = 12  # names in a message
_PARQUET = (".parquet", ".pq")

Probabilities: TypeAlias = NDArray[np.float64]
Classes: TypeAlias = NDArray[np.int64]
Progress: TypeAlias = Callable[[int, int], None]
"""Told the bytes that were read, and all that there are."""


@dataclass(frozen=True)
class AnswerColumns:
    """The columns of a table.

    Attributes:
        probabilities: of every class; or one, of the second of two.
        target: of the labels.
        time: of the times; None where no time is asked for.
    """

    probabilities: tuple[str, ...]
    target: str
    time: str | None


@dataclass(frozen=True)
class AnswerRows:
    """The rows of a file.

    Attributes:
        file: their file.
        probabilities: shape (N, C), rows sum to 1.
        labels: shape (N,), the place of the class, or NO_LABEL.
        times: of the rows, without a time zone (UTC where the file has one); empty where none are asked for.
    """

    file: Path
    probabilities: Probabilities
    labels: Classes
    times: pd.DatetimeIndex

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.labels)

    def take(self, places: NDArray[np.int64]) -> "AnswerRows":
        """The rows at these places, in this order."""
        times = self.times[places] if len(self.times) else self.times
        return AnswerRows(self.file, self.probabilities[places], self.labels[places], times)


def find_columns(
    reference: Path,
    stream: Path,
    probabilities: Sequence[str] = (),
    target: str | None = None,
    time: str | None = None,
    *,
    timed: bool,
) -> AnswerColumns:
    """The columns of two files: those named, and for the others those found in the reference.

    Args:
        reference: a file with labels.
        stream: a file that needs none.
        probabilities: names; one name is of the second class.
        target: the name of the labels.
        time: the name of the times, which only the stream needs.
        timed: whether times are needed at all.
    """
    first, later = _first_rows(reference), _first_rows(stream)
    found = target or _single(first, TARGETS, reference, "labels", "--target NAME")
    _check_there(first, [found, *probabilities], reference)
    names = list(probabilities) or _probability_columns(first, reference, found)
    _check_there(later, names, stream)
    when = None
    if timed or time:
        when = time or _single(later, TIMES, stream, "times", "--time NAME, or --by 1000 for chunks by count")
        _check_there(later, [when], stream)
    return AnswerColumns(tuple(names), found, when)


def read_reference(
    path: Path, columns: AnswerColumns, progress: Progress | None = None
) -> tuple[AnswerRows, tuple[str, ...]]:
    """The rows of the reference, each with a label, and the classes by their labels."""
    frame = _read(path, [*columns.probabilities, columns.target], progress)
    labels = frame[columns.target]
    missing = labels.isna().to_numpy()
    if missing.any():
        raise DataError(
            f"{path}: expected a label in every row, got none in column {columns.target!r} of "
            f"{_rows(missing)} (empty, NA, None and null count as missing): leave such rows out"
        )
    classes = _classes(columns.probabilities, set(map(_text, labels.unique())), path, columns.target)
    return _answers(path, frame, replace(columns, time=None), classes), classes


def read_stream_rows(
    path: Path, columns: AnswerColumns, classes: Sequence[str], progress: Progress | None = None
) -> AnswerRows:
    """The rows of a stream in the order of the file; it may lack the labels of some rows, or their column."""
    there = _first_rows(path).columns
    wanted = [*columns.probabilities, columns.target, *([columns.time] if columns.time else [])]
    frame = _read(path, [name for name in wanted if name in there], progress)
    return _answers(path, frame, columns, classes)


def _answers(path: Path, frame: pd.DataFrame, columns: AnswerColumns, classes: Sequence[str]) -> AnswerRows:
    if frame.empty:
        raise DataError(f"{path}: expected rows below the names of the columns, got none")
    labels = np.full(len(frame), NO_LABEL)
    if columns.target in frame:
        labels = _places(frame[columns.target], columns.target, classes, path)
    times = _times(frame[columns.time], path, columns.time) if columns.time else pd.DatetimeIndex([])
    return AnswerRows(path, _probabilities(frame[list(columns.probabilities)], path), labels, times)


def _probability_columns(frame: pd.DataFrame, path: Path, target: str) -> list[str]:
    """The columns of one beginning that sum to 1, or a single one of the second class."""
    groups = {start: [name for name in map(str, frame) if name.startswith(start)] for start in BEGINNINGS}
    several = {start: names for start, names in groups.items() if len(names) > 1}
    fitting = [names for names in several.values() if _sums_to_one(frame[names])]
    fitting += [[name] for name in OF_THE_SECOND_CLASS if name in frame and not fitting]
    if len(fitting) == 1:
        return fitting[0]
    beginnings = ", ".join(f"{start}*" for start in BEGINNINGS)
    if fitting:
        what = f"found {' and '.join(_listed(names) for names in fitting)}, which could each be probabilities"
    elif several:
        what = "; ".join(
            f"{_listed(names)} do not lie from 0 to 1 or do not sum to 1 in each row"
            for names in several.values()
        )
    else:
        what = f"found no columns {beginnings} whose rows sum to 1; it has {_listed(map(str, frame))}"
    others = [name for name in map(str, frame) if name != target][:2]
    raise DataError(f"{path}: {what}. Name them: --probabilities {','.join(others) or 'A,B'}")


def _sums_to_one(frame: pd.DataFrame) -> bool:
    values = frame.apply(pd.to_numeric, errors="coerce").to_numpy(dtype=float)
    whole = values[np.isfinite(values).all(1)]
    return bool(
        len(whole)
        and (whole >= 0).all()
        and (whole <= 1).all()
        and (np.abs(whole.sum(1) - 1) <= TOLERANCE).all()
    )


def _classes(columns: Sequence[str], labels: set[str], path: Path, target: str) -> tuple[str, ...]:
    """The label of each class: the name of its column, what it has beyond the others, or its number."""
    if len(columns) == 1:
        names: list[tuple[str, ...]] = list(_SECOND_OF)
    else:
        start = "".join(sign for sign, *_ in takewhile(_alike, zip(*columns, strict=False)))
        start = start.rstrip(ascii_letters + digits)
        ends = tuple(name.removeprefix(start) for name in columns)
        names = [tuple(columns), ends, tuple(map(str, range(len(columns))))]
    for each in names:
        if labels <= set(each):
            return each
    told = _listed(sorted(labels))
    if len(columns) == 1:
        raise DataError(
            f"{path}: {columns[0]!r} is the probability of the second of two classes: expected the labels 0 "
            f"and 1, or False and True, in {target!r}, got {told}: write them so, or give a column for each "
            "class by --probabilities"
        )
    raise DataError(
        f"{path}: expected labels in {target!r} that are classes of {_listed(columns)}: {_listed(names[1])}, "
        f"or 0 to {len(columns) - 1} in the order of the columns; got {told}"
    )


def _places(labels: "pd.Series[Any]", target: str, classes: Sequence[str], path: Path) -> Classes:
    """The place of each label among the classes, NO_LABEL where it is missing."""
    codes, found = pd.factorize(labels)
    known = {name: place for place, name in enumerate(classes)}
    places = np.array([known.get(_text(label), NO_LABEL) for label in found] + [NO_LABEL])
    other = (codes >= 0) & (places[codes] == NO_LABEL)
    if other.any():
        raise DataError(
            f"{path}: expected one of the classes {_listed(classes)} in column {target!r}, or nothing where "
            f"a label has not come, got {_text(found[codes[other][0]])!r} in {_rows(other)}"
        )
    return places[codes].astype(np.int64)


def _probabilities(frame: pd.DataFrame, path: Path) -> Probabilities:
    """The probabilities (N, C) of all classes, checked."""
    read = frame.apply(pd.to_numeric, errors="coerce")
    values = read.to_numpy(dtype=float)
    for wrong, expected in (
        (~np.isfinite(values), "a number"),
        ((values < 0) | (values > 1), "a probability from 0 to 1"),
    ):
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise DataError(
                f"{path}: expected {expected} in column {frame.columns[column]!r}, got "
                f"{frame.iat[row, column]!s} in {_rows(wrong.any(1))}: mend such rows or leave them out"
            )
    if values.shape[1] == 1:
        return np.concatenate([1 - values, values], 1)
    sums = values.sum(1, keepdims=True)
    off = np.abs(sums[:, 0] - 1) > TOLERANCE
    if off.any():
        raise DataError(
            f"{path}: expected {_listed(frame.columns)} to sum to 1 in each row, got {sums[off][0, 0]:.3f} "
            f"in {_rows(off)}: give the columns of all classes, after the softmax, by --probabilities"
        )
    return np.asarray(values / sums)


def _times(column: "pd.Series[Any]", path: Path, name: str) -> pd.DatetimeIndex:
    if pd.api.types.is_numeric_dtype(column):  # a year, or seconds or days of some epoch
        read = pd.to_datetime(pd.Series(pd.NaT, index=column.index), utc=True)
    else:
        read = pd.to_datetime(column, errors="coerce", utc=True, format="ISO8601")
    wrong = read.isna().to_numpy()
    if wrong.any():
        came = column.iloc[int(wrong.argmax())]
        raise DataError(
            f"{path}: expected dates as 2026-05-01 or 2026-05-01T12:30:00 in column {name!r}, got {came!s} "
            f"in {_rows(wrong)}: write them so, or use --by 1000 for chunks by count"
        )
    return pd.DatetimeIndex(read).tz_localize(None)


def _first_rows(path: Path) -> pd.DataFrame:
    with _readable(path):
        if path.name.endswith(_PARQUET):
            return pd.read_parquet(path).head(_FIRST_ROWS)
        first = pd.read_csv(path, nrows=_FIRST_ROWS)
    heads = str(first.columns[0])
    between = [sign for sign in _OTHER_SEPARATORS if sign in heads]
    if len(first.columns) == 1 and between:
        raise DataError(
            f"{path}: expected commas between the columns, got one column {heads!r}, which has "
            f"{between[0]!r} in it: write the file again by "
            f"pandas.read_csv(path, sep={between[0]!r}).to_csv(path, index=False)"
        )
    return first


def _read(path: Path, columns: Sequence[str], progress: Progress | None) -> pd.DataFrame:
    with _readable(path):
        if path.name.endswith(_PARQUET):
            return pd.read_parquet(path, columns=list(columns))
        return _read_csv(path, list(columns), progress)


def _read_csv(path: Path, columns: list[str], progress: Progress | None) -> pd.DataFrame:
    """A file of text in parts, so that its progress can be told; it may be compressed by gzip."""
    size, parts = path.stat().st_size, []
    packed: Literal["gzip"] | None = "gzip" if path.name.endswith(".gz") else None
    with path.open("rb") as opened:
        for part in pd.read_csv(opened, usecols=columns, chunksize=_ROWS_AT_ONCE, compression=packed):
            parts.append(part)
            if progress is not None:
                progress(opened.tell(), size)
    return pd.concat(parts, ignore_index=True)[columns]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise one kind of error for all that can be wrong with a file."""
    if not path.exists():
        raise DataError(
            f"{path}: expected a file of answers, .csv, .csv.gz or .parquet, got a path without one"
        )
    if path.is_dir():
        raise DataError(f"{path}: expected a file of answers, .csv, .csv.gz or .parquet, got a folder")
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"{path}: reading parquet needs pyarrow: pip install pyarrow") from error
    except (ValueError, EOFError, BadGzipFile, zlib.error) as error:
        what = str(error).strip().splitlines()[0]
        raise DataError(
            f"{path}: expected a table, .csv, .csv.gz or .parquet, that pandas can read: {what}"
        ) from error


def _single(frame: pd.DataFrame, names: Sequence[str], path: Path, kind: str, option: str) -> str:
    """The only column of these names."""
    there = [name for name in names if name in frame]
    if len(there) == 1:
        return there[0]
    what = f"has {_listed(there)}" if there else f"has {_listed(map(str, frame))}, none of {_listed(names)}"
    raise DataError(f"{path}: expected one column of {kind}: it {what}. Name it: {option}")


def _check_there(frame: pd.DataFrame, names: Sequence[str], path: Path) -> None:
    for name in names:
        if name not in frame:
            raise DataError(f"{path}: expected a column {name!r}, it has {_listed(map(str, frame))}")


def _alike(signs: tuple[str, ...]) -> bool:
    return len(set(signs)) == 1


def _text(label: object) -> str:
    """A label as text; whole numbers have no point, as pandas writes one where some are missing."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _rows(wrong: NDArray[np.bool_]) -> str:
    """The first row of these, and how many more there are; the row below the names is the first."""
    more = int(wrong.sum()) - 1
    first = f"row {int(wrong.argmax()) + 1:,}"
    return f"{first} and {more:,} more" if more else first


def _listed(names: Iterable[str]) -> str:
    """Names with commas between them, of many the first."""
    every = list(names)
    return ", ".join([*every[:_SHOWN], *(["…"] if every[_SHOWN:] else [])])
