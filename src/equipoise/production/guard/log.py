"""The log of a guarded stream, JSON lines bound to each other by hashes, and its decisions again."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from equipoise.errors import OptionError, StateError
from equipoise.json_form import from_json
from equipoise.production.guard.decider import Decision, Event, Options, Watch, decide, request, take_labels
from equipoise.production.guard.observation import Observation
from equipoise.version import __version__

_KIND, _VERSION = "equipoise guard log", 3
_CHECK, _LONGEST = "check", 2**20
_BEGINNING = json.dumps({"kind": _KIND})[:-1].encode()


def _check(before: str, values: Mapping[str, Any]) -> str:
    """The hash of a line and of the one before."""
    text = before + json.dumps(values, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Log:
    """A file that lines are appended to; a line that a killed process left torn is cut off when it opens.

    A file that does not begin as a log does is refused, and stays as it is.

    A file that cannot be written (a full disk) is no error: logging stops and `trouble` says so. Every time
    it opens, and whenever the state of the guard is replaced, a header begins a new part, which is replayed
    from the state in it, and is bound to the part before as every line is.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._last = Path(path), ""
        self.trouble = ""
        try:
            self._last = _open_log(self._path)
        except OSError as error:
            self.trouble = f"logging has stopped: {error}"

    def begin(self, options: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Write a header: the options, and the state of the guard."""
        kind = {"kind": _KIND, "version": _VERSION, "equipoise": __version__}
        self.write({**kind, "options": options, "state": state})

    def write(self, values: Mapping[str, Any]) -> None:
        """Append a line."""
        if self.trouble:
            return
        check = _check(self._last, values)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**values, _CHECK: check}) + "\n")
        except OSError as error:
            self.trouble = f"logging has stopped: {error}"
            return
        self._last = check


def _open_log(path: Path) -> str:
    """Cut a log after its last whole line; returns the hash of that line. OptionError for another file."""
    if not path.exists():
        return ""
    with path.open("r+b") as file:
        beginning = file.read(len(_BEGINNING))
        if not _BEGINNING.startswith(beginning):
            raise OptionError(f"expected the log of a guard, or no file, got another file: {path}")
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _LONGEST, 0))
        whole, _, torn = file.read().rpartition(b"\n")
        file.truncate(size - len(torn))
    try:
        return str(json.loads(whole.rpartition(b"\n")[2])[_CHECK])
    except (ValueError, TypeError, KeyError):
        return ""  # no line yet, or a damaged one, which a replay finds


def read_lines(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The values of the lines of a log; StateError for one that was changed or damaged, or is missing.

    That lines are missing at the end cannot be known. A last line without its end is left out: a process was
    killed as it wrote it.
    """
    last, started = "", False
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            return
        try:
            values = dict(json.loads(line))
        except (ValueError, TypeError) as error:
            raise StateError(f"line {number} of the log is damaged: {error}") from error
        check = values.pop(_CHECK, None)
        if header := values.get("kind") == _KIND:
            started = True
        if not started:
            raise StateError(f"line {number}: expected a log of a guard, got no header")
        if check != _check(last, values):
            raise StateError(f"line {number} of the log was changed, or lines before it are missing")
        if header and values["version"] != _VERSION:
            raise StateError(f"line {number}: expected version {_VERSION} of a log, got {values['version']}")
        last = str(check)
        yield values


def replay(log: str | os.PathLike[str] | Iterable[str]) -> list[Event]:
    """The events of a guarded stream, decided again from the numbers in its log.

    Args:
        log: the path of a log that `Guarded` wrote, or its lines.

    Returns:
        The events, as `Guarded.events` had them.

    Raises:
        StateError: a line is damaged, was changed or is missing before another one, or a decision is not the
            one that was made. That lines are missing at the end cannot be known.
    """
    if isinstance(log, str | os.PathLike):
        try:
            with Path(log).open(encoding="utf-8", newline="\n") as lines:
                return _replayed(lines)
        except UnicodeDecodeError as error:
            raise StateError(f"{log}: expected a log of a guard, got a file that is no text") from error
    return _replayed(log)


def _replayed(lines: Iterable[str]) -> list[Event]:
    options, watch, events = Options(), Watch.fresh(Options()), list[Event]()
    for values in read_lines(lines):
        try:
            if "options" in values:
                options = from_json(Options, values["options"])
                watch = from_json(Watch, values["state"])
                continue
            watch, decision = _decided(options, watch, values)
            events += _events(values, watch.batch, decision)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the log has a line that cannot be replayed: {error!r}") from error
    return events


def _decided(options: Options, watch: Watch, values: Mapping[str, Any]) -> tuple[Watch, Decision]:
    if "observation" in values:
        return decide(options, watch, from_json(Observation, values["observation"]))
    if "labels" in values:
        return take_labels(options, watch, values["labels"], values["batch"])
    return request(options, watch, values["request"], values["reason"], values["weights"])


def _events(values: Mapping[str, Any], batch: int, decision: Decision) -> list[Event]:
    """The event of a line, if it has one; StateError if another decision was made."""
    made, again = values.get("decision"), decision.to_json()
    if made != again:
        raise StateError(f"batch {batch}: expected the decision {again}, the log has {made}")
    return [decision.event(batch, **values["done"])] if again else []
