"""What calibrated answers expect of prediction sets, and of answers that are acted upon, over a window.

An answer with probabilities p expects its set to have the right class with the probability of the classes in
it, and its first class to be right with max p. Means of both over a window, at each of a grid of thresholds,
are curves; a threshold for sets, or for acting, is where a curve has the level that was right in rehearsal
(`Expectations`). Every curve is a sum over samples: curves add and forget as windows do (`window`).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.calibration.labels import aci
from equipoise.calibration.scalars import NINETY, log_odds, share_of
from equipoise.calibration.sets import FREE_RANKS, RANK_PENALTY, SCORES
from equipoise.functional import at_least_single

FINITE = 73
"""The thresholds of the grid that are finite: logits from -14 to 10 by thirds. The last one is infinite."""

_LOWEST, _HIGHEST = -14.0, 10.0

CURVES = (*SCORES, "answered", "right")
"""The curves: for each score the sum of the mass of classes that score at most q; the number of answers whose
first class does so by LAC (1 - max p); and the sum of max p over these."""

ANSWERED, RIGHT = CURVES.index("answered"), CURVES.index("right")

STRICTER_SETS, STRICTER_ANSWERS = 0.5, 1.3
"""The parts of a fall of the accuracy by which levels rise, of sets and of answers to act upon.

.2 to .5 and .5 to 1.3 were tried on 356 streams of 14 models. With these, sets for 90 % have 85 %, and
answers for 95 % have 93 %, on nine streams in ten.
"""

COVERAGE_SLACK, COVERAGE_SPREAD = 0.35, 0.9
"""Half of the interval of a coverage, as a logit, where nothing shifted, and what a fall adds to it."""

COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
"""The coverages for which labels are learned from; those between them are interpolated."""

LEAST_PRIOR = 50.0
"""The labels as which the rehearsal counts at least: ten of them shall change little, wherever they come."""

SLOWEST, MANY = 0.005, 200
"""The least rate of a step by a label, with which sets keep their coverage whatever a stream does, and the
labels after which it is reached: with few of them, the rehearsal alone says how large a step is."""

FEW_ERRORS = 5
"""The expected errors of rehearsed answers below which these hardly show that confidence is too low."""

LEAST_SHARE = 0.005
"""The share of a window below which answers are too few to be acted upon."""

LEAST_SPREAD = 0.001
"""The least variance of whether a set has the right class: full sets are not in doubt."""

_EDGE = 1e-4


def grid(like: Tensor) -> Tensor:
    """The thresholds, rising, in the type and on the device of a tensor; (FINITE + 1)."""
    # Made on the device, as a CUDA graph cannot copy constants there.
    finite = torch.linspace(_LOWEST, _HIGHEST, FINITE, dtype=like.dtype, device=like.device).sigmoid()
    return torch.cat([finite, torch.full_like(finite[:1], torch.inf)])


def expected_sums(logits: Tensor, good: Tensor) -> Tensor:
    """The curves of a batch of calibrated logits (N, C), of the `good` samples (N); (CURVES, FINITE + 1)."""
    p = torch.where(good.unsqueeze(1), at_least_single(logits), 0.0).softmax(1)
    falling = p.sort(dim=1, descending=True, stable=True).values
    scores, mass = _scores(falling)
    thresholds = grid(p)
    classes = torch.searchsorted(scores, thresholds.expand(*scores.shape[:2], -1).contiguous(), right=True)
    expected = mass.expand(len(scores), -1, -1).gather(2, classes)
    return _with_answers(expected, falling[:, :1], falling[:, :1], thresholds, good)


def true_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """The same with the truth in place of what is expected: sets that have the label, and right answers."""
    falling, order = at_least_single(logits).softmax(1).sort(dim=1, descending=True, stable=True)
    at = (order == labels.unsqueeze(1)).to(torch.uint8).argmax(1, keepdim=True)
    scores, _ = _scores(falling)
    own = scores.gather(2, at.expand(len(scores), -1, -1))
    thresholds = grid(falling)
    covered = (own <= thresholds).to(falling)
    every = torch.ones_like(labels, dtype=torch.bool)
    return _with_answers(covered, falling[:, :1], (at == 0).to(falling), thresholds, every)


def _scores(falling: Tensor) -> tuple[Tensor, Tensor]:
    """The scores (SCORES, N, C) of classes whose probabilities fall, and the mass of the first 0 … C."""
    mass = torch.cat([torch.zeros_like(falling[:, :1]), falling.cumsum(1)], 1)
    place = torch.arange(1, 1 + falling.shape[1], dtype=falling.dtype, device=falling.device)
    before = mass[:, :-1]
    penalty = RANK_PENALTY * (place - FREE_RANKS).clamp(min=0)
    return torch.stack([1 - falling, before, before + penalty]), mass


def _with_answers(sets: Tensor, confidence: Tensor, right: Tensor, grid: Tensor, good: Tensor) -> Tensor:
    """The sums of (SCORES, N, grid) with the two rows of answers."""
    answered = (1 - confidence <= grid).to(sets)
    curves = torch.cat([sets, torch.stack([answered, answered * right])])
    return (curves * good.unsqueeze(1)).sum(1).float()


class Selected(NamedTuple):
    """Answers of a window that may be acted upon.

    Attributes:
        confidence: the least confidence of one that is; infinity where none is.
        share: of the window that is.
        accuracy: of them, the least that is expected after the fall; NaN where none is.
    """

    confidence: float
    share: float
    accuracy: float


@dataclass(frozen=True)
class Curves:
    """Means over samples at each threshold of the grid, as lists: they are read at few places.

    Attributes:
        rows: the sums, in the order of `CURVES`.
    """

    rows: list[list[float]]
    _sets: dict[str, list[float]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, sums: Tensor) -> "Curves":
        """The means of sums (CURVES, FINITE + 1)."""
        return cls(sums.tolist())

    @cached_property
    def count(self) -> float:
        """The number of samples."""
        return self.rows[ANSWERED][-1] or 1.0

    def sets(self, score: str) -> list[float]:
        """The share of sets of a score that have the right class, expected or true."""
        if score not in self._sets:
            self._sets[score] = [each / self.count for each in self.rows[SCORES.index(score)]]
        return self._sets[score]

    @cached_property
    def answered(self) -> list[float]:
        """The share of answers whose first class scores no more by LAC."""
        return [each / self.count for each in self.rows[ANSWERED]]

    @cached_property
    def right(self) -> list[float]:
        """The accuracy of these, expected or true; that of the next threshold with any where none is."""
        found, following = [], 0.0
        for right, answered in zip(reversed(self.rows[RIGHT]), reversed(self.rows[ANSWERED]), strict=True):
            following = right / answered if answered > _EDGE else following
            found.append(following)
        return found[::-1]


class LabelScores(NamedTuple):
    """Scores of labelled answers (N), by which sets and decisions learn.

    Attributes:
        own: the scores of the labelled classes, (N, SCORES).
        first: of the first classes, by LAC; (N).
        hits: 1 where the first class is the labelled one; (N).
    """

    own: Tensor
    first: Tensor
    hits: Tensor


class Taught(NamedTuple):
    """Lessons of labels for sets and decisions, of one label or of several together.

    Attributes:
        levels: what they add to each of `COVERAGES`, (…, SCORES, COVERAGES).
        had: how many labels count, and how many of them are in the sets for each of `COVERAGES` that are made
            once they have taught; (…, SCORES, 1 + COVERAGES).
        acted: how many labelled answers would be acted upon at each threshold of the grid, and how many of
            these are right; (…, 2, FINITE + 1).
    """

    levels: Tensor
    had: Tensor
    acted: Tensor

    @classmethod
    def nothing(cls) -> "Taught":
        """The lessons of no label."""
        shapes = (
            (len(SCORES), len(COVERAGES)),
            (len(SCORES), 1 + len(COVERAGES)),
            (2, FINITE + 1),
        )
        return cls(*(torch.zeros(shape) for shape in shapes))

    @property
    def labels(self) -> float:
        """The number of labels that count."""
        return float(self.had[0, 0])


@dataclass(frozen=True)
class Expectations:
    """What is expected over a window, and what that is worth by rehearsed answers without shift.

    A level ℓ, expected of rehearsed answers at some threshold, is worth what was true of them at it: a
    coverage or an accuracy c. The threshold for c in a window is where the window expects that ℓ, so that
    without shift the share that is covered is c. Where the accuracy has fallen, c rises, by half of the fall
    for sets and by 1.3 of it for answers:

        logit c' = logit c + .5 · fall,   fall = max(0, L₀ − L),

    with L the logit of the lower end of the estimated accuracy, and L₀ the same without shift.

    For sets, labels add what they have taught to the coverage c that is looked up (`learned`); for answers,
    they count with what is expected of those acted upon (`_labelled`).

    Attributes:
        now: of the window.
        expected: of rehearsed answers without shift.
        true: the truth of these (`true_sums`).
        fall: of the accuracy.
        taught: by labels.
    """

    now: Curves
    expected: Curves
    true: Curves
    fall: float
    taught: Taught

    @property
    def confidence(self) -> float:
        """The mean confidence of the answers in the window."""
        return self.now.rows[RIGHT][-1] / self.now.count

    def set_threshold(self, score: str, coverage: float) -> float:
        """The threshold of sets that are to have the right class in this share."""
        levels = self.taught.levels[SCORES.index(score)].tolist() if self._labels else None
        added = 0.0 if levels is None else float(np.interp(coverage, COVERAGES, levels))
        return self._threshold(score, min(max(self._risen(coverage) + added, 0.0), 1.0))

    def _threshold(self, score: str, wanted: float) -> float:
        """The threshold of sets that, but for a fall, have the right class in this share."""
        level = _value(self.expected.sets(score), _place(self.true.sets(score), wanted))
        return _threshold(_place(self.now.sets(score), level))

    def learned(self, labelled: LabelScores, back: Taught | None = None) -> tuple[Taught, Taught]:
        """The lessons after more labels, and those that each of these adds, (N, …).

        Each is a step of adaptive conformal inference at every level (`labels.aci`), by

            rate = max(1 / (n₀ + n), .005 · min(1, n / 200))

        for n labels before it, with n₀ = max(50, 1.645² / (c · (1 − c) · (.35 + .9 · fall)²)). The rehearsal
        counts as n₀ labels, as many as make its own interval of the coverage that wide: few labels change
        little where it is sure, and more where the accuracy has fallen; where every answer gets its label,
        the coverage comes to c on any stream. `back` is what labels have taught that these ones replace.
        """
        risen = torch.tensor([self._risen(c) for c in COVERAGES], dtype=torch.float64)
        wanted = torch.tensor(COVERAGES, dtype=torch.float64)
        prior = torch.tensor([self._prior(c) for c in COVERAGES], dtype=torch.float64)
        before = Taught(*(each.cpu().double() for each in self.taught))
        if back is not None:
            had, acted = (each.cpu().double() for each in back[1:])
            before = Taught(
                before.levels - back.levels.cpu().double(), before.had - had, before.acted - acted
            )
            before = Taught(before.levels, before.had.clamp(min=0), before.acted.clamp(min=0))
        own, first, hits = (each.detach().cpu().double() for each in labelled)
        answered = (first.unsqueeze(1) <= grid(first)).double()
        levels, labels, steps = before.levels, before.labels, []
        for row in own.tolist():
            least = [self._level(score, row[at]) for at, score in enumerate(SCORES)]
            covered = torch.tensor(least, dtype=torch.float64).unsqueeze(1) <= risen + levels
            slowest = SLOWEST * min(1.0, labels / MANY)
            after = aci(levels, covered, wanted, (1 / (prior + labels)).clamp(min=slowest))
            steps.append(after - levels)
            levels, labels = after, labels + 1
        made = replace(self, taught=Taught(levels, before.had + 1, before.acted))  # the sets from now on
        thresholds = [[made.set_threshold(score, c) for c in COVERAGES] for score in SCORES]
        inside = (own.unsqueeze(2) <= torch.tensor(thresholds, dtype=torch.float64)).double()
        each = Taught(
            torch.stack(steps) if steps else inside.new_zeros(0, *levels.shape),
            torch.cat([torch.ones_like(inside[..., :1]), inside], 2),
            torch.stack([answered, answered * hits.unsqueeze(1)], 1),
        )
        return Taught(levels, before.had + each.had.sum(0), before.acted + each.acted.sum(0)), each

    def coverage(self, score: str, coverage: float) -> tuple[float, float, float]:
        """The coverage of the sets that are to cover this share, with its 90 % interval over the window.

        By the rehearsal it is v₀, the share c that was asked for; or more, where even the smallest sets of
        the score cover more: then logit v₀ = logit ℓ − .5 · fall, with ℓ the share that they covered without
        shift. Of m labels, k are in the sets that are made once they have taught. The rehearsal counts as n₀
        labels (`learned`):

            v = (n₀ · v₀ + k) / (n₀ + m).

        The interval is, in logits, ± 1.645 · √(1 / (n · u + 1) + 1 / ((n₁ + m) · u)) for n samples in the
        window, with u = max(v · (1 − v), .001) and n₁ that of n₀ which may be less than 50.
        """
        level = self._level(score, self._threshold(score, self._risen(coverage)))
        value = share_of(log_odds(level) - STRICTER_SETS * self.fall)
        prior, rehearsed, labels = self._prior(coverage), self._rehearsed_labels(coverage), self._labels
        if labels:
            had = self.taught.had[SCORES.index(score), 1:].tolist()
            value = (prior * value + float(np.interp(coverage, COVERAGES, had))) / (prior + labels)
        middle, spread = log_odds(value), max(value * (1 - value), LEAST_SPREAD)
        half = NINETY * math.sqrt(1 / (self.now.count * spread + 1) + 1 / ((rehearsed + labels) * spread))
        return value, share_of(middle - half), share_of(middle + half)

    def _level(self, score: str, threshold: float) -> float:
        """The least coverage whose sets, without labels and without a fall, have a class of this score."""
        expected = _value(self.now.sets(score), _place_of(threshold))
        return _value(self.true.sets(score), _place(self.expected.sets(score), expected))

    def _risen(self, coverage: float) -> float:
        return share_of(log_odds(coverage) + STRICTER_SETS * self.fall)

    @cached_property
    def _labels(self) -> float:
        return self.taught.labels

    def _prior(self, coverage: float) -> float:
        """n₀, the labels as which the rehearsal counts."""
        return max(LEAST_PRIOR, self._rehearsed_labels(coverage))

    def _rehearsed_labels(self, coverage: float) -> float:
        """n₁, the labels that would make an interval as wide as that of the rehearsal."""
        doubt = COVERAGE_SLACK + COVERAGE_SPREAD * self.fall
        return NINETY**2 / (coverage * (1 - coverage) * doubt**2)

    def selected(self, accuracy: float) -> Selected:
        """The largest share of the window that is expected to be right this often."""
        margin = self._optimism(accuracy) + STRICTER_ANSWERS * self.fall
        right = self._labelled([share_of(log_odds(each) - margin) for each in self.now.right])
        place = _last_place(right, self.now.answered, accuracy)
        if place is None:
            return Selected(math.inf, 0.0, math.nan)
        return Selected(
            max(0.0, 1 - _threshold(place)), _value(self.now.answered, place), _value(right, place)
        )

    def accuracies(self) -> tuple[list[float], list[float], list[float]]:
        """Confidences that fall, the shares at least as confident, and their expected accuracy."""
        places = range(len(self.now.right))
        optimism = [self._optimism_at(float(place)) for place in places]
        values = [share_of(log_odds(each) - own) for each, own in zip(self.now.right, optimism, strict=True)]
        confidences = [max(0.0, 1 - _threshold(float(place))) for place in places]
        return confidences, self.now.answered, self._labelled(values)

    def _labelled(self, accuracies: list[float]) -> list[float]:
        """Accuracies a among the answers acted upon at each threshold, by labels as well.

        Of k labelled ones, r are right: (n₀ · a + r) / (n₀ + k), with n₀ as in `learned`.
        """
        if not self._labels:
            return accuracies
        low, high = COVERAGES[0], COVERAGES[-1]
        priors = [self._prior(min(max(each, low), high)) for each in accuracies]
        counted = zip(accuracies, priors, *self.taught.acted.tolist(), strict=True)
        return [(prior * each + right) / (prior + acted) for each, prior, acted, right in counted]

    def _optimism(self, accuracy: float) -> float:
        """How far expected accuracy is above the true one where that is `accuracy`, in logits.

        Of rehearsed answers without shift; of their most confident ones where none are so accurate.
        """
        place = _last_place(self.true.right, self.true.answered, accuracy)
        if place is None:
            place = float(bisect_left(self.true.answered, LEAST_SHARE))
        return self._optimism_at(place)

    def _optimism_at(self, place: float) -> float:
        """How far expected accuracy is above the true one of answers at a place of the grid, in logits.

        Of n rehearsed answers there, with half an error more than they had. Where that is less than nothing,
        it is multiplied by m / (m + 5) for the m errors that were expected of them: a few answers without an
        error do not say that there never is one.
        """
        expected, true = _value(self.expected.right, place), _value(self.true.right, place)
        answers = self.expected.count * _value(self.expected.answered, place)
        optimism = log_odds(expected) - log_odds((answers * true + 0.5) / (answers + 1))
        errors = answers * (1 - expected)
        return optimism if optimism > 0 else optimism * errors / (errors + FEW_ERRORS)


def _place(rising: Sequence[float], level: float) -> float:
    """The place on the grid where a curve comes to a level, linear between its points."""
    after = bisect_left(rising, level, hi=len(rising) - 1)
    if not after:
        return 0.0
    low, high = rising[after - 1], rising[after]
    return after - 1 + (min(1.0, (level - low) / (high - low)) if high > low else 1.0)


def _last_place(values: Sequence[float], shares: Sequence[float], least: float) -> float | None:
    """The last place at which values, of shares that are not too small, are at least this; None without."""
    for place in reversed(range(len(values))):
        if shares[place] < LEAST_SHARE:
            return None
        if values[place] >= least:
            after = min(place + 1, len(values) - 1)
            fell = values[place] - values[after]
            return place + (min(1.0, (values[place] - least) / fell) if fell > 0 else 0.0)
    return None


def _value(curve: Sequence[float], place: float) -> float:
    """A curve at a place of the grid."""
    before = min(int(place), len(curve) - 1)
    after = min(before + 1, len(curve) - 1)
    return curve[before] + (place - before) * (curve[after] - curve[before])


def _threshold(place: float) -> float:
    """The threshold at a place of the grid: linear in logits, infinity beyond the last finite one."""
    if place > FINITE - 1:
        return math.inf
    return share_of(_LOWEST + place * (_HIGHEST - _LOWEST) / (FINITE - 1))


def _place_of(threshold: float) -> float:
    """The inverse of `_threshold`."""
    if threshold >= 1:
        return float(FINITE)
    place = (log_odds(threshold) - _LOWEST) * (FINITE - 1) / (_HIGHEST - _LOWEST)
    return min(max(place, 0.0), float(FINITE - 1))
