"""The measured server in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServerProcess:
    """A server that takes requests.

    Attributes:
        url: of the server.
        pid: of its process.
    """

    url: str
    pid: int

    def memory(self) -> int:
        """Bytes of memory that the process holds (resident set; Linux only)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise OSError(f"process {self.pid} has no resident set")


@contextmanager
def started(kind: str, folder: Path, threads: int) -> Iterator[ServerProcess]:
    """Start `served.py`, and stop it by SIGTERM; an exit status other than 0 is an error."""
    command = [sys.executable, "-m", "benchmarks.serving.served", kind, str(folder), str(threads)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        url = process.stdout.readline().strip() if process.stdout else ""
        if not url.startswith("http"):
            raise RuntimeError(f"the server did not start: {url!r}")
        yield ServerProcess(url, process.pid)
    finally:
        process.terminate()
        status = process.wait(120)
    if status:
        raise RuntimeError(f"the server ended with status {status}")
