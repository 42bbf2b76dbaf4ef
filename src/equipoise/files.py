"""Tensors and text on disk: safetensors files, written atomically, read without trusting them."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE, S_IRUSR, S_IWUSR
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from equipoise.errors import StateError
from equipoise.version import __version__

if TYPE_CHECKING:
    from PIL.Image import Image

_CHECKSUM = "checksum"

_READ_BY = {
    "equipoise adapter": "equipoise.load(path, model)",
    "equipoise estimator": "equipoise.Estimator.load(path)",
    "equipoise source statistics": "equipoise.SourceStatistics.load(path)",
}
"""The calls that read the files a user has, by their kind."""


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to that replaces `path` when the block ends well; else the old file stays as it was.

    The new file has the permissions of the old one. A link stays a link, and the file that it refers to is
    replaced. Devices, pipes and folders are refused. Threads and processes may write to one path at once:
    the last one's file stays.
    """
    target = _real_file(Path(path))
    partial = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    try:
        partial.touch()
        mode = S_IMODE((target if target.exists() else partial).stat().st_mode)
        _permit(partial, mode | S_IRUSR | S_IWUSR)
        yield partial
        with partial.open("rb") as written:
            _permit(partial, mode)  # safetensors writes files that only their owner can read
            os.fsync(written.fileno())
        partial.replace(target)
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(error.errno, f"{path}: not written, an old file is as it was: {why}") from error
    finally:
        partial.unlink(missing_ok=True)


def flush_folder(path: Path) -> None:
    """Force the names of the files in a folder to disk, where the system can (not on Windows)."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _permit(path: Path, mode: int) -> None:
    """Give a file permissions, if it has others: not every file system lets them be set."""
    if S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)


def _real_file(path: Path) -> Path:
    """The file that a path refers to, through links; OSError where no file can be."""
    kinds = {
        "a folder": path.is_dir(),
        "a pipe": path.is_fifo(),
        "a socket": path.is_socket(),
        "a device": path.is_char_device() or path.is_block_device(),
    }
    for kind, found in kinds.items():
        if found:
            raise OSError(f"{path}: expected a file to write, got {kind}")
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(f"{path}: expected a file to write, got a link in a loop")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {target.parent} to write to")
    return target


def write_tensors(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    tensors: Mapping[str, Tensor],
    text: Mapping[str, str],
) -> None:
    """Write a safetensors file of a kind and version, with a checksum of its tensors and text."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"kind": kind, "version": str(version), "equipoise": __version__, **text}
    with whole_file(path) as partial:
        partial.write_bytes(save(plain, {**header, _CHECKSUM: _checksum(plain, header)}))


def read_tensors(
    path: str | os.PathLike[str], kind: str, version: int
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a file that `write_tensors` wrote; StateError says what is wrong with any other."""
    source = Path(path)
    try:
        with safe_open(source, framework="pt", device="cpu") as opened:
            text = dict(opened.metadata() or {})
            names = opened.keys()
            tensors = {name: opened.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise StateError(
            f"{source}: not a readable safetensors file (truncated or damaged?): {error}"
        ) from error
    checksum = text.pop(_CHECKSUM, None)
    if checksum is not None and checksum != _checksum(tensors, text):
        raise StateError(
            f"{source}: damaged: its contents are not those that its checksum was made of; use a copy of the "
            "file, or make it again"
        )
    if text.get("kind") != kind:
        came = text.get("kind", "none")
        cure = f", which {_READ_BY[came]} reads" if came in _READ_BY else ""
        raise StateError(f"{source}: expected a file of kind {kind!r}, got {came!r}{cure}")
    if text.get("version") != str(version):
        raise StateError(
            f"{source}: expected version {version} of {kind!r}, got {text.get('version')} "
            f"(written by equipoise {text.get('equipoise')}, this is {__version__}): files of other versions "
            "cannot be read, make it again"
        )
    if checksum is None:
        raise StateError(f"{source}: it has no checksum, so that damage would go unnoticed; make it again")
    return tensors, text


def _checksum(tensors: Mapping[str, Tensor], text: Mapping[str, str]) -> str:
    """A hash of the names, types, shapes and bytes of contiguous tensors on the CPU, and of the text."""
    digest = hashlib.blake2b(json.dumps(dict(text), sort_keys=True).encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def on_white(image: "Image", mode: str) -> "Image":
    """The pixels of an opened image on white, "RGB" or "L"; ValueError for more than 8 bits."""
    if image.mode[0] in "IF":
        raise ValueError(f"pixels of mode {image.mode!r}, expected 8 bits")
    opaque: Image = image
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        from PIL.Image import new

        opaque = new("RGBA", image.size, "white")
        opaque.alpha_composite(image.convert("RGBA"))
    return opaque.convert(mode)
