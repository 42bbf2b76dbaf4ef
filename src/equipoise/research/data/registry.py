"""The data sets by name."""

from pathlib import Path
from typing import TypeVar

from equipoise.errors import DataError
from equipoise.research.data.dataset import DataSet

_DATA_SETS: dict[str, type[DataSet]] = {}
_Class = TypeVar("_Class", bound=type[DataSet])


def register_data_set(data_set: _Class) -> _Class:
    """Add a data set under its name; a decorator of the class."""
    if _DATA_SETS.get(data_set.name, data_set) is not data_set:
        raise ValueError(f"the name {data_set.name!r} is taken by {_DATA_SETS[data_set.name].__qualname__}")
    _DATA_SETS[data_set.name] = data_set
    return data_set


def list_data_sets() -> list[str]:
    """The names that `open_data_set` takes."""
    return sorted(_DATA_SETS)


def data_set_class(name: str) -> type[DataSet]:
    """The class of a data set, without looking for its files."""
    if name not in _DATA_SETS:
        raise DataError(f"no data set {name!r}; there are {', '.join(list_data_sets())}")
    return _DATA_SETS[name]


def open_data_set(name: str, root: Path) -> DataSet:
    """The data set of a name, found under `root`; DataError says where to get it if it is not there."""
    return data_set_class(name)(root)
