"""`equipoise methods`: the registered methods, and the options of one."""

import inspect
from collections.abc import Iterator
from dataclasses import fields

from equipoise.factory import options_of
from equipoise.registry import list_methods, method_class


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
