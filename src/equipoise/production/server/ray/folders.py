"""The replica that owns a stream, and the folder where its state is."""

import json
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path

from equipoise.errors import StateError
from equipoise.files import whole_file
from equipoise.production.server.store import FACTS_FILE, FolderLock, identity_in, name_in


def owner(stream: str, replicas: int) -> int:
    """The index, from 0 to `replicas` - 1, of the replica that owns a stream.

    argmax over k of hash(k, stream) (Thaler and Ravishankar, 1998, "Using name-based mappings to increase hit
    rates"): every process computes the same owner without asking anyone. When one replica is added to K, only
    1 / (K + 1) of the streams get another owner, and all of those go to the new one.

    >>> [owner(name, 3) for name in ("gate", "yard", "roof")]
    [2, 1, 2]
    """
    return max(range(replicas), key=lambda index: _score(index, stream))


def _score(index: int, stream: str) -> bytes:
    return blake2b(f"{index} {stream}".encode(errors="surrogatepass"), digest_size=8).digest()


def replica_folder(folder: Path, index: int) -> Path:
    """The folder of a replica, which is the state folder of its service."""
    return folder / f"replica-{index}"


def spread_streams(folder: Path, replicas: int, *, wait: float) -> None:
    """Move each stream to the folder of the replica that owns it, while no replica runs.

    After a change of the number of replicas some streams have other owners; those of a service that used
    `folder` without replicas get theirs. A stream moves by one rename of its folder: whatever interrupts
    that, the stream is whole in one place, and the next start moves the rest.

    Args:
        folder: the state folder of all replicas.
        replicas: their number from now on.
        wait: seconds to wait for a process that still uses one of the folders.
    """
    old = [path for path in sorted(folder.glob("replica-*")) if path.is_dir()]
    homes = [home for home in (folder, *old) if (home / FACTS_FILE).exists()]
    if len({json.dumps(identity_in(home), sort_keys=True) for home in homes}) > 1:
        listed = ", ".join(map(str, homes))
        raise StateError(f"expected the streams of one method and model, got those of several: {listed}")
    with ExitStack() as locks:
        for home in old:
            locks.callback(FolderLock(home / "lock", wait=wait).release)
        for home in homes:
            for file in sorted((home / "streams").glob("*/stream.json")):
                if (name := name_in(file.parent)) is not None:
                    _move(file.parent, home, replica_folder(folder, owner(name, replicas)))


def _move(stream: Path, home: Path, target: Path) -> None:
    """Move the folder of a stream, and tell a folder that is new whose streams it holds."""
    if target == home:
        return
    (target / "streams").mkdir(parents=True, exist_ok=True)
    if not (target / FACTS_FILE).exists():
        with whole_file(target / FACTS_FILE) as partial:
            partial.write_bytes((home / FACTS_FILE).read_bytes())
    if (target / "streams" / stream.name / "stream.json").exists():
        raise StateError(f"{stream}: expected the stream in one folder, got it in {target} as well")
    stream.rename(target / "streams" / stream.name)
