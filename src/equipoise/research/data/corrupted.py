"""Data sets whose unseen domains come as they are and under the 15 corruptions of TinyImageNet-C."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch

from equipoise.errors import DataError
from equipoise.research.data.corruption_pool import make_corrupted, probe, seed_of
from equipoise.research.data.corruptions import CORRUPTIONS, TIERS
from equipoise.research.data.dataset import (
    DataSet,
    Origin,
    Shift,
    data_set_class,
    list_data_sets,
    register_data_set,
)
from equipoise.research.data.demo import Demo
from equipoise.research.data.digits import Digits
from equipoise.research.data.folders import PACS, OfficeHome
from equipoise.research.data.images import Images
from equipoise.research.data.reader import Reader
from equipoise.research.data.tiny_imagenet import TinyImageNetC


class Corrupted(DataSet):
    """The shifts of another data set, each as it is and under 15 corruptions, at five tiers.

    A part "<part>/<corruption>/<tier>" is the part of the other data set, corrupted and then compressed as
    JPEG of quality 85, as TinyImageNet-C is. The random numbers of an image come from its pixels, so any
    subset of images has the same corrupted ones.

    Attributes:
        clean: the other data set.
        side: of its images.
        channels: of its images.
    """

    clean: ClassVar[type[DataSet]]
    side: ClassVar[int]
    channels: ClassVar[int]

    def __init__(self, root: Path) -> None:
        self._clean = self.clean(root)
        self.classes = self._clean.classes

    @property
    def shifts(self) -> Sequence[Shift]:
        """The shifts, sixteen for each tier and target: as it is, and under each corruption."""
        return [
            Shift(shift.target, _part(shift.stream, corruption, tier), shift.sources, tier, corruption)
            for tier in TIERS
            for shift in self._clean.shifts
            for corruption in (None, *CORRUPTIONS)
        ]

    def files(self, part: str) -> Sequence[Path]:
        """The files of the part that is corrupted."""
        return self._clean.files(self._split(part)[0])

    def parameters(self, part: str) -> Mapping[str, str | int]:
        """The parameters of the part that is corrupted, and a hash of the corruption of pixels of noise."""
        clean, made = self._split(part)
        parameters = self._clean.parameters(clean)
        if made is None:
            return parameters
        return {**parameters, "probe": probe(*made, side=self.side, channels=self.channels)}

    def origin(self, part: str) -> Origin:
        """The origin: "made", unless the part comes as it is."""
        clean, made = self._split(part)
        return "made" if made else self._clean.origin(clean)

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        """The images of a part of the other data set, or of "<part>/<corruption>/<tier>"."""
        clean, made = self._split(part)
        images = self._clean.read(clean, limit, reader)
        if made is None:
            return images
        pixels = images.pixels.permute(0, 2, 3, 1).contiguous().numpy()
        corrupted = make_corrupted(pixels, *made, [seed_of(image.tobytes()) for image in pixels], reader)
        return Images(torch.from_numpy(corrupted).permute(0, 3, 1, 2).contiguous(), images.labels)

    def _split(self, part: str) -> tuple[str, tuple[str, int] | None]:
        """The part of the other data set, and corruption and tier, if it is corrupted."""
        self.check_part(part)
        if part in self._clean.parts:
            return part, None
        clean, corruption, tier = part.rsplit("/", 2)
        return clean, (corruption, int(tier))


@register_data_set
class DigitsC(Corrupted):
    """The test sets of MNIST, USPS and SVHN under corruptions."""

    name, about, clean = "digits-c", Digits.about, Digits
    side, channels = 32, 1


@register_data_set
class PACSC(Corrupted):
    """The domains of PACS under corruptions."""

    name, about, clean = "pacs-c", PACS.about, PACS
    side, channels = PACS.side, 3


@register_data_set
class OfficeHomeC(Corrupted):
    """The domains of Office-Home under corruptions."""

    name, about, clean = "office-home-c", OfficeHome.about, OfficeHome
    side, channels = OfficeHome.side, 3


@register_data_set
class DemoC(Corrupted):
    """The digits of the demo under corruptions: no download."""

    name, about, clean = "demo-c", Demo.about, Demo
    side, channels = 32, 1


def corrupted_version(name: str) -> str:
    """The name of the data set that has the corrupted streams of a data set; its own if it has them."""
    asked = data_set_class(name)
    if issubclass(asked, (Corrupted, TinyImageNetC)):
        return name
    versions = [kind for kind in map(data_set_class, list_data_sets()) if issubclass(kind, Corrupted)]
    found = next((kind.name for kind in versions if kind.clean is asked), None)
    if found is None:
        there = ", ".join(kind.clean.name for kind in versions)
        raise DataError(f"the data set {name!r} has no corrupted streams; there are those of {there}")
    return found


def _part(clean: str, corruption: str | None, tier: int) -> str:
    return f"{clean}/{corruption}/{tier}" if corruption else clean
