"""Run a method on made-up shifts of labelled source data, and learn its accuracy from its answers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from equipoise.adapter import Adapter
from equipoise.calibration import window
from equipoise.calibration.expected import CURVES, FINITE, expected_sums, true_sums
from equipoise.calibration.novelty import LEAST_LIMIT, Novelty
from equipoise.calibration.regression import SCATTER, Process, fit_process, fit_ridge
from equipoise.calibration.rehearsal import Rehearsal, Run, logit
from equipoise.calibration.source_statistics import GivenSource, SourceStatistics, checked_source
from equipoise.calibration.temper import LEAD, TRUSTS, WINDOWS, RehearsedTemperature, check_searched
from equipoise.core.assembly import check_engine
from equipoise.core.method import Method
from equipoise.errors import OptionError, UnknownOptionError
from equipoise.factory import create, make_method, options_of
from equipoise.network.batch import InputsFunction, check_functions
from equipoise.network.forward import OutputsFunction
from equipoise.network.modules import checked_module, device_of, fingerprint
from equipoise.options import integer
from equipoise.rehearsal.held_out_check import check_answers, check_known_labels
from equipoise.rehearsal.labelled import FEWEST_SAMPLES, Inputs, Labelled, mapped, take
from equipoise.rehearsal.passes import RehearsalSetup, RehearsedStream, run_streams
from equipoise.rehearsal.shifts import NO_SHIFT, ColumnKinds, Shifts, check_shifts, chosen_shifts


def rehearse(
    model: nn.Module,
    loader: Iterable[Any] | Dataset[Any],
    *,
    method: str = "poise",
    shifts: int | Shifts | None = None,
    columns: ColumnKinds | None = None,
    source: GivenSource | None = None,
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
    (`passes.plan_passes`). Over windows of its answers (`window.features`), a Gaussian process fits the logit
    of their accuracy (`calibration.regression`); in a stream, `tempering="rehearsed"` evaluates it. One shift
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
        source: statistics, or a file of them, to add the rehearsal to; by default measured on the samples.
        inputs: turns a batch into the model's arguments, as in `equipoise.create`.
        outputs: picks the logits out of the model's output, as in `equipoise.create`.
        samples: how many samples to use at most, 100 or more; they are kept in memory.
        batch_size: of the streams.
        seed: of everything random.
        check_held_out: whether to compare the samples with the model's own answers first. Labels that do not
            fit the model (right by chance, in less than half of its mean confidence, or clearly more often
            with other labels) are refused; fewer than 1,000 samples and classes without any are warned of.
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
    given = given_source(source, model)
    with _stopping():
        labelled = take(loader, samples, seed, progress, model, inputs)
        chosen = chosen_shifts(shifts, labelled.inputs, columns)
        if check_held_out:
            check_answers(model, labelled, batch_size, outputs)
        needs, _ = make_method(method, options)
        measured = measured_on(model, labelled, [needs], batch_size, outputs) if given is None else given
        check_known_labels(labelled.labels, measured.num_classes)
        bare = replace(measured, rehearsals={})
        own = {"tempering": "none", "distributed": False, "inputs": as_it_is, "outputs": outputs}
        adapter = create(method, model, bare, **own, **options)
        near = labelled.near(adapter.device)
        novelty = Novelty(measured.inputs) if measured.inputs else None
        setup = RehearsalSetup(adapter, measured.num_classes, near, batch_size, seed, novelty)
        found = learned(adapter, run_streams(setup, chosen, progress), len(labelled), batch_size, seed)
    return replace(measured, rehearsals={**measured.rehearsals, method: found})


def wrap(
    model: nn.Module, held_out: Iterable[Any] | Dataset[Any], *, method: str = "poise", **options: Any
) -> Adapter:
    """An adapter of a model, rehearsed: `rehearse` and `create` in one call.

    A rehearsal takes minutes. `adapter.source.save(path)` writes it to a file, which the next start takes:
    `equipoise.Poise(model, path)`, or `equipoise.create(method, model, path, tempering="rehearsed")`.

    Args:
        model: the classifier to adapt, which is copied.
        held_out: labelled source data that the model was **not trained on**, as for `rehearse`: a loader, a
            pair (x, y) or a data set; 1,000 to 2,000 samples.
        method: one of `list_methods()`.
        options: those of `rehearse` (`samples`, `shifts`, `progress`, …), of the method and of every adapter
            (`engine`, `outputs`, …); but for `tempering`, which is by the rehearsal. `seed` is that of the
            rehearsal: a method with a seed of its own keeps its default.

    >>> import equipoise as eq
    >>> model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))
    >>> x = torch.randn(1000, 6)
    >>> adapter = eq.wrap(model, (x, model(x).argmax(1)), shifts=8, progress=False)
    >>> adapter(torch.randn(50, 6)).shape
    torch.Size([50, 3])
    """
    own = signature(rehearse).parameters.keys() - {"inputs", "outputs"}
    of_adapter = {name: value for name, value in options.items() if name not in own}
    later = {"engine", "distributed"}
    if not make_method(method, of_adapter)[0].asks_source:
        later |= {"t_min", "t_max"}
    check_engine(of_adapter.get("engine", "auto"), device_of(checked_module(model)))
    check_searched(of_adapter.get("t_min"), of_adapter.get("t_max"))
    rehearsed = {name: value for name, value in options.items() if name not in later}
    source = rehearse(model, held_out, method=method, **rehearsed)
    return create(method, model, source, tempering="rehearsed", **of_adapter)


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


def given_source(source: GivenSource | None, model: nn.Module) -> SourceStatistics | None:
    """The statistics that are given, where some are; SourceError for those of another model."""
    if source is None:
        return None
    statistics = checked_source(source)
    statistics.check_fits(fingerprint(model))
    return statistics


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
    parts = labelled.batches(batch_size)
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


FLOORS = torch.tensor([0.3, 0.03, 0.1, 0.04, 0.05, 0.3, 0.1], dtype=torch.float64)
"""The least spread of each feature of a window: smaller changes over the shifts are noise."""

BY_ITSELF = FLOORS.index_fill(0, torch.tensor([window.FEATURES.index("disagreement")]), torch.inf)
"""The same for a model by itself: the disagreement with another one has no part in its estimate."""


def learned(
    adapter: Adapter, streams: list[RehearsedStream], samples: int, batch_size: int, seed: int
) -> Rehearsal:
    """Fit the regressions to the streams."""
    weight = torch.cat(
        [torch.full((len(s.windows),), 1 / len(s.windows), dtype=torch.float64) for s in streams]
    )
    snapshots = torch.cat([stream.windows for stream in streams])
    x = window.features(snapshots)  # n, models, features
    hits = torch.cat([stream.hits for stream in streams])
    still = next(s for s in streams if s.shift == NO_SHIFT and s.order == "shuffled")
    origin, at_rest = window.features(still.whole), _accuracies(still)
    shifts = [name for stream in streams for name in stream.shifts]
    fit = partial(fit_process, weight=weight, shifts=shifts, none=NO_SHIFT)
    counts, whole = snapshots[..., window.COUNT], still.whole[..., window.COUNT]

    def of_model(at: int, floors: Tensor) -> Process:
        exact = torch.stack([logit(at_rest[at]), _sampling(at_rest[at], whole[at])])
        noise = _sampling(hits[:, at], counts[:, at])
        return fit(
            x[:, at], logit(hits[:, at]), variance=noise, floors=floors, origin=origin[at], exact=exact
        )

    student = of_model(0, BY_ITSELF)
    compared, source, lead, gap, disagreement = None, None, None, None, None
    if x.shape[1] == 2:
        compared, source = of_model(0, FLOORS), of_model(1, BY_ITSELF)
        both, ahead = x.flatten(1), hits[:, 1] - hits[:, 0]
        lead = fit(
            both,
            ahead / LEAD,
            variance=torch.zeros_like(weight),
            floors=torch.cat([FLOORS, BY_ITSELF]),
            origin=origin.flatten(),
            exact=torch.stack([(at_rest[1] - at_rest[0]) / LEAD, torch.tensor(SCATTER**2, dtype=x.dtype)]),
        )
        gap = fit_ridge(both, logit(hits[:, 1]) - logit(hits[:, 0]), weight, torch.cat([FLOORS, FLOORS]))
        apart = window.means(snapshots[:, 0])[ahead <= 0, window.APART]
        disagreement = float(apart.max()) if len(apart) else 0.0
    unshifted = torch.tensor([name == NO_SHIFT for name in shifts])
    familiar = float(
        window.means(snapshots[unshifted, 0])[:, window.NOVEL].quantile(0.9).clamp(min=LEAST_LIMIT)
    )
    wholes = torch.stack([stream.whole for stream in streams])
    right = window.temperature_for(wholes, torch.stack([_accuracies(stream) for stream in streams]))
    runs, bins = _runs(streams, student if compared is None else compared)
    none_yet = torch.zeros(len(still.whole), len(CURVES), FINITE + 1, dtype=torch.float64)
    found = Rehearsal(
        method=adapter.name,
        options=adapter.rehearsed_options,
        samples=samples,
        batch_size=batch_size,
        seed=seed,
        runs=tuple(runs),
        student=student,
        compared=compared,
        source=source,
        lead=lead,
        gap=gap,
        familiar=familiar,
        reach=max(stream.weight_distance for stream in streams),
        disagreement=disagreement,
        prior=still.whole / whole.unsqueeze(1),
        coolest=right.amin(0).clamp(max=1.0),
        hottest=right.amax(0).clamp(min=1.0),
        expected=none_yet,
        true=none_yet,
        bins=bins,
    )
    return _with_decisions(found, still)


def _with_decisions(rehearsal: Rehearsal, still: RehearsedStream) -> Rehearsal:
    """Add what answers without shift expect of decisions, at the temperatures that a stream begins with."""
    if still.logits is None or still.labels is None:
        raise RuntimeError("expected the answers without shift")
    rehearsed = RehearsedTemperature(rehearsal, compares=rehearsal.source is not None)
    begin = rehearsed.initial()
    temperatures = rehearsed.judge(begin[WINDOWS], begin[TRUSTS]).temperatures
    every = torch.ones_like(still.labels, dtype=torch.bool)
    expected, true = [], []
    for logits, temperature in zip(still.logits, temperatures, strict=True):
        answers = logits / temperature
        expected.append(expected_sums(answers, every))
        true.append(true_sums(answers, still.labels))
    return replace(rehearsal, expected=torch.stack(expected).double(), true=torch.stack(true).double())


def _sampling(accuracy: Tensor, count: Tensor) -> Tensor:
    """The variance of the logit of an accuracy over some samples."""
    return 1 / (count * accuracy * (1 - accuracy) + 1)


def _accuracies(stream: RehearsedStream) -> Tensor:
    """The accuracies of the models over a whole stream."""
    own = [float(stream.right.double().mean())]
    return torch.tensor(own if stream.source_right is None else [*own, stream.source_right]).double()


def _runs(streams: list[RehearsedStream], process: Process) -> tuple[list[Run], Tensor]:
    """The result of each stream by the estimate that never saw its shift, and bins of confidence."""
    alone, at = process.left_out(), 0
    runs, bins = [], torch.zeros(2, 3, 15, dtype=torch.float64)
    for stream in streams:
        estimate = float(alone[at : at + len(stream.windows)].sigmoid().mean())
        at += len(stream.windows)
        own = stream.whole[0]
        temperature = window.temperature_for(own, torch.tensor(estimate, dtype=torch.float64))
        runs.append(
            Run(
                stream.shift,
                stream.order,
                float(stream.right.double().mean()),
                float(own[window.CONFIDENCE] / own[window.COUNT]),
                estimate,
                float(temperature),
                stream.source_right,
            )
        )
        for place, confidence in enumerate(window.confidence_at(stream.confidences, temperature)):
            bins[place] += _binned(confidence, stream.right)
    return runs, bins


def _binned(confidence: Tensor, right: Tensor) -> Tensor:
    """Counts, sums of confidence and hits in 15 bins of equal width, (lo, hi]."""
    place = (confidence * 15).ceil().long().sub(1).clamp(0, 14)
    parts = (torch.ones_like(confidence), confidence, right.to(confidence))
    return torch.stack(
        [torch.zeros(15, dtype=torch.float64).scatter_add(0, place, p.double()) for p in parts]
    )
