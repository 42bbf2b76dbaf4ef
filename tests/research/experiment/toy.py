"""A data set and a recipe small enough to run in seconds."""

from pathlib import Path

import torch

from equipoise.research.data import DataSet, Images, Reader, Shift, register_data_set
from equipoise.research.data.images import chosen
from equipoise.research.experiment.recipe import Recipe

DOMAINS = ("plain", "dark", "noisy")
CLASSES = 3
EACH = 40


def toy_images(domain: str, count: int = EACH) -> Images:
    """32-pixel grey images with a bright bar whose place is the class, in three styles."""
    generator = torch.Generator().manual_seed(DOMAINS.index(domain))
    labels = torch.arange(count) % CLASSES
    pixels = torch.rand(count, 1, 32, 32, generator=generator) * (200 if domain == "noisy" else 40)
    for row, label in enumerate(labels.tolist()):
        pixels[row, :, 4 + 9 * label : 9 + 9 * label] += 30 if domain == "dark" else 55
    return Images(pixels.to(torch.uint8), labels)


@register_data_set
class Toy(DataSet):
    """Three domains, leave one out."""

    name = "toy"
    about = "made by the tests"
    classes: tuple[str, ...] = ("top", "middle", "bottom")

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def shifts(self) -> list[Shift]:
        return [Shift(target, target, tuple(d for d in DOMAINS if d != target)) for target in DOMAINS]

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        images = toy_images(part)
        return images.select(chosen(len(images), limit))


@register_data_set
class ToyTiers(DataSet):
    """One source, two corruptions at two tiers."""

    name = "toy-tiers"
    about = "made by the tests"
    classes: tuple[str, ...] = ("top", "middle", "bottom")

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def shifts(self) -> list[Shift]:
        return [
            Shift(name, f"{name}/{tier}", ("clean",), tier) for name in ("dim", "grain") for tier in (1, 2)
        ]

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        images = toy_images("plain")
        name, _, tier = part.partition("/")
        if name == "dim":
            images = Images(images.pixels // (1 + int(tier)), images.labels)
        if name == "grain":
            images = Images((images.pixels // 2 + toy_images("noisy").pixels // 2), images.labels)
        return images.select(chosen(len(images), limit))


def toy_recipe(**changes: object) -> Recipe:
    """All methods on SmallCNN, one seed, one epoch."""
    content: dict[str, object] = {
        "about": "a toy",
        "data": "toy",
        "seeds": [0],
        "training": {"optimizer": "adam", "learning_rate": 1e-3, "epochs": 1, "batch_size": 16},
        "backbones": {"smallcnn": {"weights": "random", "t_min": 1.2, "t_max": 2.75}},
        "methods": {
            "source": {"batch_size": 16},
            "tent": {"batch_size": 16},
            "dec": {"batch_size": 16},
        },
    }
    return Recipe.model_validate({**content, **changes})
