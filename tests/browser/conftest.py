"""A Chromium of the system, and pages opened in it that may not fetch anything."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without the network services of its own that a Chromium starts.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def chromium_path() -> str:
    """The Chromium of $CHROMIUM or on the PATH; a failure that says what to install if there is none."""
    named = os.environ.get("CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        where = f"$CHROMIUM={named} is no program" if named else f"none of {', '.join(NAMES)} is on the PATH"
        pytest.fail(
            f"no Chromium: {where}. Install one (Debian: apt-get install chromium), or set CHROMIUM to it.",
            pytrace=False,
        )
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium_path()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()
