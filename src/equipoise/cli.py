"""The command line; every command is a thin door to a function of the package."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import equipoise as eq

app = typer.Typer(
    help="Keep a deployed classifier accurate and honestly calibrated when its inputs drift.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        Console().print(f"equipoise {eq.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for index.html and results.json.")] = Path("demo"),
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same numbers on the same machine."),
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer images: under 45 seconds.")] = False,
) -> None:
    """Train a digit classifier on two domains and adapt it to a third, for each of three domains.

    The images come with Python packages or are drawn on the spot: nothing is downloaded. Prints a table of
    accuracy and calibration for every method and writes a page to look at. Under 3 minutes on two CPU cores.
    """
    try:
        from equipoise.demo import run_demo

        run_demo(out, seed=seed, quick=quick)
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped; nothing was written.")
        raise typer.Exit(130) from None
    except OSError as error:
        Console(stderr=True).print(f"Cannot write to {out}: {error}", highlight=False, markup=False)
        raise typer.Exit(1) from None
