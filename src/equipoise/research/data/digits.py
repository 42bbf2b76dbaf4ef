"""Digits: MNIST, USPS and SVHN, handwritten and photographed digits in grey at 32 × 32."""

import bz2
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from equipoise.errors import DataError
from equipoise.research.data.dataset import DataSet, Shift, find_folder, leave_one_out, register_data_set
from equipoise.research.data.images import Images, chosen
from equipoise.research.data.reader import Reader, resized

_SIDE = 32

# The files that torchvision's MNIST, USPS and SVHN leave in their folder.
_TORCHVISION = {
    "mnist/train": ("MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-labels-idx1-ubyte"),
    "mnist/test": ("MNIST/raw/t10k-images-idx3-ubyte", "MNIST/raw/t10k-labels-idx1-ubyte"),
    "usps/train": ("usps.bz2",),
    "usps/test": ("usps.t.bz2",),
    "svhn/train": ("train_32x32.mat",),
    "svhn/test": ("test_32x32.mat",),
}
_DOMAINS = ("mnist", "usps", "svhn")

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images (N, height, width) or (N, height, width, 3) and labels (N,)."""


@register_data_set
class Digits(DataSet):
    """Leave one domain out: train on the training sets of the others, adapt to its test set.

    SVHN in colour becomes grey (ITU-R 601). MNIST (28 × 28) and USPS (16 × 16) are resized by Pillow's
    bilinear filter, not padded: the paper says "resized".
    """

    name = "digits"
    about = """\
Digits is MNIST, USPS and SVHN (http://yann.lecun.com/exdb/mnist,
https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps,
http://ufldl.stanford.edu/housenumbers). torchvision downloads them:
  from torchvision.datasets import MNIST, SVHN, USPS
  MNIST("digits", download=True)
  for train in (True, False):
      USPS("digits", train, download=True); SVHN("digits", "train" if train else "test", download=True)
For each domain, the folder has either what that leaves:
  MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte, usps.bz2, usps.t.bz2, {train,test}_32x32.mat
or mnist.npz, usps.npz, svhn.npz: x_train, y_train, x_test, y_test; x uint8 (N, H, W), y the digit"""
    classes = tuple("0123456789")

    def __init__(self, root: Path) -> None:
        self.folder = find_folder(type(self), root, ("digits", "Digits"), _lacking)

    @property
    def shifts(self) -> Sequence[Shift]:
        """Three: to each domain from the other two."""
        return leave_one_out({domain: (f"{domain}/train", f"{domain}/test") for domain in _DOMAINS})

    def files(self, part: str) -> Sequence[Path]:
        """The .npz file of the domain, or torchvision's."""
        self.check_part(part)
        return _files(self.folder, part)

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        """The images of "mnist/train", "mnist/test", "usps/train", …; a damaged file is always refused."""
        files = self.files(part)
        try:
            images, labels = _read(files, part)
        # Archives, .mat and .npz files fail in ways of their own: zlib.error, BadZipFile, MatReadError …
        except Exception as error:
            raise DataError(f"{_named(files)}: cannot read {part} from it: {error!r}") from error
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
            raise DataError(
                f"{_named(files)}: expected uint8 images (N, H, W) or (N, H, W, 3), got {images.dtype} "
                f"{images.shape}"
            )
        if labels.shape != (len(images),) or not np.isin(labels, range(10)).all():
            raise DataError(
                f"{_named(files)}: expected {len(images)} labels from 0 to 9, got {labels.shape} "
                f"with values {np.unique(labels)[:20].tolist()}"
            )
        rows = chosen(len(labels), limit).numpy()
        pixels = np.empty((len(rows), 1, _SIDE, _SIDE), np.uint8)
        for place, row in enumerate(rows):
            pixels[place, 0] = np.asarray(resized(Image.fromarray(images[row]).convert("L"), _SIDE))
        reader.report(len(rows), len(rows))
        return Images(torch.from_numpy(pixels), torch.from_numpy(labels[rows].astype(np.int64)))


def _files(folder: Path, part: str) -> list[Path]:
    npz = folder / f"{part.partition('/')[0]}.npz"
    return [npz] if npz.is_file() else [folder / name for name in _TORCHVISION[part]]


def _lacking(folder: Path) -> list[str]:
    return [part for part in _TORCHVISION if not all(file.is_file() for file in _files(folder, part))]


def _named(files: Sequence[Path]) -> str:
    return " and ".join(map(str, files))


def _read(files: Sequence[Path], part: str) -> Arrays:
    domain, _, split = part.partition("/")
    if files[0].suffix == ".npz":
        # numpy leaves a file that it opened itself open if it is damaged.
        with files[0].open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            return arrays[f"x_{split}"], arrays[f"y_{split}"]
    readers: dict[str, Callable[[Sequence[Path]], Arrays]] = {
        "mnist": _read_mnist,
        "usps": _read_usps,
        "svhn": _read_svhn,
    }
    return readers[domain](files)


def _read_mnist(files: Sequence[Path]) -> Arrays:
    images, labels = (_read_idx(file) for file in files)
    return images, labels.astype(np.int64)


def _read_idx(file: Path) -> NDArray[np.uint8]:
    """Two zeros, the type (8: bytes), how many dimensions, each of them (32 bits, big-endian), the values."""
    content = file.read_bytes()
    shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _read_usps(files: Sequence[Path]) -> Arrays:
    """Lines of a class (1 to 10) and 256 times index:value (-1 to 1); rounded down as by torchvision."""
    with bz2.open(files[0], "rt") as lines:
        rows = [line.split() for line in lines]
    values = [[entry.partition(":")[2] for entry in row[1:]] for row in rows]
    images = np.asarray(values, dtype=np.float32).reshape(-1, 16, 16)
    return ((images + 1) / 2 * 255).astype(np.uint8), np.array([int(row[0]) - 1 for row in rows])


def _read_svhn(files: Sequence[Path]) -> Arrays:
    """X (32, 32, 3, N) and y (N, 1) from 1 to 10, where 10 is the digit 0."""
    from scipy.io import loadmat

    arrays = loadmat(files[0])
    return arrays["X"].transpose(3, 0, 1, 2), arrays["y"].reshape(-1).astype(np.int64) % 10
