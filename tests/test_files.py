from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

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


def test_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    target = tmp_path / "tensors"
    with whole_file(target) as partial:
        save_file({"one": torch.ones(1)}, partial)  # creates files that only their owner can read
    assert target.stat().st_mode == ordinary.stat().st_mode
