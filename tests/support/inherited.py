"""What a process inherits from the one that started it: ignored signals, the environment."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

SENT_OR_AWAITED = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
"""Signals that tests send, and the one without which the exit status of a program is lost."""

TERMINAL = (
    "COLUMNS",
    "LINES",
    "TERMINAL_WIDTH",
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "PY_COLORS",
    "GITHUB_ACTIONS",
)
"""Variables by which programs that write to a file or a pipe write colours, or lines of another width."""


def forget_terminal() -> None:
    """Remove the variables of a terminal, also for processes that are started later."""
    for name in TERMINAL:
        os.environ.pop(name, None)


@contextmanager
def heeded_signals() -> Iterator[None]:
    """Heed the signals that this process was started to ignore; processes started in the block do, too.

    A program inherits what its parent ignores: Ctrl-C if a script started it with `&`, others under some
    services and continuous integration.
    """
    ignored = [kind for kind in SENT_OR_AWAITED if signal.getsignal(kind) == signal.SIG_IGN]
    for kind in ignored:
        signal.signal(kind, signal.default_int_handler if kind == signal.SIGINT else signal.SIG_DFL)
    try:
        yield
    finally:
        for kind in ignored:
            signal.signal(kind, signal.SIG_IGN)
