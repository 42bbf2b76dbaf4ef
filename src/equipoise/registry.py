"""The methods by name."""

import hashlib
import importlib
import os
from pathlib import Path
from typing import TypeVar

from equipoise.core.method import Method
from equipoise.errors import OptionError, UnknownMethodError

_METHODS: dict[str, type[Method]] = {}
_Class = TypeVar("_Class", bound=type[Method])


def register(method: _Class) -> _Class:
    """Add a method under its name; a decorator of the class."""
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise OptionError(f"expected a subclass of equipoise.Method, got {method!r}")
    options = [
        kind for kind in vars(method).get("__annotations__", {}).values() if "ClassVar" not in str(kind)
    ]
    plain = options and "__dataclass_fields__" not in vars(method)
    if plain or not isinstance(getattr(method, "name", None), str):
        raise OptionError(
            f'{method.__qualname__}: expected name = "..." in a class with @dataclass(frozen=True, kw_only='
            "True) under @register: its annotated fields are the options"
        )
    for declared in ("counters", "arrives"):
        if isinstance(getattr(method, declared), str | tuple | list | set):  # one may compute it
            raise OptionError(f"{method.__qualname__}: expected {declared} as a dict (`equipoise.Method`)")
    taken = _known().get(method.name, method)
    # A notebook cell may run twice.
    if (taken.__module__, taken.__qualname__) != (method.__module__, method.__qualname__):
        raise OptionError(f"the name {method.name!r} is taken by {taken.__module__}.{taken.__qualname__}")
    _METHODS[method.name] = method
    return method


def _known() -> dict[str, type[Method]]:
    """Every registered method; those of this package register themselves when they are first asked for."""
    importlib.import_module("equipoise.methods")
    return _METHODS


def list_methods() -> list[str]:
    """The names that `create` takes."""
    return sorted(_known())


def method_class(name: str) -> type[Method]:
    """The class of a method; UnknownMethodError lists the known ones."""
    known = ", ".join(list_methods())
    if not isinstance(name, str):
        raise UnknownMethodError(
            f"expected the name of a method, got {type(name).__name__}; there are {known}"
        )
    if name not in _known():
        raise UnknownMethodError(f"no method {name!r}; there are {known}")
    return _known()[name]


def is_shipped(name: str) -> bool:
    """Whether a method is one of this package."""
    return method_class(name).__module__.partition(".")[0] == __name__.partition(".")[0]


def file_digest(path: str | os.PathLike[str]) -> str:
    """A hash of the bytes of a file."""
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()
