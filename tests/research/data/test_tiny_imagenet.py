import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.errors import DataError
from equipoise.research.data import Reader, Shift, open_data_set
from equipoise.research.data.corruptions import CORRUPTIONS, corrupt, jpeg
from equipoise.research.data.tiny_imagenet import TinyImageNetC
from tests.research.data.miniatures import WNIDS, picture, tiny_imagenet, tiny_imagenet_c, write_picture

# val_0, val_3, val_6 are of the first class of wnids.txt, and so on.
BY_CLASS = [0, 3, 6, 1, 4, 7, 2, 5, 8]


def opened(root: Path) -> TinyImageNetC:
    data = open_data_set("tiny-imagenet-c", root)
    assert isinstance(data, TinyImageNetC)
    return data


@pytest.mark.parametrize("of_itself", [False, True])
def test_there_are_75_shifts_from_the_training_images(tmp_path: Path, of_itself: bool) -> None:
    folder = tiny_imagenet(tmp_path)
    data = opened(folder if of_itself else tmp_path)
    assert len(data.shifts) == 75
    assert data.shifts[7] == Shift("shot_noise", "shot_noise/3", ("train",), 3)
    assert {shift.target for shift in data.shifts} == set(CORRUPTIONS)
    assert {shift.tier for shift in data.shifts} == {1, 2, 3, 4, 5}
    assert data.classes == WNIDS  # in the order of the file


def test_training_images_have_the_labels_of_wnids(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path)
    part = opened(tmp_path).read("train", None, Reader(workers=2))
    assert part.pixels.shape == (9, 3, 64, 64)
    assert part.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for seed, pixels in zip(BY_CLASS, part.pixels, strict=True):
        assert np.array_equal(pixels.permute(1, 2, 0).numpy(), np.asarray(picture(1000 + seed, 64, 64)))


@pytest.mark.parametrize("annotated", [True, False])
def test_corrupted_images_are_made_from_both_layouts_of_val(tmp_path: Path, annotated: bool) -> None:
    tiny_imagenet(tmp_path, annotated=annotated)
    data = opened(tmp_path)
    assert data.origin("train") == "official"
    assert data.origin("contrast/2") == "made"
    part = data.read("contrast/2", None, Reader())
    assert part.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    clean = np.stack([np.asarray(picture(seed, 64, 64)) for seed in BY_CLASS])
    expected = jpeg(corrupt(clean, "contrast", 2, range(9)), 85)  # contrast has no random numbers
    assert np.array_equal(part.pixels.permute(0, 2, 3, 1).numpy(), expected)


def test_random_numbers_come_from_the_name_without_the_extension(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path / "one")
    tiny_imagenet(tmp_path / "other", annotated=False)
    for path in sorted((tmp_path / "other").rglob("val_*.png")):
        path.rename(path.with_suffix(".bmp.png"))
        write_picture(path.with_suffix(".bmp"), int(path.stem[4:]), 64, 64)
        path.with_suffix(".bmp.png").unlink()
    one, other = (
        opened(tmp_path / name).read("gaussian_noise/5", None, Reader()) for name in ("one", "other")
    )
    assert torch.equal(one.pixels, other.pixels)
    # Equal pictures of other names get other noise.
    shutil.copy(
        tmp_path / "other/tiny-imagenet-200/val" / WNIDS[0] / "images/val_0.bmp", tmp_path / "copy.bmp"
    )
    for number in (3, 6):
        target = tmp_path / "other/tiny-imagenet-200/val" / WNIDS[0] / f"images/val_{number}.bmp"
        shutil.copy(tmp_path / "copy.bmp", target)
    noisy = opened(tmp_path / "other").read("gaussian_noise/5", None, Reader()).pixels[:3]
    assert len({image.numpy().tobytes() for image in noisy}) == 3


def test_without_some_files_the_others_have_the_same_pixels(tmp_path: Path) -> None:
    folder = tiny_imagenet(tmp_path, annotated=False)
    data = opened(tmp_path)
    whole = data.read("gaussian_noise/3", None, Reader())
    for seed in (0, 4):
        next(folder.rglob(f"val_{seed}.png")).unlink()
    left = [place for place, seed in enumerate(BY_CLASS) if seed not in (0, 4)]
    assert torch.equal(opened(tmp_path).read("gaussian_noise/3", None, Reader()).pixels, whole.pixels[left])


def test_validation_images_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_imagenet(tmp_path)
    data = opened(tmp_path)
    first = data.read("contrast/2", None, Reader())

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("read again")

    monkeypatch.setattr(Reader, "images", refuse)
    assert torch.equal(first.pixels, data.read("contrast/2", None, Reader()).pixels)
    assert not torch.equal(first.pixels, data.read("contrast/3", None, Reader()).pixels)
    with pytest.raises(RuntimeError, match="read again"):
        data.read("contrast/2", 4, Reader())


def test_images_that_the_annotations_name_and_are_not_there_are_named(tmp_path: Path) -> None:
    folder = tiny_imagenet(tmp_path)
    (folder / "val" / "images" / "val_4.png").unlink()
    (folder / "val" / "images" / "val_2.png").write_text("damaged")
    data = opened(tmp_path)
    refusing = Reader()
    with pytest.raises(DataError, match="2 of 9 files cannot be read"):
        data.read("contrast/1", None, refusing)
    assert len(refusing.problems) == 2
    whole = Reader(bad_files="skip")
    for _ in range(2):  # the second time from what is kept
        reader = Reader(bad_files="skip")
        part = data.read("contrast/1", None, reader)
        assert part.labels.tolist() == [0, 0, 0, 1, 1, 2, 2]
        assert [str(p) for p in reader.problems] == [
            f"{folder}/val/images/val_4.png: missing",
            f"{folder}/val/images/val_2.png: not an image",
        ]
        data.read("contrast/1", None, whole)
        assert whole.problems == reader.problems
        refusing = Reader()
        with pytest.raises(DataError, match=r"2 of 9 files cannot be read:\n.*val_4.png: missing"):
            data.read("contrast/1", None, refusing)
        assert refusing.problems == reader.problems
    assert data.read("train", None, Reader()).labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_class_without_images_is_named(tmp_path: Path) -> None:
    folder = tiny_imagenet(tmp_path, annotated=False)
    shutil.rmtree(folder / "train" / WNIDS[1])
    shutil.rmtree(folder / "val" / WNIDS[2])
    data = opened(tmp_path)
    with pytest.raises(DataError, match=f"train/{WNIDS[1]}/images: no images of this class"):
        data.read("train", None, Reader())
    with pytest.raises(DataError, match=f"val/{WNIDS[2]}/images: no images of this class"):
        data.read("fog/1", None, Reader())
    assert data.read("train", None, Reader(bad_files="skip")).labels.tolist() == [0, 0, 0, 2, 2, 2]


@pytest.mark.parametrize("line", ["val_0.png", "val_0.png\tn99999999\t0\t0\t1\t1", ""])
def test_annotations_that_cannot_be_understood_are_refused(tmp_path: Path, line: str) -> None:
    folder = tiny_imagenet(tmp_path)
    with (folder / "val" / "val_annotations.txt").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(
        DataError, match=r"val_annotations.txt, line 10: expected a file name, a tab and a class"
    ):
        opened(tmp_path).read("fog/1", None, Reader())


@pytest.mark.parametrize("name", ["Tiny-ImageNet-C", "tiny-imagenet-c", "TinyImageNet-C"])
@pytest.mark.parametrize("of_itself", [False, True])
def test_official_files_are_read_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, of_itself: bool
) -> None:
    folder = tiny_imagenet(tmp_path)
    tiny_imagenet_c(tmp_path).rename(tmp_path / name)
    monkeypatch.chdir(folder if of_itself else tmp_path)
    data = opened(Path())
    assert (data.origin("snow/4"), data.origin("train")) == ("official", "official")
    part = data.read("snow/4", None, Reader(workers=2))
    assert part.labels.tolist() == [0, 0, 1, 1, 2, 2]
    for place, pixels in enumerate(part.pixels):
        seed = 40_000 + 100 * (place // 2) + place % 2
        assert np.array_equal(pixels.permute(1, 2, 0).numpy(), np.asarray(picture(seed, 64, 64)))
    assert len(data.read("snow/4", 3, Reader())) == 3


def test_official_files_that_other_tiers_have_are_missed(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path)
    official = tiny_imagenet_c(tmp_path)
    missing = official / "fog" / "2" / WNIDS[1] / "val_1.png"
    missing.unlink()
    data = opened(tmp_path)
    assert missing in data.files("fog/2")
    with pytest.raises(DataError, match=rf"1 of 6 files cannot be read:\n  {missing}: missing"):
        data.read("fog/2", None, Reader())
    assert data.read("fog/2", None, Reader(bad_files="skip")).labels.tolist() == [0, 0, 1, 2, 2]
    assert len(data.read("fog/3", None, Reader())) == 6
    shutil.rmtree(official / "fog" / "2" / WNIDS[0])
    with pytest.raises(DataError, match="3 of 6 files"):
        data.read("fog/2", None, Reader())
    for tier in range(1, 6):
        shutil.rmtree(official / "fog" / str(tier) / WNIDS[0], ignore_errors=True)
    with pytest.raises(DataError, match=f"2/{WNIDS[0]}: no images of this class"):
        data.read("fog/2", None, Reader())


def test_an_official_folder_that_lacks_a_corruption_is_not_completed_silently(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path)
    tiny_imagenet_c(tmp_path, ["fog"])
    data = opened(tmp_path)
    with pytest.raises(DataError, match=r"snow/1: no such folder; expected 15 corruptions .* move it away"):
        data.read("snow/1", None, Reader())
