"""Tests do not depend on who started them: on signals that are ignored, on variables of a terminal."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.inherited import SENT_OR_AWAITED, TERMINAL, heeded_signals

INTERRUPTED = "import os, signal; os.kill(os.getpid(), signal.{}); print('ignored')"


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_program_heeds_a_signal_that_this_process_was_started_to_ignore(kind: signal.Signals) -> None:
    before = {each: signal.signal(each, signal.SIG_IGN) for each in SENT_OR_AWAITED}
    try:
        with heeded_signals():
            command = [sys.executable, "-c", INTERRUPTED.format(kind.name)]
            done = subprocess.run(command, capture_output=True, check=False)
        assert {signal.getsignal(each) for each in SENT_OR_AWAITED} == {signal.SIG_IGN}
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert (done.returncode, done.stdout) == (-kind, b"")


def test_every_test_heeds_the_signals_and_has_no_terminal() -> None:
    """Shows something for tests that are started so: `(trap '' INT; COLUMNS=40 FORCE_COLOR=1 make test)`."""
    assert signal.SIG_IGN not in {signal.getsignal(kind) for kind in SENT_OR_AWAITED}
    assert not set(TERMINAL) & set(os.environ)
