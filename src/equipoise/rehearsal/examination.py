"""An examination of a model and of held-out samples: what adapting can do, and what must be mended first."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Literal

from torch import Tensor, arange, nn
from torch.utils.data import Dataset

from equipoise.errors import EquipoiseError
from equipoise.factory import create, make_method
from equipoise.network.batch import Batch, InputsFunction, batches, check_functions
from equipoise.network.forward import OutputsFunction, checked_logits, logits_of, uncompiled
from equipoise.network.head import FoundHead, linear_layers, watch_head
from equipoise.network.modules import checked_module, device_of
from equipoise.network.normalisation import NORMALISATION, evaluation_mode, running_statistics
from equipoise.options import integer
from equipoise.rehearsal.held_out_check import CleanAnswers, clean_answers, doubts, mistakes
from equipoise.rehearsal.labelled import FEWEST_SAMPLES, Labelled, take
from equipoise.rehearsal.rehearse import as_it_is, measured_on

_TIMED, _WARM_UP = 5, 2
_LEAST_GAP = 0.03
"""A difference of confidence and accuracy that is none."""


@dataclass(frozen=True)
class Cost:
    """The time of a batch on this machine.

    Attributes:
        samples: in the batch.
        forward: seconds of a forward of the model.
        step: seconds in which the method answers the batch and learns from it. A rehearsed "poise" also asks
            the source model, a forward more, unless `falls_back=False`.
        method: the one to rehearse, "poise" or "source".
    """

    samples: int
    forward: float
    step: float
    method: Literal["poise", "source"]

    def __str__(self) -> str:
        """Both as text, the step in forwards too."""
        more = "; rehearsed, a forward more" if self.method == "poise" else ""
        return (
            f"a forward of {self.samples} samples {1e3 * self.forward:,.1f} ms here, a step of {self.method} "
            f"{1e3 * self.step:,.1f} ms ({self.step / self.forward:.1f} forwards){more}"
        )


@dataclass(frozen=True)
class HeldOutAnswers:
    """The model's answers to the held-out samples.

    Attributes:
        samples: held out.
        classes: of the model.
        head: the linear layer that makes the logits, in words; empty where none does.
        accuracy: the share of right answers.
        confidence: the mean probability of the answer; None where the outputs are no logits, or not finite.
    """

    samples: int
    classes: int
    head: str
    accuracy: float
    confidence: float | None

    def __str__(self) -> str:
        """The accuracy, the confidence, and how they compare."""
        right = f"{self.samples:,} held out, right in {self.accuracy:.3f}"
        if self.confidence is None:
            return right
        noise = 3 * math.sqrt(self.accuracy * (1 - self.accuracy) / self.samples)
        gap = self.confidence - self.accuracy
        verdict = ""
        if abs(gap) > max(_LEAST_GAP, noise):
            kind, cure = ("over", "less") if gap > 0 else ("under", "more")
            verdict = f": {kind}-confident; a rehearsal makes it {cure} confident"
        return f"{right}, mean confidence {self.confidence:.3f}{verdict}"


@dataclass(frozen=True)
class Examination:
    """What adapting can do for a model, and whether held-out samples fit it.

    Attributes:
        model: the class of the model.
        parameters: how many it has.
        normalisation: the number of normalisation layers by their class.
        following: how many of them have running statistics, which can follow a stream.
        linear: whether there are linear layers.
        answers: to the held-out samples; None without samples.
        cost: of a batch; None without samples, or where the model cannot be adapted yet.
        to_mend: what must be mended before a rehearsal, with the cures.
        doubts: what makes estimates doubtful.
    """

    model: str
    parameters: int
    normalisation: Mapping[str, int]
    following: int
    linear: bool
    answers: HeldOutAnswers | None = None
    cost: Cost | None = None
    to_mend: Sequence[str] = ()
    doubts: Sequence[str] = ()

    @property
    def method(self) -> Literal["poise", "source"]:
        """The method to rehearse: "poise" where it has something to adapt, else "source"."""
        prototypes = self.linear if self.answers is None else bool(self.answers.head)
        return "poise" if self.following or prototypes else "source"

    def __str__(self) -> str:
        """The facts, a line each."""
        classes = "" if self.answers is None else f", {self.answers.classes} classes"
        lines = [("model", f"{self.model} with {self.parameters:,} parameters{classes}")]
        lines += [("statistics", self._statistics()), ("prototypes", self._prototypes())]
        lines += [
            (name, str(facts)) for name, facts in (("answers", self.answers), ("cost", self.cost)) if facts
        ]
        if not self.to_mend:
            lines += [("expect", self._expected()), ("take", f"{self.method}, rehearsed")]
        lines += [("doubt", text) for text in self.doubts]
        lines += [("mend first", text) for text in self.to_mend]
        return "\n".join(f"{name:<10}  {text}" for name, text in lines)

    def _statistics(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.normalisation.items())
        if self.following:
            return (
                f"running statistics of {self.following} normalisation layers can follow a stream ({kinds})"
            )
        has = f"{kinds} have none that could follow a stream" if kinds else "no normalisation layer"
        return f"none: {has}"

    def _prototypes(self) -> str:
        if self.answers is not None:
            return self.answers.head or "none: the logits are not the output of an nn.Linear"
        return (
            "on the last linear layer, if the logits are its output" if self.linear else "none: no nn.Linear"
        )

    def _expected(self) -> str:
        honest = "honest confidence, and an estimate of accuracy without labels"
        if self.following:
            return f"more right answers where inputs drift, {honest}"
        return f"{honest}; hardly more right answers, for want of batch norm"


def examine(
    model: nn.Module,
    held_out: Iterable[Any] | Dataset[Any] | None = None,
    *,
    inputs: InputsFunction | None = None,
    outputs: OutputsFunction | None = None,
    samples: int = 1000,
    batch_size: int = 50,
    seed: int = 0,
    progress: bool = False,
) -> Examination:
    """Examine a model, and held-out samples by the model's answers; both are left as they were.

    Args:
        model: the classifier to be deployed.
        held_out: yields (inputs, labels) as for `equipoise.rehearse`; None: the model alone.
        inputs: turns a batch into the model's arguments, as in `equipoise.create`.
        outputs: picks the logits out of the model's output, as in `equipoise.create`.
        samples: how many samples to use at most, 100 or more.
        batch_size: of the streams that will come; the cost is that of such a batch.
        seed: of the choice of samples.
        progress: whether to show a bar.

    >>> model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    >>> found = examine(model)
    >>> found.method, found.following, found.to_mend
    ('poise', 1, ())
    """
    model = checked_module(model)
    check_functions(inputs=inputs, outputs=outputs)
    samples = integer("samples", samples, low=FEWEST_SAMPLES)
    batch_size, seed = integer("batch_size", batch_size, low=1), integer("seed", seed, low=0)
    facts: dict[str, Any] = {
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "normalisation": Counter(type(m).__name__ for m in model.modules() if isinstance(m, NORMALISATION)),
        "following": len({name.rpartition(".")[0] for name in running_statistics(model)}),
        "linear": bool(linear_layers(model)),
    }
    if held_out is None:
        return Examination(**facts)
    labelled = take(held_out, samples, seed, progress, model, inputs)
    given = clean_answers(model, labelled, batch_size, outputs)
    head = _head_in_words(_found_head(model, labelled, outputs))
    found = Examination(
        **facts,
        answers=_summed_up(given, labelled.labels, head),
        to_mend=tuple(mistakes(given, labelled.labels)),
        doubts=tuple(doubts(labelled.labels, given.classes)),
    )
    if given.normalised:
        return found
    try:
        return replace(found, cost=_measured_cost(model, labelled, found.method, batch_size, outputs))
    except EquipoiseError as error:
        return replace(found, to_mend=(*found.to_mend, str(error)))


def _summed_up(given: CleanAnswers, labels: Tensor, head: str) -> HeldOutAnswers:
    finite = given.finite
    accuracy = float((given.predicted == labels)[finite].double().mean()) if finite.any() else 0.0
    logits = bool(finite.any()) and not given.normalised
    confidence = float(given.confidences[finite].double().mean()) if logits else None
    return HeldOutAnswers(len(labels), given.classes, head, accuracy, confidence)


def _first_batch(model: nn.Module, labelled: Labelled, size: int) -> Batch:
    """The first samples as a batch on the model's device."""
    part = labelled.select(arange(min(size, len(labelled))))
    return next(iter(batches([(part.inputs, part.labels)], model, device_of(model), None, progress=None)))


def _found_head(model: nn.Module, labelled: Labelled, outputs: OutputsFunction | None) -> FoundHead:
    """The linear layer whose output is the model's, in a forward of two samples."""
    batch = _first_batch(model, labelled, 2)
    with evaluation_mode(model), uncompiled(model), watch_head(model, None, required=False) as finder:
        return finder.note(checked_logits(model(*batch.args, **batch.kwargs), batch.rows, None, outputs))


def _head_in_words(head: FoundHead) -> str:
    if head.layer is None:
        return ""
    name = repr(head.name) if head.name else "which is the model itself"
    features, classes = head.layer.in_features, head.layer.out_features
    return f"on the linear head {name}, {features} features to {classes} classes"


def _measured_cost(
    model: nn.Module,
    labelled: Labelled,
    method: Literal["poise", "source"],
    batch_size: int,
    outputs: OutputsFunction | None,
) -> Cost:
    """Time a forward and a step of the method on the same batch."""
    source = measured_on(model, labelled, [make_method(method, {})[0]], batch_size, outputs)
    own = {"tempering": "none", "distributed": False, "inputs": as_it_is, "outputs": outputs}
    adapter = create(method, model, source, **own)
    batch = _first_batch(model, labelled, batch_size)

    def forward() -> Tensor:
        return checked_logits(model(*batch.args, **batch.kwargs), batch.rows, None, outputs)

    with evaluation_mode(model):
        alone = _seconds(forward)
    return Cost(batch.rows, alone, _seconds(partial(adapter, *batch.args, **batch.kwargs)), method)


def _seconds(call: Callable[[], Any]) -> float:
    """The median time of a call whose answer, logits or an object with `.logits`, is waited for."""
    times = []
    for _ in range(_WARM_UP + _TIMED):
        start = time.perf_counter()
        logits_of(call()).sum().item()  # waits for any device
        times.append(time.perf_counter() - start)
    return median(times[_WARM_UP:])
