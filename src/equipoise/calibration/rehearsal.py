"""The result of a rehearsal: the accuracy of a method as a function of its answers."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.calibration import labels, window
from equipoise.calibration.expected import CURVES, FINITE
from equipoise.calibration.regression import ROOM, Process, Ridge
from equipoise.calibration.scalars import NINETY, share_of
from equipoise.errors import StateError
from equipoise.functional import at_least_single
from equipoise.json_form import from_json, to_json
from equipoise.network.named_tensors import part, prefixed

DISTANT = 2.0
"""The distance of a window, in limits, beyond which a high estimate falls; 1.5 and 3 were tried."""

_VERSION = 3
_LEAST = 1e-3
_LARGEST = 1e16
_INK, _ACCENT, _PALE = "#33415c", "#d1495b", "#b8c4d6"
_TENSORS = ("prior", "coolest", "hottest", "bins", "expected", "true")
_PROCESSES = ("student", "compared", "source", "lead")


def believed(value: Tensor, at_rest: Tensor, novelty: Tensor, familiar: float) -> Tensor:
    """An estimate in logits, no more than the accuracy without shift where the inputs are new.

    Easier classes or rows may make a model more accurate than it is on its own data, new inputs do not. The
    excess has the weight 2 − n / familiar, from 0 to 1, for inputs of novelty n.
    """
    excess = (value - at_rest).clamp(min=0)
    return value - excess * (novelty / familiar - 1).clamp(0, 1)


def logit(share: Tensor) -> Tensor:
    """ln(p / (1 − p)), finite at 0 and 1."""
    return share.clamp(_LEAST, 1 - _LEAST).logit()


def middle_of(at_rest: Tensor, classes: int) -> Tensor:
    """The logit half way between those of the accuracy without shift and of chance, 1 / C."""
    return (at_rest - math.log(classes - 1)) / 2


def faded(value: Tensor, middle: Tensor, distance: Tensor) -> Tensor:
    """Logits of accuracy at windows `distance` limits from the nearest rehearsed one (`Process.distance`).

    Beyond two limits nothing rehearsed is like the window, and what an estimate has above the middle is
    multiplied by (2 / distance)²: a model that has come to name one class is sure of it.
    """
    excess = (value - middle).clamp(min=0)
    return value - excess * (1 - (DISTANT / distance.clamp(min=DISTANT)).square())


def countable(logits: Tensor) -> Tensor:
    """Whether the logits of each sample (…, N, C) are finite, and so small that their norm is, too."""
    return (at_least_single(logits).abs() <= _LARGEST).all(-1)


@dataclass(frozen=True)
class Estimate:
    """A number estimated without labels, or with the few that came; `float` gives the value alone.

    An accuracy, the coverage of sets, or the gap between confidence and accuracy. A format has the value,
    too: f"{estimate:.1%}".

    Attributes:
        value: the estimate.
        low: lower end of a 90 % interval.
        high: its upper end.
        inside: whether the window is as near to rehearsed ones as they are to those of other shifts, and the
            answers do not look clearly more accurate than without shift where the inputs are new, and the
            weights are no further from the source model's than in rehearsal; if not, the interval is wider,
            or the value no higher than without shift (`believed`), or nearer to chance (`faded`). Of an
            `equipoise.Estimator`, which rehearses nothing: whether the answers are near to held-out ones.
            False, too, where the 90 % intervals without labels and of the labels that came do not meet.
    """

    value: float
    low: float
    high: float
    inside: bool

    def __float__(self) -> float:
        """The value."""
        return self.value

    def __str__(self) -> str:
        """The value with its interval."""
        warning = "" if self.inside else ", outside of what was rehearsed"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f}{warning})"

    def __format__(self, spec: str) -> str:
        """The value in a format of numbers; without one, the value with its interval."""
        return format(self.value, spec) if spec else str(self)


class Seen(NamedTuple):
    """What the estimates of windows are from, on the host.

    Attributes:
        features: (models, features).
        values: the estimates without labels, in logits; of each model.
        rows: samples in the windows.
        novelty: of their inputs.
    """

    features: Tensor
    values: list[float]
    rows: float
    novelty: float


@dataclass(frozen=True)
class Run:
    """One pass of the method over a shift in one order.

    Attributes:
        shift: the name of the shift.
        order: of the samples: "shuffled", "sorted" by class, in "bursts" of two classes and others
            (`equipoise.rehearsal.passes`).
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
        student: from the features of a window of answers (`window.features`) to the logit of their accuracy,
            without their disagreement with the source model's.
        compared: the same with it; None where the source model was not asked.
        source: the same of the source model, from its own answers alone; None where it was not asked.
        lead: from the features of both models to the accuracy of the source model less that of the answers,
            in units of `temper.LEAD`; None where the source model was not asked.
        gap: a linear regression of the difference of their logits on the same features; None where the source
            model was not asked.
        familiar: the novelty of inputs (`novelty.Novelty`) that nine in ten windows without shift kept below,
            in any order and in any shares of classes; at least .2.
        reach: how far the weights that learn were from the source model's at most, ‖θ − θ₀‖ / ‖θ₀‖; 0 for a
            method that learns none.
        disagreement: the largest share of answers of a window in which the adapted model names another class
            than the source model, over rehearsed windows in which adapting lost nothing; None where the
            source model was not asked.
        prior: a window of answers without any shift, one sample's worth, for each model; (models, width).
        coolest: the lowest temperature that was right in rehearsal, for each model; at most 1.
        hottest: the highest; at least 1.
        expected: what answers without any shift expect of decisions (`expected.expected_sums`), at the
            temperature that a stream begins with, for each model; (models, CURVES, FINITE + 1).
        true: the truth of the same answers (`expected.true_sums`).
        bins: 15 bins of confidence over all runs, (2, 3, 15): untempered and tempered; counts, confidences
            and hits.
    """

    method: str
    options: dict[str, Any]
    samples: int
    batch_size: int
    seed: int
    runs: tuple[Run, ...]
    student: Process
    compared: Process | None
    source: Process | None
    lead: Process | None
    gap: Ridge | None
    familiar: float
    reach: float
    disagreement: float | None
    prior: Tensor
    coolest: Tensor
    hottest: Tensor
    expected: Tensor = field(repr=False)
    true: Tensor = field(repr=False)
    bins: Tensor = field(repr=False)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.prior.shape[1] - window.width(0)

    @property
    def models(self) -> int:
        """The number of models that are estimated: the answers alone, or the source model as well."""
        return len(self.prior)

    @property
    def error(self) -> float:
        """The mean distance of estimated and true accuracy, each estimated without its own shift."""
        return sum(abs(run.estimate - run.accuracy) for run in self.runs) / len(self.runs)

    def estimates(
        self, windows: Tensor, weight_distance: float = 0.0, labelled: Tensor | None = None
    ) -> tuple[Estimate, Estimate | None]:
        """The accuracy of the answers in windows (models, width), and of the source model if it has one.

        `labelled` has the rows of labels that came, (models, 10); None for none. Where the weights that learn
        are further from the source model's than in rehearsal, nothing rehearsed is like them: the interval of
        the adapted model is wider by the root of how much further.
        """
        seen = self.seen(windows)
        rows = seen.features.new_zeros(len(windows), labels.WIDTH) if labelled is None else labelled
        found = [self.estimate(model, seen, weight_distance, rows) for model in range(len(seen.values))]
        return found[0], found[1] if len(found) > 1 else None

    def seen(self, windows: Tensor) -> Seen:
        """What estimates are from, of windows (models, width)."""
        own = windows.detach().double().cpu()
        x, novelty = window.features(own), float(window.means(own[0])[window.NOVEL])
        values = [self._alone(each, x[at], novelty) for at, each in enumerate(self.processes(len(own)))]
        return Seen(x, values, float(own[0, window.COUNT]), novelty)

    def estimate(self, model: int, seen: Seen, weight_distance: float, labelled: Tensor) -> Estimate:
        """An estimate in logits with its interval, of one of the models; as `estimates` has it.

        The half width is s · √(h² + z² / (n · a · (1 − a) + 1)) with h that of the process, z = 1.645, n the
        samples in the window, a the estimate and s the stretch by the weights.

        Labels that came correct a to b, with b in place of a from there on; h is multiplied by
        (1 − ω) · a · (1 − a) / (b · (1 − b)), and z² · ω² · L / (b · (1 − b))² joins the squares: ω is the
        share of the labelled error that is believed, and L its variance (`labels`). Without labels, ω is 0.
        """
        process, value, given = self.processes(len(seen.values))[model], seen.values[model], labelled[model]
        found, rows = process.at(seen.features[model]), seen.rows
        far = not model and self.reach > 0
        stretch = math.sqrt(max(1.0, weight_distance / self.reach)) if far else 1.0
        offset, left, error, precision = 0.0, 1.0, 0.0, 0.0
        if given[0]:  # without labels nothing of this needs time
            estimate, sums = torch.tensor(value, dtype=torch.float64), given.double()
            offset, left = (float(each) for each in labels.correction(sums, estimate))
            told = labels.labelled_error(sums[: labels.SUMS], estimate.sigmoid())
            error, precision = float(told.value), float(told.precision)
        alone, after = share_of(value), share_of(value + offset)
        steepness = after * (1 - after)
        own = left * (alone * (1 - alone)) / steepness * found.half_width
        half = math.hypot(
            stretch * math.sqrt(own**2 + NINETY**2 / (rows * steepness + 1)),
            NINETY * (1 - left) / math.sqrt(precision) / steepness if precision else 0.0,
        )
        better = found.value > process.at_rest + ROOM and seen.novelty > self.familiar
        near = found.distance <= 1 and stretch <= 1 and not better
        if precision:
            wide = stretch * math.sqrt(found.half_width**2 + NINETY**2 / (rows * alone * (1 - alone) + 1))
            margin = NINETY / math.sqrt(precision)
            near = near and alone + error + margin >= share_of(value - wide)
            near = near and alone + error - margin <= share_of(value + wide)
        return Estimate(after, share_of(value + offset - half), share_of(value + offset + half), near)

    def _alone(self, process: Process, x: Tensor, novelty: float) -> float:
        """The estimate of a process without labels, in logits."""
        found = process.at(x)
        own, distance, new = torch.tensor([found.value, found.distance, novelty], dtype=torch.float64)
        value = believed(own, process.at_rest, new, self.familiar)
        return float(faded(value, middle_of(process.at_rest, self.classes), distance))

    def labelled(self, windows: Tensor, sums: Tensor) -> Tensor:
        """The rows (models, 10) of labels with these sums (models, 7), for windows (models, width).

        The prior of the error of an estimate is its interval without labels (`labels.posterior`).
        """
        seen, given = self.seen(windows), sums.detach().double().cpu()
        widths = [
            own.at(x).half_width
            for own, x in zip(self.processes(len(seen.values)), seen.features, strict=True)
        ]
        estimates, deviations = torch.tensor([seen.values, widths], dtype=torch.float64)
        return labels.believing(given, *labels.posterior(given, estimates, deviations / NINETY), estimates)

    def processes(self, models: int) -> tuple[Process, ...]:
        """The regressions for windows of the answers alone, or of the source model's as well."""
        if models < 2 or self.compared is None or self.source is None:
            return (self.student,)
        return self.compared, self.source

    def __str__(self) -> str:
        """A table of the shifts."""
        head = f"{'shift':<24} {'order':<18} {'accuracy':>8} {'estimate':>8} {'error':>7} {'confidence':>10}"
        rows = [
            f"{run.shift:<24} {run.order:<18} {run.accuracy:8.3f} {run.estimate:8.3f} "
            f"{run.estimate - run.accuracy:+7.3f} {run.confidence:10.3f}"
            for run in sorted(self.runs, key=lambda run: -run.accuracy)
        ]
        worst = max(self.runs, key=lambda run: abs(run.estimate - run.accuracy))
        before, after = (calibration_error(bins) for bins in self.bins)
        moves = "rises" if after > before else "falls"
        ends = [
            f"{self.method}, {self.samples} samples, {len(self.runs)} streams: accuracy is known within "
            f"{self.error:.3f} on average for a shift that was left out,",
            f"at worst within {abs(worst.estimate - worst.accuracy):.3f} ({worst.shift}, {worst.order}); "
            f"the calibration error over all of them {moves} from {before:.3f} to {after:.3f}",
        ]
        return "\n".join([head, *rows, *ends])

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw two panels to a file of the kind of its ending (.png, .svg, .pdf); needs matplotlib.

        Left, the accuracy of each stream against the estimate of a regression that never saw its shift;
        right, accuracy against confidence over all streams, untempered and tempered.
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "the figure of a rehearsal needs matplotlib: pip install 'equipoise[demo]'", name="matplotlib"
            ) from error
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        shuffled = [run for run in self.runs if run.order == "shuffled"]
        others = [run for run in self.runs if run.order != "shuffled"]
        for runs, marker, order in ((shuffled, "o", "shuffled"), (others, "^", "any other")):
            x, y = [run.accuracy for run in runs], [run.estimate for run in runs]
            left.scatter(x, y, marker=marker, s=26, color=_ACCENT, label=f"{order} stream", linewidths=0)
        left.set(xlabel="true accuracy", ylabel="estimate without labels")
        left.set_title(f"{self.method}: known within {self.error:.3f} on average", fontsize=10)
        bars = ((self.bins[0], "untempered", _PALE), (self.bins[1], "tempered", _ACCENT))
        for bins, label, colour in bars:
            x, y = _points(bins)
            right.plot(x, y, "o-", color=colour, label=f"{label}: ECE {calibration_error(bins):.3f}")
        right.set(xlabel="confidence", ylabel="accuracy")
        right.set_title("all rehearsed streams together", fontsize=10)
        for axes in (left, right):
            axes.plot([0, 1], [0, 1], "--", color=_INK, linewidth=0.8)
            axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=9, loc="lower right")
        figure.savefig(path, dpi=150)

    def to_json(self) -> str:
        """Everything but the tensors, as text."""
        known = ("method", "options", "samples", "batch_size", "seed", "familiar", "reach", "disagreement")
        own = {name: getattr(self, name) for name in known}
        return json.dumps({"version": _VERSION, **own, "runs": to_json(self.runs)})

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        own: dict[str, Tensor] = {name: getattr(self, name) for name in _TENSORS}
        for name in (*_PROCESSES, "gap"):
            if regression := getattr(self, name):
                own |= prefixed(f"{name}.", regression.tensors())
        return own

    @classmethod
    def from_parts(cls, text: str, tensors: Mapping[str, Tensor]) -> "Rehearsal":
        """The inverse of `to_json` and `tensors`; StateError where something is missing, misshapen or NaN."""
        try:
            parts = dict(json.loads(text))
            method = parts["method"]
            if parts.pop("version", 1) != _VERSION:
                raise StateError(
                    f"the rehearsal of {method!r} is of another version of equipoise: make it again, "
                    f"source = equipoise.rehearse(model, held_out_loader, method={method!r})"
                )
            runs = tuple(from_json(Run, run) for run in parts.pop("runs"))
            kinds: dict[str, type[Any]] = {**dict.fromkeys(_PROCESSES, Process), "gap": Ridge}
            rest: dict[str, Any] = {at: _fitted(kind, at, tensors) for at, kind in kinds.items()}
            rest |= {name: tensors[name] for name in _TENSORS}
            made = cls(**parts, runs=runs, **rest)
            made._check_shapes()
        except StateError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"not a rehearsal: {error!r}") from error
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise StateError("expected finite numbers in a rehearsal, got some that are not")
        return made

    def _check_shapes(self) -> None:
        """ValueError where a tensor is not of the shape that the features and the models ask for."""
        models, features = 1 if self.source is None else 2, len(window.FEATURES)
        rows = len(self.student.targets)
        own: dict[str, tuple[int, ...]] = {"coolest": (models,), "hottest": (models,), "bins": (2, 3, 15)}
        curves = (models, len(CURVES), FINITE + 1)
        shapes = {**own, "prior": (models, *self.prior.shape[1:2]), "expected": curves, "true": curves}
        for at in _PROCESSES:
            width = 2 * features if at == "lead" else features
            of = {"rows": (rows, width), **dict.fromkeys(("mean", "scale", "origin"), (width,))}
            of |= dict.fromkeys(("targets", "noise", "shifts"), (rows,))
            shapes |= {f"{at}.{each.name}": of.get(each.name, ()) for each in fields(Process)}
        wide = (2 * features,)
        shapes |= {f"gap.{each.name}": () if each.name == "bias" else wide for each in fields(Ridge)}
        for name, tensor in self.tensors().items():
            if tensor.shape != shapes[name] or (name == "prior" and tensor.shape[1] < window.width(2)):
                raise ValueError(f"{name}: expected the shape {shapes[name]}, got {tuple(tensor.shape)}")
        if not (0 < self.familiar < math.inf and 0 <= self.reach < math.inf):
            raise ValueError(f"expected a positive novelty and a distance, got {self.familiar}, {self.reach}")
        both = (self.compared, self.source, self.lead, self.gap, self.disagreement)
        if len({each is None for each in both}) > 1:
            raise ValueError("expected all that compares two models, or nothing of it")


def _fitted(kind: type[Any], at: str, tensors: Mapping[str, Tensor]) -> Any:
    """The regression of a name, made of its tensors; None where there are none."""
    own = part(tensors, f"{at}.")
    return kind(**own) if own else None


def calibration_error(bins: Tensor) -> float:
    """ECE of bins (3, n): counts, sums of confidence, hits."""
    return float((bins[1] - bins[2]).abs().sum() / bins[0].sum().clamp(min=1))


def _points(bins: Tensor) -> tuple[list[float], list[float]]:
    """Mean confidence and accuracy of the bins that have at least one answer in a thousand."""
    count, confidence, hits = bins
    some = count > count.sum() / 1000
    return (confidence[some] / count[some]).tolist(), (hits[some] / count[some]).tolist()
