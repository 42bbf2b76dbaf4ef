"""The triggers: each is a value that an observation turns into the next, and that may have an alarm.

| trigger | fed by | an alarm where | its false alarms |
|---|---|---|---|
| `Estimates` | estimated accuracies | adapted is more than `tolerance` below source | at most δ if right |
| `Labels` | labels | the same | at most δ |
| `Collapse` | classes of the answers | over half of them move to a few classes | at most δ |
| `Disagreement` | classes of the answers | more differ than rehearsed without a loss | at most δ |
| `BelowSource` | intervals of the estimates | they lie apart for 5 batches in a row | not known |
| `Runaway` | weights and statistics | they are not finite, or beyond limits | not known |
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from equipoise.production.guard.eprocess import EProcess, grapa
from equipoise.production.guard.observation import Observation

MOVED_ANSWERS = 0.5
"""The share of answers that may move to other classes than the source model's before it is a collapse."""

SAMPLES_HALF_LIFE, FORGOTTEN = 100.0, 0.01
"""The samples after which a pair of answers counts half, and the weight below which it leaves the window."""

IN_A_ROW = 5
"""The batches in a row with an estimate below the source model's that are an alarm."""

LEAST_DISAGREEMENT, MOST_DISAGREEMENT = 0.01, 0.99
"""The range of the share of answers that may differ: a test needs losses that lie above it and below it."""

FARTHEST_WEIGHTS, FARTHEST_STATISTICS = 1.0, 100.0
"""The limits of `Observation.weights` and `.statistics`; statistics follow domains and may move more."""

BEYOND_REHEARSAL = 4.0
"""The limit of the weights of a rehearsed method, in units of how far they moved in rehearsal at most."""

LARGEST_STEP = 0.05
"""The limit of the rise of the weights' distance in one batch: some 35 times TENT's at its rate of 0.001."""


class Alarm(NamedTuple):
    """A reason to act.

    Attributes:
        trigger: the name of the trigger.
        reason: in words.
        calm: the last batch before the evidence began.
    """

    trigger: str
    reason: str
    calm: int


def paired_process(tolerance: float, delta: float, half_life: float) -> EProcess:
    """The e-process of differences d in [−1, 1], by losses ℓ = (d + 1) / 2 and ε = (1 + tolerance) / 2."""
    return EProcess((1 + tolerance) / 2, delta, half_life)


def paired_loss(difference: float) -> float:
    """ℓ = (d + 1) / 2."""
    return (difference + 1) / 2


@dataclass(frozen=True)
class Estimates:
    """A paired e-process on the accuracies that a rehearsal estimates, one loss a batch.

    d is the estimated accuracy of the source model less that of the answers; 0 where the source model itself
    answered, as nothing adapted was served then. H0: E[d | the past] ≤ tolerance at every batch. The
    estimates are those of a window of a few hundred samples, so that losses of neighbouring batches are
    strongly dependent: Ville's inequality permits that, but it is about the estimates. Whether an estimate is
    right, only labels say.
    """

    process: EProcess

    def after(self, seen: Observation, batch: int) -> "Estimates":
        """The trigger after a batch."""
        if not seen.learned or seen.accuracy is None or seen.source_accuracy is None:
            return self
        behind = 0.0 if seen.answered_by == "source" else seen.source_accuracy[0] - seen.accuracy[0]
        return replace(self, process=self.process.after(paired_loss(behind), batch))

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, if there is one."""
        if not self.process.alarm:
            return None
        reason = "the adapted model is estimated to be less accurate than the source model, without labels"
        return Alarm("estimates", reason, self.process.calm)


@dataclass(frozen=True)
class Labels:
    """A paired e-process on labels, one loss a batch of answers.

    d is the mean over the batch of 1[source model right] − 1[adapted model right]. H0: E[d | the past] ≤
    tolerance for every batch, the past being the batches labelled before; samples of a batch may depend on
    each other in any way. No estimate is in it: δ is exact.
    """

    process: EProcess

    def after(self, source_only: int, same: int, adapted_only: int, batch: int) -> "Labels":
        """The trigger after labels came: samples that only one of the models, or both or none, had right."""
        count = source_only + same + adapted_only
        if not count:
            return self
        loss = paired_loss((source_only - adapted_only) / count)
        return replace(self, process=self.process.after(loss, batch))

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, if there is one."""
        if not self.process.alarm:
            return None
        return Alarm("labels", "labels: the adapted model is worse than the source model", self.process.calm)


@dataclass(frozen=True)
class Collapse:
    """An e-process on the class histogram of the answers against that of the source model's.

    The distance of two histograms is 1 − Σ_c min(π_c, π'_c) = max over sets K of classes of π(K) − π'(K),
    their total variation. K is taken from the batches before: the classes that were answered more often than
    by the source model. Each batch then is a loss

        ℓ = max(0, share of answers in K − share of the source model's answers in K),   ε = ½,

    which is at most the distance of the batch's histograms. H0: given the past, E[ℓ] ≤ ½; samples of a batch
    may depend on each other in any way. In a batch of one sample, ℓ is whether the answer moved into K. The
    source model meets H0 with ℓ = 0 always. The reference is the source model's answers to the same samples,
    not its answers to source data: a stream of one class, or sorted by class, has a histogram of its own
    without a collapse.

    Answers that are spread over more classes than the source model's are no collapse. Bets are only placed
    while the answers before were the more concentrated ones, Σ_c π_c² > Σ_c π'_c². K, that condition and the
    mean and variance that the bet follows from are all those of the batches before, so that δ holds. The
    variance is that of samples: that of a batch whose samples are all alike.

    On a stream of one class, an adapted model that is right more often than the source model by ½ or more
    gives the same histograms as a collapse to that class: the two cannot be distinguished without labels or a
    rehearsal, and this is an alarm.

    Attributes:
        process: the e-process.
        window: the pairs of answers before (`Observation.pairs`), with the weights they have left.
    """

    process: EProcess
    window: tuple[tuple[int, int, float], ...] = ()

    def after(self, seen: Observation, batch: int) -> "Collapse":
        """The trigger after a batch."""
        came = sum(count for *_, count in seen.pairs)
        if not came:
            return self
        moved = sum(d * count for d, count in _differences(seen.pairs, self.favoured)) / came
        kept = 2.0 ** (-came / SAMPLES_HALF_LIFE)
        weights = {(own, theirs): kept * weight for own, theirs, weight in self.window}
        for own, theirs, count in seen.pairs:
            weights[own, theirs] = weights.get((own, theirs), 0.0) + count
        window = tuple((*pair, weight) for pair, weight in sorted(weights.items()) if weight >= FORGOTTEN)
        return Collapse(self.process.after(max(moved, 0.0), batch, self.bet), window)

    @property
    def bet(self) -> float:
        """λ of the next batch."""
        answered, by_source = self.histograms
        if sum(n * n for n in answered.values()) <= sum(n * n for n in by_source.values()):
            return 0.0
        moved = list(_differences(self.window, self.favoured))
        total = sum(weight for _, weight in moved)
        mean = sum(weight * d for d, weight in moved) / total
        variance = sum(weight * (d - mean) ** 2 for d, weight in moved) / total
        return grapa(mean, variance, self.process.epsilon)

    @property
    def histograms(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """The weight of each class among the answers before, and among the source model's."""
        answered, by_source = defaultdict[int, float](float), defaultdict[int, float](float)
        for own, theirs, weight in self.window:
            answered[own] += weight
            by_source[theirs] += weight
        return answered, by_source

    @property
    def favoured(self) -> set[int]:
        """K: the classes answered more often than by the source model."""
        answered, by_source = self.histograms
        return {label for label, weight in answered.items() if weight > by_source[label]}

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, if there is one."""
        if not self.process.alarm:
            return None
        answered, by_source = self.histograms
        top, total = max(answered, key=lambda label: answered[label]), sum(answered.values())
        reason = "the answers collapse: class {} has {:.0%} of them, and {:.0%} of the source model's"
        shares = (counts[top] / total for counts in (answered, by_source))
        return Alarm("collapse", reason.format(top, *shares), self.process.calm)


def _differences(pairs: Iterable[tuple[int, int, float]], favoured: set[int]) -> Iterator[tuple[int, float]]:
    """The difference d of each pair of answers, and its weight."""
    for own, theirs, weight in pairs:
        yield (own in favoured) - (theirs in favoured), weight


@dataclass(frozen=True)
class Disagreement:
    """An e-process on the share of answers that are of another class than the source model's.

    Each batch that the adapted model answers is a loss, with r the largest such share over all rehearsed
    windows in which adapting lost nothing (`Rehearsal.disagreement`):

        ℓ = share of the batch's samples to which the models give two classes,   ε = r + tolerance,

    ε within [.01, .99]. Up to r, rehearsals have shown that answers may differ without a loss; answers beyond
    r that differ can cost at most their own share in accuracy, and that much is tolerated. H0: given the
    past, that the adapted model answers, and that inputs are not new, E[ℓ] ≤ ε; samples of a batch may depend
    on each other in any way. No estimate is in it, and the estimates cannot explain an alarm away.

    H0 is about answers, not about accuracy. Where inputs are new, adapting may gain more than in any
    rehearsal, and answers differ more without a loss: while the novelty is above that of rehearsed windows
    without shift, batches are no evidence. A loss within ε is none: that is left to the other triggers. A
    held adapter is watched as well, since its answers are served. A batch that the source model answered is
    no evidence: the adapted model's classes are not known.

    Attributes:
        process: the e-process.
        limit: r; None, without a rehearsal that compared the two models: there is no evidence then.
        familiar: the novelty up to which inputs are not new (`Rehearsal.familiar`); None: all are not.
    """

    process: EProcess
    limit: float | None
    familiar: float | None = None

    @classmethod
    def beyond(
        cls,
        limit: float | None,
        tolerance: float,
        delta: float,
        half_life: float,
        familiar: float | None = None,
    ) -> "Disagreement":
        """The trigger without evidence, for r and the share beyond r that is tolerated."""
        most = MOST_DISAGREEMENT if limit is None else limit + tolerance
        epsilon = min(max(most, LEAST_DISAGREEMENT), MOST_DISAGREEMENT)
        return cls(EProcess(epsilon, delta, half_life), limit, familiar)

    def after(self, seen: Observation, batch: int) -> "Disagreement":
        """The trigger after a batch."""
        came = sum(count for *_, count in seen.pairs)
        new = self.familiar is not None and seen.novelty is not None and seen.novelty > self.familiar
        if self.limit is None or seen.answered_by == "source" or new or not came:
            return self
        differ = sum(count for own, theirs, count in seen.pairs if own != theirs)
        return replace(self, process=self.process.after(differ / came, batch))

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, if there is one."""
        if self.limit is None or not self.process.alarm:
            return None
        reason = (
            f"{100 * self.process.mean:.0f} % of the answers of late are of other classes than the source "
            f"model's; in rehearsals in which adapting lost nothing at most {100 * self.limit:.0f} % were"
        )
        return Alarm("disagreement", reason, self.process.calm)


@dataclass(frozen=True)
class BelowSource:
    """The 90 % interval of the estimated accuracy lies below the source model's, batch after batch.

    A batch counts where the estimate is lower by more than the tolerance and the intervals do not overlap.
    `IN_A_ROW` of them are an alarm: this one says how accurate both models are, and takes no bets.

    Attributes:
        tolerance: the difference that is tolerated.
        run: the batches in a row so far.
        calm: the batch before the first of them.
        own: the estimate of the last of them.
        source: that of the source model.
    """

    tolerance: float
    run: int = 0
    calm: int = 0
    own: float = 0.0
    source: float = 0.0

    def after(self, seen: Observation, batch: int) -> "BelowSource":
        """The trigger after a batch."""
        if not seen.learned or seen.accuracy is None or seen.source_accuracy is None:
            return self
        (own, _, high), (source, low, _) = seen.accuracy, seen.source_accuracy
        if seen.answered_by == "source" or source - own <= self.tolerance or high >= low:
            return BelowSource(self.tolerance, calm=batch)
        return replace(self, run=self.run + 1, own=own, source=source)

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, if there is one."""
        if self.run < IN_A_ROW:
            return None
        reason = (
            f"the estimated accuracy is {self.own:.3f}, that of the source model {self.source:.3f}, for "
            f"{self.run} batches, and their intervals do not overlap"
        )
        return Alarm("below source", reason, self.calm)


@dataclass(frozen=True)
class Runaway:
    """Weights, statistics or memory that are not finite, far from the source model's, or moving too fast.

    Entropy minimisation at a rate that is far too high destroys the answers long before they collapse to one
    class, and no estimate without labels is that fast; the size of its steps shows after one batch. A step is
    the rise of the weights' distance from the source model in a batch, a lower bound of the way they went:
    weights that turn around the source model's at one distance do not show in it.

    Attributes:
        weights: the distance of the weights (`Observation.weights`).
        step: its rise in the last batch.
        statistics: the distance of the running statistics.
        finite: whether everything is finite.
        calm: the last batch at which everything was at most half of its limit.
        farthest: the limit of the weights.
    """

    weights: float = 0.0
    step: float = 0.0
    statistics: float = 0.0
    finite: bool = True
    calm: int = 0
    farthest: float = FARTHEST_WEIGHTS

    @classmethod
    def within(cls, reach: float | None, weights: float = 0.0) -> "Runaway":
        """The trigger for weights that moved so far in rehearsal at most; None or 0: not known."""
        most = BEYOND_REHEARSAL * reach if reach else FARTHEST_WEIGHTS
        return cls(weights, farthest=min(most, FARTHEST_WEIGHTS))

    def after(self, seen: Observation, batch: int) -> "Runaway":
        """The trigger after a batch."""
        step = max(seen.weights - self.weights, 0.0)
        after = Runaway(seen.weights, step, seen.statistics, seen.finite, self.calm, self.farthest)
        calm = seen.finite and all(2 * value <= limit for value, limit, _ in after._limits)
        return replace(after, calm=batch) if calm else after

    @property
    def _limits(self) -> list[tuple[float, float, str]]:
        return [
            (self.step, LARGEST_STEP, "the weights moved away from the source model's, in one batch,"),
            (self.weights, self.farthest, "the weights have moved from the source model's"),
            (
                self.statistics,
                FARTHEST_STATISTICS,
                "the running statistics have moved from the source model's",
            ),
        ]

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, if there is one."""
        if not self.finite:
            return Alarm("runaway", "weights, statistics or memory are not finite", self.calm)
        for value, limit, words in self._limits:
            if value > limit:
                reason = f"{words} by {value:.3g} of their norm, over the limit of {limit:g}"
                return Alarm("runaway", reason, self.calm)
        return None
