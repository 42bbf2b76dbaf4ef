"""The options of every adapter, and its parts, put together from a method, a model and options."""

import json
import warnings
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.calibration.temper import Temper, Tempering
from equipoise.core.method import Method
from equipoise.core.state import State
from equipoise.core.step import Responder
from equipoise.core.student import Student
from equipoise.distributed.ranks import Ranks
from equipoise.errors import OptionError, RehearsalWarning, SourceError, callers_level
from equipoise.network.forward import Layout, OutputsFunction
from equipoise.network.source_copy import Residence
from equipoise.options import one_of

EngineName: TypeAlias = Literal["auto", "eager", "graph", "compile"]
""""eager", one kernel after the other; "graph", the whole step as one CUDA graph; "compile", the networks by
torch.compile (in a graph on a GPU); "auto", a graph on a GPU and else "eager"."""

MACHINE_OPTIONS = ("engine", "distributed")
"""The options of every adapter that belong to a machine and not to the state."""

EXECUTION_OPTIONS = (*MACHINE_OPTIONS, "precision", "memory_format")
"""The options of every adapter that change how it runs, and not its results."""


def check_engine(engine: Any, device: torch.device) -> None:
    """Raise OptionError for an engine that does not exist, or not on this device."""
    one_of("engine", engine, get_args(EngineName))
    if engine == "graph" and device.type != "cuda":
        raise OptionError(
            f'engine="graph" is a CUDA graph and the model is on {device}: move it to a GPU first, '
            'or use engine="auto"'
        )


def describe_engine(student: Student, sizes: list[int] | None, refusal: str) -> str:
    """The engine of an adapter in words: `sizes` of batches that are captured, None where nothing can be."""
    engine = "eager" if student.ranks.alone else "eager, as processes adapt as one"
    if sizes is not None:
        listed = ", ".join(str(size) for size in sizes)
        engine = f"CUDA graphs (batches of {listed})" if sizes else "CUDA graphs, none captured yet"
    if refusal:
        engine = f"eager, as the step cannot be captured: {refusal}"
    return f"{engine}, {student.compiler.description}" if student.compiler.wanted else engine


def make_temper(
    method: Method,
    source: SourceStatistics | None,
    tempering: Tempering | None,
    t_min: float | None,
    t_max: float | None,
) -> Temper:
    """The temper of a method; SourceError where it lacks source statistics or a rehearsal."""
    kind = _chosen_tempering(method, source, tempering)
    if kind == "none" and not method.asks_source and (t_min, t_max) != (None, None):
        raise OptionError(
            f"t_min and t_max have no effect on {method.name} with tempering='none': leave them out, or "
            "choose another tempering"
        )
    rehearsal = source.rehearsal_of(method.name) if source and kind == "rehearsed" else None
    return Temper(kind, source, t_min, t_max, rehearsal, method.compares)


def make_responder(
    method: Method,
    model: nn.Module,
    source: SourceStatistics | None,
    temper: Temper,
    source_copy: Residence,
    layout: Layout,
    engine: str,
    ranks: Ranks,
    outputs: OutputsFunction | None,
) -> Responder:
    """Copy the model, check that method and statistics fit it, and start the state."""
    student = Student(
        model,
        method.learns,
        moves_statistics=method.moves_statistics,
        source_copy=source_copy,
        layout=layout,
        compiled=engine == "compile",
        ranks=ranks,
        classes=source.num_classes if source else None,
        outputs=outputs,
    )
    if source is not None:
        source.check_fits(student.fingerprint)
    _check_features(method, source)
    method.check_model(student, source)
    _warn_of_half_precision(method, student)
    return Responder(student, method, temper, State(student, method, source, temper.initial()), source)


def _warn_of_half_precision(method: Method, student: Student) -> None:
    """Warn where weights that learn have so few bits that most steps are rounded away."""
    half = {weight.dtype for weight in student.learned.values()} & {torch.float16, torch.bfloat16}
    if half:
        warnings.warn(
            f"{method.name} learns weights of {', '.join(map(str, half))}: most steps are smaller than their "
            'resolution and are lost. Pass the model in float32, and precision="bf16" for the speed',
            stacklevel=callers_level(),
        )


def _check_features(method: Method, source: SourceStatistics | None) -> None:
    """Raise SourceError where a method needs moments of features that the source statistics lack."""
    if method.needs_features and not (source and source.features):
        raise SourceError(
            f"{method.name} needs source statistics with the means of the linear head's features, and these "
            f"have none: source = {method.measuring}"
        )


def check_rehearsed(temper: Temper, name: str, options: Mapping[str, Any]) -> None:
    """Raise SourceError if the rehearsal of a temper was made with other options than these."""
    if temper.rehearsed is None:
        return
    was = temper.rehearsed.rehearsal.options
    if json.dumps(was, sort_keys=True) != json.dumps(options, sort_keys=True):
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise SourceError(
            f"{name} was rehearsed with {was}, and has {options}: rehearse it as it runs, "
            f"equipoise.rehearse(model, held_out_loader, method={name!r}, {given})"
        )


def _chosen_tempering(
    method: Method, source: SourceStatistics | None, tempering: Tempering | None
) -> Tempering:
    """The tempering, the method's default for None; SourceError where it lacks the source statistics."""
    kind = method.default_tempering if tempering is None else tempering
    if kind is not None:
        one_of("tempering", kind, get_args(Tempering))
    if source is None and (method.needs_source or kind != "none"):
        asker = method.name if method.needs_source else f"tempering={kind!r}"
        name, call = repr(method.name), method.measuring
        if kind == "rehearsed":
            call = f"equipoise.rehearse(model, held_out_loader, method={name})"
        raise SourceError(
            f"{asker} needs source statistics, made once: source = {call}; "
            f"then equipoise.create({name}, model, source, ...)"
        )
    if kind is not None:
        return kind
    if source is not None and method.name in source.rehearsals:
        return "rehearsed"
    warnings.warn(
        f"{method.name} has no rehearsal: its answers are not tempered, its accuracy is not estimated; both "
        "come with source = equipoise.rehearse(model, held_out_loader, source=source) on labelled "
        'source data that the model was not trained on; tempering="none" says that none is wanted',
        RehearsalWarning,
        stacklevel=callers_level(),
    )
    return "none"
