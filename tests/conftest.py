import gc
from collections.abc import Iterator

import pytest
import torch

import equipoise.methods
import equipoise.registry
import equipoise.research.data.dataset
from tests.support.inherited import forget_terminal, heeded_signals

# Tests run in one process a core: more threads in each only get in each other's way.
torch.set_num_threads(1)


# Last: pytest itself has looked at the terminal by then, and no test is imported yet.
@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Let programs print what they print into a file, whatever the terminal is."""
    forget_terminal()


def pytest_collection_finish() -> None:
    """Leave what imports have made out of later collections of garbage: these take milliseconds then."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _garbage_is_collected_where_it_was_made() -> Iterator[None]:
    """Let a file or a socket that was left open fail a test of its own module, and not any later one."""
    yield
    gc.collect()


@pytest.fixture(autouse=True, scope="session")
def _signals_are_heeded() -> Iterator[None]:
    """Heed Ctrl-C, also where whoever started the tests ignores it: tests send it to their programs."""
    with heeded_signals():
        yield


@pytest.fixture(autouse=True)
def _leave_the_registries_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove what a test registers: the order of tests depends on the worker."""
    for module, name in ((equipoise.registry, "_METHODS"), (equipoise.research.data.dataset, "_DATA_SETS")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
