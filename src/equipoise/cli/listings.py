"""Commands that list what there is: recipes, data sets and methods."""

from typing import Annotated

import typer

from equipoise.cli.plain_errors import plain_errors


def recipes_command(
    name: Annotated[
        str | None, typer.Argument(help="Print this one, to read or to start your own from.")
    ] = None,
) -> None:
    """List the experiments that come with equipoise, or print one."""
    with plain_errors():
        from equipoise.research.experiment.recipe import list_recipes, load_recipe, recipe_text

        if name is not None:
            typer.echo(recipe_text(name), nl=False)
            return
        for known in list_recipes():
            typer.echo(f"{known:<16} {load_recipe(known).about}")


def data_command(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME or FOLDER",
            help="Only the data set of this name; or look for all of them under this folder.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the source and the layout of each data set; with a folder, the data sets found in it."""
    with plain_errors():
        from equipoise.cli.data import describe_data_sets

        for line in describe_data_sets(place):
            typer.echo(line)


def methods_command(
    name: Annotated[
        str | None, typer.Argument(help="Print the options of this one.", show_default=False)
    ] = None,
) -> None:
    """List the methods that `equipoise.create` makes adapters of, or print the options of one."""
    with plain_errors():
        from equipoise.cli.methods import describe_methods

        for line in describe_methods(name):
            typer.echo(line)
