"""Run a method on made-up shifts of labelled source data, and learn its accuracy from its answers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from equipoise.calibration.novelty import Novelty
from equipoise.calibration.shifts import NO_SHIFT
from equipoise.calibration.source_statistics import SourceStatistics, check_source
from equipoise.core.method import Method
from equipoise.errors import OptionError, UnknownOptionError
from equipoise.factory import create, make_method, options_of
from equipoise.network.batch import InputsFunction, check_functions
from equipoise.network.forward import OutputsFunction
from equipoise.network.modules import checked_module, device_of, fingerprint
from equipoise.options import integer
from equipoise.rehearsal.built_in import ColumnKinds, built_in_shifts, check_columns
from equipoise.rehearsal.checking import check_answers, check_known_labels
from equipoise.rehearsal.labelled import FEWEST_SAMPLES, Inputs, Labelled, mapped, take
from equipoise.rehearsal.regression_data import learned
from equipoise.rehearsal.streams import RehearsalSetup, Shifts, batches_of, run_streams

FEWEST_SHIFTS = 8
"""The shifts below which a regression would learn noise, the one that changes nothing among them."""


def rehearse(
    model: nn.Module,
    loader: Iterable[Any] | Dataset[Any],
    *,
    method: str = "poise",
    shifts: int | Shifts | None = None,
    columns: ColumnKinds | None = None,
    source: SourceStatistics | None = None,
    inputs: InputsFunction | None = None,
    outputs: OutputsFunction | None = None,
    samples: int = 2000,
    batch_size: int = 50,
    seed: int = 0,
    check_held_out: bool = True,
    progress: bool = True,
    **options: Any,
) -> SourceStatistics:
    """Source statistics with a rehearsal, which estimates a method's accuracy from its answers alone.

    The method adapts to each made-up shift of labelled samples from a reset, without tempering: in random
    order, every second one sorted by class as well, and without a shift in bursts and in uneven shares of
    classes, groups and answers; one that learns weights also meets all shifts without a reset
    (`rehearsing.orders`). Over windows of its answers (`window.features`), a Gaussian process fits the logit
    of their accuracy (`calibration.process`); in a stream, `tempering="rehearsed"` evaluates it. One shift
    after another is left out to learn how far off that is. The model and torch's global random state are
    left alone.

    Args:
        model: the classifier to be deployed.
        loader: yields (inputs, labels) of source data that the model was **not trained on**: on its training
            data a model is more accurate than it will ever be again. 1,000 to 2,000 samples are enough.
            Inputs are a tensor, a dict by keyword, or a tuple by position; a dict may hold the labels, under
            "labels". Instead of a loader, a pair (x, y) of all inputs and labels in memory, or a data set of
            such items.
        method: the method to rehearse, one of `list_methods()`.
        shifts: how many of the built-in shifts (at least 8; 16 are nearly as good as all), or shifts of your
            own, names to functions (inputs, generator) → inputs (on the model's device; the generator is on
            the CPU). By default all that fit the inputs: images (N, C, H, W) get geometric, occluding,
            mixing, colour, texture and frequency changes; tables of floats (N, F) or (N, …, F) get noise,
            offsets, factors, dropped and frozen columns and columns that change places, in all columns or
            in a few. Of several inputs all images are changed or, without an image, all tables; integers
            (N, F) beside floats are codes. A warning names the inputs that stay as they are. Other inputs,
            such as tokens, need shifts of your own, which get all inputs of the model.
        columns: what columns of tables hold, where a guess is wrong: a kind for each column, or a dict of
            indices to kinds, of several inputs {(position or key, index): kind}. "continuous": numbers;
            "flag": two values, which stay those two; "constant": one value, which gets offsets in some
            shifts; "code": of a category, redrawn from the values of the column. Of floats, columns of one
            value are taken as constant, of two as flags, all others as continuous; of integers as codes.
        source: statistics to add the rehearsal to; by default measured on the same samples.
        inputs: turns a batch into the model's arguments, as in `equipoise.create`.
        outputs: picks the logits out of the model's output, as in `equipoise.create`.
        samples: how many samples to use at most, 100 or more; they are kept in memory.
        batch_size: of the streams.
        seed: of everything random.
        check_held_out: whether to compare the samples with the model's own answers first. Labels that do not
            fit the model (right by chance, in less than half of its mean confidence, or clearly more often
            with other labels) and outputs that are probabilities are refused; fewer than 1,000 samples and
            classes without any are warned of.
        progress: whether to show bars.
        options: the method's options, those that it will be deployed with.

    >>> import equipoise as eq
    >>> model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))
    >>> x = torch.randn(1000, 6)
    >>> source = eq.rehearse(model, (x, model(x).argmax(1)), shifts=8, progress=False)
    >>> adapter = eq.Poise(model, source)
    >>> adapter(torch.randn(50, 6)).shape
    torch.Size([50, 3])
    """
    model = checked_module(model)
    _check_call(method, options)
    check_shifts(shifts, columns)
    check_functions(inputs=inputs, outputs=outputs)
    samples, batch_size = (
        integer("samples", samples, low=FEWEST_SAMPLES),
        integer("batch_size", batch_size, low=1),
    )
    seed = integer("seed", seed, low=0)
    check_given(source, model)
    with _stopping():
        labelled = take(loader, samples, seed, progress, model, inputs)
        chosen = chosen_shifts(shifts, labelled.inputs, columns)
        if check_held_out:
            check_answers(model, labelled, batch_size, outputs)
        needs, _ = make_method(method, options)
        measured = measured_on(model, labelled, [needs], batch_size, outputs) if source is None else source
        check_known_labels(labelled.labels, measured.num_classes)
        bare = replace(measured, rehearsals={})
        own = {"tempering": "none", "distributed": False, "inputs": as_it_is, "outputs": outputs}
        adapter = create(method, model, bare, **own, **options)
        near = labelled.near(adapter.device)
        novelty = Novelty(measured.inputs) if measured.inputs else None
        setup = RehearsalSetup(adapter, measured.num_classes, near, batch_size, seed, novelty)
        found = learned(adapter, run_streams(setup, chosen, progress), len(labelled), batch_size, seed)
    return replace(measured, rehearsals={**measured.rehearsals, method: found})


@contextmanager
def _stopping() -> Iterator[None]:
    """Add a message about the rehearsal to Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(
            f"the rehearsal was stopped{stop}: nothing was kept, the model is as it was; fewer samples= or "
            "shifts= take less time"
        ) from None


def _check_call(method: str, options: Mapping[str, Any]) -> None:
    """Check the arguments before anything is read."""
    known = options_of(method)
    for name in ("tempering", "engine", "distributed"):
        if name in options:
            raise OptionError(f"{name} is not an option of a rehearsal: it chooses its own")
    if unknown := sorted(set(options) - set(known)):
        raise UnknownOptionError(f"{method} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    ranged = [name for name in ("t_min", "t_max") if options.get(name) is not None]
    if ranged and not make_method(method, dict(options))[0].asks_source:
        raise OptionError(
            f"{' and '.join(ranged)}: a rehearsal of {method} does not depend on the range of temperatures; "
            "give it to the adapter"
        )


def check_shifts(shifts: int | Shifts | None, columns: ColumnKinds | None) -> None:
    """Refuse shifts that are no functions, or too few, and columns that are of no kind."""
    check_columns(columns)
    if columns is not None and isinstance(shifts, Mapping):
        raise OptionError("expected columns= for the built-in shifts alone, got it with shifts of your own")
    if isinstance(shifts, Mapping):
        if not all(callable(shift) for shift in shifts.values()):
            raise OptionError("expected shifts as names to functions (inputs, generator) -> inputs")
        if len(shifts.keys() - {NO_SHIFT}) < FEWEST_SHIFTS - 1:
            raise OptionError(
                f"expected at least {FEWEST_SHIFTS - 1} shifts, better 16, got "
                f"{len(shifts.keys() - {NO_SHIFT})}: fewer are not enough to estimate accuracy from answers"
            )
    elif shifts is not None:
        integer("shifts", shifts, low=FEWEST_SHIFTS)


def check_given(source: SourceStatistics | None, model: nn.Module) -> None:
    """Refuse statistics that are given and are none, or those of another model; SourceError."""
    if source is not None:
        check_source(source).check_fits(fingerprint(model))


def as_it_is(inputs: Inputs) -> Inputs:
    """The model's arguments as they were read from the loader."""
    return inputs


def measured_on(
    model: nn.Module,
    labelled: Labelled,
    methods: Sequence[Method],
    batch_size: int,
    outputs: OutputsFunction | None,
) -> SourceStatistics:
    """Source statistics of the same samples, with all that the methods need."""
    device = device_of(model)
    parts = batches_of(labelled, batch_size)
    batches = ((mapped(part.inputs, lambda t: t.to(device)), part.labels) for part in parts)
    return SourceStatistics.measure(
        model,
        batches,
        fisher=any(method.needs_fisher for method in methods),
        features=any(method.needs_features for method in methods),
        inputs=as_it_is,
        outputs=outputs,
        progress=False,
    )


def chosen_shifts(
    shifts: int | Shifts | None,
    inputs: Inputs,
    columns: ColumnKinds | None = None,
    caller: str = "rehearse",
) -> Shifts:
    """The shifts to rehearse, the one that changes nothing first; errors name the `caller`."""
    if isinstance(shifts, Mapping):
        found: Shifts = dict(shifts)
    else:
        found = built_in_shifts(inputs, columns, caller)
        if shifts is not None:
            found = dict(list(found.items())[: int(shifts) - 1])
    return {NO_SHIFT: lambda x, _: x, **{name: shift for name, shift in found.items() if name != NO_SHIFT}}
