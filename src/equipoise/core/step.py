"""The one path of a batch: source model, step, temper, and a transaction that keeps all of it or nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.calibration.novelty import Novelty
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.calibration.temper import (
    OF_TAU,
    STREAM_CHANGED,
    TRUSTS,
    SourceView,
    Temper,
    TemperedAnswers,
    divide,
)
from equipoise.core.method import NO_TENSORS, Context, Memory, Method, Plan, Update
from equipoise.core.record import Record
from equipoise.core.state import State, Transaction
from equipoise.core.student import Student
from equipoise.core.verdict import JudgedRows, StepVerdict
from equipoise.functional import at_least_single
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import copies


class HostInputs(NamedTuple):
    """The numbers that the host brings to a step.

    Attributes:
        counts: the counts before the batch, on the student's device.
        uniform: draws random numbers of a shape, onto the student's device.
        looks: whether the host may wait for and read tensors; not inside a CUDA graph.
    """

    counts: Memory
    uniform: Callable[[tuple[int, ...]], Tensor]
    looks: bool = True


class Responder:
    """The parts that answer a batch together.

    Attributes:
        student: the network that adapts, with the source model.
        method: the method.
        temper: the divisor of the answers.
        state: everything that adaptation changes.
        source: the statistics of the source domain, if there are any.
    """

    def __init__(
        self, student: Student, method: Method, temper: Temper, state: State, source: SourceStatistics | None
    ) -> None:
        self.student, self.method, self.temper = student, method, temper
        self.state, self.source = state, source
        heeds = method.heeds_novelty and source is not None and "limit" in source.inputs
        asked = source is not None and bool(source.inputs) and (heeds or temper.rehearsed is not None)
        self._novelty = Novelty(source.inputs) if asked and source is not None else None
        self._constants: dict[int, Memory] = {}

    @property
    def asks_source(self) -> bool:
        """Whether the source model answers each batch, for the step or to be compared with it."""
        return self.method.asks_source or self.temper.compares

    @property
    def constants(self) -> Memory:
        """The method's constants, on the student's device; made again after a move."""
        made = self._constants.get(self.student.generation)
        if made is None:
            with torch.inference_mode(False):
                made = self.method.constants(self.student, self.source)
            self._constants = {self.student.generation: made}
        return made

    def context(self, batch: Batch, *, looks: bool = True) -> Context:
        """The arguments of a method for a batch, on the host's side."""
        counts = {name: torch.tensor(count) for name, count in self.state.counts.items()}
        return Context(
            self.student,
            batch,
            self.state.memory,
            counts=counts,
            constants=self.constants,
            source=self.source,
            host_looks=looks,
        )

    def host_inputs(self) -> HostInputs:
        """The host's numbers for a batch, as an eager step takes them."""
        student, state = self.student, self.state
        counts = {n: torch.tensor(count, device=student.device) for n, count in state.counts.items()}
        return HostInputs(counts, lambda shape: state.random.draw(shape).to(student.device))

    # ------------------------------------------------------------------ answer and learn

    def eagerly(self, batch: Batch) -> tuple[Tensor, Record]:
        """Answer a batch; rows that cannot be judged are left out, and the others are learned from."""
        student, finite = self.student, batch.finite()
        rows = JudgedRows(finite, torch.zeros_like(finite))
        words = f"samples for {self.method.name} {student.fingerprint}"
        while True:
            rest = batch.select(rows.good)
            counts = [rest.rows] if student.ranks.alone else student.ranks.counts(rest.rows, words)
            if not sum(counts):
                return self._unanswered(batch, rows)
            # A process without a sample runs zeros, as the others wait for its part of the forward.
            filled = rest if rest.rows else batch.first().map(torch.zeros_like)
            with student.step_of(counts):
                answer, record = self(filled, self.host_inputs(), rows.good.new_ones(filled.rows))
            if bool(record.verdict.allowed):
                break
            # The source model cannot judge some: nothing was learned. The step is taken again without them.
            rows = rows.without(record.verdict.rows)
        if len(answer) == batch.rows:
            return answer, record
        answer = rows.masked(answer)
        both = (record.source_logits, record.adapted)
        source_logits, adapted = (None if each is None else rows.with_nan(each) for each in both)
        return answer, replace(
            record,
            answer=answer.clone(),
            verdict=record.verdict._replace(rows=rows),
            source_logits=source_logits,
            adapted=adapted,
        )

    def __call__(self, batch: Batch, host: HostInputs, finite: Tensor | None = None) -> tuple[Tensor, Record]:
        """Answer a batch and learn from it; if a check fails, or an error is raised, nothing has changed.

        A row that cannot be judged is replaced by a good one, to keep shapes. Its answer is NaN, or zeros
        where the source model is silent (logits of zero). Nothing is learned from such a batch. `finite` is
        for rows that are known to be.
        """
        student = self.student
        with self.state.transaction() as transaction:
            batch, rows, view = self._screen(batch, finite)
            allowed, novelty = rows.good.all(), self._new(batch)
            plan, update = self._step(batch, view, novelty, host, allowed, transaction)
            if view is None and self.temper.kind in OF_TAU:
                view = self._view(batch, update.source_logits)
            checks = (student.finite_statistics(), *update.checks)
            tempered, tau = self._temper(update.logits.detach(), view, rows.good, novelty)
            verdict = StepVerdict(rows, allowed, checks, plan.idle or update.idle, captured=not host.looks)
            memory = self.state.staged(update.memory)
            keep = student.agree(verdict.keep())
            transaction.commit(keep, memory, tempered.observed, plan.counts, host_looks=host.looks)
        judged, rehearsed = tempered.judged, self.temper.rehearsed
        if rehearsed is not None and host.looks and not bool(keep):
            judged = rehearsed.now(self.state.temperature)
        answer, good, silent = student.local(rows.masked(tempered.logits), *rows)
        adapted = None if tempered.judged is None else rows.with_nan(update.logits.detach())
        rehearsal = None if self.temper.rehearsed is None else self.temper.rehearsed.rehearsal
        return answer, Record(
            # A copy, as the caller may write into the answer; a graph's is its own.
            answer=answer.clone() if host.looks else answer,
            verdict=verdict._replace(rows=JudgedRows(good, silent)),
            used=update.used.detach() if isinstance(update.used, Tensor) else update.used,
            loss=None if update.loss is None else update.loss.detach(),
            tau=tau,
            temperature=tempered.temperature,
            rehearsal=rehearsal,
            observed=self._observed(host.looks) if rehearsal else {},
            weight_distance=student.weight_distance() if rehearsal and student.learned else 0.0,
            source_logits=None if view is None else student.local(view.logits.detach())[0],
            judged=judged,
            adapted=None if adapted is None else student.local(adapted)[0],
            kept=None if host.looks else keep,
        )

    def _screen(self, batch: Batch, finite: Tensor | None) -> tuple[Batch, JudgedRows, SourceView | None]:
        """The batch with finite inputs, the rows that can be judged, and the source model's answers."""
        if finite is None:
            finite = batch.finite()
            batch = batch.with_stand_ins(finite)
        good = self.student.gather(finite, "good samples")
        if not self.asks_source:
            return batch, JudgedRows(good, torch.zeros_like(good)), None
        view = self._view(batch, None)
        return batch, JudgedRows(good & view.tau.isfinite(), good & (view.tau == torch.inf)), view

    def _view(self, batch: Batch, logits: Tensor | None) -> SourceView:
        """The source model's answers, by a forward of it unless the logits are known."""
        with torch.no_grad():
            return self.temper.view(self.student.source_logits(batch) if logits is None else logits)

    def _new(self, batch: Batch) -> Tensor | None:
        """The novelty of the samples of all processes, where source inputs were measured."""
        if self._novelty is None:
            return None
        found = self._novelty(batch.samples())
        if found is None and self.student.ranks.alone:
            return None
        if found is None:  # every process takes part in an exchange
            found = torch.zeros(batch.rows, device=self.student.device)
        return self.student.gather(found, "novelty")

    def _step(
        self,
        batch: Batch,
        view: SourceView | None,
        novelty: Tensor | None,
        host: HostInputs,
        allowed: Tensor,
        transaction: Transaction,
    ) -> tuple[Plan, Update]:
        context = self.context(batch, looks=host.looks)
        plan = self.method.plan(context)
        if plan.reset_first:
            transaction.reset_network()
            host, context = self.host_inputs(), self.context(batch)
            plan = self.method.plan(context)
        update = self.method.step(
            context._replace(
                view=view,
                novelty=novelty,
                plan=plan,
                counts=host.counts,
                uniform=host.uniform,
                allowed=allowed,
            )
        )
        rows = self.student.all_rows(batch)
        if not isinstance(update, Update) or len(update.logits) != rows:
            came = f"{len(update.logits)} rows" if isinstance(update, Update) else type(update).__name__
            raise TypeError(
                f"{self.method.name}: expected `step` to return an Update of {rows} rows, got {came}"
            )
        return plan, update

    def _temper(
        self, logits: Tensor, view: SourceView | None, good: Tensor, novelty: Tensor | None
    ) -> tuple[TemperedAnswers, Tensor | None]:
        """The answers after tempering, and tau of the good samples."""
        logits = self._wide(logits)
        if view is not None:
            view = view._replace(tau=torch.where(good, view.tau, torch.nan))
        if view is None and self.temper.rehearsed is None:
            return TemperedAnswers(logits, None, NO_TENSORS), None
        tempered = self.temper.divide(self.state.temperature, logits, view, good, novelty)
        return tempered, None if view is None else view.tau

    def _observed(self, looks: bool) -> Memory:
        """The observations of the temper after the batch: a copy, where the next batch would change them."""
        return copies(self.state.temperature) if looks else self.state.temperature

    def _wide(self, logits: Tensor) -> Tensor:
        """Answers in single precision, where bfloat16 was asked for inside; a model's own type is kept."""
        return at_least_single(logits) if self.student.layout.precision == "bf16" else logits

    def _unanswered(self, batch: Batch, rows: JudgedRows) -> tuple[Tensor, Record]:
        """NaN or zeros for a batch without a row that can be judged; the model sees none of its values."""
        student = self.student
        like = next((p for p in student.model.parameters() if p.is_floating_point()), torch.empty(0))
        classes = student.classes
        if classes is None or student.form is None:
            classes = student.frozen(batch.map(torch.zeros_like)).shape[1]
        answer = rows.masked(like.new_empty((0, classes)))
        rehearsed = self.temper.rehearsed
        observed = dict(self._observed(True)) if rehearsed else {}
        if rehearsed:  # the change of a batch before is none of this one
            observed[STREAM_CHANGED] = torch.zeros_like(observed[STREAM_CHANGED])
        return answer, Record(
            answer=answer.clone(),
            verdict=StepVerdict(rows, allowed=rows.good.any()),
            rehearsal=None if rehearsed is None else rehearsed.rehearsal,
            observed=observed,
            judged=rehearsed.now(observed) if rehearsed else None,
            adapted=torch.full_like(answer, torch.nan) if rehearsed else None,
            weight_distance=student.weight_distance() if rehearsed and student.learned else 0.0,
        )

    # ------------------------------------------------------------------ answer only

    def predict(self, batch: Batch) -> Tensor:
        """Answer a batch with everything as it is; nothing is learned."""
        with self.student.as_source():
            return self._predicted(batch)

    def _predicted(self, batch: Batch) -> Tensor:
        observed = self.state.temperature
        if self.temper.kind == "sample":
            logits, source_logits = self.method.answer(self.context(batch))
            view = self._view(batch, source_logits)
            if self.asks_source:
                return self._wide(divide(logits, view.tau.unsqueeze(1)))
            every = torch.ones_like(view.tau, dtype=torch.bool)
            return self._wide(self.temper.divide(observed, logits, view, every).logits)
        if self.source_answers:
            logits = self.student.source_logits(batch)
        else:
            logits = self.method.answer(self.context(batch)).logits
        return self._wide(divide(logits, self.temper.level(observed).to(logits.device)))

    @property
    def source_answers(self) -> bool:
        """Whether the source model answers now, as adapting is estimated to be worse."""
        return self.temper.rehearsed is not None and bool(self.state.temperature[TRUSTS])
