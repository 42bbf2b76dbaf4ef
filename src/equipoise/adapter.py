"""The adapter: a classifier that answers a batch, learns from it, and cannot be broken by it."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from equipoise.calibration.expected import Expectations
from equipoise.calibration.labels import checked_labels
from equipoise.calibration.rehearsal import Estimate, Rehearsal
from equipoise.calibration.scalars import log_odds, share_of
from equipoise.calibration.sets import sets
from equipoise.calibration.source_statistics import GivenSource, SourceStatistics, checked_source
from equipoise.calibration.temper import (
    LABELLED,
    RehearsedTemperature,
    Temper,
    Tempering,
    TrustedModel,
    judged_accuracy,
)
from equipoise.core.assembly import (
    EXECUTION_OPTIONS,
    MACHINE_OPTIONS,
    EngineName,
    check_engine,
    check_rehearsed,
    describe_engine,
    make_responder,
    make_temper,
)
from equipoise.core.checkpoint import EXTRA_STATE, check_identity, encoded, identity, state_of
from equipoise.core.describe import (
    Deviation,
    Footprint,
    describe,
    deviation,
    measure_footprint,
    statistics_shift,
)
from equipoise.core.export import SourceModel, with_temperature
from equipoise.core.given import (
    LastBatch,
    checked_accuracy,
    checked_answers,
    checked_coverage,
    checked_ids,
    checked_score,
    logits_given,
    needs_rehearsal,
)
from equipoise.core.graph import CapturedSteps
from equipoise.core.lock import CallLock, one_at_a_time
from equipoise.core.method import Method, option_values
from equipoise.core.recent import RecentAnswers, given_sums, label_scores
from equipoise.core.record import Record, Step
from equipoise.core.state import Snapshot, check_snapshot
from equipoise.core.step import Responder
from equipoise.distributed.ranks import Ranks
from equipoise.errors import BatchError, OptionError, SourceError, StateError
from equipoise.files import write_tensors
from equipoise.functional import at_least_single
from equipoise.metrics.risk_coverage import RiskCoverage
from equipoise.network.batch import (
    Batch,
    InputsFunction,
    batches,
    called_batch,
    check_functions,
    unnamed_keywords_told,
)
from equipoise.network.forward import (
    Layout,
    MemoryFormat,
    OutputsFunction,
    Precision,
    fresh_autocast_cache,
)
from equipoise.network.modules import LearningModule, checked_module, device_of
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.source_copy import Residence
from equipoise.options import integer

UNREHEARSED = (*EXECUTION_OPTIONS, "tempering", "source_copy", "falls_back", "seed", "head")
"""Options that a rehearsal does not depend on."""

FREE_OPTIONS = (*EXECUTION_OPTIONS, "source_copy", "head")
"""Options that may differ from those of the adapter whose state is loaded."""

STATE_KIND, STATE_VERSION = "equipoise adapter", 2
_Self = TypeVar("_Self", bound="Adapter")
_Answer = TypeVar("_Answer")


class Selection(NamedTuple):
    """Answers, and which of them to act upon.

    Attributes:
        classes: of the answers, (N); -1 for a sample that was set aside.
        mask: those to act upon, (N) of bool.
        share: of the recent stream that would be acted upon, estimated.
        accuracy: of the answers acted upon, estimated over the recent stream; None where there are none.
        threshold: the least confidence to act upon; infinity where there is none.
        reached: whether the accuracy can be reached at all; if not, nothing is to be acted upon.
    """

    classes: Tensor
    mask: Tensor
    share: float
    accuracy: Estimate | None
    threshold: float
    reached: bool


class Adapter(LearningModule):
    """A classifier that adapts to its inputs: `adapter(x)` in place of `model(x)` returns logits.

    The answer has the form of the model's: a tensor; or, of a model that returns an object with `.logits`, as
    those of Hugging Face do, an object of that class whose other fields are None (`network.forward.form_of`).
    With `outputs=lambda out: out.logits` it is a tensor. The softmax of the logits has the calibrated
    probabilities.

    It composes a method with a copy of the model, the source model, a temper and the state; the model passed
    in is never changed. The adapter stays on the model's device and moves with `.to()`. `train()` and
    `eval()` change nothing: the adapter sets the modes of its own layers. Threads may share an adapter:
    calls run one after another. Inside another module, that module's `state_dict` and `load_state_dict` hold
    its state. `equipoise.create` makes one from the name of a method.

    Args:
        method: the method with its options.
        model: the classifier to adapt; returns (N, C) logits, or an object with `.logits`. Of a model that
            torch.compile has compiled, the module inside is adapted; engine="compile" compiles it again.
        source: its statistics on the source domain, where the method or its tempering needs them; or the path
            of the file that `SourceStatistics.save` wrote.
        tempering: the divisor of the logits (`calibration.temper.Tempering`): "mean", "median", "sample",
            "agreement", "rehearsed" or "none"; None: the method's default.
        t_min: the lowest temperature of "rehearsed", None for the lowest that was right in rehearsal; of the
            others, lower end of the regulariser's range of t, None for 1.
        t_max: the highest temperature of "rehearsed"; of the others, upper end of the range, None for 3.
        source_copy: where the source model is kept: "resident" (a second copy) or "swapped" (in the host's
            memory, only tensors that adapt); no difference where nothing adapts. None: the method's default.
        engine: "eager", "graph", "compile" or "auto" (`core.assembly.EngineName`); `execution` describes the
            choice. It changes no decision and is not part of the state.
        precision: "fp32", or "bf16" for the convolutions and matrix products where the device supports it.
        memory_format: of convolution weights, "contiguous" or "channels_last"; None: that which was
            measured to be fast on such a device (`network.forward.Layout`), and the model's own for `detach`
            and, while nothing has been learned, for `predict`.
        distributed: where torch.distributed is initialised with several processes, adapt as one with them:
            all call at once, each with its part of a batch.
        inputs: turns a batch (without labels) into the model's arguments, where they are not the same: a
            tensor, a tuple by position or a dict by keyword, `lambda batch: (batch["image"], batch["mask"])`;
            `lambda batch: (batch,)` for a model that takes a dict itself. Not part of the state.
        outputs: picks the logits out of the model's output, `lambda out: out["logits"]`. Outputs that are
            probabilities, as behind a softmax, are refused at the first batch:
            `lambda p: p.clamp(min=1e-12).log()` makes logits of them. Not in the state.
    """

    _last: Record | Step | None
    _judged: TrustedModel | None
    _kept: Tensor | None
    _last_batch: LastBatch | None
    _expectations: Expectations | None
    _estimated: dict[int, Estimate]

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        source: GivenSource | None = None,
        *,
        tempering: Tempering | None = None,
        t_min: float | None = None,
        t_max: float | None = None,
        source_copy: Residence | None = None,
        engine: EngineName = "auto",
        precision: Precision = "fp32",
        memory_format: MemoryFormat | None = None,
        distributed: bool = True,
        inputs: InputsFunction | None = None,
        outputs: OutputsFunction | None = None,
    ) -> None:
        super().__init__()
        check_functions(inputs=inputs, outputs=outputs)
        self._inputs, self._lock = inputs, CallLock()
        model = checked_module(model)
        check_engine(engine, device_of(model))
        layout = Layout.checked(precision, memory_format, as_given=engine == "eager")
        residence = source_copy or method.default_source_copy
        self._shared = {
            "source_copy": residence,
            "engine": engine,
            "precision": precision,
            "memory_format": layout.memory_format,
            "distributed": distributed,
        }
        statistics = None if source is None else checked_source(source)
        temper = make_temper(method, statistics, tempering, t_min, t_max)
        ranks = Ranks.found(bool(distributed))
        self._assemble(
            make_responder(method, model, statistics, temper, residence, layout, engine, ranks, outputs)
        )
        self.student, self.source_copy = self._respond.student.model, self._respond.student.source_copy
        check_rehearsed(self.temper, self.name, self.rehearsed_options)

    def _assemble(self, respond: Responder) -> None:
        self._respond, self._captured = respond, CapturedSteps()
        self._recent, self._last, self._judged, self._kept = RecentAnswers(), None, None, None
        self._forget_decisions()

    # ------------------------------------------------------------------ answer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calibrated logits of a batch, in the form of the model's; the adapter learns from it as it answers.

        Takes the model's arguments, or a dict of keyword inputs, of which labels are left out. A sample with
        non-finite values is set aside (its logits come back NaN) and the others learn as if it had not been
        there; -inf is allowed in all inputs but the first, as attention masks use it. A step that runs as a
        CUDA graph learns nothing from a batch with such a sample, and the next batches run eagerly. If the
        model raises, the error passes through and the adapter is as it was.
        """
        with self._lock, self._together():
            answer = self._answer(self._batch(args, kwargs))
            self._last_batch = LastBatch.of(args, kwargs, answer)
            return self._respond.student.answer(answer)

    def _together(self) -> AbstractContextManager[None]:
        """The context of a batch, in which an error of one process is an error of all."""
        ranks = self._respond.student.ranks
        return nullcontext() if ranks.alone else ranks.together()

    def _batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Batch:
        return called_batch(self._respond.student.model, args, kwargs, self._inputs)

    def _answer(self, batch: Batch) -> Tensor:
        """Answer a batch and learn from it."""
        respond = self._respond
        respond.method.check_batch(batch)
        self._forget_decisions()
        with torch.inference_mode(False), torch.enable_grad(), fresh_autocast_cache():
            batch = batch.learnable()
            for parameter in respond.student.learned.values():
                parameter.requires_grad_()
            captured = self._captured if self._captures else None
            answer, record = self._laid_out(
                batch, lambda: captured.run(respond, batch) if captured else respond.eagerly(batch)
            )
            with torch.no_grad():
                self._last = self._recent.take(record)
                self._judged, self._kept = record.judged, record.kept
        return answer

    @one_at_a_time
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Calibrated logits of a batch with the adapter as it is, as `adapter(x)`; nothing is learned.

        The student in eval mode, or the source model while it is estimated to be better, divided by the
        temperature since the last reset (T = 1 before the first batch; of the recent stream if rehearsed).
        One forward, and for tempering="sample" one more of the source model, unless the answer computes it.

        Before the first batch and after a reset the answer is the model's in eval mode, divided by
        `temperature`, bit for bit, with two exceptions: t3a scores by prototypes, and tempering="sample"
        divides each row by its own tau. For that, forwards run in the model's memory format while nothing has
        been learned, and then in that of steps, which is faster and rounds in another way. Where a
        `memory_format`, bf16 or torch.compile was asked for, answers equal the model's to rounding.
        """
        return self._respond.student.answer(self._predicted(self._batch(args, kwargs)))

    @one_at_a_time
    def predict_proba(self, *args: Any, **kwargs: Any) -> Tensor:
        """Calibrated probabilities (N, C) of a batch, softmax of `predict`; nothing is learned.

        Rows of logits that are NaN are NaN. Half precision is widened to single.
        """
        return at_least_single(self._predicted(self._batch(args, kwargs))).softmax(1)

    def _predicted(self, batch: Batch) -> Tensor:
        """Calibrated logits of a batch with the adapter as it is."""
        with torch.no_grad():
            return self._laid_out(batch, lambda: self._respond.predict(batch))

    # ------------------------------------------------------------------ decide

    def sets(
        self,
        *args: Any,
        coverage: float = 0.9,
        score: str = "lac",
        logits: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Prediction sets (N, C) of bool, which have the right class in a share `coverage` of the stream.

        `calibration.expected.Expectations` has how the threshold follows the stream: without shift the share
        is exact; under shift it is as good as the estimated accuracy, and sets are larger where that has
        fallen.
        A sample that was set aside has every class in its set. An empty set (by "lac") says that no class is
        likely enough.

        A batch is known again by its tensors and how often PyTorch wrote to them: what is written to their
        memory through NumPy is not noticed.

        Args:
            args: calibrated logits (N, C), as this adapter gave them; or the model's inputs, which are
                answered and learned from as by `adapter(x)`, the batch of the last call not again. Where
                inputs could be taken for logits, being (N, C) too, logits are given by name.
            coverage: the share, from .5 to .99.
            score: of classes (`equipoise.sets`): "lac", the smallest sets; "aps" or "raps", never empty.
            logits: calibrated logits.
            kwargs: inputs by keyword.
        """
        with self._lock:
            score, coverage = checked_score(score), checked_coverage(coverage)  # before anything is learned
            given = self._given("sets", args, kwargs, logits)
            threshold = self._expected("sets").set_threshold(score, coverage)
            return sets(given, threshold, score=score)

    @one_at_a_time
    def coverage(self, coverage: float = 0.9, score: str = "lac") -> Estimate:
        """The share of sets of this `coverage` that have the right class, estimated over the recent stream.

        Without labels it is the coverage that was asked for, or more where even the smallest sets of a score
        cover more, in an interval that is wider the further the accuracy has fallen. Labels correct it:
        `calibration.expected.Expectations.coverage` has the formula.
        """
        score, coverage = checked_score(score), checked_coverage(coverage)
        value, low, high = self._expected("coverage").coverage(score, coverage)
        return Estimate(value, low, high, self._accuracy_now().inside)

    @property
    @one_at_a_time
    def calibration_gap(self) -> Estimate:
        """The mean confidence of the recent answers less their accuracy, estimated; 0 if they are calibrated.

        From the confidence less the upper end of `accuracy` to less its lower end. Without labels it is near
        0, as the temperature makes both equal, but for what the regression doubts of its own estimate.
        """
        confidence, accuracy = self._expected("calibration_gap").confidence, self._accuracy_now()
        ends = (confidence - accuracy.high, confidence - accuracy.low)
        return Estimate(confidence - accuracy.value, *ends, accuracy.inside)

    def decide(
        self, *args: Any, accuracy: float = 0.95, logits: Tensor | None = None, **kwargs: Any
    ) -> Selection:
        """The classes of a batch, and which to act upon so that the accuracy of these is at least that.

        These are the answers at least as confident as a threshold: the one that the largest share of the
        recent stream reaches, and at which that accuracy is expected (`calibration.expected.Expectations`).
        Where no threshold has it, nothing is to be acted upon, and `reached` is False.

        A batch is known again by its tensors and how often PyTorch wrote to them: what is written to their
        memory through NumPy is not noticed.

        Args:
            args: as for `sets`: calibrated logits of this adapter, or inputs, which are learned from.
            accuracy: the least accuracy among the answers acted upon, from .5 to .999.
            logits: calibrated logits.
            kwargs: inputs by keyword.
        """
        with self._lock:
            accuracy = checked_accuracy(accuracy)  # before anything is learned
            given = at_least_single(self._given("decide", args, kwargs, logits))
            found = self._expected("decide").selected(accuracy)
            confidence, classes = given.softmax(1).max(1)
            known = confidence.isfinite()
            reached = found.share > 0
            return Selection(
                classes=torch.where(known, classes, -1),
                mask=known & (confidence >= found.confidence),
                share=found.share,
                accuracy=_around(found.accuracy, self._accuracy_now()) if reached else None,
                threshold=found.confidence,
                reached=reached,
            )

    @one_at_a_time
    def curve(self) -> RiskCoverage:
        """The risk of answers over the share that is acted upon, estimated over the recent stream.

        As `equipoise.metrics.risk_coverage` computes it with labels, at thresholds of a grid.
        """
        confidences, shares, accuracies = (
            torch.tensor(each) for each in self._expected("curve").accuracies()
        )
        return RiskCoverage(confidences, shares, 1 - accuracies)

    def _given(
        self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any], logits: Tensor | None
    ) -> Tensor:
        classes, last = self._rehearsed(call).rehearsal.classes, self._last_batch
        return logits_given(args, kwargs, logits, classes=classes, source=self.source, last=last, answer=self)

    def _accuracy_now(self) -> Estimate:
        found = self._estimate(1 if self._respond.source_answers else 0)
        if found is None:
            raise RuntimeError("expected an estimate of the accuracy of a rehearsed adapter")
        return found

    def _expected(self, call: str) -> Expectations:
        """What is expected of decisions now; computed once after each batch, and after labels."""
        rehearsed = self._rehearsed(call)
        found = self._expectations
        if found is None:
            found = rehearsed.expectations(self._respond.state.temperature, self._accuracy_now())
            self._expectations = found
        return found

    @one_at_a_time
    def expectations(self) -> Expectations:
        """What is expected of decisions about the answers now: what `sets` and `decide` are made of."""
        return self._expected("expectations")

    @one_at_a_time
    def source_window(self, before: Tensor | None, logits: Tensor, *, seen: bool = True) -> Tensor:
        """The window of the source model's answers, for a caller that answers by it in the adapter's place.

        `source_expectations` takes it; SourceError where the source model is not compared.

        Args:
            before: the window after the batches before; None at the first.
            logits: of the source model over `source_temperature`, (N, C).
            seen: whether the adapter has answered and observed the batch as well, as its last one: the window
                begins again where that showed a change of the stream.
        """
        rehearsed, _ = self._compared()
        return rehearsed.source_window(self._respond.state.temperature, before, logits, seen=seen)

    @one_at_a_time
    def source_expectations(self, window: Tensor) -> Expectations:
        """What is expected of decisions about the source model's answers, by their `source_window`."""
        rehearsed, accuracy = self._compared()
        return rehearsed.source_expectations(self._respond.state.temperature, window, accuracy)

    def _compared(self) -> tuple[RehearsedTemperature, Estimate]:
        """The rehearsed temperature and the estimate of the source model; SourceError without."""
        rehearsed, accuracy = self._respond.temper.rehearsed, self._estimate(1)
        if rehearsed is None or accuracy is None:
            raise SourceError(
                "expected a rehearsed adapter that compares itself with the source model (poise does) for "
                "decisions about that model's answers"
            )
        return rehearsed, accuracy

    # ------------------------------------------------------------------ learn from a loader

    def adapt(self: _Self, loader: Iterable[Any], *, progress: bool = True) -> _Self:
        """Learn from one pass over a loader; follow it by `predict` for the paper's evaluation.

        The loader yields tensors, tuples (inputs, labels), or dicts of keyword inputs; labels play no part.
        Batches are moved to the adapter's device.
        """
        title = f"adapting with {self.name}" if progress else None
        model = self._respond.student.model
        for batch in batches(loader, model, self.device, self._inputs, progress=title):
            with self._lock, self._together():
                self._answer(batch)
        return self

    @one_at_a_time
    def source_logits(self, *args: Any, **kwargs: Any) -> Tensor:
        """Logits (N, C) of the source model, untempered; a tensor also where the model returns an object."""
        return self._respond.student.source_logits(self._batch(args, kwargs))

    def _laid_out(self, batch: Batch, answer: Callable[[], _Answer]) -> _Answer:
        """An answer to a batch, by contiguous tensors if the model fails with the layout that was picked."""
        student = self._respond.student
        try:
            with unnamed_keywords_told(student.model, batch):
                return answer()
        except RuntimeError as error:
            plainer = student.layout.plainer(student.model, student.device, error)
            if plainer is None:
                raise
        student.lay_out(plainer)
        return answer()

    # ------------------------------------------------------------------ labels

    @one_at_a_time
    def label(
        self,
        targets: Sequence[int] | Tensor,
        ids: Iterable[int] | Tensor | None = None,
        *,
        logits: Tensor | None = None,
        source_logits: Tensor | None = None,
    ) -> int:
        """Take labels of samples that were answered, at once or later; returns how many of them count.

        They correct the estimated accuracies (`calibration.labels`), and with them the temperature, `inside`,
        and the choice between adapted and source model; and the thresholds of sets and decisions
        (`calibration.expected.Expectations.learned`). Few change little, as the rehearsal is the prior.
        Labels of the last few thousand samples count, those from before a change of the stream a half.
        They are in the state: saved, restored, and gone after a reset. An answer of NaN is neither right nor
        wrong. A label that comes again by its id replaces the first. Waits for the device.

        The last few thousand answers are remembered, on the device, until a reset, a restore, a load or a
        move; ForgottenRequestError, before anything changes, for others. For later labels keep the answers,
        and pass them as `logits`. Answers of `predict` are not remembered: they have no numbers, and are
        labelled by their logits alone.

        Args:
            targets: the classes, (N).
            ids: the numbers of the samples, as `adapter.last.ids` and `adapter.ask` have them; None: those of
                the last batch that was learned from.
            logits: the answers as they were given, (N, C), in place of ids.
            source_logits: the source model's, beside `logits`; None where it was not asked.
        """
        rehearsed = self._labelled("label")
        observed, device = self._respond.state.temperature, self._respond.state.temperature[LABELLED].device
        if logits is None and source_logits is not None:
            raise OptionError("expected source_logits beside logits, got them alone")
        with torch.inference_mode(False), torch.no_grad():
            if logits is None:
                numbers = list(self._recent.latest()) if ids is None else checked_ids(ids)
                target = checked_labels(targets, len(numbers), rehearsed.rehearsal.classes)
                told = self._recent.told(numbers, target)
            elif ids is not None:
                raise OptionError("expected ids of samples or the logits that were answered, got both")
            else:
                classes = rehearsed.rehearsal.classes
                both = [
                    None if each is None else checked_answers(name, each, classes).to(device).float()
                    for name, each in (("logits", logits), ("source_logits", source_logits))
                ]
                if source_logits is not None and len(source_logits) != len(logits):
                    raise BatchError(
                        f"expected source_logits of the same samples as logits, {len(logits)}, got "
                        f"{len(source_logits)}"
                    )
                target = checked_labels(targets, len(logits), classes)
                told = given_sums(target.to(device), both, rehearsed.now(observed))
            state = self._respond.state
            state.observe(rehearsed.told(observed, told.sums.to(device), told.new.to(device)))
            self._forget_estimates()
            # Sets and decisions learn what the corrected accuracy and temperature leave for them.
            cooler = rehearsed.level(observed) / rehearsed.level(state.temperature)
            scores = label_scores(told.given * cooler.to(told.given), told.target)
            taught, each = self._expected("label").learned(scores, told.back)
            state.observe(rehearsed.taught(state.temperature, taught))
            if told.ids:
                self._recent.remember(told.ids, each)
            self._forget_estimates()
        return int(told.counted)

    @one_at_a_time
    def ask(self, count: int) -> Tensor:
        """The numbers of recent samples to have labelled, for `label`: `count` of those without one.

        They are spread evenly over the order of confidence, each sample with the same chance, so that an
        estimate by their labels has no bias. Fewer where there are not as many. Waits for the device.
        """
        self._labelled("ask")
        return self._recent.chosen(integer("count", count, low=1))

    @property
    @one_at_a_time
    def labels(self) -> int:
        """The labels that came since the last reset; those of a state that was loaded are among them."""
        self._labelled("labels")
        return int(self._respond.state.temperature[LABELLED])

    @one_at_a_time
    def number_from(self, number: int) -> None:
        """Give the next sample this number (`adapter.last.ids`): no number comes again after a load."""
        self._recent.begin_at(integer("number", number, low=0))

    @property
    @one_at_a_time
    def first_id(self) -> int:
        """The number of the first sample since the last reset, restore, load or move (`adapter.last.ids`)."""
        return self._recent.first

    def _labelled(self, call: str) -> RehearsedTemperature:
        """The rehearsed temperature that labels correct; OptionError with several processes."""
        if self.processes > 1:
            raise OptionError(
                f"adapter.{call} is for an adapter of one process, and this one adapts as one of "
                f"{self.processes}: each knows its own rows alone"
            )
        return self._rehearsed(call)

    def _rehearsed(self, call: str) -> RehearsedTemperature:
        """The rehearsed temperature; SourceError without one."""
        rehearsed = self._respond.temper.rehearsed
        if rehearsed is None:
            raise needs_rehearsal(call, self.name)
        return rehearsed

    # ------------------------------------------------------------------ facts

    @property
    def responder(self) -> Responder:
        """The parts that answer a batch together, for tests of a step; no lock guards them."""
        return self._respond

    @property
    def method(self) -> Method:
        """The method with its options."""
        return self._respond.method

    @property
    def temper(self) -> Temper:
        """The divisor of the answers."""
        return self._respond.temper

    @property
    def name(self) -> str:
        """The name of the method."""
        return self._respond.method.name

    @property
    def source(self) -> SourceStatistics | None:
        """The statistics of the source domain."""
        return self._respond.source

    @property
    def rehearsal(self) -> Rehearsal | None:
        """The rehearsal that temperature and estimates are from; None unless tempering="rehearsed"."""
        rehearsed = self._respond.temper.rehearsed
        return None if rehearsed is None else rehearsed.rehearsal

    @property
    @one_at_a_time
    def memory(self) -> Mapping[str, Tensor]:
        """The tensors that the method keeps between batches, by name."""
        return dict(self._respond.state.memory)

    @property
    def learned(self) -> dict[str, nn.Parameter]:
        """The parameters that learn, by name."""
        return self._respond.student.learned

    @property
    @one_at_a_time
    def weight_distance(self) -> float:
        """The distance of the parameters that learn from the source model's, ‖θ − θ₀‖ / ‖θ₀‖."""
        return float(self._respond.student.weight_distance())

    @property
    def model_fingerprint(self) -> str:
        """A hash of the source model's weights."""
        return self._respond.student.fingerprint

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self._respond.student.device

    @property
    @one_at_a_time
    def temperature(self) -> float:
        """The temperature of the stream so far, as `predict` uses it."""
        return float(self._respond.temper.level(self._respond.state.temperature))

    @property
    @one_at_a_time
    def source_temperature(self) -> float | None:
        """The temperature for the source model's logits, by the rehearsal; None where it is not asked."""
        rehearsed = self._respond.temper.rehearsed
        level = None if rehearsed is None else rehearsed.source_level(self._respond.state.temperature)
        return None if level is None else float(level)

    @property
    def options(self) -> dict[str, Any]:
        """All options with their values, as plain numbers, names and lists."""
        student, temper = self._respond.student, self._respond.temper
        options = option_values(self.method)
        if options.get("head", "") is None:
            options["head"] = student.head  # as a forward has found it
        t_min, t_max = temper.given
        tempered = {"tempering": temper.kind, "t_min": t_min, "t_max": t_max}
        return {**options, **tempered, **self._shared}

    @property
    @one_at_a_time
    def last(self) -> Step | None:
        """The record of the last batch; None before the first and after a reset.

        Reading it waits, on a GPU, for the batch to be done.
        """
        if isinstance(self._last, Record):
            self._last = self._last.read()
        return self._last

    @property
    @one_at_a_time
    def accuracy(self) -> Estimate | None:
        """The accuracy of the answers, estimated without labels over the recent stream.

        Before the first batch it is that of the source data. None unless tempering="rehearsed".
        """
        return self._estimate(1 if self._respond.source_answers else 0)

    @property
    @one_at_a_time
    def source_accuracy(self) -> Estimate | None:
        """The estimated accuracy of the source model; None where it is not asked about each batch."""
        return self._estimate(1)

    def _estimate(self, model: int) -> Estimate | None:
        """The estimate of the adapted model, 0, or the source model, 1; once after a batch or labels."""
        rehearsed = self._respond.temper.rehearsed
        if rehearsed is None or (model and not rehearsed.compares):
            return None
        if model not in self._estimated:
            observed, student = self._respond.state.temperature, self._respond.student
            kept = self._kept is None or bool(self._kept)
            if self._judged is None or not kept:  # after a load, say, or a step that was undone
                self._judged, self._kept = rehearsed.now(observed), None
            far = 0.0 if model or not student.learned else student.weight_distance()
            found = judged_accuracy(rehearsed.rehearsal, model, observed, self._judged, far)
            self._estimated[model] = found
        return self._estimated[model]

    @one_at_a_time
    def footprint(self) -> Footprint:
        """The memory that the adapter takes now, in elements and bytes, and whether it stores samples."""
        return measure_footprint(self._respond, self._recent.tensors())

    @property
    def rehearsed_options(self) -> dict[str, Any]:
        """The options that a rehearsal depends on."""
        left_out = (*UNREHEARSED, "t_min", "t_max")
        own = {name: value for name, value in self.options.items() if name not in left_out}
        ends = {"t_min": self.temper.t_min, "t_max": self.temper.t_max}  # those that it learns with
        return {**own, **ends} if self.method.asks_source else own

    @property
    @one_at_a_time
    def execution(self) -> str:
        """The engine that runs the steps and why, precision and layout, in words."""
        student, steps = self._respond.student, self._captured
        engine = describe_engine(student, steps.sizes if self._captures else None, steps.refusal)
        layout = student.layout.describe(student.model, student.device, student.learned.values())
        return ", ".join(filter(None, (engine, layout)))

    @property
    def _captures(self) -> bool:
        student = self._respond.student
        return self._shared["engine"] != "eager" and student.device.type == "cuda" and student.ranks.alone

    @one_at_a_time
    def describe(self) -> str:
        """A few lines of text: what learns, what follows the stream and what does not, and why.

        Layers and their statistics, prototypes, tempering and rehearsal, engine, memory.
        """
        return describe(self._respond, self.execution)

    @property
    def processes(self) -> int:
        """The number of processes that adapt as one."""
        return self._respond.student.ranks.size

    @property
    @one_at_a_time
    def answered_by(self) -> Literal["student", "source"]:
        """The model that answers now: the adapted one, or the source model if adapting seems to be worse."""
        return "source" if self._respond.source_answers else "student"

    @one_at_a_time
    def deviation(self) -> Deviation:
        """The distance of weights and statistics from the source model's; waits for the device."""
        return deviation(self._respond.student, self.memory.values())

    @one_at_a_time
    def statistics_shift(self) -> float | None:
        """The distance of the running statistics from the source model's, in its standard deviations.

        `core.describe.statistics_shift` has the formula; None where no statistics follow the stream.
        """
        return statistics_shift(self._respond.student)

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that a state in another module's checkpoint must share."""
        options = {name: value for name, value in self.options.items() if name not in FREE_OPTIONS}
        rehearsed = self.temper.rehearsed is not None
        return identity(self.name, options, self.model_fingerprint, self.source, rehearsed)

    # ------------------------------------------------------------------ state

    @one_at_a_time
    def reset(self) -> None:
        """Go back to the source model, bit for bit: its weights, its statistics, its answers by `predict`."""
        self._respond.state.reset()
        self._forget_answers()

    def _forget_answers(self) -> None:
        """Forget what was read from a state that is no more."""
        self._recent.forget()
        self._last = self._judged = None
        self._forget_decisions()

    def _forget_decisions(self) -> None:
        """Forget what was computed for decisions, and the batch that they would know again."""
        self._last_batch = None
        self._forget_estimates()

    def _forget_estimates(self) -> None:
        self._expectations, self._estimated = None, {}

    @one_at_a_time
    def snapshot(self) -> Snapshot:
        """A copy in memory of everything that adaptation changes, for `restore`."""
        return self._respond.state.snapshot()

    @one_at_a_time
    def restore(self, snapshot: Snapshot, *, keep_temperature: bool = False) -> None:
        """Go back, bit for bit, to a `snapshot` of this adapter, in far less time than `load_state_dict`.

        `keep_temperature=True` leaves the observations of the temper as they are: the answers stay as
        confident as the recent stream deserves. A snapshot of another adapter is refused.
        """
        check_snapshot(snapshot, self._respond.state.student.adapting)
        self._respond.state.restore(snapshot, keep_temperature=keep_temperature)
        self._forget_answers()

    @one_at_a_time
    def detach(self) -> nn.Module:
        """A plain module with the adapted weights and temperature, free of the adapter, for export.

        It is of the model's own class and memory format, takes its arguments and answers as `predict` does.
        torch.export and ONNX cannot flatten an object of a class that is not registered with them: where the
        model returns one, give the adapter `outputs=lambda out: out.logits`, and a tensor is the answer.
        tempering="sample" has no single temperature and is refused.
        """
        respond = self._respond
        if respond.temper.kind == "sample":
            raise OptionError(
                'tempering="sample" asks the source model about each input and cannot be detached; '
                "use another one"
            )
        if respond.source_answers:
            adapted = respond.student.export(respond.student.source_values(respond.student.adapting))
        else:
            adapted = respond.method.export(respond.student, respond.state.memory)
        adapted = respond.student.to_given_format(adapted)
        return with_temperature(adapted, self.temperature, respond.student.outputs)

    @one_at_a_time
    def source_model(self) -> SourceModel:
        """A copy of the source model that answers by itself, for another thread than the adapter's."""
        return SourceModel(self._respond.student, self._inputs)

    @one_at_a_time
    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """A copy of everything that adaptation changes: a flat dict of tensors, detached from the adapter.

        In the state dict of another module, an entry of bytes says which adapter it is.
        """
        state = {} if destination is None else destination
        if destination is not None:
            state[prefix + EXTRA_STATE] = encoded(self.identity)
        state.update(prefixed(f"{prefix}{self.name}.", self._respond.state.snapshot().named()))
        return state

    @one_at_a_time
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> None:
        """Take over a state that `state_dict` gave; checked as a whole before anything changes.

        StateError names what does not fit. A partial state would be a model that nobody has tested, so
        `strict=False` and `assign=True` are refused.
        """
        if not strict or assign:
            raise OptionError("expected strict=True and assign=False: an adapter's state is taken whole")
        if isinstance(state_dict, Mapping) and EXTRA_STATE in state_dict:
            check_identity(state_dict[EXTRA_STATE], self.identity)
            state_dict = {name: tensor for name, tensor in state_dict.items() if name != EXTRA_STATE}
        self._respond.state.load(state_of(self.name, state_dict))
        self._forget_answers()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        _metadata: Any,
        _strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load the adapter's part of another module's state, which calls this.

        torch then loads the adapter's own modules: they get the tensors that they have, as the state of an
        adapter holds everything that changes in them. Entries of no adapter (of a plain model, say) are
        unexpected, and not loaded.
        """
        own = part(state_dict, prefix)
        if EXTRA_STATE not in own:
            missing_keys.append(prefix + EXTRA_STATE)
            unexpected_keys.extend(prefix + name for name in own)
            for name in own:  # else the adapter's modules would report some of them again
                del state_dict[prefix + name]
        else:
            try:
                self.load_state_dict(own)
            except StateError as error:
                error_msgs.append(f"{prefix.removesuffix('.')}: {error}")
        for name, child in self.named_children():
            child.state_dict(destination=state_dict, prefix=f"{prefix}{name}.", keep_vars=True)

    @one_at_a_time
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write method, options, source statistics and state to a safetensors file, atomically.

        The state of a method that stores samples has them in it.
        """
        text = {
            "method": self.name,
            "options": json.dumps({n: v for n, v in self.options.items() if n not in MACHINE_OPTIONS}),
            "source": self.source.to_json() if self.source else "",
            "model_fingerprint": self.model_fingerprint,
            "samples": str(self._recent.last.stop),
        }
        tensors = {**self.state_dict(), **(self.source.tensors() if self.source else {})}
        write_tensors(path, STATE_KIND, STATE_VERSION, tensors, text)

    def __deepcopy__(self: _Self, memo: dict[int, Any]) -> _Self:
        """A copy with networks, state and lock of its own, of a moment at which no batch is learned."""
        with self._lock:
            copy = self.__class__.__new__(self.__class__)
            memo[id(self)] = copy
            nn.Module.__setstate__(copy, deepcopy(nn.Module.__getstate__(self), memo))
        return copy

    def train(self: _Self, mode: bool = True) -> _Self:
        """Change nothing: the adapter sets the modes of its own layers, in training loops and outside."""
        return self

    @one_at_a_time
    def _apply(self: _Self, fn: Any, recurse: bool = True) -> _Self:
        with torch.inference_mode(False):
            nn.Module._apply(self, fn, recurse)
            self._recent.release()
            self._judged = None
            self._respond.student.moved()
            self._respond.state.move(fn)
            self._forget_decisions()
        return self


def _around(value: float, like: Estimate) -> Estimate:
    """An estimate with the interval of another one, in logits."""
    middle, wanted = log_odds(like.value), log_odds(value)
    low, high = (share_of(wanted + log_odds(end) - middle) for end in (like.low, like.high))
    return Estimate(value, low, high, like.inside)


_TemperedSelf = TypeVar("_TemperedSelf", bound="Tempered")


class Tempered(Adapter):
    """Divides an adapter's answers by the certainty regulariser, in place of the adapter's own tempering.

    tau comes from the source model's logits for the same batch: a forward more, unless the method makes it
    anyway (source, t3a, dec). The network and the memory are those of the adapter passed in, which learns as
    it would by itself; the order of the answers, and with it the accuracy, stays as it was ("sample" too: it
    divides each row by one number; only in half precision may two answers round to one), unless "rehearsed"
    lets the source model answer in place of a poise that asks it.
    `eq.create(name, model, source, tempering=...)` makes an adapter that does the same.

    Args:
        adapter: the adapter that answers and learns.
        source: the statistics of the model it was made from; SourceError without them.
        tempering: "median" of tau, "mean", "sample" or "agreement" (docs/methods.md has which was better for
            which network); or "rehearsed", where `source` holds a rehearsal of the adapter's method.
        t_min: as in `equipoise.Adapter`; None: the adapter's own. DEC's range is that of its loss, and cannot
            be another here.
        t_max: as in `equipoise.Adapter`; None: the adapter's own.

    >>> import equipoise as eq
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    >>> source = SourceStatistics.measure(model, [torch.randn(16, 3, 4)], progress=False)
    >>> adapter = Tempered(eq.create("tent", model), source)
    >>> adapter(torch.randn(8, 3, 4)).shape
    torch.Size([8, 3])
    """

    def __init__(
        self,
        adapter: Adapter,
        source: GivenSource | None = None,
        tempering: Tempering = "median",
        *,
        t_min: float | None = None,
        t_max: float | None = None,
    ) -> None:
        nn.Module.__init__(self)
        if isinstance(adapter, Tempered):
            raise OptionError("expected an adapter, got one that is already tempered: pass tempered.adapter")
        if not isinstance(adapter, Adapter):
            raise OptionError(f"expected an equipoise adapter, got {type(adapter).__name__}")
        source = checked_source(source)
        source.check_fits(adapter.model_fingerprint)
        inner, own = adapter._respond, adapter.temper
        t_min, t_max = own.given[0] if t_min is None else t_min, own.given[1] if t_max is None else t_max
        rehearsal = source.rehearsal_of(adapter.name) if tempering == "rehearsed" else None
        temper = Temper(tempering, source, t_min, t_max, rehearsal, own.compares)
        if inner.asks_source and (temper.t_min, temper.t_max) != (own.t_min, own.t_max):
            raise OptionError(
                f"expected t_min={own.t_min} and t_max={own.t_max}, with which {adapter.name} learns, got "
                f"{temper.t_min} and {temper.t_max}; give them to {adapter.name} itself"
            )
        if inner.asks_source and not (inner.source and inner.source.agrees_with(source)):
            raise SourceError(f"expected the source statistics with which {adapter.name} learns, got others")
        # Without the source model's logits it never answers, nor after a load.
        never = inner.method.compares and not own.compares
        method = replace(inner.method, **({"falls_back": False} if never else {}))
        if inner.source:  # constants of the method are those of the adapter
            names = ["norm_limits", "entropies", "confidences", "fisher", "features"]
            names += ["inputs"] if inner.source.inputs else []
            source = replace(source, **{name: getattr(inner.source, name) for name in names})
        self.adapter, self._shared, self._inputs = adapter, adapter._shared, adapter._inputs
        self._lock = adapter._lock  # they share weights and memory
        state = inner.state.beside(temper.initial())
        self._assemble(Responder(inner.student, method, temper, state, source))
        check_rehearsed(temper, self.name, self.rehearsed_options)

    @property
    def _last(self) -> Record | Step | None:
        """The record of the last batch, of both."""
        return self.adapter._last

    @_last.setter
    def _last(self, last: Record | Step | None) -> None:
        self.adapter._last = last

    @one_at_a_time
    def reset(self) -> None:
        """Go back to the source model, as `Adapter.reset` does, and forget both temperatures."""
        self.adapter.reset()
        self._forget_answers()
        self._respond.state.forget_temperature()

    def _forget_answers(self) -> None:
        super()._forget_answers()
        self.adapter._forget_answers()  # the weights of both are other ones

    @one_at_a_time
    def _apply(self: _TemperedSelf, fn: Any, recurse: bool = True) -> _TemperedSelf:
        self.adapter._apply(fn, recurse)
        self._recent.release()
        self._judged = None
        self._respond.state.move_temperature()
        self._forget_decisions()
        return self
