"""Adapters by name and from state files."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

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


def test_a_state_file_that_names_the_source_copy_teacher_loads(tmp_path: Path) -> None:
    model, source = make()
    adapter = eq.create("tent", model, source, source_copy="swapped")
    adapter(drifted(8))
    path, old = tmp_path / "state.safetensors", tmp_path / "old.safetensors"
    adapter.save(path)
    tensors, text = read_tensors(path, STATE_KIND, STATE_VERSION)
    header = {name: text[name] for name in text if name not in ("kind", "version", "equipoise")}
    assert '"source_copy": "swapped"' in header["options"]
    header["options"] = header["options"].replace("source_copy", "teacher")
    write_tensors(old, STATE_KIND, STATE_VERSION, tensors, header)
    loaded = eq.load(old, model)
    assert loaded.options["source_copy"] == "swapped"
    assert torch.equal(loaded(drifted(8, 1)), adapter(drifted(8, 1)))


MEASURE, REHEARSE = (
    "source = equipoise.SourceStatistics.measure(model, ",
    "source = equipoise.rehearse(model, ",
)
UNLABELLED = (
    "(or, without labels and without tempering, equipoise.SourceStatistics.measure(model, source_loader))"
)


@pytest.mark.parametrize(
    ("make_adapter", "asker", "call"),
    [
        (lambda m: eq.DEC(m), "dec", f"{MEASURE}source_loader)"),
        (lambda m: eq.create("dec", m), "dec", f"{MEASURE}source_loader)"),
        (lambda m: eq.create("eata", m), "eata", f"{MEASURE}source_loader, fisher=True)"),
        (lambda m: eq.Poise(m), "poise", f"{REHEARSE}held_out_loader) {UNLABELLED}"),
        (lambda m: eq.Poise(m, tempering="none"), "poise", f"{REHEARSE}held_out_loader) {UNLABELLED}"),
        (lambda m: eq.create("tent", m, tempering="mean"), "tempering='mean'", f"{MEASURE}source_loader)"),
        (
            lambda m: eq.create("tent", m, tempering="rehearsed"),
            "tempering='rehearsed'",
            f"{REHEARSE}held_out_loader, method='tent')",
        ),
        (
            lambda m: eq.DEC(m, tempering="rehearsed"),
            "dec",
            f"{REHEARSE}held_out_loader, method='dec')",
        ),
    ],
)
def test_missing_statistics_come_with_the_call_that_makes_them(
    make_adapter: Callable[[nn.Module], eq.Adapter], asker: str, call: str
) -> None:
    message = f"{asker} needs source statistics, made once: {call}; then equipoise.create("
    with pytest.raises(eq.errors.SourceError, match=re.escape(message)):
        make_adapter(make()[0])


def test_statistics_that_are_none_come_with_the_calls_that_make_them() -> None:
    model, _ = make()
    adapter, tempered = eq.create("tent", model), cast("Callable[..., object]", eq.Tempered)
    calls: dict[str, Callable[[], object]] = {
        "list": lambda: eq.DEC(model, cast("Any", [drifted(8)])),
        "int": lambda: eq.Poise(model, cast("Any", 3)),
        "NoneType": lambda: tempered(adapter),
    }
    for came, make_adapter in calls.items():
        expected = f"expected source as SourceStatistics, or as the path.* got {came}; .*measure.*rehearse"
        with pytest.raises(eq.errors.SourceError, match=expected):
            make_adapter()


def test_a_model_in_place_of_the_name() -> None:
    swapped = cast("Callable[..., object]", eq.create)
    with pytest.raises(
        eq.errors.UnknownMethodError, match=r"^expected the name of a method, got Sequential;"
    ):
        swapped(nn.Sequential(nn.Linear(2, 2)), "tent")
