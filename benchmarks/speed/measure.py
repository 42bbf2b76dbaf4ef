"""Times and weighs the variants of one method in one process, in turn.

Every variant is made and warmed up, which is when its memory is taken; then come rounds, in each of which
each variant is timed once, in an order that rotates. What is compared was measured within the same second, so
that a machine that slows down slows all of them; ratios are medians of the rounds' ratios.
"""

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from statistics import median, quantiles
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.profiler import profile

import equipoise as eq
from benchmarks.speed.cases import (
    METHODS,
    PLAIN,
    POOL,
    REFERENCE,
    RIVAL,
    Case,
    Method,
    Step,
    engines,
    variants,
)

FEWEST_ROUNDS, MOST_ROUNDS = 5, 30
WARM_UP = {"cuda": 4, "cpu": 2}  # periods; a graph is captured at the second or third batch of a size
_TIMED = 0.005, 0.2  # seconds of a timing on a GPU: at least, of the fastest variant; at most, of the slowest


class Memory:
    """The most memory that was held at once inside of a `with`, beyond what was held before it.

    On a GPU by torch's own account; `held` is what stays taken afterwards, the private memory of captured
    graphs with it. On the CPU by the events of torch's profiler, which sees every block that its allocator
    gives and takes back, temporary ones inside of operations too; unlike the process's own peak it starts
    from zero each time and does not depend on what malloc keeps.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.peak = self.held = 0

    def __enter__(self) -> "Memory":
        settle(self.device)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        else:
            self._profile = profile(profile_memory=True).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.device == "cuda":
            self.peak = torch.cuda.max_memory_allocated() - self._before[0]
            settle(self.device)
            self.held = torch.cuda.memory_reserved() - self._before[1]
            return
        self._profile.__exit__(kind, error, trace)
        results = self._profile.kineto_results
        found = [] if results is None else [e for e in results.events() if e.name() == "[memory]"]
        for event in sorted(found, key=lambda e: e.start_ns()):
            self.held += event.nbytes()
            self.peak = max(self.peak, self.held)


def settle(device: str) -> None:
    """Finish what was begun, and give back what is no longer used."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def seconds_of(step: Step, batches: Sequence[Tensor]) -> float:
    """How long a step takes, on average over some batches."""
    cuda = batches[0].is_cuda
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for x in batches:
        step(x)
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / len(batches)


def turns(steps: dict[str, Step], images: list[Tensor], each: int, seconds: float) -> dict[str, list[float]]:
    """Seconds a step of everyone, round by round; `each` steps at a time, for so many seconds."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    order, at, start = list(steps), 0, time.perf_counter()
    for done in range(MOST_ROUNDS):
        if done >= FEWEST_ROUNDS and time.perf_counter() - start > seconds:
            break
        batches = [images[(at + i) % len(images)] for i in range(each)]
        for name in order:
            times[name].append(seconds_of(steps[name], batches))
        order, at = [*order[1:], order[0]], at + each
    return times


def spread(values: Sequence[float]) -> list[float]:
    """Median, lower and upper quartile, to four digits."""
    low, _, high = quantiles(values, n=4)
    return [float(f"{value:.4g}") for value in (median(values), low, high)]


def ratios(times: dict[str, list[float]], name: str, base: str) -> list[float]:
    """How much longer one takes than another, round by round."""
    return spread([a / b for a, b in zip(times[name], times[base], strict=True)])


def measure(case: Case, method: Method, seconds: float, names: list[str] | None = None) -> dict[str, Any]:
    """Time and memory of every variant of a method, as plain numbers; `names` the engines, else all."""
    case.prepare()
    wanted = variants(case, method, engines(case) if names is None else names)
    return measured(case, wanted, method.period(case), seconds)


def measured(
    case: Case, wanted: Mapping[str, Callable[[], Step]], period: int, seconds: float
) -> dict[str, Any]:
    """Time and memory of some variants, timed in turn; an update comes every `period` batches."""
    began = {name: _begin(case, make, period) for name, make in wanted.items()}
    found = {name: each.found for name, each in began.items()}
    steps = {name: each.step for name, each in began.items() if each.step is not None}
    if not steps:
        raise RuntimeError(f"no variant ran: {found}")
    each = _steps_each(case, period, steps)
    times = turns(steps, case.images(), each, seconds)
    for name in steps:
        found[name]["ms"] = spread([1000 * value for value in times[name]])
        found[name]["images_per_second"] = float(f"{case.batch / median(times[name]):.4g}")
        bases = [base for base in (PLAIN, REFERENCE, RIVAL) if base in times and base != name]
        found[name]["over"] = {base: ratios(times, name, base) for base in bases}
        if "eager" in steps and name not in (PLAIN, REFERENCE, RIVAL, "eager"):
            found[name].update(compared(began[name].answers, began["eager"].answers))
    if "compile" in steps:
        torch.compiler.reset()
    return {"rounds": max(map(len, times.values())), "steps": each, "variants": found}


class Begun(NamedTuple):
    """A variant after its warm-up: what was found so far, its step unless it failed, and its answers."""

    found: dict[str, Any]
    step: Step | None
    answers: Tensor


def _begin(case: Case, make: Callable[[], Step], period: int) -> Begun:
    """Make a variant and warm it up; one that cannot is told with why, and the others go on."""
    try:
        with Memory(case.device) as memory:
            step = make()
            answers = warmed_up(step, case.images(), period * WARM_UP[case.device])
    except (eq.EquipoiseError, RuntimeError) as error:
        return Begun({"failed": failure(error)}, None, torch.empty(0))
    found: dict[str, Any] = {"peak": memory.peak, "held": memory.held}
    if isinstance(step, eq.Adapter):
        found["execution"] = step.execution
    return Begun(found, step, answers)


def failure(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]


def _steps_each(case: Case, period: int, steps: dict[str, Step]) -> int:
    """Steps of a timing: whole periods; on a GPU enough for its clock, and not too many of a slow variant."""
    if case.device == "cpu":
        return period
    seconds = [seconds_of(step, case.images()[:1]) for step in steps.values()]
    enough, bearable = math.ceil(_TIMED[0] / min(seconds)), int(_TIMED[1] / max(seconds))
    return period * max(1, min(enough, bearable) // period)


def warmed_up(step: Step, images: list[Tensor], batches: int) -> Tensor:
    """The answers to the first batches, on the host."""
    return torch.cat([step(images[i % POOL]).float().cpu() for i in range(batches)])


def compared(answers: Tensor, eager: Tensor) -> dict[str, float]:
    """How far answers are from the eager ones: logits, decisions, and ECE.

    Labels are drawn from the eager answers' own probabilities: random images have none, and for these the
    eager answers are calibrated.
    """
    labels = torch.multinomial(eager.softmax(1), 1, generator=torch.Generator().manual_seed(0)).flatten()
    ece = [float(eq.metrics.expected_calibration_error(logits=z, target=labels)) for z in (answers, eager)]
    return {
        "apart": float((answers - eager).abs().max()),
        "decided_alike": float((answers.argmax(1) == eager.argmax(1)).double().mean()),
        "ece_apart": abs(ece[0] - ece[1]),
    }


@lru_cache(maxsize=8)
def _forward_seconds(case: Case) -> float:
    """About how long a plain forward of a batch takes, from a few images."""
    few = case.images()[0][:8]
    step = variants(case, METHODS["source"], [])[PLAIN]()
    seconds_of(step, [few])
    return seconds_of(step, [few]) * case.batch / len(few)


def too_long(case: Case, method: Method, limit: float) -> str:
    """Why a case is not worth its time, or an empty string."""
    passes = method.period(case) * (WARM_UP[case.device] + FEWEST_ROUNDS)
    if method.windowed and method.period(case) > 1:
        passes *= method.period(case)  # each forward is one of the whole window
    many = 1 + len(engines(case)) + (method.name in ("dec", "poise"))
    expected = _forward_seconds(case) * method.forwards * passes * many
    return f"would take about {expected:.0f} s, more than {limit:.0f} s" if expected > limit else ""
