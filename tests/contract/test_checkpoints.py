"""Adapters inside another module: its checkpoints hold their whole state."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.cases import CASES, create
from tests.support.models import drifted, make, rehearsed, same


class Parent(nn.Module):
    """A service with an adapter inside."""

    def __init__(self, adapter: eq.Adapter) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.parts = nn.ModuleDict({"adapter": adapter})

    @property
    def adapter(self) -> eq.Adapter:
        adapter = self.parts["adapter"]
        assert isinstance(adapter, eq.Adapter)
        return adapter

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.scale * self.adapter(x)
        return logits


def parent(case: str, **more: Any) -> Parent:
    return Parent(create(case, *make(), **more))


def written(state: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """A state dict after a file without pickled objects."""
    torch.save(state, folder / "parent.pt")
    loaded: dict[str, Tensor] = torch.load(folder / "parent.pt", weights_only=True)
    return loaded


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_of_the_parent_goes_on_where_it_was(case: str, tmp_path: Path) -> None:
    old, new, other = parent(case), parent(case), parent(case)
    for seed in range(4):
        old(drifted(6, seed))
    new(drifted(6, 9))  # nothing of it stays
    kept = new.adapter.student.state_dict(keep_vars=True)
    assert str(new.load_state_dict(written(old.state_dict(), tmp_path))) == "<All keys matched successfully>"
    other.load_state_dict(old.state_dict(), assign=True)
    assert new.adapter.last is None
    now = new.adapter.student.state_dict(keep_vars=True)
    assert all(tensor is kept[name] for name, tensor in now.items())
    for seed in range(4, 7):
        expected = old(drifted(6, seed))
        assert torch.equal(new(drifted(6, seed)), expected)
        assert torch.equal(other(drifted(6, seed)), expected)
        assert torch.equal(new.adapter.predict(drifted(6)), old.adapter.predict(drifted(6)))
    assert same(new.adapter.state_dict(), old.adapter.state_dict())


def test_a_tempered_adapter_in_a_parent(tmp_path: Path) -> None:
    model, source = make()
    old, new = (Parent(eq.Tempered(eq.create("tent", model), source)) for _ in range(2))
    for seed in range(3):
        old(drifted(6, seed))
    new.load_state_dict(written(old.state_dict(), tmp_path))
    assert torch.equal(new.adapter.predict(drifted(6)), old.adapter.predict(drifted(6)))
    assert torch.equal(new(drifted(6, 5)), old(drifted(6, 5)))


def test_parents_move_copy_and_change_modes() -> None:
    old, like = parent("poise, rehearsed"), parent("poise, rehearsed")
    old(drifted(6))
    like(drifted(6))
    twin = deepcopy(old.train().to("cpu"))
    expected = like.adapter(drifted(6, 1))
    assert torch.equal(twin.adapter(drifted(6, 1)), expected)
    assert torch.equal(old.adapter(drifted(6, 1)), expected)  # the copy taught it nothing
    wide = deepcopy(old).double()
    assert wide.adapter.predict(drifted(6).double()).dtype == torch.float64
    again = parent("poise, rehearsed")
    again.load_state_dict(twin.state_dict())
    assert torch.equal(again(drifted(6, 2)), twin(drifted(6, 2)))


def others() -> Iterator[tuple[str, Parent, str]]:
    """Parents that the checkpoint of a lively tent is not for."""
    yield "method", parent("eta"), "expected method 'eta', got 'tent'"
    yield "options", parent("tent"), "expected option learning_rate 0.001, got 0.05"
    yield "model", Parent(create("tent, lively", *make(seed=1))), "another model"
    yield "tempering", parent("tent, lively", tempering="median"), "option tempering 'median', got 'none'"


@pytest.mark.parametrize("which", ["method", "options", "model", "tempering"])
def test_a_checkpoint_of_another_adapter_is_refused_and_changes_nothing(which: str) -> None:
    old = parent("tent, lively")
    old(drifted(6))
    _, new, message = next(entry for entry in others() if entry[0] == which)
    new(drifted(6, 3))
    before = new.adapter.state_dict()
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=rf"parts\.adapter: .*{message}"):
            new.load_state_dict(old.state_dict(), strict=strict)
    assert same(before, new.adapter.state_dict())


def test_another_rehearsal_is_refused() -> None:
    model, source = make()
    source = rehearsed(source, "poise")
    other = replace(source.rehearsal, samples=source.rehearsal.samples + 1)
    old, new = (
        Parent(eq.Poise(model, source)),
        Parent(eq.Poise(model, replace(source, rehearsals={"poise": other}))),
    )
    with pytest.raises(RuntimeError, match="another rehearsal"):
        new.load_state_dict(old.state_dict())


def test_a_checkpoint_without_the_adapter_names_what_is_missing() -> None:
    new = parent("tent")
    new(drifted(6))
    before = new.adapter.state_dict()
    with pytest.raises(RuntimeError, match=r"Missing key.*parts\.adapter\._extra_state"):
        new.load_state_dict({"scale": torch.zeros(())})
    found = new.load_state_dict({"scale": torch.zeros(())}, strict=False)
    assert "parts.adapter._extra_state" in found.missing_keys
    assert not any("student" in name for name in found.missing_keys)
    assert same(before, new.adapter.state_dict())


def test_entries_of_a_plain_model_in_the_adapters_place_are_unexpected() -> None:
    new = parent("tent")
    before, weight = new.adapter.state_dict(), new.scale.detach()
    theirs = {f"parts.adapter.{name}": tensor for name, tensor in make(seed=1)[0].state_dict().items()}
    theirs["parts.adapter.student.0.weight"] = torch.zeros(3)  # of the adapter's own module, and not loaded
    theirs["parts.adapter.student.other"] = torch.zeros(3)
    found = new.load_state_dict({"scale": weight, **theirs}, strict=False)
    assert found.missing_keys == ["parts.adapter._extra_state"]
    assert sorted(found.unexpected_keys) == sorted(theirs)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*parts\.adapter\.0\.weight"):
        new.load_state_dict({"scale": weight, **theirs})
    assert same(before, new.adapter.state_dict())


def test_damaged_entries_are_refused() -> None:
    old, new = parent("tent"), parent("tent")
    before = new.adapter.state_dict()
    state = old.state_dict()
    name = next(name for name in state if name.endswith("weight"))
    for damage, message in (
        ({name: torch.zeros(3)}, "expected torch.float32"),
        ({"parts.adapter.tent.more": torch.zeros(3)}, "unknown entries: tent.more"),
        ({"parts.adapter._extra_state": torch.zeros(3)}, "damaged"),
        ({"parts.adapter._extra_state": torch.zeros(3, dtype=torch.uint8)}, "damaged"),
    ):
        with pytest.raises(RuntimeError, match=message):
            new.load_state_dict({**state, **damage})
    assert same(before, new.adapter.state_dict())


def test_the_part_of_an_adapter_loads_by_itself() -> None:
    old, new = parent("tent"), parent("tent")
    old(drifted(6))
    root = "parts.adapter."
    own = {n.removeprefix(root): t for n, t in old.state_dict().items() if n.startswith(root)}
    new.adapter.load_state_dict(own)
    assert torch.equal(new(drifted(6, 1)), old(drifted(6, 1)))
    with pytest.raises(eq.errors.StateError, match="expected method 'eta', got 'tent'"):
        parent("eta").adapter.load_state_dict(own)
