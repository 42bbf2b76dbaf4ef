"""`equipoise data`: the source and the layout of each data set."""

from collections.abc import Iterator
from pathlib import Path

from equipoise.errors import DataError
from equipoise.research.data.dataset import data_set_class, list_data_sets


def describe_data_sets(place: str | Path | None) -> Iterator[str]:
    """The source and the layout of each data set, or of the one of a name; in a folder, what is there.

    A name is taken for a data set before it is taken for a folder: ./pacs is the folder.
    """
    known = list_data_sets()
    if place is None or place in known:
        yield from (f"{name}\n{data_set_class(name).about}\n" for name in known if place in (None, name))
        return
    folder = Path(place)
    if not folder.is_dir():
        raise DataError(f"{place}: expected a folder, or the name of a data set: {', '.join(known)}")
    yield from (_found(name, folder) for name in known)


def _found(name: str, folder: Path) -> str:
    """The classes and targets of a data set in a folder, or the reason why it is not there."""
    try:
        found = data_set_class(name)(folder)
    except DataError as error:
        return f"{name}: not here. {error}\n"
    targets = list(dict.fromkeys(shift.target for shift in found.shifts))
    return f"{name}: here, {len(found.classes)} classes, targets {', '.join(targets)}\n"
