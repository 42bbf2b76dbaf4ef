"""Data sets in miniature, written in the layouts of the real ones."""

import bz2
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

PACS_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
OFFICE_DOMAINS = ("Art", "Clipart", "Product", "Real World")
WNIDS = ("n02124075", "n01443537", "n04540053")  # not sorted, as in the real wnids.txt


def picture(seed: int, height: int = 12, width: int = 12) -> Image.Image:
    """A picture of four coloured squares, so that JPEG does not change it much."""
    corners = np.random.default_rng(seed).integers(0, 256, (2, 2, 3), dtype=np.uint8)
    return Image.fromarray(corners).resize((width, height), Image.Resampling.NEAREST)


def write_picture(path: Path, seed: int, height: int = 12, width: int = 12) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed, height, width).save(path)
    return path


def domain_folders(
    root: Path, domains: Sequence[str], classes: Sequence[str], each: int = 2, suffix: str = ".png"
) -> Path:
    """<root>/<domain>/<class>/pic_<k>; the picture's seed is its number in the whole data set."""
    seed = 0
    for domain in domains:
        for name in classes:
            for number in range(each):
                write_picture(root / domain / name / f"pic_{number}{suffix}", seed)
                seed += 1
    return root


def digit_arrays(seed: int, count: int, *shape: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Noise for images, and the labels 9, 8, …, 0, 9, …"""
    images = np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)
    return images, (9 - np.arange(count) % 10).astype(np.uint8)


def digits_npz(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for seed, (name, side) in enumerate({"mnist": 28, "usps": 16, "svhn": 32}.items()):
        (x_train, y_train), (x_test, y_test) = (
            digit_arrays(seed, 30, side, side),
            digit_arrays(seed, 20, side, side),
        )
        np.savez(root / f"{name}.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return root


def digits_torchvision(root: Path) -> Path:
    """The files that torchvision's MNIST, USPS and SVHN leave."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split, stem, name, count in (("train", "train", "usps", 30), ("test", "t10k", "usps.t", 20)):
        images, labels = digit_arrays(1, count, 28, 28)
        for array, kind in ((images, "images-idx3"), (labels, "labels-idx1")):
            sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
            (raw / f"{stem}-{kind}-ubyte").write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())

        images, labels = digit_arrays(2, count, 16, 16)
        lines = []
        for image, label in zip(images.reshape(count, -1), labels, strict=True):
            values = (f"{place}:{value / 127.5 - 1:.6g}" for place, value in enumerate(image, 1))
            lines.append(f"{label + 1} {' '.join(values)}\n")
        (root / f"{name}.bz2").write_bytes(bz2.compress("".join(lines).encode()))

        images, labels = digit_arrays(3, count, 32, 32, 3)
        tens = np.where(labels == 0, 10, labels)[:, None]
        savemat(root / f"{split}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": tens})
    return root


def tiny_imagenet(root: Path, *, annotated: bool = True, each: int = 3) -> Path:
    """tiny-imagenet-200 with three classes; the validation images are the same in both layouts."""
    folder = root / "tiny-imagenet-200"
    folder.mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    lines, seed = [], 0
    for number in range(each):
        for wnid in WNIDS:
            write_picture(folder / "train" / wnid / "images" / f"{wnid}_{number}.png", 1000 + seed, 64, 64)
            name = f"val_{seed}.png"
            place = folder / "val" / ("images" if annotated else f"{wnid}/images")
            write_picture(place / name, seed, 64, 64)
            lines.append(f"{name}\t{wnid}\t0\t32\t44\t62\n")
            seed += 1
    if annotated:
        (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


def tiny_imagenet_c(root: Path, corruptions: Sequence[str] = ("fog", "snow"), each: int = 2) -> Path:
    """The official folder with some of its corruptions; a tier's pictures have seeds of their own."""
    folder = root / "Tiny-ImageNet-C"
    for corruption in corruptions:
        for tier in range(1, 6):
            for label, wnid in enumerate(WNIDS):
                for number in range(each):
                    seed = 10_000 * tier + 100 * label + number
                    write_picture(folder / corruption / str(tier) / wnid / f"val_{number}.png", seed, 64, 64)
    return folder
