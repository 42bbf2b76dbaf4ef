import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.errors import DataError, OptionError
from equipoise.research.data import Problem, Reader
from equipoise.research.data.reader import image_files
from tests.research.data.miniatures import picture, write_picture


def bad_files(folder: Path) -> dict[Path, str]:
    """One file of each kind that cannot be read, with what is to be said of it."""
    folder.mkdir(exist_ok=True)
    whole = folder / "whole.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(whole)
    content = whole.read_bytes()
    whole.unlink()
    (folder / "truncated.jpg").write_bytes(content[: len(content) // 2])
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("404 not found")
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(folder / "deep.png")
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(folder / "float.tif")
    (folder / "folder.png").mkdir()
    write_picture(folder / "checksum.png", 0)
    content = (folder / "checksum.png").read_bytes()
    place = content.index(b"IDAT") + 6
    (folder / "checksum.png").write_bytes(content[:place] + b"\xff\xff" + content[place + 2 :])
    return {
        folder / "missing.jpg": "missing",
        folder / "truncated.jpg": "damaged: ",
        folder / "empty.jpg": "empty",
        folder / "text.jpg": "not an image",
        folder / "deep.png": "unreadable: pixels of mode 'I;16', expected 8 bits",
        folder / "float.tif": "unreadable: pixels of mode 'F', expected 8 bits",
        folder / "folder.png": "Is a directory",
        folder / "checksum.png": "",
    }


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[list[tuple[Path, int]], dict[Path, str]]:
    """Bad files between good ones, with labels that tell their places."""
    bad = bad_files(tmp_path / "bad")
    good = [write_picture(tmp_path / f"good_{seed}.png", seed) for seed in range(3)]
    paths = [good[0], *list(bad)[:4], good[1], *list(bad)[4:], good[2]]
    return [(path, place) for place, path in enumerate(paths)], bad


@pytest.mark.parametrize("workers", [1, 3])
def test_bad_files_are_all_named_and_refused(
    mixed: tuple[list[tuple[Path, int]], dict[Path, str]], workers: int
) -> None:
    entries, bad = mixed
    reader = Reader(workers=workers)
    with pytest.raises(DataError) as refused:
        reader.images(entries, side=12)
    text = str(refused.value)
    assert text.startswith("8 of 11 files cannot be read:\n")
    for path, why in bad.items():
        assert f"\n  {path}: {why}" in text
    assert "--skip-bad-files" in text
    assert [problem.path for problem in reader.problems] == list(bad)


def test_bad_files_are_left_out_if_asked(mixed: tuple[list[tuple[Path, int]], dict[Path, str]]) -> None:
    entries, bad = mixed
    reader = Reader(workers=2, bad_files="skip")
    images = reader.images(entries, side=12)
    assert images.labels.tolist() == [0, 5, 10]
    for seed, pixels in enumerate(images.pixels):
        assert np.array_equal(pixels.permute(1, 2, 0).numpy(), np.asarray(picture(seed)))
    assert [problem.path for problem in reader.problems] == list(bad)
    reader.images(entries, side=12)
    assert len(reader.problems) == len(bad)  # each once
    with pytest.raises(DataError, match=r"1 of 1 files cannot be read:\n.*: missing\nnone is left"):
        reader.images([(Path("nowhere.png"), 0)], side=12)


def test_only_ten_are_named(tmp_path: Path) -> None:
    entries = [(tmp_path / f"{number}.png", 0) for number in range(1234)]
    with pytest.raises(DataError) as refused:
        Reader().images([*entries, (write_picture(tmp_path / "good.png", 0), 0)], side=12)
    lines = str(refused.value).splitlines()
    assert lines[0] == "1,234 of 1,235 files cannot be read:"
    assert lines[1:11] == [f"  {path}: missing" for path, _ in entries[:10]]
    assert lines[11] == "  and 1,224 more"


def test_problems_of_the_listing_count_too(tmp_path: Path) -> None:
    entries = [(write_picture(tmp_path / "good.png", 0), 0)]
    lacking = [Problem(tmp_path / "dog", "no images of this class")]
    with pytest.raises(DataError, match=r"1 of 2 files cannot be read:\n.*dog: no images of this class"):
        Reader().images(entries, side=12, problems=lacking)
    reader = Reader(bad_files="skip")
    assert len(reader.images(entries, side=12, problems=lacking)) == 1
    assert reader.problems == lacking


def test_nothing_to_read_and_unknown_options_are_errors() -> None:
    for reader in (Reader(), Reader(bad_files="skip")):
        with pytest.raises(DataError, match="no image files"):
            reader.images([], side=12)
    unknown: Any = "ignore"
    with pytest.raises(OptionError, match="expected workers >= 1, got 0"):
        Reader(workers=0)
    with pytest.raises(OptionError, match="expected bad_files as one of refuse, skip, got 'ignore'"):
        Reader(bad_files=unknown)


def test_images_are_resized_by_pillows_bilinear_filter(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    images = Reader().images([(tmp_path / "noise.png", 4)], side=20)
    assert images.pixels.shape == (1, 3, 20, 20)
    assert images.pixels.dtype == torch.uint8
    expected = np.asarray(Image.fromarray(noise).resize((20, 20), Image.Resampling.BILINEAR))
    assert np.array_equal(images.pixels[0].permute(1, 2, 0).numpy(), expected)


def test_progress_is_told_to_the_end(tmp_path: Path) -> None:
    path = write_picture(tmp_path / "good.png", 0)
    told: list[tuple[int, int]] = []
    Reader(workers=2, progress=lambda done, total: told.append((done, total))).images(
        [(path, 0)] * 70, side=12
    )
    assert told[-1] == (70, 70)
    assert told == sorted(told)
    assert len(told) > 1


RED, CLEAR = (250, 10, 20), (0, 0, 0, 0)


@pytest.mark.parametrize(
    "kind", ["RGBA", "P", "LA", "1", "L", "CMYK", "grey with a transparent level", "gif"]
)
def test_every_kind_of_picture_becomes_rgb(tmp_path: Path, kind: str) -> None:
    """The left half is red (or grey), the right half white: as such, or because nothing is there."""
    path = tmp_path / "picture.png"
    image = Image.new("RGBA", (8, 8), CLEAR)
    image.paste((*RED, 255), (0, 0, 4, 8))
    left, tolerance = RED, 0
    if kind == "RGBA":
        image.save(path)
    elif kind == "P":
        # A palette with alpha for each colour, of which Pillow warns if it is converted to RGB directly.
        palette = image.quantize(4)
        palette.save(path)
        with Image.open(path) as written:
            assert written.mode == "P"
            assert "transparency" in written.info
    elif kind == "LA":
        image.convert("LA").save(path)
        left = (round(0.299 * 250 + 0.587 * 10 + 0.114 * 20),) * 3
        tolerance = 1
    elif kind in ("1", "L"):
        ink = Image.new("L", (8, 8), 255)
        ink.paste(0, (0, 0, 4, 8))
        ink.convert(kind).save(path)
        left = (0, 0, 0)
    elif kind == "CMYK":
        path = path.with_suffix(".jpg")
        paper = Image.new("CMYK", (8, 8), (0, 0, 0, 0))
        paper.paste((0, 255, 255, 0), (0, 0, 4, 8))
        paper.save(path, quality=100)
        left, tolerance = (255, 0, 0), 6
    elif kind == "gif":
        path = path.with_suffix(".gif")
        first = Image.new("RGB", (8, 8), "white")
        first.paste(RED, (0, 0, 4, 8))
        first.save(path, save_all=True, append_images=[Image.new("RGB", (8, 8), "blue")])
    else:
        ink = Image.new("L", (8, 8), 7)
        ink.paste(90, (0, 0, 4, 8))
        ink.save(path, transparency=7)
        left = (90, 90, 90)
    pixels = Reader().images([(path, 0)], side=8).pixels[0].permute(1, 2, 0).int()
    assert (pixels[:, :4] - torch.tensor(left)).abs().max() <= tolerance
    assert (pixels[:, 4:] - 255).abs().max() <= tolerance


def test_grey_is_the_luma_of_itu_r_601(tmp_path: Path) -> None:
    path = write_picture(tmp_path / "picture.png", 3)
    images = Reader().images([(path, 0)], side=12, channels=1)
    assert images.pixels.shape == (1, 1, 12, 12)
    red, green, blue = np.asarray(picture(3)).astype(np.float64).transpose(2, 0, 1)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    assert np.abs(images.pixels[0, 0].numpy() - luma).max() <= 1


def test_an_exif_rotation_is_not_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(0).save(tmp_path / "turned.png", exif=exif)
    pixels = Reader().images([(tmp_path / "turned.png", 0)], side=12).pixels[0]
    assert np.array_equal(pixels.permute(1, 2, 0).numpy(), np.asarray(picture(0)))


def test_large_pictures_are_read_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_picture(tmp_path / "large.png", 0, 40, 40)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # Pillow warns from there, and refuses from twice
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Reader(workers=2).images([(path, 0)], side=8)) == 1
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 700)
        with pytest.raises(
            DataError, match=r"large.png: unreadable: Image size \(1600 pixels\) exceeds limit"
        ):
            Reader().images([(path, 0)], side=8)


def test_images_of_a_folder_go_by_extension_and_hidden_files_are_none(tmp_path: Path) -> None:
    for name in ("b.JPEG", "a.webp", "c.png", "._a.webp", ".hidden.png", "Thumbs.db", "notes.txt", "noext"):
        (tmp_path / name).touch()
    assert [path.name for path in image_files(tmp_path)] == ["a.webp", "b.JPEG", "c.png"]
    assert image_files(tmp_path / "nowhere") == []
