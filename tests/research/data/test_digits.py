"""Digits from .npz files, and from the files of torchvision, whose own loaders are the reference."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision
from PIL import Image

from equipoise.errors import DataError
from equipoise.research.data import Reader, Shift, open_data_set
from tests.research.data.miniatures import digit_arrays, digits_npz, digits_torchvision

PARTS = {f"{domain}/{split}" for domain in ("mnist", "usps", "svhn") for split in ("train", "test")}


@pytest.mark.parametrize("wrapper", ["", "digits"])
def test_each_domain_is_the_target_of_the_others_training_sets(tmp_path: Path, wrapper: str) -> None:
    digits_npz(tmp_path / wrapper)
    data = open_data_set("digits", tmp_path)
    assert list(data.shifts) == [
        Shift("mnist", "mnist/test", ("usps/train", "svhn/train")),
        Shift("usps", "usps/test", ("mnist/train", "svhn/train")),
        Shift("svhn", "svhn/test", ("mnist/train", "usps/train")),
    ]
    assert data.classes == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    assert set(data.parts) == PARTS


def test_npz_images_are_resized_and_keep_their_labels(tmp_path: Path) -> None:
    data = open_data_set("digits", digits_npz(tmp_path))
    for seed, (name, side) in enumerate({"mnist": 28, "usps": 16, "svhn": 32}.items()):
        for split, count in (("train", 30), ("test", 20)):
            images, labels = digit_arrays(seed, count, side, side)
            part = data.read(f"{name}/{split}", None, Reader())
            assert part.pixels.shape == (count, 1, 32, 32)
            assert part.labels.tolist() == labels.tolist()
            expected = [
                Image.fromarray(image).resize((32, 32), Image.Resampling.BILINEAR) for image in images
            ]
            assert np.array_equal(
                part.pixels[:, 0].numpy(), np.stack([np.asarray(image) for image in expected])
            )
            assert (name == "svhn") == np.array_equal(part.pixels[:, 0, :side, :side].numpy(), images)
            assert data.files(f"{name}/{split}") == [tmp_path / f"{name}.npz"]


def test_torchvisions_files_give_what_torchvision_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits_torchvision(tmp_path)
    data = open_data_set("digits", tmp_path)
    unchecked = {split: ["", f"{split}_32x32.mat", None] for split in ("train", "test")}
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", unchecked)  # the miniature has another MD5
    for split in ("train", "test"):
        train = split == "train"
        reference = {
            "mnist": torchvision.datasets.MNIST(tmp_path, train=train),
            "usps": torchvision.datasets.USPS(tmp_path, train=train),
            "svhn": torchvision.datasets.SVHN(tmp_path, split=split),
        }
        for name, theirs in reference.items():
            part = data.read(f"{name}/{split}", None, Reader())
            assert (
                part.labels.tolist()
                == [label for _, label in theirs]
                == digit_arrays(0, len(part), 1)[1].tolist()
            )
            images = [image.convert("L").resize((32, 32), Image.Resampling.BILINEAR) for image, _ in theirs]
            assert np.array_equal(
                part.pixels[:, 0].numpy(), np.stack([np.asarray(image) for image in images])
            )
            assert all(file.is_file() for file in data.files(f"{name}/{split}"))


def test_colours_become_the_luma_of_itu_r_601(tmp_path: Path) -> None:
    part = open_data_set("digits", digits_torchvision(tmp_path)).read("svhn/train", None, Reader())
    red, green, blue = digit_arrays(3, 30, 32, 32, 3)[0].astype(np.float64).transpose(3, 0, 1, 2)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    assert np.abs(part.pixels[:, 0].numpy() - luma).max() <= 1


def test_one_layout_may_be_mixed_with_the_other(tmp_path: Path) -> None:
    digits_torchvision(tmp_path)
    (tmp_path / "usps.bz2").unlink()
    with pytest.raises(DataError, match="lacks usps/train"):
        open_data_set("digits", tmp_path)
    images, labels = digit_arrays(5, 4, 16, 16)
    np.savez(tmp_path / "usps.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    data = open_data_set("digits", tmp_path)
    assert len(data.read("usps/train", None, Reader())) == 4
    assert len(data.read("mnist/train", None, Reader())) == 30


def test_damaged_files_are_named(tmp_path: Path) -> None:
    data = open_data_set("digits", digits_npz(tmp_path))
    path = tmp_path / "mnist.npz"
    path.write_bytes(path.read_bytes()[:1000])
    for reader in (Reader(), Reader(bad_files="skip")):
        with pytest.raises(DataError, match=f"{re.escape(str(path))}: cannot read mnist/train from it"):
            data.read("mnist/train", None, reader)


@pytest.mark.parametrize(
    "name",
    ["MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-labels-idx1-ubyte", "usps.bz2", "train_32x32.mat"],
)
def test_damaged_files_of_torchvision_are_named(tmp_path: Path, name: str) -> None:
    data = open_data_set("digits", digits_torchvision(tmp_path))
    path = tmp_path / name
    part = next(part for part in data.parts if path in data.files(part))
    for content in (path.read_bytes()[: path.stat().st_size // 2], b"", b"404 not found"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=re.escape(str(path))):
            data.read(part, None, Reader())


def test_arrays_that_are_no_digits_are_refused(tmp_path: Path) -> None:
    data = open_data_set("digits", digits_npz(tmp_path))
    images, labels = digit_arrays(0, 20, 28, 28)

    def refused(message: str, **arrays: Any) -> None:
        np.savez(tmp_path / "mnist.npz", **{"x_test": images, "y_test": labels, **arrays})
        with pytest.raises(DataError, match=message):
            data.read("mnist/test", None, Reader())

    refused("expected uint8 images", x_test=images / 255)
    refused(r"expected uint8 images .* got uint8 \(20, 784\)", x_test=images.reshape(20, -1))
    refused(r"got uint8 \(20, 28, 28, 4\)", x_test=np.repeat(images[..., None], 4, axis=-1))
    refused("expected 20 labels from 0 to 9, got", y_test=labels + 1)
    refused("expected 20 labels from 0 to 9, got", y_test=labels[:5])
    # Pickled arrays could run code when they are read.
    refused("allow_pickle=False", y_test=np.array([{}] * 20, dtype=object))
    with pytest.raises(DataError, match="x_train is not a file"):
        data.read("mnist/train", None, Reader())
