"""The texts of `equipoise data` and `equipoise methods`."""

import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from equipoise.errors import DataError
from equipoise.factory import options_of
from equipoise.registry import list_methods, method_class
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


def describe_methods(name: str | None) -> Iterator[str]:
    """A line for each method; with a name, its docstring and its options with their defaults."""
    if name is not None:
        yield from _described(name)
        return
    width = max(map(len, list_methods()))
    for known in list_methods():
        yield f"{known:<{width}}  {_docstring(known).splitlines()[0]}"
    yield "\n`equipoise methods NAME` prints the options of one."


def _described(name: str) -> Iterator[str]:
    method, options = method_class(name), options_of(name)
    own = {field.name for field in fields(method)}
    width = max(map(len, options))
    yield f"{name}\n\n{_docstring(name)}"
    for title, mine in (("Options of the method:", True), ("Options of every adapter:", False)):
        lines = [f"  {o:<{width}}  {default}" for o, default in options.items() if (o in own) is mine]
        yield "\n".join([f"\n{title}", *(lines or ["  none"])])


def _docstring(name: str) -> str:
    return inspect.getdoc(method_class(name)) or "no description"
