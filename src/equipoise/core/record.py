"""The record of a batch: left on the device by a step, read when `adapter.last` asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from equipoise.calibration import window
from equipoise.calibration.rehearsal import Estimate, Rehearsal
from equipoise.calibration.temper import LABEL_ROWS, TRUSTS, WINDOWS, TrustedModel, judged_accuracy
from equipoise.core.verdict import StepVerdict
from equipoise.functional import entropy

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Step:
    """The answer to one batch and what was learned from it, as `adapter.last` returns it.

    Attributes:
        samples: samples in the batch.
        used: samples the update learned from; 0 where there was none.
        set_aside: samples kept out of the model's statistics and weights: non-finite input or source logits
            (their logits come back NaN), or source logits of norm zero (theirs come back zero).
        updated: whether something was learned: the weights took a step, or supports joined.
        reason: why nothing was learned, or why samples were set aside; empty otherwise.
        loss: the loss of the step, taken or undone; None where none was computed.
        entropy: mean entropy in bits of the logits returned, over those that are finite.
        temperature: the divisor of the logits (the mean over samples for tempering="sample").
        tau_quantiles: the 5, 25, 50, 75 and 95 % quantiles of the certainty regulariser tau over the batch;
            None where the method needs none.
        accuracy: that of the answers, estimated without labels over the last few hundred samples; None
            without a rehearsal.
        source_accuracy: the estimated accuracy of the source model; None where it is not asked.
        answered_by: "student", the adapted model, or "source", the source model, where adapting is estimated
            to be worse.
        novelty: how unlike source inputs those of the last few hundred samples are (`calibration.novelty`):
            about 0 for source inputs; None without a rehearsal.
        source_logits: the source model's answers to the batch, a row for each sample (NaN for those set
            aside); None where it is not asked.
        ids: the numbers of the samples since the adapter was made, for labels (`adapter.label`).
    """

    samples: int
    used: int
    set_aside: int
    updated: bool
    reason: str
    loss: float | None
    entropy: float | None
    temperature: float | None
    tau_quantiles: tuple[float, float, float, float, float] | None
    accuracy: Estimate | None = None
    source_accuracy: Estimate | None = None
    answered_by: Literal["student", "source"] = "student"
    novelty: float | None = None
    source_logits: Tensor | None = field(default=None, repr=False, compare=False)
    ids: range = range(0)


@dataclass(frozen=True)
class Record:
    """Results of a step on the device; `read` copies them to the host.

    Attributes:
        answer: the logits returned; a copy, but for a captured step.
        verdict: which rows could be judged, and whether the step counts.
        used: samples that the step learned from, if it is kept.
        loss: the loss of the step.
        tau: the certainty regulariser of the samples, some of them perhaps not finite.
        temperature: the divisor of the logits.
        rehearsal: of the method, where the temperature comes from one.
        observed: the observations of that temperature, the batch included.
        weight_distance: how far the weights that learn are from the source model's, after the batch.
        source_logits: those of the source model, a row for each sample; None where it was not asked.
        judged: what the temperature is from; None without a rehearsal.
        adapted: the logits of the adapted model before tempering, a row for each sample, NaN for those set
            aside; None without a rehearsal.
        kept: whether the changes of a captured step are kept, and `judged` is what the state says; None for
            another, whose `judged` is of the state in either case.
        ids: the numbers of the samples.
    """

    answer: Tensor
    verdict: StepVerdict
    used: int | Tensor = 0
    loss: Tensor | None = None
    tau: Tensor | None = None
    temperature: Tensor | None = None
    rehearsal: Rehearsal | None = None
    observed: Mapping[str, Tensor] = field(default_factory=dict)
    weight_distance: float | Tensor = 0.0
    source_logits: Tensor | None = None
    judged: TrustedModel | None = None
    adapted: Tensor | None = None
    kept: Tensor | None = None
    ids: range = range(0)

    def read(self) -> Step:
        """Copy the results to the host; waits for the device."""
        verdict = self.verdict.read()
        used = int(self.used) if verdict.kept else 0
        bits = entropy(self.answer)
        bits = bits[bits.isfinite()]
        trusts = bool(self.observed[TRUSTS]) if self.rehearsal else False
        own, theirs, new = None, None, None
        if self.rehearsal:
            new = float(window.means(self.observed[WINDOWS][0, 0])[window.NOVEL])
            own, theirs = self._estimates(self.rehearsal)
        return Step(
            samples=len(self.answer),
            used=used,
            set_aside=verdict.aside,
            updated=used > 0,
            reason=verdict.reason,
            loss=None if self.loss is None or not verdict.tried else float(self.loss),
            entropy=float(bits.mean()) if len(bits) else None,
            temperature=None if self.temperature is None else float(self.temperature.mean()),
            tau_quantiles=None if self.tau is None else _quantiles(self.tau[self.tau.isfinite()]),
            accuracy=theirs if trusts else own,
            source_accuracy=theirs,
            answered_by="source" if trusts else "student",
            novelty=new,
            source_logits=None if self.source_logits is None else self.source_logits.clone(),
            ids=self.ids,
        )

    def _estimates(self, rehearsal: Rehearsal) -> tuple[Estimate, Estimate | None]:
        """The estimates of both models by what was judged, or by what is observed where that was undone."""
        far, judged = self.weight_distance, self.judged
        if judged is None or (self.kept is not None and not bool(self.kept)):
            return rehearsal.estimates(self.observed[WINDOWS][:, 0], float(far), self.observed[LABEL_ROWS])
        models = range(len(judged.estimates))
        found = [judged_accuracy(rehearsal, model, self.observed, judged, far) for model in models]
        return found[0], found[1] if len(found) > 1 else None


def _quantiles(tau: Tensor) -> tuple[float, float, float, float, float] | None:
    if not len(tau):
        return None
    at = torch.tensor(QUANTILES, dtype=tau.dtype, device=tau.device)
    q05, q25, q50, q75, q95 = torch.quantile(tau, at).tolist()
    return q05, q25, q50, q75, q95
