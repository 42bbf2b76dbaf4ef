"""The mark beside a file of methods: they were checked, as they are now and by this version of equipoise."""

import json
from collections.abc import Iterable
from pathlib import Path

from equipoise.files import whole_file
from equipoise.registry import file_digest
from equipoise.version import __version__


def mark_path(file: Path) -> Path:
    """The path of the mark of a file: mine.py.checked for mine.py."""
    return file.with_name(f"{file.name}.checked")


def write_mark(file: Path, digest: str, methods: Iterable[str]) -> Path:
    """Mark methods of a file as checked, besides those already marked; returns the path of the mark.

    `digest` is that of the file when it was run: a file that was changed during the check is not checked.
    """
    names = sorted({*methods, *(checked_methods(file) if file_digest(file) == digest else ())})
    with whole_file(mark_path(file)) as partial:
        partial.write_text(json.dumps({"digest": digest, "equipoise": __version__, "methods": names}) + "\n")
    return mark_path(file)


def remove_mark(file: Path) -> None:
    """Remove the mark of a file, if there is one."""
    mark_path(file).unlink(missing_ok=True)


def checked_methods(file: Path) -> list[str]:
    """The methods that the mark of a file names; none if it is of other contents or another version."""
    try:
        mark = json.loads(mark_path(file).read_text(encoding="utf-8"))
        valid = (mark["digest"], mark["equipoise"]) == (file_digest(file), __version__)
        return [str(name) for name in mark["methods"]] if valid else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
