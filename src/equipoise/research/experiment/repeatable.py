"""Repeatable numbers: random numbers from a seed, and algorithms that give the same bits each time."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Seed torch's random numbers by these parts alone, and restore the caller's state afterwards."""
    seed = int.from_bytes(hashlib.blake2b(json.dumps(parts).encode(), digest_size=7).digest(), "big")
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def allow_repeatable_cuda() -> None:
    """Set the variable that makes cuBLAS deterministic; a process reads it at its first use of cuBLAS."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def repeatable() -> Iterator[None]:
    """Allow only deterministic algorithms, and restore torch's settings afterwards."""
    allow_repeatable_cuda()
    filling: Any = torch.utils.deterministic
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    benchmark, fill = torch.backends.cudnn.benchmark, filling.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    filling.fill_uninitialized_memory = False  # it takes a fifth of the time, and nothing reads such memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark, filling.fill_uninitialized_memory = benchmark, fill
