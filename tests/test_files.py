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


def test_the_last_act_is_a_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "results.json"
    target.write_text("old")

    def interrupted(self: Path, to: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), whole_file(target) as partial:
        partial.write_text("new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
