import errno
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stat import S_IMODE

import pytest
import torch
from safetensors.torch import save, save_file

from equipoise.errors import StateError
from equipoise.files import read_tensors, whole_file, write_tensors

TENSORS = {
    "weights": torch.arange(6.0).reshape(2, 3).t(),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "count": torch.tensor(3),
    "none": torch.zeros(0, 4),
}


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


def test_a_file_system_without_permissions_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "chmod", refused)
    for _ in range(2):
        assert written(tmp_path).is_file()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "tensors"
    target.touch()
    target.chmod(mode)
    with whole_file(target) as partial:
        assert S_IMODE(partial.stat().st_mode) == mode | 0o600  # nobody else reads it half written, either
        partial.write_text("new")
    assert target.read_text() == "new" and S_IMODE(target.stat().st_mode) == mode
    write_tensors(target, "kind", 1, TENSORS, {})
    assert S_IMODE(target.stat().st_mode) == mode


def test_threads_and_nested_blocks_may_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"

    def write(number: int) -> None:
        write_tensors(path, "kind", 1, {"number": torch.full((500,), number)}, {})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(80)))  # raises what a thread has raised
    assert read_tensors(path, "kind", 1)[0]["number"].unique().numel() == 1
    with whole_file(path) as outer, whole_file(path) as inner:
        assert outer != inner
        for partial in (outer, inner):
            partial.write_text("text")
            assert partial in tmp_path.glob(".*.partial")  # the files that a sweep removes after a crash
    assert list(tmp_path.iterdir()) == [path]


def written(folder: Path) -> Path:
    path = folder / "some.safetensors"
    write_tensors(path, "kind", 1, TENSORS, {"about": "éé"})
    return path


def test_tensors_of_any_kind_come_back(tmp_path: Path) -> None:
    tensors, text = read_tensors(written(tmp_path), "kind", 1)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
    assert text["about"] == "éé"


def test_no_flipped_bit_is_read_unnoticed(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    noticed = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        try:
            tensors, text = read_tensors(path, "kind", 1)
        except StateError:
            noticed += 1
        else:  # spaces that fill up the header, say
            assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
            assert text["about"] == "éé"
    assert noticed > len(whole) - 16


def test_a_flipped_bit_in_tensors_or_text_is_called_damage(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for at in (len(whole) - 1, whole.index("éé".encode()) + 1, whole.index(b'"kind"') + 9):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StateError, match=r"some\.safetensors: damaged.*checksum.*use a copy"):
            read_tensors(path, "kind", 1)


def test_a_file_without_a_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    path.write_bytes(save({"one": torch.ones(1)}, {"kind": "kind", "version": "1"}))
    with pytest.raises(StateError, match=r"no checksum.*make it again"):
        read_tensors(path, "kind", 1)


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "releases").mkdir()
    target, link = tmp_path / "releases" / "today", tmp_path / "current"
    link.symlink_to(Path("releases") / "today")
    for text in ("first", "second"):  # a link to nothing, and to a file
        with whole_file(link) as partial:
            partial.write_text(text)
        assert link.is_symlink() and target.read_text() == text and not target.is_symlink()
    assert list((tmp_path / "releases").iterdir()) == [target]
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="loop"), whole_file(loop) as partial:
        partial.write_text("text")
    assert loop.is_symlink()


def test_devices_pipes_sockets_and_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    os.mkfifo("pipe")
    Path("folder").mkdir()
    # A terminal and not /dev/null: no file can take its place, should whole_file be broken and the user root.
    ends = os.openpty()
    device = os.ttyname(ends[1])
    Path("link").symlink_to(device)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for name, kind in {
            device: "a device",
            "link": "a device",
            "pipe": "a pipe",
            "folder": "a folder",
            "socket": "a socket",
        }.items():
            with pytest.raises(OSError, match=f"{name}: expected a file to write, got {kind}"):
                write_tensors(name, "kind", 1, TENSORS, {})
    assert Path(device).is_char_device() and Path("pipe").is_fifo() and Path("link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe", "socket"]
    for end in ends:
        os.close(end)


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    old = path.read_bytes()

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"some\.safetensors: not written.*No space left") as raised:
        write_tensors(path, "kind", 1, {}, {})
    assert raised.value.errno == errno.ENOSPC
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("absent", "file"):
        with pytest.raises(FileNotFoundError, match=f"there is no folder .*{folder} to write to"):
            write_tensors(tmp_path / folder / "some", "kind", 1, {}, {})
