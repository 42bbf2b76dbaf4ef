"""A stream whose corruption changes with every image, after the Continuously Changing Corruptions of CCC."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from equipoise.errors import OptionError
from equipoise.options import checked_by, number, option
from equipoise.research.data.corruptions import TIERS
from equipoise.research.data.image_streams.walk import (
    CorruptionWalk,
    Path,
    corruption_cycle,
    pair,
    pair_name,
    straight_paths,
)
from equipoise.streams.places import Domains, Kind, Places, Visit, one_after_another, permutation

SEVEREST = TIERS[-1]


def _checked_paths(name: str, value: Any) -> dict[str, Path] | None:
    """Paths as lists of numbers, so that results can be written as JSON."""
    if value is None:
        return None
    expected = f"expected {name} as those of `calibrated_paths`"
    if not isinstance(value, Mapping):
        raise OptionError(f"{expected}, got {value!r:.80}")
    paths: dict[str, Path] = {}
    for transition, path in value.items():
        if not path or any(len(point) != 2 for point in path):
            raise OptionError(f"{expected}, pairs of severities, got {path!r:.80} for {transition!r}")
        paths[transition] = [[number(name, s, low=0, high=SEVEREST) for s in point] for point in path]
    return paths


@dataclass(frozen=True, kw_only=True)
class Changing(Kind):
    """One domain of clean images under pairs of corruptions, of which one gives way to the next, and so on.

    The 15 corruptions come in an order drawn by the seed, again and again. The images come in random order
    and, when all have come, in a new one. They are corrupted when a batch is gathered.

    Press et al., "RDumb: A simple approach that questions our progress in continual test-time adaptation",
    NeurIPS 2023. Deviations: a fixed circle of corruptions in place of a random walk, so that 15 pairs are
    measured in place of 210; severities between two tiers are mixtures of both.

    Args:
        transition: the images in which one corruption turns into the next: the fewer, the faster.
        severity: the sum of both severities, from 0 to 5, at any time; not used with `paths`.
        length: the images of the stream; None: one circle, 15 transitions.
        paths: by `calibrated_paths`, along which the source model has about a set accuracy.
    """

    most, alone = 1, True
    transition: int = option(1000, low=1)
    severity: float = option(3.0, low=0, high=SEVEREST)
    length: int | None = option(None, low=1, whole=True)
    paths: Mapping[str, Path] | None = checked_by(_checked_paths, None)

    @property
    def about(self) -> str:
        """The order in words, with its speed and difficulty."""
        difficulty = (
            f"severities that add up to {self.severity:g}"
            if self.paths is None
            else "severities at which the source model has about the same accuracy throughout"
        )
        return (
            "one domain under two corruptions at a time, of which one gives way to the next within "
            f"{self.transition:,} images, with {difficulty}"
        )

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """Passes over the domain; a segment is a transition."""
        walk = self.change(generator.initial_seed())
        length = self.length or len(walk.cycle) * self.transition
        size = domains.sizes[0]
        rows = torch.cat([permutation(size, generator) for _ in range(-(-length // size))])[:length]
        visits = [
            Visit(f"{at}: {pair_name(*pair(walk.cycle, at - 1))}", 0, part)
            for at, part in enumerate(rows.split(self.transition), 1)
        ]
        return one_after_another(visits, domains.sizes)

    def change(self, seed: int) -> CorruptionWalk:
        """The corruptions of each place."""
        cycle = corruption_cycle(seed)
        straight = straight_paths(cycle, self.severity)
        paths = straight if self.paths is None else self.paths
        if lacking := [name for name in straight if name not in paths]:
            raise OptionError(
                f"expected paths by `calibrated_paths` with the seed {seed} of the stream; "
                f"got none from {lacking[0]}"
            )
        return CorruptionWalk(cycle, paths, self.transition)
