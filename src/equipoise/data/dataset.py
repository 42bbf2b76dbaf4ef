"""What a data set is to the experiments: parts that can be read, and shifts from some parts to another."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from equipoise.data.images import Images
from equipoise.data.reader import Reader
from equipoise.errors import DataError

Origin = Literal["official", "made"]
"""Whether images are the published files or were made here."""


@dataclass(frozen=True)
class Shift:
    """A model is trained on some parts of a data set and meets another.

    Attributes:
        target: the name of the unseen domain.
        stream: the part that the model meets.
        sources: the parts that it was trained on.
        tier: how strong the shift is, from 1, where the data set has several strengths.
    """

    target: str
    stream: str
    sources: tuple[str, ...]
    tier: int | None = None


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
        """The images of a part; of at most `limit` (as `images.chosen` chooses them).

        Files go through `reader`, which is where those that cannot be read are counted.
        """

    def files(self, part: str) -> Sequence[Path]:
        """The files that a part is read from, missing ones too: when one changes, it is read anew."""
        return ()

    def parameters(self, part: str) -> Mapping[str, str | int]:
        """What the images depend on besides the files: when one changes, the part is read anew."""
        return {}

    def origin(self, part: str) -> Origin:
        """Whether the images of a part are the published ones or made here: results are labelled with it."""
        return "official"

    def check_part(self, part: str) -> None:
        """DataError for a part that there is not."""
        if part not in self.parts:
            raise DataError(f"{self.name} has no part {part!r}; there are {', '.join(self.parts)}")


def leave_one_out(parts: Mapping[str, tuple[str, str]]) -> list[Shift]:
    """Each domain as the target of the others; a domain has the part to train on and the part to meet."""
    return [
        Shift(target, met, tuple(trained for name, (trained, _) in parts.items() if name != target))
        for target, (_, met) in parts.items()
    ]


def find_folder(
    data_set: type[DataSet], root: Path, names: Sequence[str], lacking: Callable[[Path], Sequence[str]]
) -> Path:
    """The folder of a data set: `root`, or the first folder in it of these names that lacks nothing.

    `lacking` says what of the data set a folder does not have; DataError says it for each, and where to get
    the data set.
    """
    looked = []
    for folder in (root, *(root / name for name in names)):
        if folder.is_dir():
            lacks = lacking(folder)
            if not lacks:
                return folder
            looked.append(f"  {folder} lacks {', '.join(lacks)}")
    where = looked or [f"  there is no folder {root}"]
    raise DataError(
        "\n".join(
            [
                f"the data set {data_set.name!r} is not in {root}, nor in a folder {', '.join(names)} there:",
                *where,
                data_set.about,
            ]
        )
    )
