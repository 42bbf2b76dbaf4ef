"""The data sets by name, and what is said when one is not there."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from equipoise.errors import DataError
from equipoise.research.data import (
    DataSet,
    Images,
    Reader,
    Shift,
    data_set_class,
    list_data_sets,
    open_data_set,
    register_data_set,
)
from tests.research.data.miniatures import OFFICE_DOMAINS, digits_npz, domain_folders, tiny_imagenet


def test_the_built_in_data_sets_are_there() -> None:
    assert set(list_data_sets()) >= {"demo", "digits", "office-home", "pacs", "tiny-imagenet-c"}
    assert list_data_sets() == sorted(list_data_sets())
    with pytest.raises(DataError, match="no data set 'pacss'; there are demo, demo-c, digits, "):
        open_data_set("pacss", Path())


def test_a_name_is_taken_once() -> None:
    class Other(DataSet):
        name = "pacs"

        def __init__(self, root: Path) -> None: ...

        @property
        def shifts(self) -> Sequence[Shift]:
            return []

        def read(self, part: str, limit: int | None, reader: Reader) -> Images:
            raise NotImplementedError

    with pytest.raises(ValueError, match="the name 'pacs' is taken by PACS"):
        register_data_set(Other)
    assert data_set_class("pacs") is not Other
    assert register_data_set(data_set_class("pacs")) is data_set_class("pacs")


@pytest.mark.parametrize(
    ("name", "lacks", "where", "layout"),
    [
        ("digits", "mnist/train, mnist/test, usps/train", "ufldl.stanford.edu/housenumbers", "x_train"),
        ("pacs", "art_painting, cartoon, photo, sketch", "dali-dl.github.io", "<images>"),
        ("office-home", "Art, Clipart, Product, Real World or RealWorld", "hemanthdv.org", "<images>"),
        ("tiny-imagenet-c", "wnids.txt, train, val", "cs231n.stanford.edu", "train/<wnid>/images"),
    ],
)
def test_missing_data_are_told_with_place_and_layout(
    tmp_path: Path, name: str, lacks: str, where: str, layout: str
) -> None:
    with pytest.raises(DataError) as refused:
        open_data_set(name, tmp_path)
    text = str(refused.value)
    assert text.startswith(f"the data set {name!r} is not in {tmp_path}, nor in a folder ")
    assert f"{tmp_path} lacks {lacks}" in text
    assert where in text
    assert layout in text
    nowhere = tmp_path / "nowhere"
    with pytest.raises(DataError, match=f"there is no folder {nowhere}"):
        open_data_set(name, nowhere)


def written(name: str, root: Path) -> DataSet:
    """A data set in miniature."""
    if name.startswith("digits"):
        digits_npz(root)
    elif name == "office-home":
        domain_folders(root, OFFICE_DOMAINS, ("Class_0", "Class_1", "Class_2", "Class_3", "Class_4"), each=4)
    elif name == "tiny-imagenet-c":
        tiny_imagenet(root, annotated=False)
    return open_data_set(name, root)


@pytest.mark.parametrize(
    ("name", "part", "limit"),
    [
        ("digits", "mnist/train", 7),
        ("office-home", "Art", 6),
        ("tiny-imagenet-c", "gaussian_noise/3", 4),
        ("digits-c", "svhn/test/gaussian_noise/5", 5),
    ],
)
def test_a_limit_is_always_the_same_subset_with_the_same_pixels(
    tmp_path: Path, name: str, part: str, limit: int
) -> None:
    data = written(name, tmp_path)
    whole, few = data.read(part, None, Reader()), data.read(part, limit, Reader())
    found = [(whole.pixels == image).flatten(1).all(1).nonzero().flatten().tolist() for image in few.pixels]
    assert all(len(rows) == 1 for rows in found)
    rows = [row for (row,) in found]
    assert len(few) == len(rows) == limit
    assert rows == sorted(set(rows)) != list(range(limit))
    assert few.labels.tolist() == whole.labels[rows].tolist()
    assert torch.equal(few.pixels, data.read(part, limit, Reader()).pixels)


@pytest.mark.parametrize(
    ("name", "parts", "there"),
    [
        ("demo", ["usps"], "mnist, rendered, optical"),
        ("digits", ["mnist"], "usps/train, "),
        ("digits-c", ["mnist/test/fog/6", "mnist/train/fog/1", "mnist/test/mist/1", "mnist"], "usps/train, "),
        ("tiny-imagenet-c", ["fog", "fog/6", "val", "mist/1"], "train, gaussian_noise/1, "),
    ],
)
def test_unknown_parts_are_refused(tmp_path: Path, name: str, parts: list[str], there: str) -> None:
    data = written(name, tmp_path)
    for part in parts:
        with pytest.raises(DataError, match=f"{name} has no part {part!r}; there are {there}"):
            data.read(part, None, Reader())
