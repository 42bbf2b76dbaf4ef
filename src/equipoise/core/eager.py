"""The eager engine: one kernel after the other, with a host that reads flags and leaves out bad samples."""

from dataclasses import replace

import torch
from torch import Tensor

from equipoise.core.record import Record
from equipoise.core.step import Responder
from equipoise.network.batch import Batch


def run(respond: Responder, batch: Batch) -> tuple[Tensor, Record]:
    """Answer a batch; samples that cannot be judged are left out, and the others are learned from."""
    student = respond.student
    words = f"samples for {respond.method.name} {student.fingerprint}"
    good, silent = batch.finite(), torch.zeros(batch.rows, dtype=torch.bool)
    while True:
        rest = batch.select(good)
        rows = student.ranks.counts(rest.rows, words)
        if not sum(rows):
            answer, record = respond.unanswered(batch)
            answer[silent] = 0.0
            return answer, replace(record, answer=answer.clone(), silent=int(silent.sum()))
        with student.step_of(rows):
            # A process without a sample runs zeros, as the others wait for its part of the forward.
            logits, record = respond(rest if rest.rows else batch.first().map(torch.zeros_like))
            if bool(record.permitted):
                return _complete(batch, good, silent, logits, record)
        # The source model cannot judge some: nothing was learned. The step is taken again without them.
        silent[good.cpu()] = (record.good.logical_not() & (logits == 0).all(1)).cpu()
        good[good.clone()] = record.good


def _complete(
    batch: Batch, good: Tensor, silent: Tensor, logits: Tensor, record: Record
) -> tuple[Tensor, Record]:
    """The answer to the whole batch, from the logits of the samples left."""
    if len(logits) == batch.rows:
        return logits, record
    answer = _with_gaps(logits, good)
    answer[silent] = 0.0
    source_logits = None if record.source_logits is None else _with_gaps(record.source_logits, good)
    return answer, replace(
        record,
        samples=batch.rows,
        answer=answer.clone(),
        set_aside=batch.rows - int(good.sum()),
        silent=int(silent.sum()),
        source_logits=source_logits,
    )


def _with_gaps(logits: Tensor, good: Tensor) -> Tensor:
    """The logits of good samples in their places, and NaN in those of the others."""
    whole = logits.new_full((len(good), logits.shape[1]), torch.nan)
    whole[good] = logits
    return whole
