"""The suite: every promise of a method on every small model."""

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from equipoise.errors import ConformanceError, ModelError, OptionError, RehearsalWarning, SourceError
from equipoise.testing import promises as of
from equipoise.testing.models import SMALL_MODELS
from equipoise.testing.subject import Subject

_PACKAGES = (Path(torch.__file__).parent, Path(__file__).parents[1])


@dataclass(frozen=True)
class Promise:
    """A promise of the contract.

    Attributes:
        keep: a function that raises ConformanceError if a subject breaks the promise.
        required: whether a method that breaks it fails; else there is a remark.
    """

    keep: Callable[[Subject], None]
    required: bool = True

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.keep.__name__

    @property
    def words(self) -> str:
        """The promise in words."""
        return self.name.replace("_", " ")


PROMISES = (
    Promise(of.adapts_the_model),
    Promise(of.answers_are_finite_logits),
    Promise(of.double_precision_stays_double),
    Promise(of.learns_the_same_in_any_grad_mode),
    Promise(of.works_in_inference_mode),
    Promise(of.works_under_autocast),
    Promise(of.leaves_the_given_model_unchanged),
    Promise(of.changes_declared_parameters_only),
    Promise(of.predict_learns_nothing),
    Promise(of.ignores_non_finite_samples),
    Promise(of.learns_nothing_from_bad_batches),
    Promise(of.keeps_no_overflow),
    Promise(of.takes_no_labels),
    Promise(of.adapt_is_a_pass_over_a_loader),
    Promise(of.takes_keywords_and_logits_objects),
    Promise(of.detached_module_answers_as_predict),
    Promise(of.reset_is_exact),
    Promise(of.save_and_load_continue_the_stream),
    Promise(of.a_state_dict_is_a_copy),
    Promise(of.leaves_the_global_random_state),
    Promise(of.random_draws_repeat),
    Promise(of.writes_no_memory_in_place),
    Promise(of.undoes_a_step_when_the_model_fails),
    Promise(of.moves_and_copies_like_a_module),
    Promise(of.can_be_cast_in_mid_stream),
    Promise(of.flags_decide_as_the_host_does),
    Promise(of.the_host_reads_no_tensor, required=False),
)
"""All promises, in the order in which they are checked."""

NOT_CAPTURED = "works, but is not captured as a CUDA graph"
"""The remark about a method that breaks the promise that is not required."""

Outcome = Literal["passed", "not possible", "remark", "failed"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one promise on one kind of model.

    Attributes:
        promise: the promise.
        kind: the kind of model.
        outcome: "passed", "not possible" for a method that refuses the model, "remark" or "failed".
        message: the reason, unless it passed.
    """

    promise: Promise
    kind: str
    outcome: Outcome
    message: str = ""


def check_method(
    name: str,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """Check every promise of a registered method on every small model.

    A kind of model for which making the adapter raises ModelError, OptionError or SourceError is not
    possible; if none is possible, the method fails.

    Args:
        name: of the method.
        options: of the method and its adapters; the defaults without.
        progress: called with the number of findings made and of all.
    """
    findings: list[Finding] = []
    total = len(SMALL_MODELS) * len(PROMISES)
    for kind in SMALL_MODELS:
        subject = Subject(name, dict(options or {}), kind)
        refusal = _refusal(subject)
        for promise in PROMISES:
            if refusal is None:
                findings.append(_finding(promise, subject))
            else:
                findings.append(Finding(promise, kind, "not possible", refusal))
            if progress is not None:
                progress(len(findings), total)
    if all(finding.outcome == "not possible" for finding in findings):
        return [_impossible(finding) for finding in findings]
    return findings


def _refusal(subject: Subject) -> str | None:
    """The error with which the method refuses the model; None if it does not, or fails in another way."""
    try:
        with _no_advice():
            subject.adapter()
    except (ModelError, OptionError, SourceError) as error:
        return str(error)
    except Exception:
        return None  # the promises report it
    return None


def _finding(promise: Promise, subject: Subject) -> Finding:
    try:
        with _no_advice():
            promise.keep(subject)
    except ConformanceError as error:
        if promise.required:
            return Finding(promise, subject.kind, "failed", f"{error}{_place(error)}")
        return Finding(promise, subject.kind, "remark", f"{NOT_CAPTURED}: {error}{_place(error)}")
    except Exception as error:
        message = f"it raised {type(error).__name__}: {error}{_place(error)}"
        return Finding(promise, subject.kind, "failed", message)
    return Finding(promise, subject.kind, "passed")


def _impossible(finding: Finding) -> Finding:
    """The finding as a failure, if it is of the first promise: a method has to adapt some model."""
    if finding.promise is not PROMISES[0]:
        return finding
    message = f"the method adapts none of the small models; this one is refused: {finding.message}"
    return Finding(finding.promise, finding.kind, "failed", message)


@contextmanager
def _no_advice() -> Iterator[None]:
    """Leave out the advice to rehearse a method in the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RehearsalWarning)
        yield


def _place(error: Exception) -> str:
    """The last line of code outside of this package and torch that an error passed, if there is one."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(Path(frame.filename).is_relative_to(package) for package in _PACKAGES)
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
