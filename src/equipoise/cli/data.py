"""`equipoise data`: the source and the layout of each data set."""

from collections.abc import Iterator
from pathlib import Path

from equipoise.data.registry import data_set_class, list_data_sets
from equipoise.errors import DataError


def describe_data_sets(folder: Path | None) -> Iterator[str]:
    """The source and the layout of each data set; with a folder, whether it is in the folder."""
    for name in list_data_sets():
        known = data_set_class(name)
        if folder is None:
            yield f"{name}\n{known.about}\n"
            continue
        try:
            found = known(folder)
        except DataError as error:
            yield f"{name}: not here. {error}\n"
        else:
            targets = list(dict.fromkeys(shift.target for shift in found.shifts))
            yield f"{name}: here, {len(found.classes)} classes, targets {', '.join(targets)}\n"
