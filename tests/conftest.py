import pytest
import torch

import equipoise.methods
import equipoise.registry
import equipoise.research.data.dataset

# Tests run in one process a core: more threads in each only get in each other's way.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _leave_the_registries_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove what a test registers: the order of tests depends on the worker."""
    for module, name in ((equipoise.registry, "_METHODS"), (equipoise.research.data.dataset, "_DATA_SETS")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
