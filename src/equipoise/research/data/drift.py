"""A stream that drifts: house numbers by day, at dusk, from a shaking camera, and by day again."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from equipoise.research.data.dataset import DataSet, Origin, Shift
from equipoise.research.data.demo import CLASSES, package_versions
from equipoise.research.data.images import Images
from equipoise.research.data.reader import Reader
from equipoise.research.data.registry import register_data_set
from equipoise.streams.places import Segment

SEGMENTS = (
    Segment("day", 500),
    Segment("dusk", 1000),
    Segment("shaking", 500),
    Segment("day again", 500),
)
"""Light that fades slowly, then a sudden change, then the start again."""
DARKEST, NOISE, SMEAR = 0.25, 10.0, 9
"""The factor of the light at the end of dusk, the standard deviation of the noise then and of a shaking
camera, and the pixels over which a shaking camera smears."""

FONTS = ("DejaVuSans-Bold",)
"""The font of a town's house numbers."""

_TRAINED = 4000
_PACKAGES = ("matplotlib", "pillow")
_VERSION = 1  # of the drawing here: another makes stored images be drawn anew


@register_data_set
class Drift(DataSet):
    """House numbers drawn with matplotlib's fonts: no download."""

    name = "drift"
    about = "The data set 'drift' needs no files, but some packages: pip install 'equipoise[demo]'"
    classes = tuple(map(str, range(CLASSES)))

    def __init__(self, root: Path) -> None:
        self._versions = package_versions(_PACKAGES, self.about)

    @property
    def shifts(self) -> Sequence[Shift]:
        """One: from house numbers by day to the stream."""
        return [Shift(target="drift", stream="stream", sources=("house numbers",))]

    def parameters(self, part: str) -> Mapping[str, str | int]:
        """The version of the drawing and of the packages that the images come from."""
        return {"drawing": _VERSION, **self._versions}

    def origin(self, part: str) -> Origin:
        """Made here."""
        return "made"

    def segments(self, part: str, limit: int | None) -> Sequence[Segment]:
        """The segments of the stream; under a limit each is shorter."""
        total = sum(segment.images for segment in SEGMENTS)
        share = min(1.0, (limit or total) / total)
        return [Segment(name, max(1, int(images * share))) for name, images in SEGMENTS]

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        """The images of "house numbers" in random order, or of "stream" in the order of time.

        Under a limit fewer are drawn.
        """
        self.check_part(part)
        if part == "stream":
            images = _stream([segment.images for segment in self.segments(part, limit)])
        else:
            images = _house_numbers(min(limit or _TRAINED, _TRAINED), seed=0)
        reader.report(len(images), len(images))
        return images


def _stream(sizes: Sequence[int]) -> Images:
    house = _house_numbers(sum(sizes), seed=1)
    day, dusk, shaking, again = house.pixels.float().split(list(sizes))
    return Images(_whole(torch.cat([day, fading(dusk), shaken(shaking), again])), house.labels)


def _house_numbers(count: int, seed: int) -> Images:
    """Digits in random order, each class as often as any other."""
    from equipoise.research.data.rendered import draw_digits  # here, because it needs packages of the demo

    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    labels = order % CLASSES
    pixels = torch.from_numpy(draw_digits(labels.numpy(), seed, FONTS)).unsqueeze(1)
    return Images(_whole(pixels), labels)


def fading(images: Tensor) -> Tensor:
    """Images (N, 1, H, W) from 0 to 255 at dusk: the later in the row, the darker and the noisier."""
    progress = torch.linspace(0, 1, len(images)).view(-1, 1, 1, 1)
    return images * (1 - (1 - DARKEST) * progress) + NOISE * progress * _normal(images)


def shaken(images: Tensor) -> Tensor:
    """Images (N, 1, H, W) from 0 to 255 by a shaking camera: smeared along the rows, and noisy."""
    side = SMEAR // 2
    smeared = avg_pool2d(pad(images, (side, side, 0, 0), mode="replicate"), (1, SMEAR), stride=1)
    return smeared + NOISE * _normal(images)


def _normal(images: Tensor) -> Tensor:
    return torch.randn(images.shape, generator=torch.Generator().manual_seed(len(images)))


def _whole(pixels: Tensor) -> Tensor:
    return pixels.round().clamp(0, 255).to(torch.uint8)
