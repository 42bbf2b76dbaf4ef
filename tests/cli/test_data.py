"""The output of `equipoise data`."""

from pathlib import Path

import pytest

from equipoise.cli.data import describe_data_sets
from equipoise.errors import DataError
from equipoise.research.data.dataset import data_set_class

from ..research.experiment.toy import ToyTiers


def test_each_target_is_named_once_and_what_is_missing_is_told(tmp_path: Path) -> None:
    told = list(describe_data_sets(tmp_path))
    assert f"{ToyTiers.name}: here, 3 classes, targets dim, grain\n" in told
    (pacs,) = [text for text in told if text.startswith("pacs: ")]
    assert pacs.startswith("pacs: not here. the data set 'pacs' is not in ")
    assert f"{tmp_path} lacks art_painting" in pacs


def test_one_data_set_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (told,) = describe_data_sets("pacs")
    assert told == f"pacs\n{data_set_class('pacs').about}\n"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pacs").mkdir()
    assert list(describe_data_sets("pacs")) == [told]
    assert any(text.startswith("pacs: not here.") for text in describe_data_sets("./pacs"))


def test_neither_a_name_nor_a_folder() -> None:
    with pytest.raises(DataError, match=r"pcas: expected a folder, or the name of a data set: .*pacs"):
        list(describe_data_sets("pcas"))
