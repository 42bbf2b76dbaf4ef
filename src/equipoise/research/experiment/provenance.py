"""Content and code that a result depends on, as hashes, and a method's options with their defaults."""

import ast
import hashlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import equipoise
from equipoise.core.assembly import EXECUTION_OPTIONS
from equipoise.errors import OptionError
from equipoise.factory import options_of
from equipoise.registry import is_shipped, list_methods, method_class

_PACKAGE = Path(equipoise.__file__).resolve().parent
_EXPERIMENT = _PACKAGE / "research" / "experiment"
_SHARED = [
    *_PACKAGE.glob("[!_]*.py"),
    *(
        file
        for folder in ("calibration", "core", "distributed", "methods", "metrics", "network", "rehearsal")
        for file in _PACKAGE.glob(f"{folder}/**/*.py")
    ),
    *(_EXPERIMENT / f"{name}.py" for name in ("one_run", "rehearsals", "repeatable", "schema", "scores")),
]
"""The code that every result depends on; of the methods, what several share. Recipes and plans are not among
it, as a result's key holds their outcome, and neither is the order of a stream, which has its own hash."""
_INSTALLED = {Path(sysconfig.get_paths()[name]).resolve() for name in ("purelib", "platlib")}


def content_key(content: Mapping[str, Any]) -> str:
    """A hash of plain JSON content, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def code_digest(name: str, options: Mapping[str, Any] | None = None) -> str:
    """A hash, 12 hexadecimal digits, of the source files that the answers of a method depend on.

    They are equipoise's code of adapters, temperatures, rehearsals, scores and runs, the files of the class
    of the method and of those that it inherits from, and, for a method of the user's, the files beside it
    that it imports. Other methods are not among them, and neither are torch and other packages. A method that
    wraps another, its option `base`, depends on the files of that one, too. OptionError for a method that is
    in no file.
    """
    methods = _PACKAGE / "methods"
    single = {methods / f"{each}.py" for each in list_methods() if is_shipped(each)}
    files = {*_SHARED} - single
    for each in (name, *([options["base"]] if options and "base" in options else [])):
        for file in _class_files(each):
            files |= {file} if file.is_relative_to(_PACKAGE) else _with_imports(file)
    return _digest(files)


def order_digest() -> str:
    """A hash of the source files that draw the order of a stream."""
    images = _PACKAGE / "research" / "data"
    return _digest(
        [*(_PACKAGE / "streams").glob("*.py"), images / "image_stream.py", images / "changing_corruptions.py"]
    )


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


def _class_files(name: str) -> set[Path]:
    """The files of a method's class and of the classes that it inherits from, without those of Python."""
    kind = method_class(name)
    try:
        return {
            Path(inspect.getfile(each)).resolve(strict=True)
            for each in kind.__mro__
            if each is kind or each.__module__.partition(".")[0] not in sys.stdlib_module_names
        }
    except (OSError, TypeError) as error:  # of a class of a module without a file
        raise OptionError(
            f"expected a method in a file, as results keep a hash of it, got {name!r} from a prompt or a "
            "notebook: write it to a file, and name that under modules: in the recipe"
        ) from error


def _with_imports(file: Path) -> set[Path]:
    """A file of the user's and the files of its own project that it imports, transitively.

    They are beside it, or in its package; with them the `__init__.py` of the packages on the way, and the
    files of equipoise that they import.
    """
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    own = file.relative_to(root).parts[0].removesuffix(".py")
    found, waiting = set(), [file]
    while waiting:
        file = waiting.pop()
        found.add(file)
        package = file.parent.relative_to(root).parts
        for top, *below in filter(None, (package, *_imported_names(file, package))):
            start = _PACKAGE if top == _PACKAGE.name else root / top
            places = [start.joinpath(*below[:end]) for end in range(len(below) + 1)]
            paths = [path for place in places for path in (place.with_suffix(".py"), place / "__init__.py")]
            there = {path for path in paths if path.is_file()} - found
            if start == _PACKAGE:
                found |= there  # their own imports are in the digest of every method, or of another one
            elif root not in _INSTALLED or top == own:
                waiting += there
    return found


def _imported_names(file: Path, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The names that a file imports, wherever in it an import is: a module, or a name in one, in parts."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            base = (*above, *(node.module or "").split(".")) if node.module else above
            yield from ((*base, alias.name) for alias in node.names)
