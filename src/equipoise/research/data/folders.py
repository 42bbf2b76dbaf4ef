"""PACS and Office-Home: a folder for each domain, in it a folder for each class, in it the images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from equipoise.research.data.dataset import DataSet, Shift, find_folder, leave_one_out, register_data_set
from equipoise.research.data.images import Images
from equipoise.research.data.reader import Listing, Reader, list_classes


class DomainFolders(DataSet):
    """Leave one domain out: train on all images of the others, adapt to all images of the one left out.

    The classes are the names of the class folders of all domains, sorted. A class that a domain does not have
    is a problem of that domain, as a file that cannot be read is: refused or accepted with those.

    Attributes:
        domains: each domain with the names that its folder may have.
        side: what images are resized to, by Pillow's bilinear filter; the aspect is not kept.
        folders: names that the data set's folder may have.
    """

    domains: ClassVar[Mapping[str, tuple[str, ...]]]
    side: ClassVar[int]
    folders: ClassVar[tuple[str, ...]]

    def __init__(self, root: Path) -> None:
        self.folder = find_folder(type(self), root, self.folders, self._lacking)
        self.classes = tuple(sorted({name for domain in self.domains for name in self._class_names(domain)}))

    @property
    def shifts(self) -> Sequence[Shift]:
        """One to each domain from all others."""
        return leave_one_out({domain: (domain, domain) for domain in self.domains})

    def files(self, part: str) -> Sequence[Path]:
        """Every image of the domain."""
        return self._listing(part).files

    def parameters(self, part: str) -> Mapping[str, str | int]:
        """The size of the images."""
        return {"side": self.side}

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        """The images of a domain, class after class."""
        picked = self._listing(part).picked(limit)
        return reader.images(picked.entries, side=self.side, problems=picked.problems)

    def _listing(self, domain: str) -> Listing:
        self.check_part(domain)
        return list_classes([self._place(domain) / name for name in self.classes])

    def _class_names(self, domain: str) -> set[str]:
        names = {entry.name for entry in self._place(domain).iterdir() if entry.is_dir()}
        return {name for name in names if not name.startswith(".")}

    def _place(self, domain: str) -> Path:
        return next(self.folder / name for name in self.domains[domain] if (self.folder / name).is_dir())

    @classmethod
    def _lacking(cls, folder: Path) -> list[str]:
        return [
            " or ".join(names)
            for names in cls.domains.values()
            if not any((folder / name).is_dir() for name in names)
        ]


@register_data_set
class PACS(DomainFolders):
    """Seven classes of things as art paintings, cartoons, photos and sketches, at 227 × 227."""

    name = "pacs"
    about = """\
PACS is on the project page of "Deeper, Broader and Artier Domain Generalization" (Li et al., ICCV 2017),
https://dali-dl.github.io/project_iccv2017.html. Its folder, or a folder kfold in it, has
  {art_painting,cartoon,photo,sketch}/{dog,elephant,giraffe,guitar,horse,house,person}/<images>"""
    domains: ClassVar = {name: (name,) for name in ("art_painting", "cartoon", "photo", "sketch")}
    side = 227
    folders = ("kfold", "pacs", "pacs/kfold", "PACS", "PACS/kfold")


@register_data_set
class OfficeHome(DomainFolders):
    """Sixty-five things of office and home as art, clip art, product pictures and photos, at 128 × 128."""

    name = "office-home"
    about = """\
Office-Home (Venkateswara et al., CVPR 2017) is at https://www.hemanthdv.org/officeHomeDataset.html. Its
folder has
  {Art,Clipart,Product,"Real World"}/<65 classes>/<images>"""
    domains: ClassVar = {
        "Art": ("Art",),
        "Clipart": ("Clipart",),
        "Product": ("Product",),
        "Real World": ("Real World", "RealWorld", "Real_World"),
    }
    side = 128
    folders = ("office-home", "OfficeHome", "OfficeHomeDataset_10072016")
