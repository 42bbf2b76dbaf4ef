"""The typer application; each command calls one function of the package, imported when it is called."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import equipoise as eq
from equipoise.cli.listings import data_command, methods_command, recipes_command
from equipoise.cli.lists import TakesLists
from equipoise.cli.plain_errors import plain_errors
from equipoise.cli.recommend import recommend_command
from equipoise.cli.serve import serve_command

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


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for index.html and the files of the run.")] = Path("demo"),
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**31 - 1, help="The same seed gives the same numbers on the same machine."),
    ] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer images and a weaker model: about 45 seconds.")
    ] = False,
) -> None:
    """Show a classifier that meets drift: how certain it is, and how often it is right.

    A model that reads house numbers meets a stream that changes slowly (dusk), suddenly (a shaking camera)
    and back. The plain model, TENT and poise answer it without labels. Prints the story and writes a page,
    OUT/index.html. The images come with Python packages or are drawn on the spot: nothing is downloaded.
    Under 3 minutes on two CPU cores; after Ctrl-C the same command goes on.
    """
    with plain_errors("Stopped; what is done is in {out}: the same command goes on from there.", out):
        from equipoise.cli.demo import run_demo

        run_demo(out, seed=seed, quick=quick)


class Scheduler(str, Enum):
    """Workers of a run: processes of this machine, or tasks of Ray."""

    local = "local"
    ray = "ray"


@app.command("run", cls=TakesLists)
def run_command(
    recipe: Annotated[str, typer.Argument(help="A name that `equipoise recipes` lists, or a .yaml file.")],
    on: Annotated[
        str | None,
        typer.Option(
            help="For a recipe of a stream (as continual): the recipe of the data set to run it on.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path,
        typer.Option(
            help="Folder with the data sets (`equipoise data` prints the layouts); it is only read."
        ),
    ] = Path("data"),
    out: Annotated[
        Path, typer.Option(help="Folder for all files of the run; the same folder resumes it.")
    ] = Path("results"),
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these, by their names in the recipe; other registered methods with defaults."
        ),
    ] = None,
    backbones: Annotated[
        list[str] | None, typer.Option(help="Only these of the recipe, or any other name of timm's.")
    ] = None,
    targets: Annotated[
        list[str] | None, typer.Option(help="Only these domains; NAME/3 is one tier of a corruption.")
    ] = None,
    tiers: Annotated[
        list[int] | None,
        typer.Option(
            help="Only these tiers of corruption, in place of the recipe's; each is a stream, or part of a "
            "gradual one."
        ),
    ] = None,
    seeds: Annotated[list[int] | None, typer.Option(help="Only these seeds.")] = None,
    tempering: Annotated[
        list[str] | None,
        typer.Option(help="Only these of none, mean, median, sample, agreement, fixed and rehearsed."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="The most images of each domain, in training and in streams.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of source training.")] = None,
    domain_images: Annotated[
        int | None,
        typer.Option(min=1, help="The most images of each domain of a stream; training has all of them."),
    ] = None,
    engine: Annotated[
        Scheduler, typer.Option(help="Processes of this machine, or tasks of Ray.")
    ] = Scheduler.local,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs at once. Without a GPU one for each core, with one 1.", show_default=False
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="An existing Ray cluster; without it Ray starts on this machine.")
    ] = None,
    skip_bad_files: Annotated[
        bool,
        typer.Option("--skip-bad-files", help="Leave out files that cannot be read instead of refusing."),
    ] = False,
) -> None:
    """Run an experiment: train the source models, adapt them with every method, and score each cell.

    Each result is a line of OUT/results.jsonl, written once: run the same command again after a kill or
    Ctrl-C and it does only what is missing. `equipoise report OUT` shows the results.

    Lists are given as `--methods source tent dec`, `--methods source,tent,dec`, or one by one.

        equipoise run demo

        equipoise run digits --data data --out results --seeds 0 --limit 500

        equipoise run pacs --data data --out results --methods source dec --targets sketch

        equipoise run continual --on pacs --data data --out results

        equipoise run noisy --on tiny-imagenet-c --tiers 3 5 --data data --out results
    """
    with plain_errors("Stopped; what is done is in {out}: the same command goes on from there.", out):
        from equipoise.cli.run import run_named_recipe

        failed = run_named_recipe(
            recipe,
            on=on,
            data=data,
            out=out,
            methods=methods or (),
            backbones=backbones or (),
            targets=targets or (),
            tiers=tiers or (),
            seeds=seeds or (),
            temperings=tempering or (),
            limit=limit,
            epochs=epochs,
            domain_images=domain_images,
            ray=engine is Scheduler.ray,
            workers=workers,
            address=address,
            skip_bad_files=skip_bad_files,
        )
    if failed:
        raise typer.Exit(1)


@app.command("report", cls=TakesLists)
def report_command(
    folder: Annotated[Path, typer.Argument(help="The output folder of `equipoise run`.")],
    html: Annotated[Path | None, typer.Option(help="Write an HTML page: one file, no network.")] = None,
    latex: Annotated[
        Path | None, typer.Option(help="Write a .tex file for each table, and main.tex, to this folder.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write results.csv and tables.csv to this folder.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write each figure as SVG and PDF to this folder.")
    ] = None,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print the tables as Markdown; the default without other options."),
    ] = False,
    methods: Annotated[
        list[str] | None, typer.Option(help="Only these, by label or by name in the registry.")
    ] = None,
    temperings: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Paired tests of this method (a label) against the best of the others. The paper's DEC.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the results of a run: every table of the paper beside ours, significance, and the figures.

    equipoise report results --html report.html

    equipoise report results --latex tables --csv csv --figures figures --compare poise
    """
    with plain_errors():
        from equipoise.cli.report import write_report

        lines = write_report(
            folder,
            html=html,
            latex=latex,
            csv=csv,
            figures=figures,
            markdown=markdown or not (html or latex or csv or figures),
            methods=methods or (),
            temperings=temperings or (),
            compare=compare,
        )
        for line in lines:
            typer.echo(line)


app.command("recipes")(recipes_command)
app.command("data")(data_command)
app.command("methods")(methods_command)
app.command("serve")(serve_command)
app.command("recommend")(recommend_command)


@app.command("check")
def check_command(
    file: Annotated[Path, typer.Argument(help="A Python file that registers methods; it is run.")],
    method: Annotated[
        str | None, typer.Option(help="Only this method of the file; all by default.", show_default=False)
    ] = None,
) -> None:
    """Check the methods of a file against the contract: reset, undo, saving, bad samples, CUDA graphs, ….

    Every promise is checked on small models with batch, layer, group, instance and no normalisation, in under
    a minute. If all are kept, FILE.checked is written beside the file, and `equipoise run` knows that the
    method was checked. With this in mine.py

        from dataclasses import dataclass
        from equipoise import register
        from equipoise.core.gradient import GradientMethod, Loss
        from equipoise.functional import entropy

        @register
        @dataclass(frozen=True, kw_only=True)
        class Mine(GradientMethod):
            name = "mine"

            def loss(self, logits, targets, context):
                return Loss(entropy(logits).mean(), used=len(logits))

    run:

        equipoise check mine.py

    The exit status is 0 if all promises are kept, 1 if one is broken, 2 if there is nothing to check.
    """
    with plain_errors("Stopped; no mark was written."):
        from equipoise.cli.check import check_file

        status = check_file(file, method)
    if status:
        raise typer.Exit(status)


@app.command("rehearse")
def rehearse_command(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="A function without arguments that returns your model, or your model and a transform of "
            "images: mymodel:load is `load` in mymodel.py, here or installed.",
        ),
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="A folder with a folder of images for each class, of your source domain, that the model was "
            "NOT trained on. Sorted by name, the first is class 0; names that are all numbers are sorted as "
            "numbers (torchvision's ImageFolder sorts them as text: put a letter before each if your model "
            "was trained so). 1,000 to 2,000 images are enough."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("model.source.safetensors"),
    method: Annotated[str, typer.Option(help="The method that you will adapt with.")] = "poise",
    size: Annotated[
        int | None, typer.Option(min=1, help="Resize images to squares of this side; not with a transform.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="The most images to use.")] = 2000,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Batch size of the streams that you will adapt to.")
    ] = 50,
    shifts: Annotated[
        int | None,
        typer.Option(min=8, help="Number of made-up shifts; all by default.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers.")] = 0,
    figure: Annotated[
        Path | None, typer.Option(help="Draw estimated against true accuracy (.png, .svg, .pdf).")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, …; a GPU if there is one.", show_default=False)
    ] = None,
    check_held_out: Annotated[
        bool, typer.Option(help="Refuse images whose classes do not fit the model's answers.")
    ] = True,
) -> None:
    """Rehearse a method on made-up shifts of your images, so that its confidence matches its accuracy.

    Prints the class of each folder, and the accuracy of the method on each shift beside the accuracy
    estimated without labels, and writes a small file for `equipoise.SourceStatistics.load`. With this in
    mymodel.py

        def load():
            model = ...  # a torch.nn.Module that returns logits
            return model, transform  # a PIL image to a tensor; or the model alone, for floats from 0 to 1

    and images in held_out/cat/1.jpg, held_out/dog/1.jpg, …:

        equipoise rehearse mymodel:load held_out --out mymodel.source.safetensors --figure rehearsal.png
    """
    with plain_errors("Stopped; nothing was written."):
        from equipoise.cli.rehearse import rehearse_folder

        lines = rehearse_folder(
            factory,
            data,
            out=out,
            method=method,
            samples=samples,
            batch_size=batch_size,
            shifts=shifts,
            seed=seed,
            size=size,
            figure=figure,
            device=device,
            check_held_out=check_held_out,
        )
        for line in lines:
            typer.echo(line)
