"""Promises about state: each function raises ConformanceError if a method breaks the one in its name."""

import copy
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.adapter import Adapter
from equipoise.core.method import SAMPLES, Context, Method, Update
from equipoise.core.state import NewMemoryError
from equipoise.errors import BatchError, ConformanceError, StateError
from equipoise.factory import load
from equipoise.testing.models import drifted, drifted_stream, make, measured, seeded_torch
from equipoise.testing.reads import captures, unread_step
from equipoise.testing.subject import (
    OWN_MEMORY,
    Subject,
    answers,
    difference_of,
    expect,
    expect_equal,
    expect_equal_answers,
    expect_same_state,
    snapshot,
)

ROUNDING = 1e-5
"""Difference that the order of sums may make."""


def reset_is_exact(subject: Subject) -> None:
    """Go back to the source model bit for bit, and learn the same again from the same stream."""
    adapter, model = subject.build()
    fresh, untouched = snapshot(adapter), adapter.predict(drifted(4))
    first = answers(adapter, drifted_stream())
    adapter.reset()
    expect_same_state(fresh, snapshot(adapter), "reset() left {} changed")
    for name, tensor in adapter.student.state_dict().items():
        expect_equal(model.state_dict()[name], tensor, f"reset() left '{name}' other than the source model's")
    expect(adapter.last is None, "expected adapter.last to be None after reset()")
    words = f"after reset(), predict() answers otherwise than before the first batch: {OWN_MEMORY}"
    expect_equal(untouched, adapter.predict(drifted(4)), words)
    again = answers(adapter, drifted_stream())
    expect_equal_answers(
        first, again, f"after reset(), {{}} is answered otherwise than the first time: {OWN_MEMORY}"
    )


def save_and_load_continue_the_stream(subject: Subject) -> None:
    """Go on after saving and loading as if nothing had happened."""
    adapter, model = subject.build()
    answers(adapter, drifted_stream())
    loaded = _saved_and_loaded(adapter, model)
    expect(
        loaded.options == adapter.options,
        f"expected a loaded adapter to have the options {adapter.options}, got {loaded.options}",
    )
    expect(loaded.source == adapter.source, "a loaded adapter has other source statistics")
    words = f"a saved and loaded adapter predicts otherwise: {OWN_MEMORY}"
    expect_equal(adapter.predict(drifted(4)), loaded.predict(drifted(4)), words)
    expect_equal_answers(
        answers(adapter, drifted_stream()),
        answers(loaded, drifted_stream()),
        f"after saving and loading, {{}} is answered otherwise: {OWN_MEMORY}",
    )
    words = "after saving, loading and a stream, {} is not as without saving and loading"
    expect_same_state(snapshot(adapter), snapshot(loaded), words)
    loaded.reset()
    adapter.reset()
    expect_same_state(snapshot(adapter), snapshot(loaded), "reset() of a loaded adapter left {} changed")


def _saved_and_loaded(adapter: Adapter, model: nn.Module) -> Adapter:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state.safetensors")
        adapter.save(path)
        loaded = load(path, model)
    expect(
        type(loaded) is type(adapter),
        f"expected load() to make a {type(adapter).__name__}, got {type(loaded).__name__}",
    )
    return loaded


def a_state_dict_is_a_copy(subject: Subject) -> None:
    """Go back to a state that `state_dict` gave, whatever was learned since."""
    adapter = subject.adapter()
    adapter(drifted(8))
    state, before = adapter.state_dict(), snapshot(adapter)
    answers(adapter, drifted_stream())
    adapter.load_state_dict(state)
    expect_same_state(before, snapshot(adapter), "load_state_dict() left {} other than when it was saved")


def leaves_the_global_random_state(subject: Subject) -> None:
    """Draw no number of torch's global generator."""
    with seeded_torch(5):
        before = torch.get_rng_state()
        adapter = subject.adapter()
        for x in drifted_stream():
            adapter(x)
            adapter.predict(x)
        adapter.reset()
        expect(
            torch.equal(before, torch.get_rng_state()),
            "the method draws from torch's global random generator (torch.rand, dropout, …): draw with "
            "`context.rand` or `context.randn`, which reset, save and load keep track of",
        )


def random_draws_repeat(subject: Subject) -> None:
    """Draw the same numbers in two adapters of one seed, and after saving and loading."""
    (adapter, model), other = subject.build(), subject.adapter()
    with seeded_torch(1):
        expected = answers(adapter, drifted_stream())
    with seeded_torch(2):
        came = answers(other, drifted_stream())
    words = f"two adapters with the same options and seed differ in the answer to {{}}: {OWN_MEMORY}"
    expect_equal_answers(expected, came, words)
    words = f"two adapters with the same options and seed differ in {{}} after a stream: {OWN_MEMORY}"
    expect_same_state(snapshot(adapter), snapshot(other), words)
    loaded = _saved_and_loaded(adapter, model)
    with seeded_torch(3):
        expected = answers(adapter, drifted_stream())
    with seeded_torch(4):
        came = answers(loaded, drifted_stream())
    words = f"a saved and loaded adapter goes on with other random numbers in {{}}: {OWN_MEMORY}"
    expect_equal_answers(expected, came, words)


class _Watched:
    """A method that notes, in each step, the memory that it changes in place."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def step(self, context: Context) -> Update:
        before = {name: tensor.clone() for name, tensor in context.memory.items()}
        update = self._method.step(context)
        for name, tensor in before.items():
            difference = difference_of(tensor, context.memory[name])
            expect(
                not difference,
                f"the step wrote into memory '{name}' in place ({difference}): return the new value in "
                "`Update.memory`, so that a step that fails can be undone",
            )
        return update


def writes_no_memory_in_place(subject: Subject) -> None:
    """Return new values of memory instead of writing into the tensors of the old ones."""
    adapter = subject.adapter()
    watched: Any = _Watched(adapter.method)
    adapter.responder.method = watched
    answers(adapter, drifted_stream())


class _Countdown:
    """A number that a model and its copies share: of calls until one fails; None: none does."""

    def __init__(self) -> None:
        self.left: int | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Countdown":
        return self


class _Failing(nn.Module):
    """A model that raises after its layers have run, in the call whose number is set."""

    words = "the model's own words"

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.countdown = inner, _Countdown()

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images."""
        logits: Tensor = self.inner(x)
        if self.countdown.left is not None:
            self.countdown.left -= 1
            if self.countdown.left == 0:
                raise RuntimeError(self.words)
        return logits


def undoes_a_step_when_the_model_fails(subject: Subject) -> None:
    """Leave everything as it is if any forward of the model raises, and pass its error on."""
    model = _Failing(make(subject.kind)[0])
    adapter = subject.create(model, measured(model, [drifted(16)]))
    adapter(drifted(8))
    before, last, call = snapshot(adapter), adapter.last, 1
    while _fails(adapter, model, call):
        where = f"an error in forward {call} of a batch"
        expect_same_state(before, snapshot(adapter), f"{where} left {{}} changed")
        expect(adapter.last is last, f"{where} changed adapter.last")
        modes = any(module.training for module in adapter.student.modules())
        expect(not modes, f"{where} left layers in training mode")
        call += 1
    expect(call > 1, "an error of the model did not reach the caller: a step has to run the model")


def _fails(adapter: Adapter, model: _Failing, call: int) -> bool:
    """Whether an error in a forward of the model reaches the caller of the adapter."""
    model.countdown.left = call
    try:
        adapter(drifted(8, seed=1))
    except RuntimeError as error:
        if str(error) != _Failing.words:
            raise
        return True
    return False


def moves_and_copies_like_a_module(subject: Subject) -> None:
    """Answer the same as a copy of itself, and in double precision after `double()`."""
    adapter = subject.adapter()
    adapter(drifted(8))
    twin = copy.deepcopy(adapter)
    words = f"copy.deepcopy(adapter) answers otherwise than the adapter: {OWN_MEMORY}"
    expect_equal(adapter(drifted(8, 1)), twin(drifted(8, 1)), words)
    twin.reset()
    expect(twin.train().eval() is twin, "expected train() and eval() to return the adapter")
    twin.double()
    for name, tensor in twin.memory.items():
        narrow = tensor.dtype == torch.float32 and not name.startswith(SAMPLES)
        expect(not narrow, f"memory '{name}' is still float32 after double()")
    came = twin(drifted(8).double()).dtype
    expect(came == torch.float64, f"expected torch.float64 answers after double(), got {came}")
    twin.reset()
    expected = make(subject.kind)[0].double().state_dict()
    for name, tensor in twin.student.state_dict().items():
        expect_equal(
            expected[name], tensor, f"double() and reset() left '{name}' other than the source model's"
        )


def can_be_cast_in_mid_stream(subject: Subject) -> None:
    """Go on after a cast to bfloat16, to double and to single precision.

    A method that stores samples may refuse those of another type with BatchError.
    """
    adapter = subject.adapter()
    adapter(drifted(8))
    for cast in (torch.bfloat16, torch.float64, torch.float32):
        adapter.to(cast)
        try:
            adapter.load_state_dict(adapter.state_dict())
        except StateError as error:
            raise ConformanceError(
                f"after adapter.to({cast}) the adapter cannot load its own state: {error}; memory is kept in "
                "single precision at least: make it so in `initial`, with `functional.at_least_single`"
            ) from error
        for x in drifted_stream():
            try:
                logits = adapter(x.to(cast))
            except BatchError:
                if not adapter.method.stores_samples:
                    raise
                continue
            finite = bool(logits.isfinite().all())
            expect(finite, f"after adapter.to({cast}) some answers are not finite")


def _begun(subject: Subject) -> Adapter:
    """An adapter that has seen a few batches, so that all of its memory has arrived."""
    adapter = subject.adapter()
    for seed in range(3):
        adapter(drifted(8, seed))
    return adapter


def flags_decide_as_the_host_does(subject: Subject) -> None:
    """Learn the same where flags on the device decide instead of the host, as in a CUDA graph."""
    plain, flagged = _begun(subject), _begun(subject)
    for seed in range(3, 6):
        x = drifted(8, seed)
        if not captures(flagged, x):
            return
        expected = plain(x)
        try:
            answer, record = unread_step(flagged, x)
        except NewMemoryError:  # such a step is not captured
            return
        unread = "where the host may not read (`context.host_looks` is false), the step"
        expect_equal(expected, answer, f"{unread} answers otherwise", tolerance=ROUNDING)
        step, last = record.read(), plain.last
        for name in ("used", "updated", "set_aside", "loss", "temperature"):
            came, wanted = getattr(step, name), getattr(last, name)
            same = came == wanted or math.isclose(came, wanted, rel_tol=1e-4, abs_tol=ROUNDING)
            expect(same, f"{unread} has {name} {came}, and {wanted} otherwise")
    words = "where the host may not read (`context.host_looks` is false), a stream left {} otherwise"
    expect_same_state(snapshot(plain), snapshot(flagged), words, ROUNDING)


def the_host_reads_no_tensor(subject: Subject) -> None:
    """Decide nothing in a step by a number that the host reads, so that it can be a CUDA graph."""
    adapter = _begun(subject)
    for seed in range(3, 6):
        x = drifted(8, seed)
        if not captures(adapter, x):
            return
        try:
            unread_step(adapter, x, refusing=True)
        except NewMemoryError as error:
            raise ConformanceError(f"{error}: a CUDA graph writes to fixed addresses") from error
