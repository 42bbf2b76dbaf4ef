"""Errors of a command as one message, without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

from equipoise.errors import EquipoiseError


@contextmanager
def plain_errors(
    stopped: str = "Stopped.", out: Path | None = None, *, extra: str = "bench"
) -> Iterator[None]:
    """Print expected errors as one message without a traceback; exit with status 130 on Ctrl-C.

    Args:
        stopped: printed after Ctrl-C.
        out: stands for {out} in it.
        extra: the extra of the package that has what the command imports.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        message = " ".join(filter(None, (stopped.format(out=out), str(interrupt))))
        Console(stderr=True).print(message, highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "equipoise":
            raise
        Console(stderr=True).print(
            f"This needs {missing.name}: pip install 'equipoise[{extra}]'", highlight=False, markup=False
        )
        raise typer.Exit(1) from None
    except (EquipoiseError, OSError) as error:
        Console(stderr=True).print(f"{error}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
