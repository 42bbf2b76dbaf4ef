"""The temperature of a rehearsal, batch by batch, and whether the source model answers."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.calibration import window
from equipoise.calibration.process import Posteriors
from equipoise.calibration.rehearsal import Estimate, Rehearsal, believed, faded, middle_of
from equipoise.calibration.ridge import Ridge

LEAD = 0.2
"""The unit of `Rehearsal.lead`, a difference of accuracies."""

ENTER, LEAVE = 0.05, 0.02
"""The estimated leads in accuracy with which the source model starts to answer, and goes on answering."""

TOLERATED = 0.05
"""The share of samples by which models may differ more than in any rehearsed window without loss."""

NEW = 2.0
"""The novelty beyond which all inputs are new, in units of `Rehearsal.familiar`."""

SHARE_OF_DOUBT = 0.5
"""The part of the regression's doubt that keeps answers as they are: it favours models that are honest."""

WINDOWS, TRUSTS = "windows", "trusts_source"


class Verdict(NamedTuple):
    """The temperatures of windows, and the model that answers.

    Attributes:
        temperatures: of each model.
        trusts: whether the source model answers.
    """

    temperatures: Tensor
    trusts: Tensor


class _Constants(NamedTuple):
    """Constants on a device, by which each batch is judged.

    Attributes:
        estimates: of the accuracy of each model, and of the lead.
        gap: of `Rehearsal`.
        at_rest: the logit of each model's accuracy without shift.
        middle: half way from it to chance (`middle_of`).
        doubt_squared: the square of `SHARE_OF_DOUBT` of each model's doubt.
        coolest: the lowest temperature of each model.
        hottest: the highest.
    """

    estimates: Posteriors
    gap: Ridge | None
    at_rest: Tensor
    middle: Tensor
    doubt_squared: Tensor
    coolest: Tensor
    hottest: Tensor


class RehearsedTemperature:
    """Estimates accuracy from a window of the stream, and matches confidence to it.

    With â the logit of the estimated accuracy of a model and c the logit of its mean confidence, the
    temperature is where the window's mean confidence is

        sigmoid(c + (â − c) · (â − c)² / ((â − c)² + (doubt / 2)²)),

    so that a difference smaller than the regression's own doubt changes little; from the lowest to the
    highest that was right in rehearsal, or from t_min to t_max where they are given. Every number stays on
    the device.

    The source model answers where it is estimated to be more accurate by `ENTER` (and on until that falls
    below `LEAVE`), by the mean of three estimates, so that none of them decides alone: the difference of the
    models' own estimates, the regression of the difference that knows what was rehearsed nearby, and the
    linear one. It also answers where both disagree in a share of the samples that is larger by `TOLERATED`
    than in any rehearsed window without loss: whatever the estimates say where the inputs are not new, as
    nothing else can be the cause than the adapted model; where they are new, if its lead is positive. It
    never answers where inputs are new by twice `Rehearsal.familiar`, and its window is further from those
    rehearsed than its process's limit, and that of the adapted model is not: its estimate says nothing there.

    Where a window is further than two limits, a high estimate is lower (`faded`).

    Args:
        rehearsal: of the method on this model.
        compares: whether the source model's logits come with each batch, and it may answer.
        t_min: the lowest temperature; None: the lowest that was right in rehearsal.
        t_max: the highest; None: the highest that was right in rehearsal.
    """

    def __init__(
        self, rehearsal: Rehearsal, compares: bool, t_min: float | None = None, t_max: float | None = None
    ) -> None:
        self.rehearsal = rehearsal
        self.compares = compares and rehearsal.source is not None
        self._range = (t_min, t_max)
        self._constants: dict[torch.device, _Constants] = {}

    def initial(self) -> dict[str, Tensor]:
        """The observations before the first batch: the rehearsed "no shift"."""
        models = 2 if self.compares else 1
        prior = self.rehearsal.prior[:models].float() * window.PRIOR_SAMPLES
        return {WINDOWS: prior.unsqueeze(1).repeat(1, 2, 1), TRUSTS: torch.zeros((), dtype=torch.bool)}

    def after(
        self,
        observed: Mapping[str, Tensor],
        logits: Tensor,
        source: Tensor | None,
        good: Tensor,
        novelty: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], Verdict]:
        """The observations after a batch, and the verdict on it; `good` samples count."""
        before = {name: tensor.to(logits.device) for name, tensor in observed.items()}
        answers = (
            torch.stack([logits, source.to(logits)]) if self.compares and source is not None else logits[None]
        )
        windows = window.after(before[WINDOWS], window.sums(answers, good, novelty))
        verdict = self.judge(windows, before[TRUSTS])
        return {WINDOWS: windows, TRUSTS: verdict.trusts}, verdict

    def judge(self, windows: Tensor, trusted: Tensor) -> Verdict:
        """Temperatures of the models in windows (models, 2, width), and whether the source model answers now.

        The slow windows count; models disagree where they do so in the fast window, too.
        """
        known, models = self._on(windows.device), len(windows)
        slow, seen = windows[:, 0], window.means(windows)
        x, novelty = window.features(slow), seen[:, 0, window.NOVEL]
        found, far = known.estimates(x.flatten())  # of the accuracy of each model, and of the lead
        values = believed(found[:models], known.at_rest, novelty, self.rehearsal.familiar)
        values = faded(values, known.middle, far[:models])
        trusts = torch.zeros_like(trusted)
        if known.gap is not None:
            gap = known.gap(x.flatten())
            mine, theirs = values.sigmoid().unbind()
            linear = ((values[0] + gap).sigmoid() - mine + theirs - (values[1] - gap).sigmoid()) / 2
            ahead = (theirs - mine + LEAD * found[models] + linear) / 3
            known_source = (far[1] <= 1) | (far[0] > 1) | (novelty[0] <= NEW * self.rehearsal.familiar)
            apart = seen[0, :, window.APART].amin() > (self.rehearsal.disagreement or 0.0) + TOLERATED
            new = novelty[0] > self.rehearsal.familiar
            better = (ahead > torch.where(trusted, LEAVE, ENTER)) | (apart & ((ahead > 0) | ~new))
            trusts = better & known_source
        confidence = x[:, 0]
        off = values - confidence
        moved = off.square()
        aim = (confidence + off * moved / (moved + known.doubt_squared)).sigmoid()
        right = window.temperature_for(slow, aim)
        return Verdict(right.clamp(known.coolest, known.hottest), trusts)

    def level(self, observed: Mapping[str, Tensor]) -> Tensor:
        """The temperature of the model that answers now."""
        temperatures = self.judge(observed[WINDOWS], observed[TRUSTS]).temperatures
        return torch.where(observed[TRUSTS], temperatures[-1], temperatures[0])

    def source_level(self, observed: Mapping[str, Tensor]) -> Tensor | None:
        """The temperature of the source model's answers now; None where it is not compared."""
        if not self.compares:
            return None
        return self.judge(observed[WINDOWS], observed[TRUSTS]).temperatures[1]

    def estimates(
        self, observed: Mapping[str, Tensor], weight_distance: float = 0.0
    ) -> tuple[Estimate, Estimate | None]:
        """The estimated accuracy of the adapted model and of the source model over the window.

        `weight_distance` is how far the weights that learn are from the source model's.
        """
        return self.rehearsal.estimates(observed[WINDOWS][:, 0], weight_distance)

    def _on(self, device: torch.device) -> _Constants:
        """The regressions on a device; copied there once."""
        if device not in self._constants:
            own, (t_min, t_max) = self.rehearsal, self._range
            models, features = (2 if self.compares else 1), len(window.FEATURES)
            fitted = own.processes(models)
            parts = [slice(at * features, (at + 1) * features) for at in range(models)]
            both = slice(0, models * features)
            coolest = own.coolest if t_min is None else torch.full_like(own.coolest, t_min)
            hottest = own.hottest if t_max is None else torch.full_like(own.hottest, t_max)
            # An end that is given holds: the other one gives way.
            coolest = coolest if t_max is None else coolest.clamp(max=t_max)
            hottest = hottest if t_min is None else hottest.clamp(min=t_min)
            at_rest = torch.stack([part.at_rest for part in fitted])
            numbers = (
                at_rest,
                middle_of(at_rest, own.classes),
                (SHARE_OF_DOUBT * torch.stack([part.doubt for part in fitted])).square() + 1e-9,
                coolest[:models],
                hottest[:models],
            )
            lead, gap = (own.lead, own.gap) if self.compares else (None, None)
            self._constants[device] = _Constants(
                Posteriors(
                    [*fitted, *([lead] if lead else [])],
                    [*parts, *([both] if lead else [])],
                    both.stop,
                    device,
                ),
                None if gap is None else gap.to(device),
                *(number.to(device, torch.float32) for number in numbers),
            )
        return self._constants[device]
