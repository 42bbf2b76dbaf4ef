"""TinyImageNet-C: 200 classes at 64 × 64, clean for training and in 15 corruptions of 5 tiers for streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from equipoise.errors import DataError
from equipoise.research.data.corruption_pool import make_corrupted, probe, seed_of
from equipoise.research.data.corruptions import CORRUPTIONS, TIERS
from equipoise.research.data.corruptions.arrays import Pixels
from equipoise.research.data.dataset import DataSet, Origin, Shift, find_folder, register_data_set
from equipoise.research.data.images import Images
from equipoise.research.data.reader import Listing, Problem, Reader, image_files, list_classes

_SIDE = 64

_TRAIN = "train"
_OFFICIAL = ("Tiny-ImageNet-C", "tiny-imagenet-c", "TinyImageNet-C")


@dataclass(frozen=True)
class _Validation:
    """Validation images to corrupt, and the problems found when `limit` of them were read."""

    limit: int | None
    pixels: Pixels
    labels: Tensor
    seeds: Sequence[int]
    problems: Sequence[Problem]


@register_data_set
class TinyImageNetC(DataSet):
    """Train on the training images, adapt to the corrupted validation images, one stream for each tier.

    If the official TinyImageNet-C lies beside the folder of Tiny ImageNet, its files are read. Otherwise they
    are made from the validation images by `data.corruptions` and compressed as JPEG of quality 85,
    as the official ones were saved; `origin` says which. The random numbers of an image come from the name of
    its file without the extension, so any subset of images has the same pixels.

    `classes` are in the order of wnids.txt; folders that it does not name are not read. Images are in the
    order of the classes and, in a class, of their files' names.
    """

    name = "tiny-imagenet-c"
    about = """\
Tiny ImageNet is http://cs231n.stanford.edu/tiny-imagenet-200.zip. Its folder, tiny-imagenet-200, has
  wnids.txt, train/<wnid>/images/<images>, and either val/images/<images> with val/val_annotations.txt
  or val/<wnid>/images/<images>
The corrupted images are made from those in val ("made"), unless a folder Tiny-ImageNet-C beside it has the
official ones ("official", https://zenodo.org/records/2536630): <corruption>/<tier>/<wnid>/<images>"""

    def __init__(self, root: Path) -> None:
        self.folder = find_folder(type(self), root, ("tiny-imagenet-200",), _lacking)
        self.classes = tuple((self.folder / "wnids.txt").read_text(encoding="utf-8").split())
        beside = self.folder.absolute().parent
        there = (beside / name for name in _OFFICIAL if (beside / name).is_dir())
        self._official = next(there, None)
        self._annotations = self.folder / "val" / "val_annotations.txt"
        self._held: _Validation | None = None

    @property
    def shifts(self) -> Sequence[Shift]:
        """Seventy-five: fifteen corruptions in five tiers, all from the training images."""
        return [
            Shift(corruption, f"{corruption}/{tier}", (_TRAIN,), tier)
            for corruption in CORRUPTIONS
            for tier in TIERS
        ]

    def origin(self, part: str) -> Origin:
        """Whether a part is read from official files or made."""
        self.check_part(part)
        return "official" if part == _TRAIN or self._official else "made"

    def files(self, part: str) -> Sequence[Path]:
        """The images of the part, or what it is made from: those of val, and the file with their labels."""
        files = self._listing(part).files
        return [self._annotations, *files] if self.origin(part) == "made" else files

    def parameters(self, part: str) -> Mapping[str, str | int]:
        """For a part that is made, a hash of what the corruption does to some pixels of noise."""
        return {"probe": probe(*_kind(part), side=_SIDE)} if self.origin(part) == "made" else {}

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        """The images of "train" or of "<corruption>/<tier>"."""
        if self.origin(part) == "official":
            picked = self._listing(part).picked(limit)
            return reader.images(picked.entries, side=_SIDE, problems=picked.problems)
        clean = self._clean(limit, reader)
        made = make_corrupted(clean.pixels, *_kind(part), clean.seeds, reader)
        return Images(torch.from_numpy(made).permute(0, 3, 1, 2).contiguous(), clean.labels)

    def _clean(self, limit: int | None, reader: Reader) -> _Validation:
        """The validation images, kept: 75 parts are made from them."""
        if self._held is None or self._held.limit != limit:
            picked = self._validation.picked(limit)
            own = reader.again()
            try:
                # Places instead of labels: they identify the files that are left.
                places = [(path, place) for place, path in enumerate(picked.files)]
                images = own.images(places, side=_SIDE, problems=picked.problems)
            finally:
                reader.note(own.problems)
            left = [picked.entries[place] for place in images.labels.tolist()]
            self._held = _Validation(
                limit,
                images.pixels.permute(0, 2, 3, 1).contiguous().numpy(),
                torch.tensor([label for _, label in left]),
                [seed_of(path.stem) for path, _ in left],
                own.problems,
            )
        reader.account(self._held.problems, len(self._held.labels) + len(self._held.problems))
        return self._held

    def _listing(self, part: str) -> Listing:
        self.check_part(part)
        if part == _TRAIN:
            return list_classes([self.folder / _TRAIN / wnid / "images" for wnid in self.classes])
        return self._validation if self._official is None else self._published(self._official, part)

    @cached_property
    def _validation(self) -> Listing:
        folder = self._annotations.parent
        if not self._annotations.is_file():
            return list_classes([folder / wnid / "images" for wnid in self.classes])
        labels = {wnid: label for label, wnid in enumerate(self.classes)}
        entries = []
        for number, line in enumerate(self._annotations.read_text(encoding="utf-8").splitlines(), 1):
            name, wnid = [*line.split("\t"), "", ""][:2]
            if wnid not in labels:
                raise DataError(
                    f"{self._annotations}, line {number}: expected a file name, a tab and a class, "
                    f"got {line[:80]!r}"
                )
            entries.append((folder / "images" / name, labels[wnid]))
        return Listing(sorted(entries, key=lambda entry: (entry[1], entry[0].name)))

    def _published(self, official: Path, part: str) -> Listing:
        """The files of a tier of the official data set: those that any tier of the corruption has."""
        corruption, tier = _kind(part)
        folder = official / corruption
        if not (folder / str(tier)).is_dir():
            raise DataError(
                f"{folder / str(tier)}: no such folder; expected {len(CORRUPTIONS)} corruptions with tiers "
                f"{TIERS[0]} to {TIERS[-1]} in {official}: complete it, or move it away to have the "
                "images made"
            )
        entries, problems = [], []
        for label, wnid in enumerate(self.classes):
            tiers = [folder / str(other) / wnid for other in TIERS]
            names = {path.name for there in tiers for path in image_files(there)}
            entries += [(folder / str(tier) / wnid / name, label) for name in sorted(names)]
            if not names:
                problems.append(Problem(folder / str(tier) / wnid, "no images of this class"))
        return Listing(entries, problems)


def _lacking(folder: Path) -> list[str]:
    return [name for name in ("wnids.txt", "train", "val") if not (folder / name).exists()]


def _kind(part: str) -> tuple[str, int]:
    corruption, _, tier = part.partition("/")
    return corruption, int(tier)
