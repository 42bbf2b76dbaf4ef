"""Named errors for input, options and states that do not fit, before any state changes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.adapter import STATE_KIND, STATE_VERSION
from equipoise.files import read_tensors, write_tensors
from tests.support.models import drifted, images, make, same, snapshot

FRAME = pd.DataFrame(images(4).flatten(1).numpy())


@pytest.fixture
def adapter() -> eq.Adapter:
    model, source = make()
    adapter = eq.create("dec", model, source)
    adapter(drifted(8))
    return adapter


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "message"),
    [
        ((torch.zeros(0, 3, 6, 6),), {}, eq.errors.BatchError, "empty batch"),
        ((images(4), torch.zeros(4)), {}, eq.errors.BatchTypeError, "without labels"),
        (([1.0, 2.0],), {}, eq.errors.BatchTypeError, "expected a batch as a torch.Tensor, got list"),
        ((None,), {}, eq.errors.BatchTypeError, "got NoneType"),
        (({"pixels": images(4)},), {}, eq.errors.BatchTypeError, r"inputs=lambda batch: batch\['pixels'\]"),
        ((), {}, eq.errors.BatchTypeError, "got none"),
        ((), {"flag": True}, eq.errors.BatchTypeError, r"takes, \(input\), got the keywords flag"),
        ((images(4).numpy(),), {}, eq.errors.BatchTypeError, r"got ndarray; torch\.from_numpy\(x\)"),
        (
            (),
            {"input": images(4).numpy()},
            eq.errors.BatchTypeError,
            r"'input' as .*; torch\.from_numpy\(x\)",
        ),
        (({"input": images(4).numpy()},), {}, eq.errors.BatchTypeError, r"torch\.from_numpy\(x\)"),
        ((FRAME,), {}, eq.errors.BatchTypeError, r"got DataFrame; torch\.as_tensor\(x\.to_numpy\("),
        ((torch.tensor(1.0),), {}, eq.errors.BatchError, "single number"),
    ],
)
def test_batches(
    adapter: eq.Adapter, args: tuple[Any, ...], kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    before, last = snapshot(adapter), adapter.last
    for call in (adapter, adapter.predict):
        with pytest.raises(error, match=message):
            call(*args, **kwargs)
    assert same(before, snapshot(adapter))
    assert adapter.last is last


class TakesAnything(nn.Module):
    """Takes any keyword, as models of Hugging Face do, and reads one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make()[0]

    def forward(self, pixel_values: Tensor | None = None, **kwargs: Any) -> Any:
        if "size" in kwargs:
            raise ValueError("no such size")
        return self.inner(pixel_values)


def test_a_misspelt_keyword_that_the_model_takes_is_named() -> None:
    adapter = eq.create("norm", TakesAnything())
    message = (
        r"takes, \(pixel_values, kwargs\), got the keywords pixels; it has no parameter pixels and failed"
    )
    for call in (adapter, adapter.predict):
        with pytest.raises(eq.errors.BatchTypeError, match=message):
            call(pixels=images(4))
        with pytest.raises(eq.errors.BatchTypeError, match=message):
            call({"pixels": images(4)})
    assert adapter(pixel_values=images(4), also=1).shape == (4, 5)
    with pytest.raises(RuntimeError, match="channels"):  # an error of the model itself passes through
        adapter(pixel_values=images(4)[:, :1], also=1)
    with pytest.raises(ValueError, match="no such size") as passed:
        adapter(pixel_values=images(4), size=torch.ones(4))
    assert type(passed.value) is ValueError


def test_labels_by_keyword_are_left_out() -> None:
    model, x = TakesAnything(), images(4)
    seen: list[list[str]] = []
    hook = model.register_forward_pre_hook(lambda *args: seen.append(list(args[2])), with_kwargs=True)
    adapter = eq.create("norm", model)
    hook.remove()
    for call in (adapter, adapter.predict, adapter.source_logits):
        call(pixel_values=x, labels=torch.zeros(4))
    assert seen == [["pixel_values"]] * 3


def test_the_errors_are_also_the_built_in_ones() -> None:
    assert issubclass(eq.errors.BatchTypeError, TypeError)
    assert issubclass(eq.errors.UnknownOptionError, TypeError)
    for error in (eq.errors.BatchError, eq.errors.OptionError, eq.errors.ModelError, eq.errors.StateError):
        assert issubclass(error, ValueError)
        assert issubclass(error, eq.EquipoiseError)


class Returns(nn.Module):
    """A model that returns a given function of (N, 5) logits."""

    def __init__(self, wrong: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(108, 5)
        self.wrong = wrong

    def forward(self, x: Tensor) -> Any:
        return self.wrong(self.linear(x.flatten(1)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda z: z[:, :1], "at least 2 classes, got 1"),
        (lambda z: z[:, 0], r"shape \(N, C\)"),
        (lambda z: z[:2], r"shape \(N, C\) with N = 4"),
        (lambda z: z[:, :, None], r"shape \(N, C\)"),
        (lambda z: z.argmax(1, keepdim=True).expand(-1, 5), "floating-point"),
        (lambda z: {"logits": z}, "got dict"),
        (lambda z: None, "got NoneType"),
        (lambda z: z[:, :4], "expected 5 classes as in the source statistics, got 4"),
    ],
)
def test_models_that_are_no_classifiers(wrong: Any, message: str) -> None:
    adapter = eq.DEC(Returns(wrong), eq.SourceStatistics(h0=0.5, kappa=2.0, num_classes=5))
    before = snapshot(adapter)
    for call in (adapter, adapter.predict):
        with pytest.raises(eq.errors.ModelError, match=message):
            call(images(4))
    assert same(before, snapshot(adapter))
    if "source statistics" not in message:
        with pytest.raises(eq.errors.ModelError, match=message):
            eq.SourceStatistics.measure(Returns(wrong), [images(4)], progress=False)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: len, "expected a torch.nn.Module, got builtin_function"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(5)), "run a batch through it first"),
        (lambda: torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(108, 5))), "got a ScriptModule"),
    ],
)
def test_models_that_cannot_be_adapted(model: Callable[[], Any], message: str) -> None:
    with pytest.raises(eq.errors.ModelError, match=message):
        eq.create("source", model())
    if "ScriptModule" not in message:  # whose statistics can be measured
        with pytest.raises(eq.errors.ModelError, match=message):
            eq.SourceStatistics.measure(model(), [images(4)], progress=False)


def test_unknown_names_list_the_known_ones() -> None:
    model, source = make()
    with pytest.raises(eq.errors.UnknownMethodError, match=r"no method 'dce'; there are .*, eata, eta, "):
        eq.create("dce", model, source)
    assert issubclass(eq.errors.UnknownMethodError, KeyError)
    misspelt: dict[str, Any] = {"tmin": 1.0}
    message = r"dec has no option tmin; it has learning_rate, .*, t_min, t_max, source_copy, "
    with pytest.raises(eq.errors.UnknownOptionError, match=message):
        eq.create("dec", model, source, **misspelt)
    with pytest.raises(eq.errors.UnknownOptionError, match=message):
        eq.DEC(model, source, **misspelt)


@pytest.mark.parametrize("loader", [images(4), None, 3, {"input": images(4)}, images(4).numpy(), FRAME])
def test_values_that_are_no_loaders(adapter: eq.Adapter, loader: Any) -> None:
    with pytest.raises(eq.errors.BatchTypeError, match="expected an iterable of batches"):
        adapter.adapt(loader, progress=False)


def test_an_empty_loader(adapter: eq.Adapter) -> None:
    with pytest.raises(eq.errors.BatchError, match="empty loader"):
        adapter.adapt([], progress=False)


def test_sample_tempering_cannot_be_detached() -> None:
    model, source = make()
    with pytest.raises(eq.errors.OptionError, match="cannot be detached"):
        eq.DEC(model, source, tempering="sample").detach()


def test_damaged_state_files(adapter: eq.Adapter, tmp_path: Path) -> None:
    model, _ = make()
    path = tmp_path / "state.safetensors"
    adapter.save(path)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], whole[:8], b"", b"\x80\x04pickle" * 9):
        path.write_bytes(damaged)
        with pytest.raises(eq.errors.StateError, match="not a readable safetensors file"):
            eq.load(path, model)
    with pytest.raises(FileNotFoundError):
        eq.load(tmp_path / "absent.safetensors", model)
    with pytest.raises(eq.errors.StateError):
        eq.load(tmp_path, model)


def rewritten(path: Path, **changes: str | None) -> Path:
    tensors, text = read_tensors(path, STATE_KIND, STATE_VERSION)
    other = path.with_name("rewritten.safetensors")
    changed = {name: value for name, value in {**text, **changes}.items() if value is not None}
    write_tensors(other, STATE_KIND, STATE_VERSION, tensors, changed)
    return other


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"version": "1", "equipoise": "0.5.0"},
            r"expected version 2 of 'equipoise adapter', got 1 \(written by equipoise 0\.5\.0, this is ",
        ),
        ({"kind": "something"}, "expected a file of kind"),
        ({"method": "dce"}, "method 'dce'; there are .*, eata, eta, "),
        ({"method": None}, "damaged header"),
        ({"options": "{"}, "damaged header"),
        ({"source": '{"h0": 1}'}, "damaged header"),
        ({"model_fingerprint": "0" * 40}, "started from another model"),
        ({"method": "source", "options": "{}"}, "expected the state of 'source', got that of dec"),
        ({"method": "source"}, "its header does not make a 'source'"),
        ({"options": "[1]"}, "damaged header"),
        ({"options": "null"}, "damaged header"),
        ({"source": ""}, "its header does not make a 'dec'"),
        ({"options": json.dumps({"reading": "steady"})}, r"does not make a 'dec': .*eq\.Poise\("),
        ({"options": json.dumps({"optimizer": "adam"})}, "the state lacks dec.memory.optimizer"),
        ({"options": json.dumps({"tempering": "median"})}, "the state lacks dec.temperature.sketch"),
    ],
)
def test_state_files_of_others(
    adapter: eq.Adapter, tmp_path: Path, changes: dict[str, str | None], message: str
) -> None:
    model, _ = make()
    path = tmp_path / "state.safetensors"
    adapter.save(path)
    with pytest.raises(eq.errors.StateError, match=message):
        eq.load(rewritten(path, **changes), model)


def test_a_state_of_another_model_or_source(adapter: eq.Adapter, tmp_path: Path) -> None:
    model, source = make()
    other, other_source = make(seed=1)
    path = tmp_path / "state.safetensors"
    adapter.save(path)
    with pytest.raises(eq.errors.StateError, match="another model"):
        eq.load(path, other)
    with pytest.raises(eq.errors.SourceError, match="statistics it was saved with"):
        eq.load(path, model, other_source)
    assert eq.load(path, model, source).last is None
    again = eq.SourceStatistics.measure(model, images(32, seed=7).split(5), progress=False)
    assert torch.equal(eq.load(path, model, again).predict(images(4)), adapter.predict(images(4)))


@pytest.mark.parametrize("method", eq.list_methods())
def test_options_that_are_numpy_numbers_are_saved_as_plain_ones(method: str, tmp_path: Path) -> None:
    model, source = make()
    plain = eq.create(method, model, source).options
    numbers: dict[str, Any] = {n: np.float32(v) for n, v in plain.items() if isinstance(v, float)}
    numbers |= {n: np.int64(v) for n, v in plain.items() if isinstance(v, int)}
    if method == "dec":
        numbers |= {"learning_rate": torch.tensor(1e-3), "parameters": ("8.*",)}
    adapter = eq.create(method, model, source, **numbers)
    adapter.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", model)
    assert loaded.options == adapter.options
    assert all(type(loaded.options[name]) is type(plain[name]) for name in numbers if name != "parameters")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": ["adam"]}, "expected optimizer as one of sgd, adam"),
        ({"optimizer": "rmsprop"}, "expected optimizer as one of sgd, adam, got 'rmsprop'"),
        ({"momentum": 1.0}, "expected momentum >= 0 and <= 0.9999, got 1.0"),
        ({"steps": 0}, "expected steps >= 1, got 0"),
        ({"steps": 1.5}, "expected steps as a whole number, got 1.5"),
        ({"window": 0}, "expected window >= 1, got 0"),
        ({"learning_rate": -1.0}, "expected learning_rate >= 0, got -1.0"),
        ({"parameters": "norms"}, 'expected parameters="all", "encoder", "norm" or'),
        ({"choice": "all"}, "tent has no option choice"),
    ],
)
def test_options_of_tent_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(eq.errors.OptionError, match=re.escape(message)):
        eq.create("tent", make()[0], **options)


def test_states_that_do_not_fit_the_options() -> None:
    model, source = make()
    eta = eq.create("eta", model, source)
    for name, tensor in {"average": torch.ones(7), "samples.0": torch.zeros(17, 3, 6, 6)}.items():
        state = {**eta.state_dict(), f"eta.memory.{name}": tensor}
        with pytest.raises(eq.errors.StateError, match="expected a"):
            eta.load_state_dict(state)


def test_eata_names_the_call_that_measures_its_statistics() -> None:
    with pytest.raises(eq.errors.SourceError, match=r"eata needs source statistics, .*fisher=True"):
        eq.create("eata", make()[0])


@pytest.mark.parametrize("state", [[1], {1: torch.zeros(1)}, None])
def test_a_state_that_is_no_mapping_of_names(state: Any) -> None:
    with pytest.raises(eq.errors.StateError, match="expected a state as a mapping of names to tensors"):
        eq.create("tent", make()[0]).load_state_dict(state)


def test_a_name_and_a_seed_that_cannot_be() -> None:
    create: Any = eq.create
    with pytest.raises(eq.errors.UnknownMethodError, match="expected the name of a method, got list"):
        create(["tent"], make()[0])
    with pytest.raises(eq.errors.OptionError, match="expected seed >= 0"):
        create("sotta", make()[0], seed=2**70)


@pytest.mark.parametrize("declared", ["counters", "arrives"])
def test_a_method_declares_a_dict(declared: str) -> None:
    fields = {"name": "declares", declared: ("seen",)}
    with pytest.raises(eq.errors.OptionError, match=f"Declares: expected {declared} as a dict"):
        eq.register(type("Declares", (eq.Method,), fields))
