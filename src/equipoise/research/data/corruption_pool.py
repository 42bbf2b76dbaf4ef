"""Corrupted images, made in parallel processes: the same pixels however many there are."""

import hashlib
import os
import signal
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from multiprocessing import get_context, parent_process

import numpy as np
import torch

from equipoise.errors import DataError
from equipoise.research.data.corruptions import corrupt, jpeg
from equipoise.research.data.corruptions.arrays import Pixels
from equipoise.research.data.reader import Reader

_CHUNK = 128
_QUALITY = 85


def seed_of(image: str | bytes) -> int:
    """A number of 48 bits for the name or the pixels of an image, the same in every process and Python."""
    content = image.encode() if isinstance(image, str) else image
    return int.from_bytes(hashlib.blake2b(content, digest_size=6).digest(), "little")


def make_corrupted(
    images: Pixels, corruption: str, tier: int, seeds: Sequence[int], reader: Reader
) -> Pixels:
    """The images corrupted and then compressed as JPEG of quality 85, by `reader.workers` processes."""
    starts = range(0, len(images), _CHUNK)
    chunks = [(images[start : start + _CHUNK], seeds[start : start + _CHUNK]) for start in starts]
    make = partial(_make, corruption, tier)
    alone = reader.workers == 1 or len(chunks) == 1
    made = np.empty_like(images)
    try:
        parts: Iterable[Pixels] = map(make, chunks) if alone else _pool(reader.workers).map(make, chunks)
        for start, part in zip(starts, parts, strict=True):
            made[start : start + _CHUNK] = part
            reader.report(start + len(part), len(images))
    except BrokenProcessPool as error:
        _pool.cache_clear()
        raise DataError(
            f"a process that makes {corruption} died (no memory left?); try fewer workers"
        ) from error
    return made


def probe(corruption: str, tier: int, *, side: int, channels: int = 3) -> str:
    """A hash of corrupted noise; versions of a corruption that make other pixels have other hashes."""
    noise = np.random.default_rng(0).integers(0, 256, (4, side, side, channels), dtype=np.uint8)
    made = _make(corruption, tier, (noise, range(len(noise))))
    return hashlib.blake2b(made.tobytes(), digest_size=12).hexdigest()


def _make(corruption: str, tier: int, chunk: tuple[Pixels, Sequence[int]]) -> Pixels:
    images, seeds = chunk
    return jpeg(corrupt(images, corruption, tier, seeds), _QUALITY)


@lru_cache(maxsize=1)
def _pool(workers: int) -> ProcessPoolExecutor:
    """Processes that are kept: to start one takes seconds, which 75 parts would each pay.

    Spawned, because torch's threads do not survive a fork.
    """
    return ProcessPoolExecutor(workers, get_context("spawn"), prepare_process)


def prepare_process() -> None:
    """Take one core, and leave Ctrl-C to the first process, which stops the others or takes them along."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """End when the first process was killed, which leaves nobody to end this one."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
