"""The choice of an engine, and the options that belong to it."""

from typing import Any, Literal, TypeAlias, get_args

import torch

from equipoise.errors import OptionError
from equipoise.network.student import Student
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
