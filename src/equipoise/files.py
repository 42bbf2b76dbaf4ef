"""Tensors and text on disk: safetensors files, written atomically, read without trusting them."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from equipoise.errors import StateError
from equipoise.version import __version__


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to that replaces `path` when the block ends well; else the old file stays as it was."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target}: there is no folder {target.parent} to write to")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.touch()
        mode = partial.stat().st_mode
        yield partial
        if partial.stat().st_mode != mode:  # safetensors writes files that only their owner can read
            partial.chmod(mode)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def write_tensors(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    tensors: Mapping[str, Tensor],
    text: Mapping[str, str],
) -> None:
    """Write a safetensors file of a kind and version."""
    header = {"kind": kind, "version": str(version), "equipoise": __version__, **text}
    with whole_file(path) as partial:
        partial.write_bytes(save({name: tensor.contiguous() for name, tensor in tensors.items()}, header))


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
    if text.get("kind") != kind:
        raise StateError(f"{source}: expected a file of kind {kind!r}, got {text.get('kind', 'none')!r}")
    if text.get("version") != str(version):
        raise StateError(
            f"{source}: expected version {version} of {kind!r}, got {text.get('version')} "
            f"(written by equipoise {text.get('equipoise')}, this is {__version__}): files of other versions "
            "cannot be read, make it anew"
        )
    return tensors, text
