"""The command line of an install without extras: the commands that need no more than the core."""

import sys
from collections.abc import Iterable

from equipoise.cli.methods import describe_methods
from equipoise.errors import EquipoiseError
from equipoise.version import __version__

_EXTRAS = {"equipoise": "demo", "equipoise demo": "demo", "equipoise serve": "serve"}
"""The extras of commands that need another than most."""


def run_plain(arguments: list[str], missing: str) -> None:
    """Run a command, or exit with a line that says what to install for it; `missing` is a package."""
    try:
        lines = _lines_of(arguments)
        if lines is None:
            command = " ".join(["equipoise", *arguments[:1]])
            extra = _EXTRAS.get(command, "bench")
            sys.exit(
                f"{command} needs {missing}: pip install 'equipoise[{extra}]' "
                "(without it there are equipoise --version and equipoise methods [NAME])"
            )
        for line in lines:
            sys.stdout.write(f"{line}\n")
    except EquipoiseError as error:
        sys.exit(str(error))


def _lines_of(arguments: list[str]) -> Iterable[str] | None:
    """The output of a command; None for one that needs more than the core."""
    match arguments:
        case ["--version"]:
            return [f"equipoise {__version__}"]
        case ["methods"]:
            return describe_methods(None)
        case ["methods", name] if not name.startswith("-"):
            return describe_methods(name)
    return None
