from pathlib import Path

import pytest

from equipoise.files import whole_file


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "results.json"
    with whole_file(target) as partial:
        partial.write_text("old")
    assert target.read_text() == "old"
    with pytest.raises(KeyboardInterrupt), whole_file(target) as partial:
        partial.write_text("ne")
        raise KeyboardInterrupt
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
