"""The model and the images of `equipoise doctor`, `equipoise rehearse` and `equipoise recommend`."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from equipoise.errors import DataError, ModelError, OptionError
from equipoise.network.forward import checked_logits
from equipoise.network.modules import device_of
from equipoise.production.server.model_factory import Transform, load_factory
from equipoise.research.data.reader import list_classes, opened, resized

_READ_AT_ONCE = 64
_MOST_SHOWN, _FIRST_SHOWN = 20, 12  # classes


def model_and_images(
    factory: str, data: Path, size: int | None, device: str | None
) -> tuple[nn.Module, "ImageFolder"]:
    """The model of a factory on its device, and the images of a folder as it takes them."""
    model, transform = model_alone(factory, device)
    if transform is not None and size is not None:
        raise OptionError(f"{factory} has a transform of its own, which decides the size: leave out --size")
    images = ImageFolder(data, transform or unit_floats(size), batch_size=_READ_AT_ONCE)
    _check_classes(model, images)
    return model, images


def model_alone(factory: str, device: str | None) -> tuple[nn.Module, Transform | None]:
    """The model of a factory on its device, in eval mode, and the transform that came with it."""
    model, transform = load_factory(factory)
    return model.to(_device(device)).eval(), transform


def command_line(command: str, *words: object, **options: object) -> str:
    """A command of equipoise to copy into a shell, with the options that are not None, quoted."""
    given = {f"--{name.replace('_', '-')}": value for name, value in options.items() if value is not None}
    return shlex.join(map(str, ["equipoise", command, *words, *chain.from_iterable(given.items())]))


def class_lines(classes: Sequence[str]) -> list[str]:
    """The class of each folder: all, or of many the first few and the last."""
    lines = [f"    class {place}: {name}" for place, name in enumerate(classes)]
    if len(lines) > _MOST_SHOWN:
        lines = [*lines[:_FIRST_SHOWN], "    …", lines[-1]]
    return [f"the {len(classes)} folders are taken for these classes of the model:", *lines]


def unit_floats(size: int | None) -> Transform:
    """Images as floats from 0 to 1, (3, height, width), as they are or as squares."""

    def transform(image: Image.Image) -> Tensor:
        shown = image if size is None else resized(image, size)
        return torch.from_numpy(np.array(shown)).permute(2, 0, 1).float() / 255

    return transform


class ImageFolder:
    """The images of a folder of class folders in batches (inputs, labels), read again each time.

    Args:
        root: a folder with a folder for each class; sorted by name, the k-th is class k. Names that are all
            numbers are sorted as numbers: 2 before 10.
        transform: an image, in RGB, to a tensor.
        batch_size: images read at once.

    Attributes:
        classes: the names of the folders.
    """

    def __init__(self, root: Path, transform: Transform, batch_size: int) -> None:
        if not root.is_dir():
            raise DataError(f"{root}: expected a folder with a folder of images for each class, got none")
        folders = in_order(entry for entry in root.iterdir() if entry.is_dir() and entry.name[0] != ".")
        listing = list_classes(folders)
        if listing.problems or not folders:
            problems = "; ".join(map(str, listing.problems)) or "it has no folders"
            raise DataError(f"{root}: expected a folder of images for each class: {problems}")
        self.classes = tuple(folder.name for folder in folders)
        self._entries, self._transform, self._batch_size = listing.entries, transform, batch_size
        self._first: tuple[Path, tuple[int, ...]] | None = None

    def __len__(self) -> int:
        """The number of batches; since it is known, a rehearsal samples all classes, not the first alone."""
        return -(-len(self._entries) // self._batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self._entries), self._batch_size):
            part = self._entries[start : start + self._batch_size]
            inputs = torch.stack([self._read(path) for path, _ in part])
            yield inputs, torch.tensor([label for _, label in part])

    def _read(self, path: Path) -> Tensor:
        image = opened(path, "RGB")
        try:
            found: Any = self._transform(image)
        except Exception as error:  # the function may be the user's: it may raise anything
            raise DataError(f"{path}: the transform failed: {type(error).__name__}: {error}") from error
        if not isinstance(found, Tensor):
            raise DataError(f"expected the transform to return a tensor, got {type(found).__name__}")
        shape = tuple(found.shape)
        if self._first is None:
            self._first = (path, shape)
        if shape != self._first[1]:
            raise DataError(
                f"expected images of one size, got {_describe_shape(self._first[1])} ({self._first[0]}) and "
                f"{_describe_shape(shape)} ({path}): --size SIDE makes squares of all, or let the factory "
                "return a transform as well"
            )
        return found


def in_order(folders: Iterable[Path]) -> list[Path]:
    """Folders sorted by name; as numbers if all names are numbers."""
    by_name = sorted(folders)
    if all(folder.name.isascii() and folder.name.isdigit() for folder in by_name):
        return sorted(by_name, key=lambda folder: int(folder.name))
    return by_name


def _describe_shape(shape: tuple[int, ...]) -> str:
    return f"{shape[2]}x{shape[1]}" if len(shape) == 3 else f"shape {shape}"


def _check_classes(model: nn.Module, images: ImageFolder) -> None:
    """Refuse a model with another number of classes than there are folders, before the long work."""
    inputs = next(iter(images))[0][:2]
    try:
        with torch.no_grad():
            output = model(inputs.to(device_of(model)))
    except Exception as error:  # the model is the user's: it may raise anything
        raise ModelError(
            f"the model cannot take images of shape {tuple(inputs.shape[1:])}: {type(error).__name__}: "
            f"{error}; where it takes others, such as grey ones, let the factory return a transform of PIL "
            "images as well: return model, transform"
        ) from error
    classes = checked_logits(output, len(inputs)).shape[1]
    if classes != len(images.classes):
        raise DataError(
            f"expected a folder for each of the model's {classes} classes, got {len(images.classes)} "
            f"({', '.join(images.classes[:5])}{', …' if len(images.classes) > 5 else ''})"
        )


def _device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"no device {name!r} here: {str(error).splitlines()[0]}") from error
    return device
