"""The commands; what a command needs is imported when it is called, so that `--help` is quick."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from enum import Enum
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from rich.console import Console

import equipoise as eq
from equipoise.errors import DataError, EquipoiseError, OptionError

if TYPE_CHECKING:
    from equipoise.cli.estimate import By
    from equipoise.recommendation.candidates import StreamKind

_Value = TypeVar("_Value")

app = typer.Typer(
    help="Keep a deployed classifier accurate and honestly calibrated when its inputs drift.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)


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


def check_writable(*paths: Path | None) -> None:
    """Refuse files in folders that do not exist, before the long work."""
    for path in paths:
        if path is not None and not path.resolve().parent.is_dir():
            raise OptionError(f"{path}: there is no folder {path.resolve().parent} to write to")


def comma_list(kind: Callable[[str], _Value], help: str) -> Any:  # noqa: A002
    """An option of several values with commas between them, which can be given again for more.

    Args:
        kind: makes a value of its text.
        help: of the option.
    """

    def values(text: str) -> list[_Value]:
        try:
            found = [kind(part) for part in text.split(",") if part]
        except ValueError:
            raise typer.BadParameter(f"expected whole numbers with commas between them, got {text}") from None
        if not found:
            raise typer.BadParameter("expected at least one value")
        return found

    def joined(given: list[list[_Value]] | None) -> list[_Value]:
        return [value for values in given or () for value in values]

    return typer.Option(
        parser=values,
        callback=joined,
        metavar="A,B,…" if kind is str else "1,2,…",
        help=help,
        show_default=False,
    )


def chunk_size(text: str) -> str | int:
    """A unit of time, or a number of rows."""
    if text in ("hour", "day", "week", "month"):
        return text
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise typer.BadParameter(
            f"expected hour, day, week, month or a number of rows such as 1000, got {text}"
        )
    return int(text)


class Engine(str, Enum):
    """The place of the work: this machine, or tasks and replicas of Ray."""

    local = "local"
    ray = "ray"


_Factory = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FACTORY",
        help="A function without arguments that returns your model, or your model and a transform of "
        "images: mymodel:load is `load` in mymodel.py, here or installed.",
    ),
]
_HeldOut = Annotated[
    Path,
    typer.Argument(
        help="A folder with a folder of images for each class, of your source domain, that the model was "
        "NOT trained on. Sorted by name, the first is class 0; names that are all numbers are sorted as "
        "numbers (torchvision's ImageFolder sorts them as text: put a letter before each if your model "
        "was trained so). 1,000 to 2,000 images are enough."
    ),
]
_Size = Annotated[
    int | None, typer.Option(min=1, help="Resize images to squares of this side; not with a transform.")
]
_Samples = Annotated[int, typer.Option(min=1, help="The most images to use.")]
_BatchSize = Annotated[int, typer.Option(min=1, help="Batch size of the streams that you will adapt to.")]
_USUAL_BATCH = 50
_Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers.")]
_Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1, …; a GPU if there is one.", show_default=False)
]
_CheckHeldOut = Annotated[
    bool, typer.Option(help="Refuse images whose classes do not fit the model's answers.")
]
_Address = Annotated[
    str | None, typer.Option(help="An existing Ray cluster; without it Ray starts on this machine.")
]
_GOES_ON = "Stopped; what is done is in {out}: the same command goes on from there."
_ACCESS = "Access"


def _limit(help: str) -> Any:  # noqa: A002
    """An option of a limit, which is at least 1."""
    return typer.Option(min=1, help=help, rich_help_panel="Limits")


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
    with plain_errors(_GOES_ON, out, extra="demo"):
        from equipoise.cli.experiments import run_demo

        run_demo(out, seed=seed, quick=quick)


@app.command("run")
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
        comma_list(str, "Only these, by their names in the recipe; other registered methods with defaults."),
    ] = None,
    backbones: Annotated[
        list[str] | None, comma_list(str, "Only these of the recipe, or any other name of timm's.")
    ] = None,
    targets: Annotated[
        list[str] | None, comma_list(str, "Only these domains; NAME/3 is one tier of a corruption.")
    ] = None,
    tiers: Annotated[
        list[int] | None,
        comma_list(
            int,
            "Only these tiers of corruption, in place of the recipe's; each is a stream, or part of a "
            "gradual one.",
        ),
    ] = None,
    seeds: Annotated[list[int] | None, comma_list(int, "Only these seeds.")] = None,
    tempering: Annotated[
        list[str] | None,
        comma_list(str, "Only these of none, mean, median, sample, agreement, fixed and rehearsed."),
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
        Engine, typer.Option(help="Processes of this machine, or tasks of Ray.")
    ] = Engine.local,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs at once. Without a GPU one for each core, with one 1.", show_default=False
        ),
    ] = None,
    address: _Address = None,
    skip_bad_files: Annotated[
        bool,
        typer.Option("--skip-bad-files", help="Leave out files that cannot be read instead of refusing."),
    ] = False,
) -> None:
    """Run an experiment: train the source models, adapt them with every method, and score each cell.

    Each result is a line of OUT/results.jsonl, written once: run the same command again after a kill or
    Ctrl-C and it does only what is missing. `equipoise report OUT` shows the results.

    Lists have commas between their values, and no spaces: `--methods source,tent,dec`.

        equipoise run demo

        equipoise run digits --data data --out results --seeds 0 --limit 500

        equipoise run pacs --data data --out results --methods source,dec --targets sketch

        equipoise run continual --on pacs --data data --out results

        equipoise run noisy --on tiny-imagenet-c --tiers 3,5 --data data --out results
    """
    with plain_errors(_GOES_ON, out):
        from equipoise.cli.experiments import make_workers, summary_lines, unchecked
        from equipoise.research.experiment.progress import RunProgress
        from equipoise.research.experiment.recipe import load_recipe
        from equipoise.research.experiment.sweep import run_recipe
        from equipoise.research.experiment.user_files import load_modules

        if address is not None and engine is not Engine.ray:
            raise OptionError("--address names a Ray cluster: expected --engine ray with it")
        whole = load_recipe(recipe, on)
        load_modules(whole.modules)
        narrowed = whole.narrowed(
            methods=methods or (),
            backbones=backbones or (),
            seeds=seeds or (),
            temperings=tempering or (),
            epochs=epochs,
            domain_images=domain_images,
        )
        for line in unchecked(whole.modules):
            typer.echo(line)
        pool = make_workers(engine is Engine.ray, workers, address)
        with closing(pool), RunProgress(Console()) as progress:
            summary = run_recipe(
                narrowed,
                data=data,
                out=out,
                workers=pool,
                progress=progress,
                targets=targets or (),
                tiers=tiers or (),
                limit=limit,
                bad_files="skip" if skip_bad_files else "refuse",
            )
        for line in summary_lines(summary, out, narrowed.protocols):
            typer.echo(line)
    if summary.failed:
        raise typer.Exit(1)


@app.command("report")
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
        list[str] | None, comma_list(str, "Only these, by label or by name in the registry.")
    ] = None,
    temperings: Annotated[list[str] | None, comma_list(str, "Only these.")] = None,
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
        from equipoise.cli.experiments import write_report

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


@app.command("recipes")
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


@app.command("data")
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
        from equipoise.research.data.dataset import data_set_class, list_data_sets

        known = list_data_sets()
        if (
            place is None or place in known
        ):  # a name is a data set before it is a folder: ./pacs is the folder
            for name in known if place is None else [place]:
                typer.echo(f"{name}\n{data_set_class(name).about}\n")
            return
        if not Path(place).is_dir():
            raise DataError(f"{place}: expected a folder, or the name of a data set: {', '.join(known)}")
        for name in known:
            try:
                found = data_set_class(name)(Path(place))
            except DataError as error:
                typer.echo(f"{name}: not here. {error}\n")
                continue
            targets = ", ".join(dict.fromkeys(shift.target for shift in found.shifts))
            typer.echo(f"{name}: here, {len(found.classes)} classes, targets {targets}\n")


@app.command("methods")
def methods_command(
    name: Annotated[
        str | None, typer.Argument(help="Print the options of this one.", show_default=False)
    ] = None,
) -> None:
    """List the methods that `equipoise.create` makes adapters of, or print the options of one."""
    with plain_errors():
        from equipoise.factory import options_of
        from equipoise.registry import list_methods, method_class

        known = list_methods()
        described = {
            each: getdoc(method_class(each)) or "no description" for each in ([name] if name else known)
        }
        if name is None:
            width = max(map(len, known))
            for each, description in described.items():
                typer.echo(f"{each:<{width}}  {description.splitlines()[0]}")
            typer.echo("\n`equipoise methods NAME` prints the options of one.")
            return
        options, own = options_of(name), {field.name for field in fields(method_class(name))}
        width = max(map(len, options))
        typer.echo(f"{name}\n\n{described[name]}")
        for title, mine in (("Options of the method:", True), ("Options of every adapter:", False)):
            lines = [f"  {o:<{width}}  {default}" for o, default in options.items() if (o in own) is mine]
            typer.echo("\n".join([f"\n{title}", *(lines or ["  none"])]))


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


@app.command("doctor")
def doctor_command(
    factory: _Factory,
    data: Annotated[
        Path | None,
        typer.Argument(
            help="The folder of images, as for `equipoise rehearse`; the model alone is examined without.",
            show_default=False,
        ),
    ] = None,
    size: _Size = None,
    samples: Annotated[int, typer.Option(min=100, help="The most images to use.")] = 1000,
    batch_size: _BatchSize = _USUAL_BATCH,
    seed: _Seed = 0,
    device: _Device = None,
) -> None:
    """Say what adapting can do for your model, and whether your held-out images fit it.

    Looks for what can adapt (normalisation layers, the last linear layer), compares the labels with the
    model's answers, and times a step: in seconds, before `equipoise rehearse` takes minutes. MODULE:FACTORY
    and the folder are those of `equipoise rehearse`:

        equipoise doctor mymodel:load

        equipoise doctor mymodel:load held_out

    The exit status is 0 if a rehearsal can begin, 1 if something must be mended first: a softmax at the end
    of the model, folders that are other classes than the model's, a model that cannot run. What only makes
    estimates doubtful, as few images, is told and leaves it 0.
    """
    with plain_errors("Stopped."):
        from equipoise.cli.rehearse import class_lines, command_line, model_alone, model_and_images
        from equipoise.rehearsal.examination import examine

        if data is None:
            found = examine(model_alone(factory, device)[0])
        else:
            model, images = model_and_images(factory, data, size, device)
            found = examine(model, images, samples=samples, batch_size=batch_size, seed=seed)
            if found.to_mend:
                typer.echo("\n".join(class_lines(images.classes)))
        typer.echo(str(found))
        if not found.to_mend:
            rehearse = command_line(
                "rehearse",
                factory,
                data or "HELD_OUT",
                method=None if found.method == "poise" else found.method,
                size=size,
                batch_size=None if batch_size == _USUAL_BATCH else batch_size,
                seed=seed or None,
                device=device,
            )
            typer.echo(f"next        {rehearse}")
    if found.to_mend:
        raise typer.Exit(1)


@app.command("rehearse")
def rehearse_command(
    factory: _Factory,
    data: _HeldOut,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("model.source.safetensors"),
    method: Annotated[str, typer.Option(help="The method that you will adapt with.")] = "poise",
    size: _Size = None,
    samples: _Samples = 2000,
    batch_size: _BatchSize = _USUAL_BATCH,
    shifts: Annotated[
        int | None, typer.Option(min=8, help="Number of made-up shifts; all by default.", show_default=False)
    ] = None,
    seed: _Seed = 0,
    figure: Annotated[
        Path | None, typer.Option(help="Draw estimated against true accuracy (.png, .svg, .pdf).")
    ] = None,
    device: _Device = None,
    check_held_out: _CheckHeldOut = True,
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
        from equipoise.cli.rehearse import class_lines, model_and_images
        from equipoise.rehearsal.rehearse import rehearse

        check_writable(out, figure)
        model, images = model_and_images(factory, data, size, device)
        typer.echo("\n".join(class_lines(images.classes)))
        source = rehearse(
            model,
            images,
            method=method,
            shifts=shifts,
            samples=samples,
            batch_size=batch_size,
            seed=seed,
            check_held_out=check_held_out,
        )
        source.save(out)
        found = source.rehearsal_of(method)
        typer.echo(str(found))
        if figure is not None:
            found.plot(figure)
            typer.echo(f"the figure is {figure}")
        typer.echo(f"written to {out}; use it with")
        typer.echo(f'    source = equipoise.SourceStatistics.load("{out}")')
        typer.echo(f'    adapter = equipoise.create("{method}", model, source, tempering="rehearsed")')


@app.command("recommend")
def recommend_command(
    factory: _Factory,
    data: _HeldOut,
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
    size: _Size = None,
    samples: _Samples = 1000,
    batch_size: _BatchSize = _USUAL_BATCH,
    seed: _Seed = 0,
    device: _Device = None,
    check_held_out: _CheckHeldOut = True,
) -> None:
    """Try methods on made-up shifts of your images, in the order of a stream, and recommend one.

    Prints the class of each folder, a table of the methods and the call that makes the recommended one, and
    writes the source statistics that it needs. MODULE:FACTORY and the folder are those of
    `equipoise rehearse`:

        equipoise recommend mymodel:load held_out --stream correlated --budget 600
    """
    with plain_errors("Stopped; nothing was written."):
        from equipoise.cli.rehearse import class_lines, model_and_images
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


@app.command("estimate")
def estimate_command(
    reference: Annotated[
        Path,
        typer.Argument(
            help="Rows of your source domain that the model was NOT trained on, with labels: .csv, .csv.gz "
            "or .parquet. 1,000 to 5,000 are enough."
        ),
    ],
    stream: Annotated[
        Path,
        typer.Argument(
            help="Later rows, without labels. Where some rows have labels, these correct the estimates; "
            "where all have one, the estimates do not use them and are compared with them."
        ),
    ],
    by: Annotated[
        str,
        typer.Option(
            parser=chunk_size,
            metavar="UNIT|ROWS",
            help="Chunks: hour, day, week or month of the column of times (in UTC), or a number of rows.",
        ),
    ] = "1000",
    probabilities: Annotated[
        list[str] | None,
        comma_list(
            str,
            "The columns of probabilities, one for each class; or one alone, of the second class. Without it "
            "they are found: probability_*, proba_*, p_* or y_pred_proba_*, if they sum to 1.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="The column of labels; target, label, y_true, y or truth is found.", show_default=False
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            help="The column of times, such as 2026-05-01T12:30; time, timestamp, date or datetime is found.",
            show_default=False,
        ),
    ] = None,
    fail_below: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="End with status 3 if the estimated accuracy of any chunk is below.",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page with pictures: one file, no network.", show_default=False),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write all numbers for other programs.", show_default=False)
    ] = None,
) -> None:
    """Estimate how often a model is right, chunk by chunk, from the probabilities that it gave.

    Any model, of any framework: a row has the probability of each class, and its answer is the most probable.
    Prints the estimated accuracy of each chunk with a 90 % interval, and marks drift:

        equipoise estimate reference.csv stream.csv --by week --html report.html

        equipoise estimate reference.csv stream.csv --probabilities p_cat,p_dog --target animal

        equipoise estimate reference.csv stream.csv --by day --fail-below .9 --json estimates.json

    What no estimate can see without labels: inputs that look as before and now belong to other classes.

    The exit status is 0; 3 if an estimate is below --fail-below; 1 if a file cannot be used; 2 for wrong
    options; 130 after Ctrl-C.
    """
    with plain_errors("Stopped; nothing was written.", extra="demo"):
        from equipoise.cli.estimate import estimate, lines_of, write_json

        check_writable(html, json)
        found = estimate(
            reference,
            stream,
            by=cast("By", by),  # as its parser left it
            probabilities=probabilities or (),
            target=target,
            time=time,
        )
        for line in lines_of(found, fail_below):
            typer.echo(line)
        if html is not None:
            from equipoise.cli.estimate_page import write_page

            write_page(found, fail_below, html)
            typer.echo(f"see {html} in a browser")
        if json is not None:
            write_json(found, fail_below, json)
            typer.echo(f"all numbers are in {json}")
    if found.below(fail_below):
        raise typer.Exit(3)


@app.command("serve")
def serve_command(
    factory: _Factory,
    state: Annotated[
        Path, typer.Option(help="Folder for the state of every stream; the same folder resumes them.")
    ],
    source: Annotated[
        Path | None,
        typer.Option(help="The file that `equipoise rehearse` or `source.save` wrote.", show_default=False),
    ] = None,
    method: Annotated[str, typer.Option(help="The method that adapts.")] = "poise",
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Take images as floats from 0 to 1 in squares of this side, as `equipoise rehearse --size`; "
            "not with a transform.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=_ACCESS)] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0 takes any that is free.", rich_help_panel=_ACCESS)
    ] = 8000,
    change_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the bearer token for every POST; required off loopback.", rich_help_panel=_ACCESS
        ),
    ] = None,
    read_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the bearer token for GET of streams and metrics; without it, reading is open.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    engine: Annotated[Engine, typer.Option(help="This process, or replicas on Ray Serve.")] = Engine.local,
    replicas: Annotated[int, typer.Option(min=1, help="Processes of --engine ray.")] = 2,
    address: _Address = None,
    latency_ms: Annotated[
        float, _limit("Milliseconds after which the source model answers a request that the adapter has not.")
    ] = 1000.0,
    rows: Annotated[int, _limit("The most samples in a request.")] = 256,
    waiting: Annotated[int, _limit("The most requests that wait; more get status 429.")] = 512,
    streams: Annotated[int, _limit("The most streams, in memory and on disk.")] = 100_000,
    resident: Annotated[int, _limit("The most streams in memory.")] = 1000,
    request_mib: Annotated[int, _limit("The largest request, in MiB.")] = 32,
    image_pixels: Annotated[int, _limit("The largest image, width times height.")] = 4096 * 4096,
) -> None:
    """Serve a model over HTTP: it adapts to each of its streams, and says how accurate it is.

    With this in mymodel.py

        def load():
            model = ...  # a torch.nn.Module that returns logits
            return model, transform  # a PIL image to a tensor; or the model alone

    and the file of `equipoise rehearse mymodel:load held_out --out mymodel.source.safetensors`:

        equipoise serve mymodel:load --source mymodel.source.safetensors --state state

        curl http://127.0.0.1:8000/v1/predict?stream=camera-1 -H Content-Type:image/png --data-binary @1.png

    http://127.0.0.1:8000/ shows the streams. Ctrl-C or SIGTERM answers the requests that have come, saves
    every stream and ends with status 0; the same command goes on from there.

    On another address than loopback a token is needed for every request that changes a stream:

        python -c 'import secrets; print(secrets.token_urlsafe(32))' > token

        equipoise serve mymodel:load --source FILE --state state --host 0.0.0.0 --change-token-file token
    """
    with plain_errors("Stopped before the server was ready.", extra="serve"):
        from equipoise.cli.serve import first_lines, make_service, make_tokens
        from equipoise.production.server.app import bound_socket, create_app, is_local, serve, url_of
        from equipoise.production.server.limits import DoorLimits, Limits

        limits = Limits(rows=rows, waiting=waiting, latency_ms=latency_ms, streams=streams, resident=resident)
        door_limits = DoorLimits(request_bytes=request_mib * 2**20, image_pixels=image_pixels, rows=rows)
        with bound_socket(host, port) as bound:
            local = is_local(bound)
            tokens = make_tokens(host, local, change_token_file, read_token_file)
            service, transform = make_service(
                factory, size, source, method, limits, state, replicas if engine is Engine.ray else 0, address
            )
            door = create_app(service, tokens=tokens, limits=door_limits, transform=transform, local=local)
            lines = first_lines(
                url_of(bound), factory, method, state, change_token_file, transform is not None
            )
            serve(door, service, bound, lambda: typer.echo(lines))
            typer.echo(f"Stopped; every stream is saved in {state}.")
