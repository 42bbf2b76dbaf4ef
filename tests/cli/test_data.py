"""The output of `equipoise data`."""

from pathlib import Path

from equipoise.cli.data import describe_data_sets

from ..bench.toy import ToyTiers


def test_each_target_is_named_once_and_what_is_missing_is_told(tmp_path: Path) -> None:
    told = list(describe_data_sets(tmp_path))
    assert f"{ToyTiers.name}: here, 3 classes, targets dim, grain\n" in told
    (pacs,) = [text for text in told if text.startswith("pacs: ")]
    assert pacs.startswith("pacs: not here. the data set 'pacs' is not in ")
    assert f"{tmp_path} lacks art_painting" in pacs
