"""Listings of image files, read in parallel, with an account of those that cannot be read."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from equipoise.errors import DataError
from equipoise.files import on_white
from equipoise.options import integer, one_of
from equipoise.research.data.images import Images, chosen

BadFiles = Literal["refuse", "skip"]

_CHUNK = 32
_NAMED = 10
_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Problem:
    """Something that should be an image of the data set, and why it is not."""

    path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


class Reader:
    """Reads image files in parallel; what cannot be read is named, and refused or left out as asked.

    Attributes:
        workers: how many files are decoded at a time, in threads (Pillow decodes outside Python's lock), and
            how many processes make images where a data set does.
        bad_files: "refuse" raises DataError when all files were tried; "skip" leaves the bad ones out.
        progress: called now and then with how many of how many images are done.
        problems: everything found so far, each once.
    """

    def __init__(
        self,
        *,
        workers: int = 1,
        bad_files: BadFiles = "refuse",
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        one_of("bad_files", bad_files, get_args(BadFiles))
        self.workers = integer("workers", workers, low=1)
        self.bad_files: BadFiles = bad_files
        self.progress = progress
        self.problems: list[Problem] = []

    def images(
        self,
        entries: Sequence[tuple[Path, int]],
        *,
        side: int,
        channels: Literal[1, 3] = 3,
        problems: Sequence[Problem] = (),
    ) -> Images:
        """The images of (file, label) pairs as `side` × `side` squares, in their order.

        RGB or, with one channel, grey (ITU-R 601), resized by Pillow's bilinear filter, which averages where
        it shrinks. Transparent parts become white; of an animation it is the first frame. An EXIF rotation is
        not applied: torchvision and TensorFlow read the pixels as they are stored, too. Grey files of more
        than 8 bits are refused, because Pillow would clip them.

        `problems` are those that the caller found while listing the files; they count as files, too.
        """
        pixels = np.empty((len(entries), channels, side, side), np.uint8)

        def read(rows: range) -> list[tuple[int, str]]:
            wrong = []
            for row in rows:
                path = entries[row][0]
                try:
                    pixels[row] = _decoded(path, side, _MODES[channels])
                # A decoder raises anything on a damaged file: struct.error, SyntaxError, ZeroDivisionError …
                except Exception as error:
                    wrong.append((row, _reason(path, error)))
            return wrong

        chunks = [range(start, min(start + _CHUNK, len(entries))) for start in range(0, len(entries), _CHUNK)]
        why: dict[int, str] = {}
        with _without_remarks(), ThreadPoolExecutor(self.workers) as pool:
            for rows, wrong in zip(chunks, pool.map(read, chunks), strict=True):
                why.update(wrong)
                self.report(rows.stop, len(entries))
        found = [*problems, *(Problem(entries[row][0], reason) for row, reason in why.items())]
        self.account(found, len(entries) + len(problems))

        kept = [row for row in range(len(entries)) if row not in why]
        if why:
            pixels = pixels[kept]
        labels = torch.tensor([entries[row][1] for row in kept], dtype=torch.int64)
        return Images(torch.from_numpy(pixels), labels)

    def account(self, problems: Sequence[Problem], total: int) -> None:
        """Note what is wrong with some of `total` files; DataError if that is refused or none is left."""
        self.note(problems)
        if total == 0:
            raise DataError("there are no image files to read")
        if len(problems) == total or (problems and self.bad_files == "refuse"):
            named = "".join(f"\n  {problem}" for problem in problems[:_NAMED])
            more = f"\n  and {len(problems) - _NAMED:,} more" if len(problems) > _NAMED else ""
            advice = (
                "none is left"
                if len(problems) == total
                else "mend them, or leave them out: --skip-bad-files on the command line, "
                'Reader(bad_files="skip") in Python'
            )
            raise DataError(f"{len(problems):,} of {total:,} files cannot be read:{named}{more}\n{advice}")

    def note(self, problems: Sequence[Problem]) -> None:
        """Add to `problems` what is not there yet."""
        self.problems = list(dict.fromkeys([*self.problems, *problems]))

    def report(self, done: int, total: int) -> None:
        """Tell whoever asked for it how far the work is."""
        if self.progress is not None:
            self.progress(done, total)

    def again(self) -> "Reader":
        """A reader with the same settings that has found nothing yet."""
        return Reader(workers=self.workers, bad_files=self.bad_files, progress=self.progress)


def resized(image: Image.Image, side: int) -> Image.Image:
    """A square of the image, by the one filter that all data sets use."""
    return image.resize((side, side), Image.Resampling.BILINEAR)


def opened(path: Path, mode: str) -> Image.Image:
    """The image of a file; DataError that names the file where it is none."""
    try:
        with _without_remarks():
            return _opaque(path, mode)
    # A decoder raises anything on a damaged file: struct.error, SyntaxError, ZeroDivisionError …
    except Exception as error:
        raise DataError(f"{Problem(path, _reason(path, error))}") from error


def _decoded(path: Path, side: int, mode: str) -> NDArray[np.uint8]:
    square = np.asarray(resized(_opaque(path, mode), side))
    return square.reshape(side, side, -1).transpose(2, 0, 1)


def _opaque(path: Path, mode: str) -> Image.Image:
    with Image.open(path) as image:
        return on_white(image, mode)


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "missing"
    if isinstance(error, UnidentifiedImageError):
        return "empty" if path.stat().st_size == 0 else "not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"damaged: {error}" if isinstance(error, OSError) else f"unreadable: {error}"


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Silence Pillow's warnings, as on images of more than 89 megapixels: what it can decode is fine.

    Around all threads at once, because the filters are the process's.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        yield


_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class Listing:
    """Files with their labels, and the problems that the listing alone shows."""

    entries: Sequence[tuple[Path, int]]
    problems: Sequence[Problem] = ()

    @property
    def files(self) -> list[Path]:
        """The files alone."""
        return [path for path, _ in self.entries]

    def picked(self, limit: int | None) -> "Listing":
        """At most `limit` of the files."""
        rows = chosen(len(self.entries), limit).tolist()
        return Listing([self.entries[row] for row in rows], self.problems)


def list_classes(folders: Sequence[Path]) -> Listing:
    """The images of one folder for each class, in the order of the labels; one without any is a problem."""
    entries, problems = [], []
    for label, folder in enumerate(folders):
        files = image_files(folder)
        entries += [(path, label) for path in files]
        if not files:
            problems.append(Problem(folder, "no images of this class"))
    return Listing(entries, problems)


def image_files(folder: Path) -> list[Path]:
    """Files with an image extension that are not hidden, sorted by name; none where there is no folder."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES]
    return sorted(path for path in found if not path.name.startswith("."))
