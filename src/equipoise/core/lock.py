"""One call at a time: the lock of an adapter that several threads use."""

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


class CallLock:
    """A re-entrant lock; a copy of its owner, by deepcopy or pickle, has a lock of its own."""

    def __init__(self) -> None:
        self._lock = RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CallLock":
        return CallLock()

    def __reduce__(self) -> tuple[type["CallLock"], tuple[()]]:
        return CallLock, ()


class _Locked(Protocol):
    _lock: CallLock


_Owner = TypeVar("_Owner", bound=_Locked)


def one_at_a_time(
    call: Callable[Concatenate[_Owner, _Arguments], _Answer],
) -> Callable[Concatenate[_Owner, _Arguments], _Answer]:
    """A method that waits until no other thread is in such a method of the same object."""

    @wraps(call)
    def locked(self: _Owner, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        with self._lock:
            return call(self, *args, **kwargs)

    return locked
