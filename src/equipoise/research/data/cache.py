"""Parts of data sets, read once and kept in files that any process can map into its memory."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from equipoise.errors import DataError
from equipoise.files import whole_file
from equipoise.research.data.dataset import DataSet
from equipoise.research.data.images import Images
from equipoise.research.data.reader import Problem, Reader

_KIND, _VERSION = "equipoise images", "1"


@dataclass(frozen=True)
class Stored:
    """A part of a data set on disk.

    Attributes:
        path: the file, for `read_stored`.
        digest: of the images (`Images.digest`).
        images: how many.
        problems: what was left out, and why.
    """

    path: Path
    digest: str
    images: int
    problems: tuple[str, ...]


class Cache:
    """A folder of parts that were read; one is read again when its files or its data set's parameters change.

    A file is named by a hash of what it depends on: the data set, the part, the limit, the classes, and the
    names, sizes and times of the files. Its images are held against their digest, about a second for a
    gigabyte, and a damaged file is written again. Nothing is ever removed: delete the folder to start afresh.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def store(self, data: DataSet, part: str, limit: int | None, reader: Reader) -> Stored:
        """Read a part unless it is there already; `reader` finds again what was left out of it."""
        name = f"{data.name}-{part}".replace("/", "-").replace(" ", "-")
        path = self.folder / f"{name}-{_key(data, part, limit)}.safetensors"
        header = _header(path)
        if header is None:
            own = reader.again()
            try:
                images = data.read(part, limit, own)
            finally:
                reader.note(own.problems)
            header = {
                "kind": _KIND,
                "version": _VERSION,
                "digest": images.digest(),
                "images": str(len(images)),
                "problems": json.dumps([[str(problem.path), problem.why] for problem in own.problems]),
            }
            self.folder.mkdir(parents=True, exist_ok=True)
            tensors = {"pixels": images.pixels.contiguous(), "labels": images.labels.contiguous()}
            try:
                with whole_file(path) as partial:
                    save_file(tensors, partial, header)
            except (SafetensorError, OSError) as error:
                megabytes = sum(tensor.nbytes for tensor in tensors.values()) / 1e6
                raise DataError(
                    f"{path}: {megabytes:,.0f} MB of images could not be stored ({error}); "
                    "is the disk full? Free some space, or give another folder (--out)"
                ) from error
        problems = [Problem(Path(place), why) for place, why in json.loads(header["problems"])]
        count = int(header["images"])
        reader.account(problems, count + len(problems))
        return Stored(path, header["digest"], count, tuple(map(str, problems)))


def read_stored(path: Path) -> Images:
    """The images of a stored part, memory-mapped: read when touched, and to write to them changes no file."""
    try:
        with safe_open(path, framework="pt", device="cpu") as opened:
            return Images(opened.get_tensor("pixels"), opened.get_tensor("labels"))
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: stored images that cannot be read; store them again: {error}") from error


def _header(path: Path) -> dict[str, str] | None:
    """The metadata of a stored part; None where it is missing, or the images are not those of its digest."""
    try:
        with safe_open(path, framework="pt", device="cpu") as opened:
            header = dict(opened.metadata() or {})
    except (SafetensorError, OSError):
        return None
    whole = header.keys() >= {"digest", "images", "problems"}
    if not whole or (header.get("kind"), header.get("version")) != (_KIND, _VERSION):
        return None
    return header if read_stored(path).digest() == header["digest"] else None


def _key(data: DataSet, part: str, limit: int | None) -> str:
    about = [data.name, part, limit, list(data.classes), dict(data.parameters(part))]
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=12)
    files = data.files(part)
    # Relative names: a data set that is moved as a whole stays the same.
    above = os.path.commonpath([file.parent for file in files]) if files else ""
    for file in files:
        try:
            status = file.stat()
            state = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            state = "missing"
        digest.update(f"\n{os.path.relpath(file, above)} {state}".encode(errors="surrogateescape"))
    return digest.hexdigest()
