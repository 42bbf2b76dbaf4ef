"""The temperature of answers: by the certainty regulariser, by agreement of two models, or by a rehearsal."""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from equipoise.calibration import labels, window
from equipoise.calibration.expected import (
    ANSWERED,
    CURVES,
    FINITE,
    Curves,
    Expectations,
    Taught,
    expected_sums,
)
from equipoise.calibration.regression import Posteriors, Ridge
from equipoise.calibration.rehearsal import (
    Estimate,
    Rehearsal,
    Seen,
    believed,
    countable,
    faded,
    middle_of,
)
from equipoise.calibration.scalars import log_odds
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.calibration.window import GRID
from equipoise.errors import OptionError, SourceError
from equipoise.functional import at_least_single, certainty_regularizer, check_range
from equipoise.options import number, one_of

_WIDEST = 16.0  # how far from its start the search for a temperature goes, as a ratio
_FINEST = 2**14  # into how many parts it divides that range, which leaves an interval of .03 %
_AT_ONCE = 2**16  # numbers up to which the search tries many temperatures in one go, for fewer kernels


def agreement_temperature(
    logits: Tensor, source_logits: Tensor, t: Tensor, tau: Tensor, known: Tensor | None = None
) -> Tensor:
    """The one temperature at which the answers are as confident as two models on average find them.

    T₀ = median_i √(t_i · tau_i), between the paper's tau and the authors' notebook's t. At T₀, with k_i the
    class of answer i, two models, the one that answers and the source model, give it the probability

        a = avg_i ½ · (softmax(z_i / T₀)_k + softmax(source_i / T₀)_k),

    and T is where avg_i max softmax(z_i / T) = a. Where both agree, T is near T₀; the more they differ, the
    higher it is. No label is needed, and no class of an answer changes. Only samples that are `known` (None:
    all) count.
    """
    if known is None:
        known = torch.ones_like(tau, dtype=torch.bool)
    share = known / known.sum()
    start = median((t * tau).sqrt(), known)
    z, other = at_least_single(logits), at_least_single(source_logits)
    classes = z.argmax(1, keepdim=True)
    ours, theirs = _behind(z, classes, known), _behind(other, classes, known)
    aim = (_doubt(ours, share, start[None]) + _doubt(theirs, share, start[None])) / 2
    points = 25 if 25 * z.numel() <= _AT_ONCE else 1
    between = torch.linspace(0, 1, points + 2, device=z.device, dtype=start.dtype)
    low, width = start / _WIDEST, torch.full_like(start, _WIDEST**2)
    for _ in range(math.ceil(math.log(_FINEST) / math.log(points + 1))):
        tried = low * width**between  # doubt grows with temperature: T is after the last that is too sure
        after = (_doubt(ours, share, tried[1:-1]) < aim).sum()
        low, width = tried.gather(0, after[None])[0], width ** between[1]
    return torch.where(aim > 0, low * width.sqrt(), start)[0]  # without doubt, every temperature would do


def _behind(logits: Tensor, classes: Tensor, known: Tensor) -> Tensor:
    """The distance of the logits of the other classes from that of the class of each answer."""
    behind = (logits - logits.gather(1, classes)).scatter(1, classes, -torch.inf)
    return torch.where(known.unsqueeze(1), behind, -torch.inf)


def _doubt(behind: Tensor, share: Tensor, temperatures: Tensor) -> Tensor:
    """avg_i (1 − softmax(z_i / T)_k) for each T: a probability near 1 would have no digits left."""
    odds = (behind / temperatures.reshape(-1, 1, 1)).exp().sum(2)
    return (share * (1 / (1 + 1 / odds))).sum(1)  # not a product of matrices: autocast would narrow it


def median(values: Tensor, known: Tensor) -> Tensor:
    """The median of the known values, the lower middle for an even count; infinity where none is known."""
    ordered = torch.where(known, values, torch.inf).sort().values
    return ordered.gather(0, ((known.sum() - 1).clamp(min=0) // 2)[None])[0]


LEAD = 0.2
"""The unit of `Rehearsal.lead`, a difference of accuracies."""

ENTER, LEAVE = 0.05, 0.02
"""The estimated leads in accuracy with which the source model starts to answer, and goes on answering."""

TOLERATED = 0.05
"""The share of samples by which models may differ more than in any rehearsed window without loss."""

NEW = 2.0
"""The novelty beyond which all inputs are new, in units of `Rehearsal.familiar`."""

LOWEST_END = 0.001
"""The lower end of an accuracy, and what it lacks to 1, below which a fall is not told from a larger one."""

SHARE_OF_DOUBT = 0.5
"""The part of the regression's doubt that keeps answers as they are: it favours models that are honest."""

WINDOWS, TRUSTS, EXPECTED = "windows", "trusts_source", "expected"

BY_LABELS = {"levels": "taught", "had": "had", "acted": "acted"}
"""The names of what labels have taught of sets and decisions, by field of `expected.Taught`."""

STREAM_CHANGED, LABEL_ROWS, LABELLED = "changed", "labels", "labelled"
"""Whether the stream changed with the last batch, the rows of labels (`calibration.labels`), their number."""


class TrustedModel(NamedTuple):
    """The temperatures of windows, and the model that answers.

    Attributes:
        temperatures: of each model.
        trusts: whether the source model answers.
        estimates: the logits of their accuracies, without labels.
        features: of the windows that all of it is from, (models, features).
    """

    temperatures: Tensor
    trusts: Tensor
    estimates: Tensor
    features: Tensor


def named_taught(taught: Taught) -> dict[str, Tensor]:
    """What labels have taught, by the names of observations."""
    return {BY_LABELS[part]: value for part, value in taught._asdict().items()}


def judged_accuracy(
    rehearsal: Rehearsal,
    model: int,
    observed: Mapping[str, Tensor],
    judged: TrustedModel,
    weight_distance: float | Tensor = 0.0,
) -> Estimate:
    """The estimated accuracy of one of the models, 0 the adapted one and 1 the source model.

    Args:
        rehearsal: of the method.
        model: the model.
        observed: the observations.
        judged: by these observations.
        weight_distance: how far the weights that learn are from the source model's.
    """
    sums, far = observed[WINDOWS][0, 0, : window.NOVEL + 1], weight_distance
    if isinstance(far, Tensor):
        sums = torch.cat([sums, far.to(sums).view(1)])
    x, values, sums, labelled = on_host(judged.features, judged.estimates, sums, observed[LABEL_ROWS])
    own = sums.tolist()
    rows = own[window.COUNT]
    seen = Seen(x, values.tolist(), rows, own[window.NOVEL] / max(rows, 1e-6))
    return rehearsal.estimate(model, seen, own[-1] if isinstance(far, Tensor) else far, labelled)


def on_host(*tensors: Tensor) -> list[Tensor]:
    """Tensors on the host; from a device in one copy, in single precision, as every copy waits for it."""
    devices = {each.device for each in tensors}
    if len(devices) > 1:  # a device without double precision, say, whose observations are on the host
        return [each.detach().cpu() for each in tensors]
    if devices == {torch.device("cpu")}:
        return list(tensors)
    parts = torch.cat([each.detach().flatten().float() for each in tensors]).cpu()
    sizes = [each.numel() for each in tensors]
    return [own.view_as(each) for own, each in zip(parts.split(sizes), tensors, strict=True)]


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


class _AtRest(NamedTuple):
    """What a model's answers expected of decisions without shift.

    Attributes:
        expected: their curves.
        true: the truth of these.
        low: the lower end of the estimated accuracy.
    """

    expected: Curves
    true: Curves
    low: float


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

    Labels that come correct the estimates of both models (`labels.posterior`) and what follows of them: the
    temperatures, for which the doubt is smaller by what labels leave of it, and the lead of the source model,
    by the difference of the corrections times the parts ω of both that are believed.

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
        self._rest: dict[int, _AtRest] = {}

    def initial(self) -> dict[str, Tensor]:
        """The observations before the first batch: the rehearsed "no shift"."""
        models = 2 if self.compares else 1
        own = self.rehearsal
        prior = own.prior[:models].float() * window.PRIOR_SAMPLES
        return {
            WINDOWS: prior.unsqueeze(1).repeat(1, 2, 1),
            TRUSTS: torch.zeros((), dtype=torch.bool),
            STREAM_CHANGED: torch.zeros((), dtype=torch.bool),
            EXPECTED: self._expected_at_rest(0),
            LABEL_ROWS: prior.new_zeros(models, labels.WIDTH),
            LABELLED: prior.new_zeros(()),
            **named_taught(Taught.nothing()),
        }

    def _expected_at_rest(self, model: int) -> Tensor:
        """The windows of what answers of a model expect, (2, width), before the first batch."""
        expected = self.rehearsal.expected[model]
        weight = window.PRIOR_SAMPLES / expected[ANSWERED, -1].clamp(min=1)
        return (expected * weight).float().flatten().repeat(2, 1)

    def answer(
        self,
        observed: Mapping[str, Tensor],
        logits: Tensor,
        source: Tensor | None,
        good: Tensor,
        novelty: Tensor | None = None,
    ) -> "TemperedAnswers":
        """The answers to a batch over their temperature; `good` samples count for it.

        They are the source model's where that is trusted.
        """
        before = {name: tensor.to(logits.device) for name, tensor in observed.items()}
        models = (
            torch.stack([logits, source.to(logits)]) if self.compares and source is not None else logits[None]
        )
        fresh = window.sums(models, good, novelty)
        samples = fresh[0, window.COUNT]
        windows, changed = window.after(before[WINDOWS], fresh)
        kept = labels.kept(samples, changed)
        taught = Taught(*(before[name] for name in BY_LABELS.values()))
        labelled = before[LABEL_ROWS] * kept
        judged = self.judge(windows, before[TRUSTS], labelled)
        temperature = torch.where(judged.trusts, judged.temperatures[-1], judged.temperatures[0])
        answers = divide(torch.where(judged.trusts, models[-1], logits), temperature)
        expected = window.joined(before[EXPECTED], expected_sums(answers, good).flatten(), samples)
        after = {
            WINDOWS: windows,
            TRUSTS: judged.trusts,
            STREAM_CHANGED: changed,
            EXPECTED: window.begun_again(expected, changed),
            LABEL_ROWS: labelled,
            LABELLED: before[LABELLED],
            **named_taught(
                Taught(
                    torch.where(changed, labels.KEPT_AT_CHANGE * taught.levels, taught.levels),
                    taught.had * kept,
                    taught.acted * kept,
                )
            ),
        }
        return TemperedAnswers(answers, temperature, after, judged)

    def judge(self, windows: Tensor, trusted: Tensor, labelled: Tensor | None = None) -> TrustedModel:
        """Temperatures of the models in windows (models, 2, width), and whether the source model answers now.

        The slow windows count; models disagree where they do so in the fast window, too. `labelled` has the
        rows of labels that came, (models, 10); None for none.
        """
        known, models = self._on(windows.device), len(windows)
        slow, seen = windows[:, 0], window.means(windows)
        x, novelty = window.features(slow), seen[:, 0, window.NOVEL]
        found, far = known.estimates(x.flatten())  # of the accuracy of each model, and of the lead
        values = believed(found[:models], known.at_rest, novelty, self.rehearsal.familiar)
        values = faded(values, known.middle, far[:models])
        rows = windows.new_zeros(1, labels.WIDTH) if labelled is None else labelled
        offset, left = labels.correction(rows, values)
        corrected = values + offset
        trusts = torch.zeros_like(trusted)
        if known.gap is not None:
            gap = known.gap(x.flatten())
            shares = values.sigmoid()
            mine, theirs = shares.unbind()
            linear = ((values[0] + gap).sigmoid() - mine + theirs - (values[1] - gap).sigmoid()) / 2
            ahead = (theirs - mine + LEAD * found[models] + linear) / 3
            # What labels say of the difference varies more than what they say of one model: the less they
            # are believed of both, the less it moves who answers.
            ahead = ahead + (1 - left).prod() * (corrected.sigmoid() - shares).diff()[0]
            known_source = (far[1] <= 1) | (far[0] > 1) | (novelty[0] <= NEW * self.rehearsal.familiar)
            apart = seen[0, :, window.APART].amin() > (self.rehearsal.disagreement or 0.0) + TOLERATED
            new = novelty[0] > self.rehearsal.familiar
            better = (ahead > torch.where(trusted, LEAVE, ENTER)) | (apart & ((ahead > 0) | ~new))
            trusts = better & known_source
        confidence = x[:, 0]
        off = corrected - confidence
        moved, doubt_squared = off.square(), known.doubt_squared * left.square()
        aim = (confidence + off * moved / (moved + doubt_squared)).sigmoid()
        right = window.temperature_for(slow, aim)
        return TrustedModel(right.clamp(known.coolest, known.hottest), trusts, values, x)

    def told(self, observed: Mapping[str, Tensor], sums: Tensor, count: Tensor) -> dict[str, Tensor]:
        """The observations after labels with the sums (models, 7) came, `count` of them for new samples.

        Waits for the device: what is believed of labels is worked out on the host, once for all batches that
        follow until the next labels come.
        """
        rows = observed[LABEL_ROWS]
        total = rows[:, : labels.SUMS] + sums.to(rows)
        after = self.rehearsal.labelled(observed[WINDOWS][:, 0], total)
        return {**observed, LABEL_ROWS: after.to(rows), LABELLED: observed[LABELLED] + count}

    @staticmethod
    def taught(observed: Mapping[str, Tensor], taught: Taught) -> dict[str, Tensor]:
        """The observations with what labels have taught (`Expectations.learned`)."""
        return {**observed, **{name: own.to(observed[name]) for name, own in named_taught(taught).items()}}

    def now(self, observed: Mapping[str, Tensor]) -> TrustedModel:
        """The temperatures by what was observed so far, and the model that answers."""
        return self.judge(observed[WINDOWS], observed[TRUSTS], observed[LABEL_ROWS])

    def level(self, observed: Mapping[str, Tensor]) -> Tensor:
        """The temperature of the model that answers now."""
        temperatures = self.now(observed).temperatures
        return torch.where(observed[TRUSTS], temperatures[-1], temperatures[0])

    def source_level(self, observed: Mapping[str, Tensor]) -> Tensor | None:
        """The temperature of the source model's answers now; None where it is not compared."""
        if not self.compares:
            return None
        return self.now(observed).temperatures[1]

    def estimates(
        self, observed: Mapping[str, Tensor], weight_distance: float = 0.0
    ) -> tuple[Estimate, Estimate | None]:
        """The estimated accuracy of the adapted model and of the source model over the window.

        `weight_distance` is how far the weights that learn are from the source model's.
        """
        judged = self.now(observed)
        models = range(len(judged.estimates))
        found = [
            judged_accuracy(self.rehearsal, model, observed, judged, weight_distance) for model in models
        ]
        return found[0], found[1] if len(found) > 1 else None

    def expectations(self, observed: Mapping[str, Tensor], accuracy: Estimate) -> Expectations:
        """What is expected of decisions about the answers now, whose accuracy is estimated."""
        own = (observed[TRUSTS], observed[EXPECTED][0], *(observed[name] for name in BY_LABELS.values()))
        trusts, curves, *taught = on_host(*own)
        rest = self._at_rest(int(trusts))
        before, after = (log_odds(low, LOWEST_END) for low in (rest.low, accuracy.low))
        now = Curves.of(curves.view(len(CURVES), FINITE + 1))
        # Copies: those observed are written to by labels.
        copied = Taught(*(each.clone() for each in taught))
        return Expectations(now, rest.expected, rest.true, max(0.0, before - after), copied)

    def source_window(
        self, observed: Mapping[str, Tensor], before: Tensor | None, logits: Tensor, *, seen: bool = True
    ) -> Tensor:
        """The windows of what the source model's calibrated answers (N, C) expect, after a batch of them.

        They are no part of what is observed: a stream whose answers the source model does not give is spared
        their cost. None before the first batch. A change of the stream counts with the batch that showed it:
        not with one that what is observed has not `seen`.
        """
        good = countable(logits)
        before = (self._expected_at_rest(1) if before is None else before).to(logits.device)
        windows = window.joined(before, expected_sums(logits, good).flatten(), good.sum())
        return window.begun_again(windows, observed[STREAM_CHANGED].to(windows.device)) if seen else windows

    def source_expectations(
        self, observed: Mapping[str, Tensor], windows: Tensor, accuracy: Estimate
    ) -> Expectations:
        """What is expected of decisions about the source model's answers, whose accuracy is estimated.

        What labels taught is of sets of the answers that were given, and is left out.
        """
        untaught = named_taught(Taught.nothing())
        trusted = torch.ones_like(observed[TRUSTS])
        return self.expectations({**observed, **untaught, TRUSTS: trusted, EXPECTED: windows}, accuracy)

    def _at_rest(self, model: int) -> "_AtRest":
        """What was expected and true of a model's decisions without shift; made once."""
        if model not in self._rest:
            own, start = self.rehearsal, self.initial()
            low = judged_accuracy(own, model, start, self.now(start)).low
            self._rest[model] = _AtRest(Curves.of(own.expected[model]), Curves.of(own.true[model]), low)
        return self._rest[model]

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


Tempering: TypeAlias = Literal["mean", "median", "sample", "agreement", "rehearsed", "none"]
"""The divisor of logits: the mean of the certainty regulariser tau over the batch (the paper; over all
samples since the last reset in `predict`), its median, each sample's own tau, the temperature of agreement
with the source model (`agreement_temperature`), that of a rehearsal for the recent stream, or none."""

OF_TAU: tuple[Tempering, ...] = ("mean", "median", "sample", "agreement")
"""The temperings that need the source model's logits for each batch."""

# The sketch counts tau in cells whose edges grow by 1 %, so a cell's middle is within .5 % of all its values.
_GROWTH, _LOWEST, _HIGHEST = math.log(1.01), 1e-12, 1e12
_CELLS = math.ceil(math.log(_HIGHEST / _LOWEST) / _GROWTH)


class SourceView(NamedTuple):
    """The source model's answers to a batch.

    Attributes:
        logits: its logits.
        t: the certainty regulariser's t of each sample.
        tau: its tau.
    """

    logits: Tensor
    t: Tensor
    tau: Tensor

    def select(self, rows: Tensor) -> "SourceView":
        """The answers to some samples."""
        return SourceView(self.logits[rows], self.t[rows], self.tau[rows])


class TauTemperature:
    """A temperature from tau, or none: pure functions of what was observed, a few tensors by name.

    The mean is exact (a float64 sum); the median is that of a histogram of log tau, as in DDSketch
    (Masson, Rim and Lee, VLDB 2019), within 1 % of the exact one (the lower middle for an even count). For
    "agreement" it is the geometric mean of the batches' temperatures, each by its number of samples.
    """

    def __init__(self, kind: Tempering) -> None:
        self.kind = kind

    def initial(self) -> dict[str, Tensor]:
        """The observations before the first batch."""
        observed = {"count": torch.zeros((), dtype=torch.int64)}
        if self.kind in ("mean", "agreement"):
            observed["sum"] = torch.zeros((), dtype=torch.float64)
        if self.kind == "median":
            observed["sketch"] = torch.zeros(_CELLS, dtype=torch.int64)
        return observed

    def of_batch(
        self, observed: Mapping[str, Tensor], logits: Tensor, view: SourceView, known: Tensor
    ) -> Tensor:
        """The divisor of the (N, C) logits of a batch: a number, or a column for "sample".

        Only samples that are `known` count. Without any it is that of all samples before.
        """
        if self.kind == "none":
            return view.tau.new_ones(())
        if self.kind == "sample":
            largest = torch.where(known, view.tau, -torch.inf).max()
            found = torch.where(known, view.tau, largest).unsqueeze(1)
        elif self.kind == "mean":
            found = torch.where(known, view.tau, 0.0).sum() / known.sum()
        elif self.kind == "median":
            found = median(view.tau, known)
        else:
            found = agreement_temperature(logits, view.logits, view.t, view.tau, known)
        return torch.where(known.any(), found, self.level(observed).to(found))

    def after(self, observed: Mapping[str, Tensor], tau: Tensor, temperature: Tensor) -> dict[str, Tensor]:
        """The observations after a batch: the tau of its samples, and its temperature.

        A tau that is not finite does not count.
        """
        # Apple's GPUs have no double precision.
        seen = tau.detach().to("cpu" if tau.device.type == "mps" else tau.device).double()
        before = {name: old.to(seen.device) for name, old in observed.items()}
        finite = seen.isfinite()
        count = finite.sum()
        news = {"count": count}
        if self.kind == "mean":
            news["sum"] = torch.where(finite, seen, 0.0).sum()
        if self.kind == "agreement":
            logarithm = temperature.detach().to(seen.device).double().log()
            news["sum"] = torch.where(count > 0, logarithm * count, 0.0)
        if self.kind == "median":
            # A value that does not count falls into a cell, but not on the scale.
            cells = (torch.where(finite, seen, 1.0) / _LOWEST).log() / _GROWTH
            places = cells.long().clamp(0, _CELLS - 1)
            news["sketch"] = torch.zeros_like(before["sketch"]).scatter_add(0, places, finite.long())
        return {name: old + news[name] for name, old in before.items()}

    def level(self, observed: Mapping[str, Tensor]) -> Tensor:
        """The temperature of all samples observed; 1 before the first, and where none applies to all."""
        count = observed["count"]
        one = torch.ones((), dtype=torch.float64, device=count.device)
        if self.kind in ("sample", "none"):
            return one
        if self.kind == "median":
            middle = ((count + 1) // 2).reshape(1)
            cell = torch.searchsorted(observed["sketch"].cumsum(0), middle)[0]
            found = _LOWEST * ((cell + 0.5) * _GROWTH).double().exp()
        else:
            found = observed["sum"] / count
            found = found.exp() if self.kind == "agreement" else found
        return torch.where(count > 0, found, one)


class TemperedAnswers(NamedTuple):
    """Answers after tempering.

    Attributes:
        logits: the answers.
        temperature: their divisor; None where nothing is tempered.
        observed: the observations of the temperature, this batch included.
        judged: what a rehearsed temperature is from; None for another.
    """

    logits: Tensor
    temperature: Tensor | None
    observed: Mapping[str, Tensor]
    judged: TrustedModel | None = None


class Temper:
    """The divisor of a stream of logits: a temperature from the certainty regulariser or a rehearsal.

    Holds options and constants; the observations are passed in and returned.

    Args:
        kind: the kind of temperature.
        source: the statistics that tau is measured against; None where nothing is tempered.
        t_min: lower end of the regulariser's range of t, None for 1; for "rehearsed" the lowest temperature,
            None for the lowest that was right in rehearsal.
        t_max: upper end of the range, None for 3; for "rehearsed" the highest temperature.
        rehearsal: of the method, for "rehearsed".
        compares: whether the source model's logits come with each batch, so that it may answer.
    """

    def __init__(
        self,
        kind: Tempering,
        source: SourceStatistics | None,
        t_min: float | None = None,
        t_max: float | None = None,
        rehearsal: Rehearsal | None = None,
        compares: bool = False,
    ) -> None:
        one_of("tempering", kind, get_args(Tempering))
        self.kind, self.source = kind, source
        self.given = (_optional("t_min", t_min), _optional("t_max", t_max))
        least, most = self.given
        self.t_min, self.t_max = 1.0 if least is None else least, 3.0 if most is None else most
        self._of_tau, self.rehearsed = TauTemperature(kind), None
        if rehearsal is None:
            check_range(self.t_min, self.t_max)
        else:
            check_searched(least, most)
            # tau plays no part: an end of its range that is not given gives way to one that is.
            self.t_min, self.t_max = sorted((self.t_min, self.t_max))
            self.rehearsed = RehearsedTemperature(rehearsal, compares, least, most)
        self.compares = self.rehearsed is not None and self.rehearsed.compares

    def initial(self) -> dict[str, Tensor]:
        """The observations before the first batch."""
        return self._of_tau.initial() if self.rehearsed is None else self.rehearsed.initial()

    def level(self, observed: Mapping[str, Tensor]) -> Tensor:
        """The temperature of the stream so far."""
        return (self._of_tau if self.rehearsed is None else self.rehearsed).level(observed)

    def view(self, source_logits: Tensor) -> SourceView:
        """The source model's answers with their certainty regulariser."""
        if self.source is None:
            raise SourceError("tempering needs source statistics")
        source = self.source
        t, tau = certainty_regularizer(source_logits, source.h0, source.kappa, self.t_min, self.t_max)
        return SourceView(source_logits, t, tau)

    def divide(
        self,
        observed: Mapping[str, Tensor],
        logits: Tensor,
        view: SourceView | None,
        good: Tensor,
        novelty: Tensor | None = None,
    ) -> TemperedAnswers:
        """The logits of a batch over its temperature; only `good` samples count for it.

        Nor do samples that the source model cannot judge (its logits are not finite, or zero), or answers
        that are not finite; where each sample has its own temperature, theirs is the largest of the others'.
        For a rehearsed temperature, nor do answers so large that a window cannot hold their norm.
        A rehearsal also takes the novelty of the inputs, where it is known.
        """
        if self.rehearsed is not None:
            return self._rehearse(self.rehearsed, observed, logits, view, good, novelty)
        if view is None:
            return TemperedAnswers(logits, None, observed)
        known = view.tau.isfinite()
        if self.kind == "agreement":
            known = known & (view.tau > 0) & good & logits.isfinite().all(1)
        temperature = self._of_tau.of_batch(observed, logits, view, known)
        after = self._of_tau.after(observed, view.tau, temperature)
        return TemperedAnswers(divide(logits, temperature), temperature, after)

    @staticmethod
    def _rehearse(
        rehearsed: RehearsedTemperature,
        observed: Mapping[str, Tensor],
        logits: Tensor,
        view: SourceView | None,
        good: Tensor,
        novelty: Tensor | None,
    ) -> TemperedAnswers:
        sound = good & countable(logits)
        if view is not None:
            sound = sound & countable(view.logits)
        return rehearsed.answer(observed, logits, None if view is None else view.logits, sound, novelty)


def _optional(name: str, value: float | None) -> float | None:
    return None if value is None else number(name, value)


def check_searched(t_min: float | None, t_max: float | None) -> None:
    """Refuse a range of rehearsed temperatures that is empty, or wider than the range that is searched."""
    low = GRID[0] if t_min is None else number("t_min", t_min)
    high = GRID[-1] if t_max is None else number("t_max", t_max)
    if not GRID[0] <= low <= high <= GRID[-1]:
        raise OptionError(
            f"expected {GRID[0]:g} <= t_min <= t_max <= {GRID[-1]:g} for rehearsed temperatures, got "
            f"t_min={t_min} and t_max={t_max}"
        )


def divide(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """Logits over a temperature, in the dtype of the logits."""
    return (logits / temperature).to(logits.dtype)
