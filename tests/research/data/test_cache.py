import os
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from equipoise.errors import DataError
from equipoise.research.data import (
    Cache,
    DataSet,
    Images,
    Reader,
    Shift,
    Stored,
    data_set_class,
    open_data_set,
    read_stored,
)
from tests.research.data.miniatures import (
    PACS_CLASSES,
    PACS_DOMAINS,
    digits_npz,
    domain_folders,
    tiny_imagenet,
    tiny_imagenet_c,
    write_picture,
)


class Counted:
    """Says how often a part was really read."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        read = data_set_class(name).read

        def counting(data: DataSet, part: str, limit: int | None, reader: Reader) -> Images:
            self.times += 1
            return read(data, part, limit, reader)

        monkeypatch.setattr(data_set_class(name), "read", counting)


@pytest.fixture
def pacs(tmp_path: Path) -> Path:
    return domain_folders(tmp_path / "pacs", PACS_DOMAINS, PACS_CLASSES[:2], each=2)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted("pacs", monkeypatch)


def store(
    tmp_path: Path, *, part: str = "photo", limit: int | None = None, reader: Reader | None = None
) -> Stored:
    """As a process of its own would: with new objects."""
    data = open_data_set("pacs", tmp_path)
    return Cache(tmp_path / "cache" / "images").store(data, part, limit, reader or Reader())


def test_what_is_stored_is_what_was_read(tmp_path: Path, pacs: Path) -> None:
    stored = store(tmp_path)
    images = open_data_set("pacs", pacs).read("photo", None, Reader())
    again = read_stored(stored.path)
    assert torch.equal(again.pixels, images.pixels)
    assert torch.equal(again.labels, images.labels)
    assert stored.digest == images.digest() == again.digest()
    assert (stored.images, stored.problems) == (4, ())
    assert stored.path.name.startswith("pacs-photo-")
    with safe_open(stored.path, framework="pt", device="cpu") as opened:
        header = opened.metadata()
    counted = {"digest": stored.digest, "images": "4", "problems": "[]"}
    assert header == {"kind": "equipoise images", "version": "1", **counted}


def test_the_second_time_nothing_is_read(tmp_path: Path, pacs: Path, reads: Counted) -> None:
    first = store(tmp_path)
    before = first.path.stat().st_mtime_ns
    assert store(tmp_path) == first
    assert reads.times == 1
    assert first.path.stat().st_mtime_ns == before
    assert [path.name for path in first.path.parent.iterdir()] == [first.path.name]


def test_another_part_limit_or_place_is_another_file(tmp_path: Path, pacs: Path, reads: Counted) -> None:
    found = [
        store(tmp_path),
        store(tmp_path, part="sketch"),
        store(tmp_path, limit=3),
        store(tmp_path, limit=2),
    ]
    assert len({stored.path for stored in found}) == reads.times == 4
    assert [stored.images for stored in found] == [4, 4, 3, 2]
    # The same files in another place are the same data.
    (tmp_path / "moved").mkdir()
    pacs.rename(tmp_path / "moved" / "PACS")
    data = open_data_set("pacs", tmp_path / "moved")
    assert Cache(tmp_path / "cache" / "images").store(data, "photo", None, Reader()) == found[0]
    assert reads.times == 4


def test_files_that_change_come_or_go_are_noticed(tmp_path: Path, pacs: Path, reads: Counted) -> None:
    first = store(tmp_path)
    path = pacs / "photo" / "dog" / "pic_0.png"
    before = path.stat()

    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    touched = store(tmp_path)
    assert touched.path != first.path
    assert touched.digest == first.digest
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store(tmp_path) == first
    assert reads.times == 2

    path.write_bytes(path.read_bytes() + b"\0")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store(tmp_path).path != first.path
    assert reads.times == 3

    path.rename(path.with_name("pic_00.png"))  # in the same place of the order, but names can be seeds
    assert store(tmp_path).digest == first.digest
    path.with_name("pic_00.png").unlink()
    assert store(tmp_path).images == 3
    assert reads.times == 5
    # What other parts are made of does not matter, unless it changes the labels.
    last = store(tmp_path)
    write_picture(pacs / "sketch" / "dog" / "new.png", 0)
    assert store(tmp_path) == last
    assert reads.times == 5
    write_picture(pacs / "sketch" / "ant" / "new.png", 0)
    labels = read_stored(store(tmp_path, reader=Reader(bad_files="skip")).path).labels
    assert labels.tolist() == [1, 2, 2]
    assert reads.times == 6


def test_another_size_is_another_file(tmp_path: Path, pacs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store(tmp_path)
    monkeypatch.setattr(data_set_class("pacs"), "side", 20)
    assert read_stored(store(tmp_path).path).pixels.shape == (4, 3, 20, 20)
    assert read_stored(first.path).pixels.shape == (4, 3, 227, 227)


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "other kind", "no header", "a flipped bit"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, pacs: Path, reads: Counted, damage: str) -> None:
    stored = store(tmp_path)
    content = stored.path.read_bytes()
    harm = {
        "truncated": content[:-100],
        "empty": b"",
        "text": b"404 not found",
        "other kind": content.replace(b"equipoise images", b"something, else."),
        "no header": content.replace(b'"digest"', b'"dogest"'),
        "a flipped bit": content[:-50] + bytes([content[-50] ^ 4]) + content[-49:],
    }
    stored.path.write_bytes(harm[damage])
    if damage in ("truncated", "empty", "text"):
        with pytest.raises(DataError, match="stored images that cannot be read"):
            read_stored(stored.path)
    assert store(tmp_path) == stored
    assert reads.times == 2
    assert read_stored(stored.path).digest() == stored.digest


def test_problems_are_remembered(tmp_path: Path, pacs: Path, reads: Counted) -> None:
    (pacs / "photo" / "dog" / "pic_1.png").write_text("damaged")
    reader = Reader()
    with pytest.raises(DataError, match="1 of 4 files cannot be read"):
        store(tmp_path, reader=reader)
    assert len(reader.problems) == 1
    assert not (tmp_path / "cache").exists()

    first, second = Reader(bad_files="skip"), Reader(bad_files="skip")
    stored = store(tmp_path, reader=first)
    assert stored.images == 3
    assert stored.problems == (f"{pacs}/photo/dog/pic_1.png: not an image",)
    assert store(tmp_path, reader=second) == stored
    assert reads.times == 2
    assert first.problems == second.problems != []
    # What was left out once is refused where it is to be refused, without reading again.
    with pytest.raises(DataError, match=r"1 of 4 files cannot be read:\n.*pic_1.png: not an image\n.*--skip"):
        store(tmp_path, reader=Reader())
    assert reads.times == 2
    # Each part has problems of its own.
    (pacs / "sketch" / "dog" / "pic_1.png").write_text("damaged")
    found = [store(tmp_path, part=part, reader=second) for part in ("photo", "sketch", "cartoon")]
    assert [len(stored.problems) for stored in found] == [1, 1, 0]
    assert "sketch" in found[1].problems[0]
    assert len(second.problems) == 2


def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, pacs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("equipoise.research.data.cache.save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store(tmp_path)
    assert list((tmp_path / "cache" / "images").iterdir()) == []


def test_stored_images_are_mapped_and_not_read(tmp_path: Path) -> None:
    pages = resource.getpagesize()

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * pages

    class Large(DataSet):
        name = "large"
        classes = ("a",)

        def __init__(self, root: Path) -> None: ...

        @property
        def shifts(self) -> Sequence[Shift]:
            return []

        def read(self, part: str, limit: int | None, reader: Reader) -> Images:
            return Images(
                torch.ones(1000, 3, 200, 200, dtype=torch.uint8), torch.zeros(1000, dtype=torch.int64)
            )

    stored = Cache(tmp_path).store(Large(tmp_path), "all", None, Reader())
    assert stored.path.stat().st_size > 120_000_000
    before = resident()
    images = read_stored(stored.path)
    assert int(images.pixels[500].sum()) == 120_000
    assert resident() - before < 20_000_000
    images.pixels[0] = 7  # in memory only
    assert int(read_stored(stored.path).pixels[0].max()) == 1
    assert int(images.pixels[0].max()) == 7


def test_digits_and_the_demo_are_read_again_when_their_file_or_version_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits_npz(tmp_path)
    cache = Cache(tmp_path / "cache")

    def path(name: str, part: str, limit: int | None = None) -> Path:
        return cache.store(open_data_set(name, tmp_path), part, limit, Reader()).path

    reads = Counted("digits", monkeypatch)
    first = path("digits", "mnist/test")
    assert first == path("digits", "mnist/test")
    assert first != path("digits", "mnist/train")
    assert reads.times == 2
    os.utime(tmp_path / "mnist.npz", ns=(0, 0))
    assert first != path("digits", "mnist/test")
    assert reads.times == 3
    reads = Counted("demo", monkeypatch)
    first = path("demo", "optical", 20)
    assert first == path("demo", "optical", 20)
    assert reads.times == 1
    monkeypatch.setattr("equipoise.research.data.demo._VERSION", 2)
    assert first != path("demo", "optical", 20)
    assert reads.times == 2


def test_made_images_depend_on_val_its_labels_and_the_maker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_imagenet(tmp_path)
    reads, cache = Counted("tiny-imagenet-c", monkeypatch), Cache(tmp_path / "cache")

    def path() -> Path:
        return cache.store(open_data_set("tiny-imagenet-c", tmp_path), "snow/2", None, Reader()).path

    first = path()
    assert path() == first
    assert reads.times == 1
    found = {first}
    os.utime(folder / "val" / "images" / "val_3.png", ns=(0, 0))
    found.add(path())
    os.utime(folder / "val" / "val_annotations.txt", ns=(0, 0))
    found.add(path())
    monkeypatch.setattr("equipoise.research.data.corruption_pool._QUALITY", 84)
    found.add(path())
    tiny_imagenet_c(tmp_path)
    found.add(path())
    assert len(found) == reads.times == 5


def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path: Path, pacs: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # no file may become larger
    try:
        with pytest.raises(DataError, match=r"1 MB of images could not be stored \(.*is the disk full\?"):
            store(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "cache" / "images").iterdir()) == []
    assert store(tmp_path).images == 4
