"""State files of another version."""

from pathlib import Path

import pytest
import torch

import equipoise as eq
from equipoise.adapter import STATE_KIND, STATE_VERSION
from equipoise.files import read_tensors, write_tensors
from tests.support.models import drifted, make


def test_a_state_file_of_version_1_is_refused(tmp_path: Path) -> None:
    model, source = make()
    adapter = eq.create("tent", model, source)
    adapter(drifted(8))
    path, old = tmp_path / "state.safetensors", tmp_path / "old.safetensors"
    adapter.save(path)
    tensors, text = read_tensors(path, STATE_KIND, STATE_VERSION)
    header = {name: text[name] for name in text if name not in ("kind", "version", "equipoise")}
    write_tensors(old, STATE_KIND, 1, tensors, header)
    with pytest.raises(eq.errors.StateError, match="expected version 2 of 'equipoise adapter', got 1"):
        eq.load(old, model)
    assert torch.equal(eq.load(path, model).predict(drifted(4)), adapter.predict(drifted(4)))
