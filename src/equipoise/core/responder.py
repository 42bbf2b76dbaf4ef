"""How a batch goes through: sorted, shown to the source model, learned from, tempered, put on record."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import device_of
from equipoise.calibration.temper import OF_TAU, Divided, Temper
from equipoise.core.learner import Learner
from equipoise.core.record import Record
from equipoise.core.triage import Triage
from equipoise.errors import RankError
from equipoise.functional import at_least_single
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import chosen, copies
from equipoise.network.outcome import Outcome, SourceView


class Responder(Learner):
    """What surrounds a method's `step`, in two ways that come to the same.

    `respond` looks at what comes back, leaves out bad samples and undoes what went wrong. `respond_guarded`
    never looks: every decision is made on the device, so that a CUDA graph can hold all of it.

    Attributes:
        temper: what the answers are divided by.
    """

    temper: Temper

    def __init__(self, temper: Temper, *args: Any) -> None:
        super().__init__(*args)
        self.temper = temper

    def view(self, batch: Batch, *, everyones: bool = False) -> SourceView:
        """One forward of the source model, and the certainty regulariser of its logits.

        `everyones`: in a step, those of the samples of all processes.
        """
        with torch.no_grad():
            logits, features = self.ask_source(batch)
            if everyones:
                logits = self.everyones(logits, "the source model's logits")
                features = None if features is None else self.everyones(features, "features")
            return SourceView(logits, features, *self.temper.regularize(logits))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Whatever is done in the block is undone at its end, weights and all."""
        values, kept = self.snapshot(weights=True)
        kept = copies(kept)  # an optimiser may write into them
        heat = self.temper.temperature
        contents = dict(heat.contents)
        try:
            yield
        finally:
            self.restore(values, kept)
            heat.contents = contents

    def tuning(self) -> AbstractContextManager[None]:
        """Where libraries may try which of their kernels is fastest: in bfloat16, as the usual are slow.

        In float32 they would differ from those that run without a graph in the last digits.
        """
        return _trying_kernels() if self._execution.precision == "bf16" else nullcontext()

    @property
    def device(self) -> torch.device:
        """Where the student is."""
        return device_of(self.student)

    @property
    def _tempers(self) -> bool:
        return self._wants_view or self.temper.rehearsed is not None

    @property
    def _wants_view(self) -> bool:
        return self.asks_source or self.temper.kind in OF_TAU

    def respond(self, batch: Batch) -> tuple[Tensor, Record]:
        """Answer a batch and learn from it; samples that nobody can judge are set aside."""
        before = None if self.ranks.alone else self.snapshot(weights=True)
        try:
            return self._respond(batch)
        except RankError:
            if before is not None:
                self.restore(*before)
            raise

    def _respond(self, batch: Batch) -> tuple[Tensor, Record]:
        triage, view = Triage(batch), None
        self.counts = self.ranks.counts(triage.rest.rows, f"samples for {self.name} {self.model_fingerprint}")
        if sum(self.counts) and self._wants_view:
            view = self.view(triage.rest_or_stand_in(), everyones=True)
            if self.asks_source:
                usable = view.tau.isfinite()
                triage.keep_usable(self.own(view.tau))
                self.counts = [int(part.sum()) for part in usable.split(self.counts)]
                view = view.select(usable)
        if sum(self.counts) == 0:
            answer = triage.complete(self._unanswered(batch))
            record = Record(batch.rows, answer.clone(), set_aside=batch.rows, silent=triage.silent)
            if rehearsed := self.temper.rehearsed:
                record = replace(record, rehearsal=rehearsed.rehearsal, contents=rehearsed.contents)
            return answer, record
        outcome = self.undoable_step(triage.rest_or_stand_in(), view)
        logits, divided = self._wide(outcome.logits.detach()), None
        if self._tempers:
            divided = self.temper.divide(self.everyones(logits), view)
            logits = self.own(divided.logits)
            if not outcome.failed:
                self.temper.temperature.contents = divided.contents
        answer = triage.complete(self.mine(logits))
        tau = None if view is None else view.tau
        return answer, self._record(batch, answer, triage.set_aside, triage.silent, outcome, tau, divided)

    def respond_guarded(self, batch: Batch) -> tuple[Tensor, Record, Tensor]:
        """The same without a look; also returns whether every sample was fine.

        Bad samples are answered as ever (NaN, or zeros), and a good one stands in for each of them so that
        shapes stay; with even one of them nothing is learned from the batch.
        """
        good, self.counts = batch.finite(), [batch.rows]
        filled = batch.with_stand_ins(good)
        view, silent = None, torch.zeros_like(good)
        if self._wants_view:
            view = self.view(filled)
            if self.asks_source:
                silent = good & (view.tau == torch.inf)
                good = good & view.tau.isfinite()
        clean = good.all()
        outcome, stands = self.guarded_step(filled, view, clean)
        logits, tau, divided = self._wide(outcome.logits.detach()), None, None
        if view is not None:
            tau = torch.where(good, view.tau, torch.nan)
            view = view._replace(tau=tau)
        if self._tempers:
            heat = self.temper.temperature
            divided = self.temper.divide(logits, view, good)
            logits = divided.logits
            heat.contents = chosen(stands, divided.contents, heat.contents)
        fill = torch.where(silent, 0.0, torch.nan).to(logits.dtype).unsqueeze(1)
        answer = torch.where(good.unsqueeze(1), logits, fill)
        aside = (~good).sum()
        return answer, self._record(batch, answer, aside, silent.sum(), outcome, tau, divided, True), clean

    def _record(
        self,
        batch: Batch,
        answer: Tensor,
        set_aside: int | Tensor,
        silent: int | Tensor,
        outcome: Outcome,
        tau: Tensor | None,
        divided: Divided | None,
        whole: bool = False,
    ) -> Record:
        rehearsed = self.temper.rehearsed
        return Record(
            batch.rows,
            answer if whole else answer.clone(),  # the caller may write into the answer; a graph's is its own
            set_aside,
            silent,
            outcome.used,
            outcome.reason,
            outcome.checks,
            whole,
            outcome.loss,
            tau,
            None if divided is None else divided.temperature,
            None if rehearsed is None else rehearsed.rehearsal,
            {} if rehearsed is None else dict(rehearsed.contents),  # as settled: without a failed batch
        )

    def _wide(self, logits: Tensor) -> Tensor:
        """Answers are not in bfloat16 because it was asked for inside; a model's own type they keep."""
        return at_least_single(logits) if self._execution.precision == "bf16" else logits

    def _unanswered(self, batch: Batch) -> Tensor:
        """No logits, of the right width and dtype; the model never sees any of the batch's values."""
        like = next((p for p in self.student.parameters() if p.is_floating_point()), torch.empty(0))
        classes = self._classes or self.steady_logits(batch.map(torch.zeros_like)).shape[1]
        return like.new_empty(0, classes)


@contextmanager
def _trying_kernels() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
