"""A walk through the corruptions: two of them at a time, of which one gives way to the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.research.data.corruptions import CORRUPTIONS, corrupt
from equipoise.streams.places import permutation

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
