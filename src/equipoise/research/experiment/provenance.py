"""Provenance of a result: a hash of the code behind it, and the method's options with their defaults."""

import ast
import hashlib
import inspect
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import equipoise
from equipoise.core.engine import EXECUTION_OPTIONS
from equipoise.errors import OptionError
from equipoise.factory import options_of
from equipoise.registry import method_class

_PACKAGE = Path(equipoise.__file__).resolve().parent
_ANSWERS = ("factory.py", "rehearsal/rehearse.py", "research/experiment/scoring.py")
"""With their imports, the code that every result depends on: adapters, temperatures, rehearsals, scores."""
_RUNNING = (
    "research/experiment/adapting.py",
    "research/experiment/bins.py",
    "research/experiment/estimates.py",
    "research/experiment/rehearsals.py",
    "research/experiment/repeatable.py",
    "research/experiment/stream_data.py",
)
"""Without their imports, the code that runs a method for every result: recipes and plans are among those
imports, and a result's key holds the outcome of these."""
_INSTALLED = {Path(sysconfig.get_paths()[name]).resolve() for name in ("purelib", "platlib")}


def code_digest(name: str, options: Mapping[str, Any] | None = None) -> str:
    """A hash, 12 hexadecimal digits, of the source files that the answers of a method depend on.

    They are the file of the method, the files that it imports, transitively, from equipoise or from beside
    it, and equipoise's own code of adapters, temperatures, rehearsals, scores and runs. Other methods are not
    among them (the file `equipoise/__init__.py`, which imports them all, is not followed), and neither are
    torch and other packages. A method that wraps another, its option `base`, depends on the file of that one,
    too. OptionError for a method that is in no file.
    """
    names = [name, *([options["base"]] if options and "base" in options else [])]
    followed = _with_imports([*map(_method_file, names), *(_PACKAGE / part for part in _ANSWERS)])
    return _digest(followed.union(_PACKAGE / part for part in _RUNNING))


def order_digest() -> str:
    """A hash of the source files that draw the order of a stream."""
    images = _PACKAGE / "research" / "data"
    return _digest([*(_PACKAGE / "streams").glob("*.py"), images / "image_stream.py", images / "changing.py"])


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for file in sorted(files):
        near = file.relative_to(_PACKAGE) if file.is_relative_to(_PACKAGE) else Path(file.name)
        text = file.read_bytes()
        digest.update(f"{near.as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def resolved_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a method as it uses them, defaults included: `given`, without `tempering`.

    Options that choose how the method is run, and change no result, are there only if they are given.
    """
    kind = method_class(name)
    own = [field.name for field in fields(kind)]
    try:
        method = kind(**{option: value for option, value in given.items() if option in own})
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from error
    left_out = {*own, "tempering", *EXECUTION_OPTIONS}
    shared = {option: value for option, value in options_of(name).items() if option not in left_out}
    return {**shared, **given, **{option: getattr(method, option) for option in own}}


def _method_file(name: str) -> Path:
    kind = method_class(name)
    try:
        return Path(inspect.getfile(kind)).resolve(strict=True)
    except (OSError, TypeError) as error:  # of a class of a module without a file
        raise OptionError(
            f"expected a method in a file, as results keep a hash of it, got {name!r} from a prompt or a "
            "notebook: write it to a file, and name that under modules: in the recipe"
        ) from error


def _with_imports(starts: Iterable[Path]) -> set[Path]:
    found: set[Path] = set()
    waiting = list(starts)
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += _imports(file, file.stat().st_mtime_ns)
    return found


@cache
def _imports(file: Path, _changed: int) -> tuple[Path, ...]:
    """The files that a file imports from its own project or from equipoise, wherever in it an import is.

    With them the `__init__.py` of the packages that a file of another project is in, as these run before it.
    """
    root, package = file.parent, ""
    around: list[Path] = []
    while (root / "__init__.py").is_file():
        around.append(root / "__init__.py")
        root, package = root.parent, f"{root.name}.{package}"
    found = (_module_file(root, package, name) for name in _imported_names(file, package))
    own = [] if file.is_relative_to(_PACKAGE) else around
    return (*own, *(path for path in found if path is not None))


def _imported_names(file: Path, package: str) -> Iterator[str]:
    """The dotted names that a file imports; "a.b" of `from a import b` is a module, or a name in one."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def _module_file(root: Path, package: str, name: str) -> Path | None:
    """The file of a module, or of the module that a name is in; None if it is of another project."""
    top = name.partition(".")[0]
    if top == _PACKAGE.name:
        root = _PACKAGE.parent
    elif root in _INSTALLED and top != package.partition(".")[0]:
        return None
    for module in (name, name.rpartition(".")[0]):
        place = root / module.replace(".", "/")
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if module and file.is_file() and file != _PACKAGE / "__init__.py":
                return file.resolve()
    return None
