"""Listings of the image files of a part, before any is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.research.data.images import chosen
from equipoise.research.data.reader import Problem

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
