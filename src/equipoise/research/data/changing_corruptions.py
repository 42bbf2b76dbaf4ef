"""A stream whose corruption changes with every image, after the Continuously Changing Corruptions of CCC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.errors import OptionError
from equipoise.options import checked_by, integer, number, option
from equipoise.research.data.corruption_pool import seed_of
from equipoise.research.data.corruptions import CORRUPTIONS, TIERS, corrupt
from equipoise.research.data.images import Images
from equipoise.streams.kinds import Domains, Kind, Places, Visit, one_after_another, permutation

Path = Sequence[Sequence[float]]
"""Severities of the first and of the second corruption, from 0 (none) to 5, at equal distances in time."""


@dataclass(frozen=True)
class CorruptionWalk:
    """The corruptions of each place: from one to the next along a path of severities, and so on in a circle.

    A severity between two tiers is a mixture of images of both: 2.3 is tier 3 for three images in ten and
    tier 2 for the others. So the corruptions have their five tiers, and the stream changes continuously.

    Attributes:
        cycle: the corruptions, in order.
        paths: from each to the next, by `pair_name`.
        transition: the images of a path.
    """

    cycle: tuple[str, ...]
    paths: Mapping[str, Path]
    transition: int

    def severities(self, place: int) -> tuple[tuple[str, float], tuple[str, float]]:
        """The two corruptions at a place, each with its severity."""
        number, within = divmod(place, self.transition)
        first, second = pair(self.cycle, number)
        path = self.paths[pair_name(first, second)]
        at = within / self.transition * (len(path) - 1)
        low = min(int(at), max(len(path) - 2, 0))
        high, part = min(low + 1, len(path) - 1), at - low
        ours, theirs = (
            (1 - part) * one + part * other for one, other in zip(path[low], path[high], strict=True)
        )
        return (first, ours), (second, theirs)

    def __call__(self, pixels: Tensor, places: Sequence[int], seeds: Sequence[int]) -> Tensor:
        """Images uint8 (N, channels, height, width), corrupted as their places say, each by its own seed."""
        kinds = [self._tiers(place, seed) for place, seed in zip(places, seeds, strict=True)]
        made = pixels.clone()
        for turn in range(2):
            groups: dict[tuple[str, int], list[int]] = {}
            for row, of_image in enumerate(kinds):
                groups.setdefault(of_image[turn], []).append(row)
            for (name, tier), rows in groups.items():
                made[rows] = corrupted(made[rows], name, tier, [seeds[row] for row in rows])
        return made

    def _tiers(self, place: int, seed: int) -> list[tuple[str, int]]:
        draws = np.random.default_rng(seed).random(2)
        both = zip(self.severities(place), draws, strict=True)
        return [(name, int(severity + draw)) for (name, severity), draw in both]


def corrupted(pixels: Tensor, name: str, tier: int, seeds: Sequence[int]) -> Tensor:
    """Images uint8 (N, channels, height, width) at a tier of a corruption; at tier 0 as they are."""
    if tier == 0:
        return pixels
    made = corrupt(pixels.permute(0, 2, 3, 1).numpy(), name, tier, seeds)
    return torch.from_numpy(made).permute(0, 3, 1, 2)


def corruption_cycle(seed: int) -> tuple[str, ...]:
    """The 15 corruptions in the order of a seed."""
    order = permutation(len(CORRUPTIONS), torch.Generator().manual_seed(seed))
    return tuple(CORRUPTIONS[place] for place in order.tolist())


def pair(cycle: Sequence[str], number: int) -> tuple[str, str]:
    """A corruption and the next."""
    return cycle[number % len(cycle)], cycle[(number + 1) % len(cycle)]


def pair_name(first: str, second: str) -> str:
    """The name of a transition."""
    return f"{first} to {second}"


def straight_paths(cycle: Sequence[str], severity: float) -> dict[str, Path]:
    """Paths on which the two severities add up to the same number."""
    return {pair_name(*pair(cycle, at)): [[severity, 0.0], [0.0, severity]] for at in range(len(cycle))}


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


BATCH = 100
FINE = 4
"""Steps of a path from one tier to the next."""


def calibrated_paths(
    model: nn.Module, images: Images, seed: int, accuracy: float, *, samples: int = 100
) -> dict[str, Path]:
    """The `paths` of "changing" streams at which a model has about this accuracy.

    For each of the 15 pairs of corruptions that follow each other, the accuracy is measured at the 6 × 6
    pairs of tiers (0 is none), and between them it is what a mixture of tiers has: linear in each severity.
    The path goes from the first corruption alone to the second alone, the first never growing and the second
    never falling, and is that with the least sum of distances from the accuracy asked for. A corruption that
    does not cost so much at tier 5 stays there.

    Press et al., "RDumb", NeurIPS 2023, section 3, choose paths so, from accuracies of a ResNet-50.

    Args:
        model: a classifier of images from 0 to 255, in evaluation mode; it is only asked, on its own device.
        images: with labels, clean.
        seed: of the stream, which decides which pairs there are.
        accuracy: from 0 to 1.
        samples: the number of images that are measured on, chosen at random.
    """
    accuracy = number("accuracy", accuracy, low=0, high=1)
    # Not the first ones: images may come class after class.
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    some = images.select(order[: integer("samples", samples, low=1)])
    cycle = corruption_cycle(seed)
    found: dict[str, Path] = {}
    for place in range(len(cycle)):
        first, second = pair(cycle, place)
        found[pair_name(first, second)] = level_path(pair_accuracies(model, some, first, second), accuracy)
    return found


def pair_accuracies(model: nn.Module, images: Images, first: str, second: str) -> Tensor:
    """The accuracy (6, 6) at each tier of the first corruption, and each of the second after it."""
    device = next(model.parameters()).device
    seeds = [seed_of(f"image {place}") for place in range(len(images))]
    severities = (0, *TIERS)
    grid = torch.zeros(len(severities), len(severities))
    for one in severities:
        once = corrupted(images.pixels, first, one, seeds)
        for other in severities:
            pixels = corrupted(once, second, other, seeds)
            with torch.no_grad():
                answers = [model(part.float().to(device)).argmax(1).cpu() for part in pixels.split(BATCH)]
            grid[one, other] = (torch.cat(answers) == images.labels).float().mean()
    return grid


def level_path(grid: Tensor, level: float) -> Path:
    """Severities from the first corruption alone to the second alone, as near to the level as can be.

    Every step lowers the first severity or raises the second by a quarter of a tier, so that all paths
    between two ends have the same number of steps.
    """
    levels = FINE * (len(grid) - 1) + 1
    fine = nn.functional.interpolate(grid[None, None], (levels, levels), mode="bilinear", align_corners=True)
    off: list[list[float]] = (fine[0, 0].double() - level).abs().tolist()
    top = min(range(levels), key=lambda row: off[row][0])
    right = min(range(levels), key=lambda column: off[0][column])
    # The least sum from (row, column) to the end, (0, right), and the next place on the way there.
    sums: dict[tuple[int, int], float] = {}
    onwards: dict[tuple[int, int], tuple[int, int]] = {}
    for row in range(top + 1):
        for column in range(right, -1, -1):
            ways = [place for place in ((row - 1, column), (row, column + 1)) if place in sums]
            sums[row, column] = off[row][column]
            if ways:
                onwards[row, column] = min(ways, key=sums.__getitem__)
                sums[row, column] += sums[onwards[row, column]]
    places = [(top, 0)]
    while places[-1] in onwards:
        places.append(onwards[places[-1]])
    return [[row / FINE, column / FINE] for row, column in places]
