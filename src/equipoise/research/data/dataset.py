"""Data sets of the experiments: parts to read, shifts from source parts to an unseen part, and a registry."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from equipoise.errors import DataError
from equipoise.research.data.images import Images
from equipoise.research.data.reader import Reader
from equipoise.streams.kinds import Segment

Origin = Literal["official", "made"]
"""Whether images are the published files or were made here."""


@dataclass(frozen=True)
class Shift:
    """A shift from the source parts of a data set to an unseen part.

    Attributes:
        target: the name of the unseen domain.
        stream: the part that a model adapts to.
        sources: the parts that the model was trained on.
        tier: the strength of the shift, from 1; None where the data set has a single strength.
        corruption: of the target's images, where a data set has one target under several corruptions;
            None: they are as they are.
    """

    target: str
    stream: str
    sources: tuple[str, ...]
    tier: int | None = None
    corruption: str | None = None

    @property
    def domain(self) -> str:
        """The target with its corruption, a name of its own for each shift of a model and tier."""
        return f"{self.target}, {self.corruption}" if self.corruption else self.target


class DataSet(ABC):
    """A labelled set of images in parts; a subclass in one file, with `@register_data_set`, is a new one.

    Attributes:
        name: the name in the registry and in recipes.
        about: where to get it and which layout is read, for the message when it is not there.
        classes: the names of the classes; label k is the k-th.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    classes: tuple[str, ...]

    @abstractmethod
    def __init__(self, root: Path) -> None:
        """Find the data set under `root`; DataError, with `about`, where it is not there."""

    @property
    @abstractmethod
    def shifts(self) -> Sequence[Shift]:
        """Every shift of the data set."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Every part that a shift names, once."""
        named = [part for shift in self.shifts for part in (*shift.sources, shift.stream)]
        return tuple(dict.fromkeys(named))

    @abstractmethod
    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        """The images of a part, at most `limit` (chosen by `images.chosen`).

        Files go through `reader`, which is where those that cannot be read are counted.
        """

    def files(self, part: str) -> Sequence[Path]:
        """The files that a part is read from, missing ones too: when one changes, it is read again."""
        return ()

    def parameters(self, part: str) -> Mapping[str, str | int]:
        """Inputs of the images besides the files: when one changes, the part is read again."""
        return {}

    def origin(self, part: str) -> Origin:
        """Whether the images of a part are the published ones or made here: results are labelled with it."""
        return "official"

    def segments(self, part: str, limit: int | None) -> Sequence[Segment]:
        """The named stretches of a part whose order is a story: recipes with `trace: true` score each."""
        return ()

    def check_part(self, part: str) -> None:
        """DataError for a part that there is not."""
        if part not in self.parts:
            raise DataError(f"{self.name} has no part {part!r}; there are {', '.join(self.parts)}")


def leave_one_out(parts: Mapping[str, tuple[str, str]]) -> list[Shift]:
    """A shift to each domain from the others; `parts` has a training part and a test part of each domain."""
    return [
        Shift(target, test, tuple(trained for name, (trained, _) in parts.items() if name != target))
        for target, (_, test) in parts.items()
    ]


def find_folder(
    data_set: type[DataSet], root: Path, names: Sequence[str], lacking: Callable[[Path], Sequence[str]]
) -> Path:
    """The folder of a data set: `root`, or the first folder in it of these names that lacks nothing.

    `lacking` lists the missing parts of a folder; DataError lists them for each, with the source of the data
    set.
    """
    incomplete = []
    for folder in (root, *(root / name for name in names)):
        if folder.is_dir():
            lacks = lacking(folder)
            if not lacks:
                return folder
            incomplete.append(f"  {folder} lacks {', '.join(lacks)}")
    where = incomplete or [f"  there is no folder {root}"]
    raise DataError(
        "\n".join(
            [
                f"the data set {data_set.name!r} is not in {root}, nor in a folder {', '.join(names)} there:",
                *where,
                data_set.about,
            ]
        )
    )


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
