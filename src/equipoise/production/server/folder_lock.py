"""A lock file: one process at a time owns what is behind it, and a killed process owns nothing."""

import os
import sys
import time
from pathlib import Path

from equipoise.production.server.errors import StorageError

_PAUSE = 0.05


class FolderLock:
    """An exclusive lock on a path, held until `release` or the end of the process.

    The kernel drops the lock of a process that is killed, so that no stale lock is ever left behind. The lock
    is `flock`: it works between the processes of a machine, and between machines on file systems that carry
    locks (NFS 4, Lustre, CephFS).

    Args:
        path: the lock file; it is made if need be, and stays.
        wait: seconds to wait for another owner to let go.
    """

    def __init__(self, path: Path, *, wait: float = 0.0) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(f"{path}: the lock file cannot be opened: {error.strerror}") from error
        deadline = time.monotonic() + wait
        while not _locked(self._descriptor):
            if time.monotonic() >= deadline:
                os.close(self._descriptor)
                raise StorageError(
                    f"{path}: another process holds the lock and so owns the streams of the folder; stop it, "
                    "or use another folder"
                )
            time.sleep(_PAUSE)

    def release(self) -> None:
        """Let another process have the lock; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _locked(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True
