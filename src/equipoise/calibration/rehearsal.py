"""The result of a rehearsal: the accuracy of a method as a function of its answers."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from equipoise.calibration import window
from equipoise.calibration.ridge import Ridge
from equipoise.errors import StateError

FLOORS = torch.tensor([0.3, 0.03, 0.1, 0.04], dtype=torch.float64)
"""The least spread of each feature of a window: smaller changes over the shifts are noise."""

_LEAST = 1e-3
_TENSORS = ("source_margin", "prior", "hottest", "bins")


def logit(share: Tensor) -> Tensor:
    """ln(p / (1 − p)), finite at 0 and 1."""
    return share.clamp(_LEAST, 1 - _LEAST).logit()


@dataclass(frozen=True)
class Estimate:
    """An accuracy estimated without labels.

    Attributes:
        value: the estimate.
        low: lower end of a 90 % interval.
        high: its upper end.
        inside: whether the window lies within the rehearsed range; if not, the interval is wider, and the
            value is the nearest that was rehearsed.
    """

    value: float
    low: float
    high: float
    inside: bool

    def __str__(self) -> str:
        """The value with its interval."""
        warning = "" if self.inside else ", outside of what was rehearsed"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f}{warning})"


@dataclass(frozen=True)
class Run:
    """One pass of the method over a shift in one order.

    Attributes:
        shift: the name of the shift.
        order: of the samples: "shuffled" or "sorted" by class.
        accuracy: of the answers.
        confidence: their mean confidence, untempered.
        estimate: the accuracy estimated by a regression that never saw this shift.
        temperature: the one that this estimate gives.
        source_accuracy: of the source model; None where it was not asked.
    """

    shift: str
    order: str
    accuracy: float
    confidence: float
    estimate: float
    temperature: float
    source_accuracy: float | None


@dataclass(frozen=True)
class Rehearsal:
    """How the accuracy of a method on a model follows from its answers, learned from made-up shifts.

    Attributes:
        method: the method's name.
        options: its options.
        samples: labelled samples that every shift was made of.
        batch_size: of the streams.
        seed: of everything random.
        runs: the passes, with true and estimated accuracy.
        student: from the features of a window of answers (`window.features`) to the logit of their accuracy.
        gap: from the features of both models to the logit of the source model's accuracy less that of the
            answers; None where the source model was not asked.
        source_margin: the 90 % quantile of the errors of the source model's estimate, in logits.
        prior: a window of answers without any shift, one sample's worth, for each model; (models, width).
        hottest: the highest temperature that was right in rehearsal, for each model.
        bins: 15 bins of confidence over all runs, (2, 3, 15): untempered and tempered; counts, confidences
            and hits.
        disagreement: the largest share of answers of a window in which the adapted model names another class
            than the source model, over rehearsed windows in which adapting lost nothing; None where the
            source model was not asked.
    """

    method: str
    options: dict[str, Any]
    samples: int
    batch_size: int
    seed: int
    runs: tuple[Run, ...]
    student: Ridge
    gap: Ridge | None
    source_margin: Tensor
    prior: Tensor
    hottest: Tensor
    bins: Tensor = field(repr=False)
    disagreement: float | None = None

    @property
    def models(self) -> int:
        """The number of models that are estimated: the answers alone, or the source model as well."""
        return len(self.prior)

    @property
    def error(self) -> float:
        """The mean distance of estimated and true accuracy, each estimated without its own shift."""
        return sum(abs(run.estimate - run.accuracy) for run in self.runs) / len(self.runs)

    def estimates(self, windows: Tensor) -> tuple[Estimate, Estimate | None]:
        """The accuracy of the answers in windows (models, width), and of the source model if it has one."""
        seen = windows.detach().double().cpu()
        x, rows = window.features(seen), float(seen[0, window.COUNT])
        value = self.student(x[0])
        own = _estimate(value, self.student.margin, self.student, x[0], rows)
        if self.gap is None or len(seen) < 2:
            return own, None
        both = torch.cat([x[0], x[1]])
        return own, _estimate(value + self.gap(both), self.source_margin, self.gap, both, rows)

    def __str__(self) -> str:
        """A table of the shifts."""
        head = f"{'shift':<22} {'order':<9} {'accuracy':>8} {'estimate':>8} {'error':>7} {'confidence':>10}"
        rows = [
            f"{run.shift:<22} {run.order:<9} {run.accuracy:8.3f} {run.estimate:8.3f} "
            f"{run.estimate - run.accuracy:+7.3f} {run.confidence:10.3f}"
            for run in sorted(self.runs, key=lambda run: -run.accuracy)
        ]
        before, after = (calibration_error(bins) for bins in self.bins)
        moves = "rises" if after > before else "falls"
        ends = [
            f"{self.method}, {self.samples} samples, {len(self.runs)} streams: accuracy is known within "
            f"{self.error:.3f} on average for a shift that was left out,",
            f"and the calibration error over all of them {moves} from {before:.3f} to {after:.3f}",
        ]
        return "\n".join([head, *rows, *ends])

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw estimated against true accuracy, and reliability with and without; needs matplotlib."""
        from equipoise.calibration.figure import draw

        draw(self, path)

    def to_json(self) -> str:
        """Everything but the tensors, as text."""
        known = ("method", "options", "samples", "batch_size", "seed")
        return json.dumps(
            {**{name: getattr(self, name) for name in known}, "runs": [asdict(run) for run in self.runs]}
        )

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        lines = {"student": self.student} if self.gap is None else {"student": self.student, "gap": self.gap}
        own = {name: getattr(self, name) for name in _TENSORS}
        return {
            **own,
            **{f"{at}.{name}": t for at, line in lines.items() for name, t in line.tensors().items()},
        }

    @classmethod
    def from_parts(cls, text: str, tensors: Mapping[str, Tensor]) -> "Rehearsal":
        """The inverse of `to_json` and `tensors`; StateError where something is missing, misshapen or NaN."""
        try:
            parts = dict(json.loads(text))
            runs = tuple(Run(**run) for run in parts.pop("runs"))
            lines = {
                at: Ridge(
                    **{n.removeprefix(f"{at}."): t for n, t in tensors.items() if n.startswith(f"{at}.")}
                )
                for at in ("student", "gap")
                if f"{at}.mean" in tensors
            }
            rest: dict[str, Any] = {name: tensors[name] for name in _TENSORS}
            made = cls(**parts, runs=runs, student=lines["student"], gap=lines.get("gap"), **rest)
            made._check_shapes()
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not a rehearsal: {error!r}") from error
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise StateError("expected finite numbers in a rehearsal, got some that are not")
        return made

    def _check_shapes(self) -> None:
        """ValueError where a tensor is not of the shape that the features and the models ask for."""
        models, features = 1 if self.gap is None else 2, len(window.FEATURES)
        own = {"source_margin": (), "hottest": (models,), "bins": (2, 3, 15)}
        shapes: dict[str, tuple[int, ...]] = {**own, "prior": (models, *self.prior.shape[1:2])}
        for at, width in (("student", features), ("gap", 2 * features)):
            wide = {"mean": (width,), "spread": (width,), "weights": (width,), "inverse": (width, width)}
            shapes.update({f"{at}.{name.name}": wide.get(name.name, ()) for name in fields(Ridge)})
        for name, tensor in self.tensors().items():
            if tensor.shape != shapes[name] or (name == "prior" and tensor.shape[1] < window.width(2)):
                raise ValueError(f"{name}: expected the shape {shapes[name]}, got {tuple(tensor.shape)}")


def _estimate(value: Tensor, margin: Tensor, line: Ridge, x: Tensor, rows: float) -> Estimate:
    """An estimate in logits with its interval.

    The half width is √(margin² + z² / (n · a · (1 − a) + 1)) with z = 1.645, n the samples in the window and
    a the estimate, times √(leverage / reach) where that is above 1.
    """
    far = float(line.leverage(x) / line.reach.clamp(min=1e-12))
    a = float(value.sigmoid())
    noise = 1.645**2 / (rows * a * (1 - a) + 1)
    half = math.sqrt(float(margin) ** 2 + noise) * math.sqrt(max(far, 1.0))
    low, high = (float(torch.sigmoid(value + side * half)) for side in (-1, 1))
    return Estimate(a, low, high, far <= 1)


def calibration_error(bins: Tensor) -> float:
    """ECE of bins (3, n): counts, sums of confidence, hits."""
    return float((bins[1] - bins[2]).abs().sum() / bins[0].sum().clamp(min=1))
