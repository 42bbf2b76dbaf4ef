"""Streams of continuously changing corruptions."""

import itertools
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import OptionError
from equipoise.research.data import Images, ImageStream, calibrated_paths, make_image_stream
from equipoise.research.data.changing_corruptions import CorruptionWalk, level_path, pair_accuracies
from equipoise.research.data.corruptions import CORRUPTIONS, corrupt
from tests.research.data.corruptions.pictures import pictures

PICTURES = torch.from_numpy(pictures(40, 16)).permute(0, 3, 1, 2).contiguous()
IMAGES = Images(PICTURES, torch.arange(40) % 4)


class Prototypes(nn.Module):
    """The class of the nearest picture, or the next one if it is too far: each picture has its own limit."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures = nn.Parameter(PICTURES.float().flatten(1))

    def forward(self, images: Tensor) -> Tensor:
        distance, nearest = torch.cdist(images.flatten(1), self.pictures).min(1)
        off = distance / self.pictures.shape[1] ** 0.5
        labels = IMAGES.labels[nearest] + (off > 2 + nearest).long()
        return nn.functional.one_hot(labels % 4, 4).float()


def changing(seed: int = 0, **options: Any) -> ImageStream:
    return make_image_stream([IMAGES.labels], "changing", seed, **{"transition": 50, **options})


def gathered(stream: ImageStream, size: int, images: Images = IMAGES) -> Tensor:
    return torch.cat([x for x, _ in stream.batches(images, size)])


def test_one_circle_has_every_corruption_and_its_images_again_and_again() -> None:
    stream = changing()
    assert len(stream) == 15 * 50
    names = [segment.name.split(": ")[1].split(" to ") for segment in stream.segments]
    assert sorted(first for first, _ in names) == sorted(CORRUPTIONS)
    assert all(one[1] == other[0] for one, other in itertools.pairwise([*names, names[0]]))
    passes = stream.rows[: 40 * 18].view(18, 40)
    assert all(sorted(rows.tolist()) == list(range(40)) for rows in passes)
    assert len({tuple(rows.tolist()) for rows in passes}) == 18
    assert len(changing(length=120)) == 120
    assert [segment.images for segment in changing(length=120).segments] == [50, 50, 20]
    assert changing(length=1000).segments[15].name == "16: " + stream.segments[0].name.split(": ")[1]


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_the_same_whatever_the_size_of_the_batches(channels: int) -> None:
    images = Images(PICTURES[:, :channels].contiguous(), IMAGES.labels)
    stream = changing(transition=8)
    whole = gathered(stream, 1000, images)
    for size in (1, 7):
        assert torch.equal(gathered(changing(transition=8), size, images), whole)
    assert not torch.equal(gathered(changing(seed=1, transition=8), 50, images), whole)
    assert whole.shape == (120, channels, 16, 16)


def test_a_transition_goes_from_one_corruption_to_the_next() -> None:
    walk = changing(severity=4).change
    assert isinstance(walk, CorruptionWalk)
    first, second, third = walk.cycle[:3]
    assert walk.severities(0) == ((first, 4), (second, 0))
    assert walk.severities(25) == ((first, 2), (second, 2))
    assert [severity for _, severity in walk.severities(40)] == pytest.approx([0.8, 3.2])
    assert walk.severities(50) == ((second, 4), (third, 0))
    assert walk.severities(15 * 50) == walk.severities(0)


def test_a_path_of_several_points_is_followed_at_an_even_pace() -> None:
    path = [[3.0, 0.0], [3.0, 2.0], [0.0, 2.0]]
    walk = CorruptionWalk(("fog", "snow"), {"fog to snow": path, "snow to fog": [[1.0, 1.0]]}, 8)
    found = [[severity for _, severity in walk.severities(place)] for place in range(8)]
    assert found == [[3, 0], [3, 0.5], [3, 1], [3, 1.5], [3, 2], [2.25, 2], [1.5, 2], [0.75, 2]]
    assert walk.severities(8) == (("snow", 1), ("fog", 1))


def test_images_are_corrupted_by_the_one_and_then_by_the_other() -> None:
    walk = CorruptionWalk(("fog", "shot_noise"), {"fog to shot_noise": [[2.0, 3.0]]}, 4)
    came = walk(PICTURES[:3], [0, 1, 2], [5, 6, 7])
    images = PICTURES[:3].permute(0, 2, 3, 1).numpy()
    expected = corrupt(corrupt(images, "fog", 2, [5, 6, 7]), "shot_noise", 3, [5, 6, 7])
    assert torch.equal(came, torch.from_numpy(expected).permute(0, 3, 1, 2))
    nothing = CorruptionWalk(("fog", "snow"), {"fog to snow": [[0.0, 0.0]]}, 4)
    assert torch.equal(nothing(PICTURES[:3], [0, 1, 2], [5, 6, 7]), PICTURES[:3])


def test_a_severity_between_two_tiers_is_a_mixture_of_both() -> None:
    walk = CorruptionWalk(("brightness", "fog"), {"brightness to fog": [[2.3, 0.0]]}, 10_000)
    black = torch.zeros(600, 1, 8, 8, dtype=torch.uint8)
    levels = walk(black, range(600), range(600))[:, 0, 0, 0]
    two, three = (round(255 * part) for part in (0.1, 0.15))  # the tiers of brightness at 32 pixels
    assert set(levels.tolist()) <= {two, two + 1, three, three + 1}
    assert float((levels > (two + three) / 2).float().mean()) == pytest.approx(0.3, abs=0.06)


def test_a_level_path_is_the_best_of_all() -> None:
    grid = torch.tensor([[0.9, 0.5, 0.1], [0.4, 0.45, 0.2], [0.3, 0.1, 0.0]])
    path = level_path(grid, 0.4)

    def accuracy(first: float, second: float) -> float:
        row, column = min(int(first), 1), min(int(second), 1)
        down, across = first - row, second - column
        top = (1 - across) * grid[row, column] + across * grid[row, column + 1]
        bottom = (1 - across) * grid[row + 1, column] + across * grid[row + 1, column + 1]
        return float((1 - down) * top + down * bottom)

    def cost(points: list[list[float]]) -> float:
        return sum(abs(accuracy(*point) - 0.4) for point in points)

    quarters = [step / 4 for step in range(9)]
    start = min(quarters, key=lambda first: abs(accuracy(first, 0) - 0.4))
    end = min(quarters, key=lambda second: abs(accuracy(0, second) - 0.4))
    down, right = round(4 * start), round(4 * end)
    costs = []
    for lowered in itertools.combinations(range(down + right), down):
        point, points = [start, 0.0], [[start, 0.0]]
        for step in range(down + right):
            point = [point[0] - 0.25, point[1]] if step in lowered else [point[0], point[1] + 0.25]
            points.append(point)
        costs.append(cost(points))
    assert (path[0], path[-1]) == ([start, 0], [0, end])
    assert cost([list(point) for point in path]) == pytest.approx(min(costs))
    assert len(costs) > 100


def test_a_grid_of_accuracies_falls_with_both_tiers() -> None:
    grid = pair_accuracies(Prototypes(), IMAGES, "contrast", "gaussian_noise")
    assert grid.shape == (6, 6)
    assert float(grid[0, 0]) == 1
    assert bool((grid.diff(dim=0) <= 0.1).all())
    assert bool((grid.diff(dim=1) <= 0.1).all())
    assert float(grid[5, 5]) < float(grid[5, 0]) < 0.7


def test_a_calibrated_stream_is_as_hard_as_asked_for_throughout() -> None:
    model = Prototypes()
    paths = calibrated_paths(model, IMAGES, 0, 0.5, samples=40)
    assert json.loads(json.dumps(paths)) == paths
    stream = changing(paths=paths, transition=80)
    assert json.loads(json.dumps(stream.options)) == stream.options
    assert "about the same accuracy" in stream.describe()
    walk = stream.change
    assert isinstance(walk, CorruptionWalk)
    for one, other in itertools.pairwise(range(16)):
        path = paths[f"{walk.cycle[one % 15]} to {walk.cycle[other % 15]}"]
        after = paths[f"{walk.cycle[other % 15]} to {walk.cycle[(other + 1) % 15]}"]
        assert path[-1] == [0, after[0][0]]  # where one path ends the next begins
    calibrated, straight = (
        torch.cat([model(x).argmax(1) == y for x, y in each.batches(IMAGES, 100)])
        .float()
        .view(15, 80)
        .mean(1)
        for each in (stream, changing(severity=2, transition=80))
    )
    assert float(calibrated.mean()) == pytest.approx(0.5, abs=0.04)
    assert float(calibrated.std()) < 0.4 * float(straight.std())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transition": 0}, "transition >= 1"),
        ({"severity": 6}, "severity >= 0 and <= 5"),
        ({"length": 0}, "length >= 1"),
        ({"paths": [1]}, r"paths as those of `calibrated_paths`, got \[1\]"),
        ({"paths": {"fog to snow": [[1, 2, 3]]}}, "pairs of severities, got .* for 'fog to snow'"),
        ({"paths": {"fog to snow": [[1, 9]]}}, "paths >= 0 and <= 5, got 9"),
        (
            {"paths": {"fog to snow": [[1, 2]]}},
            "`calibrated_paths` with the seed 0 of the stream; got none from ",
        ),
    ],
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        changing(**options)
