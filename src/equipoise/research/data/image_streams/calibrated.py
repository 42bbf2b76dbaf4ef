"""Paths through pairs of corruptions along which a source model has about a set accuracy."""

import torch
from torch import Tensor, nn

from equipoise.options import integer, number
from equipoise.research.data.corruptions import TIERS
from equipoise.research.data.image_streams.walk import Path, corrupted, corruption_cycle, pair, pair_name
from equipoise.research.data.images import Images
from equipoise.research.data.making import seed_of

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
