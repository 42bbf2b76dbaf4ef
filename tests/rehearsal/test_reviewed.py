"""What a review of rehearsals found, each by a test that failed before."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.errors import SourceError, UnknownMethodError, UnknownOptionError
from tests.support.models import CLASSES, drifted, images, make, rehearsed


def held_out(seed: int = 3) -> list[tuple[Tensor, Tensor]]:
    labels = torch.arange(120) % CLASSES
    return list(zip(images(120, seed).split(40), labels.split(40), strict=True))


def test_a_loader_that_shuffles_does_so_by_the_seed_and_leaves_the_random_state_alone() -> None:
    model, source = make()
    data = TensorDataset(images(300, 5), torch.arange(300) % CLASSES)
    loader = DataLoader(data, batch_size=50, shuffle=True)
    found = []
    for _ in range(2):
        before = torch.get_rng_state()
        given: dict[str, Any] = {"source": source, "check_held_out": False, "progress": False}
        made = eq.rehearse(model, loader, shifts=8, samples=100, **given)
        assert torch.equal(torch.get_rng_state(), before)
        found.append(made.rehearsal.student.weights)
        torch.rand(3)
    assert torch.equal(*found)


class Counted(list[tuple[Tensor, Tensor]]):
    """A loader that counts the batches that were read."""

    read = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for item in super().__iter__():
            self.read += 1
            yield item


def test_mistakes_in_the_call_are_found_before_anything_is_read() -> None:
    model, _ = make()
    loader = Counted(held_out())
    with pytest.raises(UnknownMethodError, match="poize"):
        eq.rehearse(model, loader, method="poize", progress=False)
    with pytest.raises(UnknownOptionError, match="poise has no option norm_moment"):
        eq.rehearse(model, loader, norm_moment=0.1, progress=False)
    with pytest.raises(eq.errors.OptionError, match="at least 7 shifts"):
        eq.rehearse(model, loader, shifts={"one": lambda x, _: x}, progress=False)
    assert loader.read == 0


@pytest.mark.slow
def test_every_method_is_rehearsed_with_what_it_needs() -> None:
    model, _ = make()
    given: dict[str, Any] = {"shifts": 8, "check_held_out": False, "progress": False}
    for name in eq.list_methods():
        made = eq.rehearse(model, held_out(), method=name, **given)
        assert eq.create(name, model, made, tempering="rehearsed")(drifted(8)).shape == (8, CLASSES)


def test_an_interrupt_while_reading_has_a_message() -> None:
    model, _ = make()

    def stopped() -> Iterator[tuple[Tensor, Tensor]]:
        yield held_out()[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="the rehearsal was stopped: nothing was kept"):
        eq.rehearse(model, stopped(), progress=False)


def test_options_that_were_not_rehearsed_are_found_when_poise_is_made() -> None:
    model, source = make()
    with pytest.raises(SourceError, match="rehearse it as it runs"):
        eq.Poise(model, rehearsed(source, "poise"), norm_momentum=0.2)


def test_what_tempered_saves_can_be_loaded(tmp_path: Path) -> None:
    model, source = make()
    source = rehearsed(source, "poise")
    tempered = eq.Tempered(eq.create("poise", model, source, tempering="none"), source, tempering="rehearsed")
    tempered(drifted(8))
    tempered.save(tmp_path / "state.safetensors")
    again = eq.load(tmp_path / "state.safetensors", model)
    assert torch.equal(again.predict(drifted(5)), tempered.predict(drifted(5)))
    assert tempered.accuracy == again.accuracy


def test_another_rehearsal_is_not_taken_for_the_one_of_a_state(tmp_path: Path) -> None:
    model, source = make()
    source = rehearsed(source, "poise")
    adapter = eq.Poise(model, source)
    adapter(drifted(8))
    adapter.save(tmp_path / "state.safetensors")
    eq.load(tmp_path / "state.safetensors", model, source)
    other = replace(source, rehearsals={"poise": replace(source.rehearsal, seed=9)})
    with pytest.raises(SourceError, match="expected the rehearsal of 'poise'"):
        eq.load(tmp_path / "state.safetensors", model, other)


def test_a_failed_batch_is_in_no_estimate() -> None:
    model, source = make()
    adapter = eq.Poise(model, rehearsed(source, "poise"))
    adapter(drifted(8))
    before = adapter.accuracy
    spoilt = drifted(8, 1)
    spoilt[2] = 1e30  # finite, and too large for a variance
    adapter(spoilt)
    assert adapter.last is not None
    assert "non-finite statistics" in adapter.last.reason
    assert adapter.last.accuracy == adapter.accuracy == before


def test_the_warning_is_for_the_callers_line() -> None:
    model, source = make()
    with pytest.warns(eq.errors.RehearsalWarning) as caught:
        eq.create("poise", model, source)
    assert caught[0].filename == __file__
