"""The data sets by name, and what is said when one is not there."""

from collections.abc import Sequence
from pathlib import Path

import pytest

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
