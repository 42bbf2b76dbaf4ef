"""Results put together as the page shows them: by data set and network, then by method and tempering."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import fmean, stdev
from typing import NamedTuple, TypedDict

from equipoise.bench.schema import CellResult, Protocol, ReliabilitySums, StreamSummary
from equipoise.report.numbers.results import RunResults, Setting, scope_of, setting_of
from equipoise.report.numbers.runs import METRICS, MethodVariant, Metric, Runs, ShiftKey, VariantScores

Place = tuple[ShiftKey, int]
"""A shift and a seed: where one result belongs."""


class Spread(NamedTuple):
    """A mean, and the standard deviation of what it is a mean of where there are two or more."""

    mean: float
    std: float | None


class Shares(TypedDict):
    """Answers in bins by confidence as shares of all: how many, and the sums of confidence and of hits."""

    count: list[float]
    confidence: list[float]
    correct: list[float]


@dataclass(frozen=True)
class VariantResults:
    """The results of one method with one tempering under one protocol.

    Attributes:
        variant: the method and the divisor of its logits.
        method: the method's name in the registry.
        runs: its scores by shift and seed.
        bins: the reliability of the same results by shift, one for each seed that has it.
    """

    variant: MethodVariant
    method: str
    runs: Runs
    bins: Mapping[ShiftKey, Sequence[ReliabilitySums]]

    @property
    def label(self) -> str:
        """What the results call the method."""
        return self.variant.label

    @cached_property
    def places(self) -> frozenset[Place]:
        """The shifts and seeds that there are results for."""
        return frozenset((shift, seed) for shift, seeds in self.runs.items() for seed in seeds)

    def values(self, metric: Metric, where: Collection[Place] | None = None) -> dict[ShiftKey, float]:
        """A metric on each shift, the mean over the seeds."""
        found = {
            shift: [
                scores[metric] for seed, scores in seeds.items() if where is None or (shift, seed) in where
            ]
            for shift, seeds in self.runs.items()
        }
        return {shift: fmean(values) for shift, values in found.items() if values}

    @cached_property
    def _means(self) -> dict[Metric, float]:
        return {metric: fmean(self.values(metric).values()) for metric in METRICS}

    def mean(self, metric: Metric) -> float:
        """A metric on average, every shift counting the same."""
        return self._means[metric]

    def against(self, other: "VariantResults", metric: Metric) -> tuple[float, float] | None:
        """This one's value and another's, on the shifts and seeds that both have; None if there are none."""
        if self.places == other.places:
            return self.mean(metric), other.mean(metric)
        shared = self.places & other.places
        if not shared:
            return None
        mine, theirs = (group.values(metric, shared) for group in (self, other))
        return fmean(mine.values()), fmean(theirs.values())


@dataclass(frozen=True)
class Section:
    """Everything about one network on one data set.

    Attributes:
        setting: the data set, how much of it, and how it was trained and met.
        backbone: the network.
        lines: the results by protocol.
        groups: the same by protocol, then by variant, in the order in which they are shown.
        failures: the lines of the cells that failed.
        streams: what the source model makes of the streams, one for each shift and seed.
    """

    setting: Setting
    backbone: str
    lines: Mapping[Protocol, tuple[CellResult, ...]]
    groups: Mapping[Protocol, Mapping[MethodVariant, VariantResults]]
    failures: Sequence[CellResult] = ()
    streams: Sequence[StreamSummary] = ()

    @cached_property
    def everything(self) -> list[VariantResults]:
        """The groups of all protocols."""
        return list(chain.from_iterable(groups.values() for groups in self.groups.values()))

    @cached_property
    def shifts(self) -> list[ShiftKey]:
        """Every shift there is a result or a stream for, by tier and name."""
        met = {shift for group in self.everything for shift in group.runs}
        met |= {ShiftKey(stream["target"], stream["tier"]) for stream in self.streams}
        return sorted(met, key=lambda shift: (shift.tier is not None, shift.tier or 0, shift.target))

    @cached_property
    def targets(self) -> list[str]:
        """The unseen domains."""
        return list(dict.fromkeys(shift.target for shift in self.shifts))

    @cached_property
    def tiers(self) -> list[int]:
        """How strong the shifts are; empty where the data set has no tiers."""
        return sorted({shift.tier for shift in self.shifts if shift.tier is not None})

    @cached_property
    def places(self) -> list[str]:
        """What figures have on their axis: the tiers, or the domains where there are none."""
        return [str(tier) for tier in self.tiers] or self.targets

    def place(self, shift: ShiftKey) -> str | None:
        """Where on that axis a shift is; None for one without a tier where others have one."""
        if self.tiers:
            return None if shift.tier is None else str(shift.tier)
        return shift.target

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds there are results or streams for."""
        met = {seed for group in self.everything for _, seed in group.places}
        return sorted(met | {stream["seed"] for stream in self.streams})

    def labels(self, protocol: Protocol | None = None) -> list[str]:
        """What the methods are called, under one protocol or all, in the order in which they are shown."""
        shown = self.everything if protocol is None else self.groups.get(protocol, {}).values()
        return list(dict.fromkeys(group.label for group in shown))


def sections(results: RunResults) -> list[Section]:
    """All sections in the order of the results; then those with streams or failures only."""
    lines: dict[tuple[Setting, str], dict[Protocol, tuple[CellResult, ...]]] = {}
    groups: dict[tuple[Setting, str], dict[Protocol, dict[MethodVariant, VariantResults]]] = {}
    for scope, several in results.lines_by_scope().items():
        key = scope.setting, scope.backbone
        lines.setdefault(key, {})[scope.protocol] = several
        groups.setdefault(key, {})[scope.protocol] = _groups(results.variant_scores[scope], several)
    streams: dict[tuple[Setting, str], dict[tuple[ShiftKey, int], StreamSummary]] = {}
    for stream in filter(_drawable, results.streams):
        known = streams.setdefault((setting_of(stream), stream["backbone"]), {})
        known[ShiftKey(stream["target"], stream["tier"]), stream["seed"]] = stream
    failures: dict[tuple[Setting, str], list[CellResult]] = {}
    for line in results.failures:
        scope = scope_of(line["cell"])
        failures.setdefault((scope.setting, scope.backbone), []).append(line)
    return [
        Section(
            setting=key[0],
            backbone=key[1],
            lines=lines.get(key, {}),
            groups=groups.get(key, {}),
            failures=failures.get(key, ()),
            streams=tuple(streams.get(key, {}).values()),
        )
        for key in dict.fromkeys([*lines, *failures, *streams])
    ]


def pooled(parts: Mapping[ShiftKey, Sequence[ReliabilitySums]]) -> Shares:
    """The bins on average, as tables average scores: over the seeds of a shift, then over the shifts.

    However many images a shift has, it counts as much as any other.
    """
    shifts = [_averaged([_shares(part) for part in several]) for several in parts.values()]
    return _averaged(shifts)


def spread_of(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation (the paper's variances are those of a sample)."""
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None)


def _shares(part: ReliabilitySums) -> Shares:
    answers = sum(part["count"])
    count, confidence, correct = (
        [value / answers for value in values]
        for values in (part["count"], part["confidence"], part["correct"])
    )
    return Shares(count=count, confidence=confidence, correct=correct)


def _averaged(parts: Sequence[Shares]) -> Shares:
    count, confidence, correct = (
        [fmean(bins) for bins in zip(*several, strict=True)]
        for several in (
            [part["count"] for part in parts],
            [part["confidence"] for part in parts],
            [part["correct"] for part in parts],
        )
    )
    return Shares(count=count, confidence=confidence, correct=correct)


def _groups(scored: VariantScores, lines: Iterable[CellResult]) -> dict[MethodVariant, VariantResults]:
    # The scores of `scored` are the same objects as those of the lines, which identifies the bins.
    bins = {id(line["scores"]): line["reliability"] for line in lines}

    def bins_of(runs: Runs) -> dict[ShiftKey, list[ReliabilitySums]]:
        found: dict[ShiftKey, list[ReliabilitySums]] = {}
        for shift, seeds in runs.items():
            for scores in seeds.values():
                part = bins[id(scores)]
                if part is not None and sum(part["count"]) > 0:
                    found.setdefault(shift, []).append(part)
        return found

    return {
        variant: VariantResults(variant, scored.methods[variant.label], runs, bins_of(runs))
        for variant, runs in scored.runs.items()
    }


def _drawable(stream: StreamSummary) -> bool:
    """Whether a stream has what the figures need: quantiles at its levels, and norms to compare with."""
    levels = len(stream["levels"])
    return (
        0 < levels == len(stream["norms"]) == len(stream["taus"])
        and len(stream["tau_edges"]) == len(stream["tau_counts"]) + 1
        and stream["kappa"] > 0
    )
