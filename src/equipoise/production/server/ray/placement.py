"""The replica that owns a stream, by rendezvous hashing of its name."""

from hashlib import blake2b


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
