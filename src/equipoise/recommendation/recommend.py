"""Try methods on made-up shifts of labelled source data in the order of a stream, and recommend one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

from torch import nn
from torch.utils.data import Dataset

from equipoise.calibration.source_statistics import GivenSource
from equipoise.errors import OptionError
from equipoise.factory import make_method
from equipoise.network.batch import InputsFunction, check_functions
from equipoise.network.forward import OutputsFunction
from equipoise.network.modules import checked_module, device_of
from equipoise.options import integer, number, one_of
from equipoise.recommendation.candidates import NO_ADAPTATION, Candidate, MethodChoice, StreamKind, candidates
from equipoise.recommendation.choice import shift_sums
from equipoise.recommendation.made_up_stream import check_stream, make_up_stream
from equipoise.recommendation.recommendation import Recommendation, recommendation_of
from equipoise.recommendation.trial import Budget, Session, Setting, attempt, divided_shifts
from equipoise.rehearsal.held_out_check import check_answers, check_known_labels
from equipoise.rehearsal.labelled import FEWEST_SAMPLES, take
from equipoise.rehearsal.rehearse import given_source, measured_on
from equipoise.rehearsal.shifts import ColumnKinds, Shifts, check_shifts


def recommend(
    model: nn.Module,
    held_out: Iterable[Any] | Dataset[Any],
    *,
    stream: StreamKind | tuple[StreamKind, Mapping[str, Any]] = "continual",
    budget: float | None = 300.0,
    methods: Sequence[MethodChoice] | None = None,
    shifts: int | Shifts | None = 16,
    columns: ColumnKinds | None = None,
    length: int = 8000,
    source: GivenSource | None = None,
    inputs: InputsFunction | None = None,
    outputs: OutputsFunction | None = None,
    samples: int = 1000,
    batch_size: int = 50,
    seed: int = 0,
    check_held_out: bool = True,
    progress: bool = True,
) -> Recommendation:
    """Recommend a method for a model and a kind of stream, by trying a short list of methods.

    Labelled samples under made-up shifts (those of `rehearse`, none of them one of the 15 corruptions) are
    put into the order of the stream, each shift a domain of it. Every method adapts to that stream and is
    scored as it answers.
    The default is "poise", or no adaptation where "poise" clearly loses or is not among the methods. Another
    method is recommended if its gain over the default is clear: the one with the largest lower end. Gains are
    paired over shifts, and their bootstrap intervals hold for all methods at once with 90 %. The method is
    rehearsed, on other shifts, and tempered unless that raises its negative log-likelihood; "poise" is
    before, as with a rehearsal the source model may answer.

    A method that cannot work on the model, that fails or takes too long is in the table with the reason. The
    model and torch's global random state are left alone.

    Args:
        model: the classifier to be deployed.
        held_out: yields (inputs, labels) of source data that the model was **not trained on**, as for
            `rehearse`.
        stream: the kind of stream that is expected (docs/how-to/streams.md), or the kind and its options:
            ("correlated", {"concentration": 0.01}). "shuffled" and "sorted" are streams of one domain: every
            shift is met from a reset. "gradual" orders shifts by the source model's accuracy. In "noisy"
            streams each value of a sample of no class comes from another sample.
        budget: the seconds that trying may take; None: no limit. A method that would take longer, by a few
            samples or its first batches, is not tried; "source" and "poise" always are.
        methods: names, or pairs (name, options); by default a short list for the kind of stream.
            "source", no adaptation, is always among them.
        shifts: how many of the built-in shifts, or shifts of your own, as in `rehearse`; None: all. Inputs as
            they are, which a rehearsal has, are not in the stream.
        columns: what columns of tables hold, as in `rehearse`.
        length: about how many samples the stream has.
        source: statistics of the model, or a file of them; by default measured on the same samples.
        inputs: turns a batch into the model's arguments, as in `equipoise.create`.
        outputs: picks the logits out of the model's output, as in `create`.
        samples: how many labelled samples to use at most, 100 or more; they are kept in memory.
        batch_size: of the stream.
        seed: of everything random.
        check_held_out: whether to refuse samples whose labels do not fit the model, as in `rehearse`.
        progress: whether to show bars.

    >>> import equipoise as eq
    >>> model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))
    >>> x = torch.randn(1000, 6)
    >>> held_out = (x, model(x).argmax(1))
    >>> found = eq.recommend(model, held_out, methods=["t3a"], shifts=8, length=800, progress=False)
    >>> found.adapter(model)(torch.randn(50, 6)).shape
    torch.Size([50, 3])
    """
    clock = Budget(_checked_budget(budget))
    model = checked_module(model)
    kind, stream_options = _checked_stream(stream)
    tried = candidates(methods, kind)
    check_shifts(shifts, columns)
    check_functions(inputs=inputs, outputs=outputs)
    samples = integer("samples", samples, low=FEWEST_SAMPLES)
    batch_size, length = integer("batch_size", batch_size, low=1), integer("length", length, low=1)
    seed = integer("seed", seed, low=0, high=2**62)
    check_stream(kind, stream_options, length=length, batch_size=batch_size)
    given = given_source(source, model)
    with _stopping():
        labelled = take(held_out, samples, seed, progress, model, inputs)
        chosen, others = divided_shifts(shifts, labelled.inputs, columns)
        if check_held_out:
            check_answers(model, labelled, batch_size, outputs)
        needs = [make_method(one.name, dict(one.options))[0] for one in tried]
        statistics = measured_on(model, labelled, needs, batch_size, outputs) if given is None else given
        check_known_labels(labelled.labels, statistics.num_classes)
        bare = replace(statistics, rehearsals={})
        near = labelled.near(device_of(model))
        sized = {"length": length, "batch_size": batch_size, "seed": seed}
        if kind == "gradual":
            chosen = _easiest_first(
                Setting(model, bare, outputs, make_up_stream(near, chosen, "continual", {}, **sized))
            )
        made = make_up_stream(near, chosen, kind, stream_options, **sized)
        session = Session(Setting(model, bare, outputs, made), others, clock)
        session.run(tried, progress)
    functions = {"inputs": inputs, "outputs": outputs}
    return recommendation_of(session, {name: given for name, given in functions.items() if given is not None})


@contextmanager
def _stopping() -> Iterator[None]:
    """Add a message about the recommendation to Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "the recommendation was stopped: nothing was kept, the model is as it was; a smaller budget=, "
            "length= or methods= takes less time"
        ) from None


def _checked_budget(budget: Any) -> float | None:
    """The seconds that trying may take."""
    try:
        return None if budget is None else number("budget", budget, low=0)
    except OptionError:
        expected = "expected budget as a number of seconds, 0 or more, or None for no limit"
        raise OptionError(f"{expected}, got {budget!r}") from None


def _checked_stream(stream: Any) -> tuple[StreamKind, Mapping[str, Any]]:
    """The kind of stream and its options."""
    kind, options = stream if isinstance(stream, (tuple, list)) and len(stream) == 2 else (stream, {})
    one_of("stream", kind, get_args(StreamKind))
    if not isinstance(options, Mapping):
        raise OptionError(f"expected stream as a kind, or as (kind, options), got {stream!r}")
    return kind, options


def _easiest_first(setting: Setting) -> Shifts:
    """The shifts of a stream by the source model's accuracy, as if they were tiers of one."""
    trial, stream = attempt(Candidate(NO_ADAPTATION), setting, Budget(None)), setting.stream
    sums = shift_sums(trial.logits, stream.labels, stream.domains, len(stream.shifts))
    order, named = (sums.hits / sums.counts).argsort(descending=True).tolist(), list(stream.shifts.items())
    return {named[place][0]: named[place][1] for place in order}
