"""`equipoise recommend`: which method suits a model of the user and the stream that it will meet."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from equipoise.cli.plain_errors import plain_errors

if TYPE_CHECKING:
    from equipoise.recommendation.candidates import StreamKind


def recommend_command(
    factory: Annotated[
        str, typer.Argument(metavar="MODULE:FACTORY", help="As for `equipoise rehearse`.", show_default=False)
    ],
    data: Annotated[
        Path,
        typer.Argument(help="A folder of images that the model was NOT trained on, as for rehearse."),
    ],
    stream: Annotated[
        str,
        typer.Option(
            help="The stream that you expect: shuffled, sorted, mixed, continual, gradual, correlated, "
            "recurring, abrupt, noisy or imbalanced."
        ),
    ] = "continual",
    budget: Annotated[float, typer.Option(min=0, help="Seconds that trying may take.")] = 300.0,
    out: Annotated[Path, typer.Option(help="The file of source statistics to write.")] = Path(
        "model.source.safetensors"
    ),
    size: Annotated[
        int | None, typer.Option(min=1, help="Resize images to squares of this side; not with a transform.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="The most images to use.")] = 1000,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Batch size of the streams that you will adapt to.")
    ] = 50,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers.")] = 0,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, …; a GPU if there is one.", show_default=False)
    ] = None,
    check_held_out: Annotated[
        bool, typer.Option(help="Refuse images whose classes do not fit the model's answers.")
    ] = True,
) -> None:
    """Try methods on made-up shifts of your images, in the order of a stream, and recommend one.

    Prints the class of each folder, a table of the methods and the call that makes the recommended one, and
    writes the source statistics that it needs. MODULE:FACTORY and the folder are those of
    `equipoise rehearse`:

        equipoise recommend mymodel:load held_out --stream correlated --budget 600
    """
    with plain_errors("Stopped; nothing was written."):
        from equipoise.cli.rehearse import check_writable, class_lines, model_and_images
        from equipoise.recommendation.recommend import recommend

        check_writable(out)
        model, images = model_and_images(factory, data, size, device)
        typer.echo("\n".join(class_lines(images.classes)))
        found = recommend(
            model,
            images,
            stream=cast("StreamKind", stream),  # recommend() checks it
            budget=budget,
            samples=samples,
            batch_size=batch_size,
            seed=seed,
            check_held_out=check_held_out,
        )
        found.source.save(out)
        typer.echo(str(found))
        typer.echo(f'where source = eq.SourceStatistics.load("{out}")')
