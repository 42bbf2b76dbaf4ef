"""Promises of a method: each function raises ConformanceError if a method breaks the one in its name."""

import copy
import inspect
import math
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.adapter import Adapter
from equipoise.core.method import SAMPLES, Context, Method, Update
from equipoise.core.state import NewMemoryError
from equipoise.errors import BatchError, ConformanceError, StateError
from equipoise.factory import load
from equipoise.testing.models import (
    NUM_CLASSES,
    WithLogits,
    drifted,
    drifted_stream,
    make,
    measured,
    seeded_torch,
)
from equipoise.testing.subject import (
    OWN_MEMORY,
    Subject,
    answers,
    captures,
    difference_of,
    expect,
    expect_equal,
    expect_equal_answers,
    expect_logits,
    expect_same_state,
    label_last,
    part_in_words,
    snapshot,
    unread_step,
)

NOT_FINITE = (torch.nan, torch.inf, -torch.inf)
"""Values of samples that an adapter sets aside."""

TOO_LARGE = (1e15, 1e25, 3e38)
"""Finite values whose squares, sums or both are too large for single precision."""


def adapts_the_model(subject: Subject) -> None:
    """Make an adapter of the model and answer one batch."""
    subject.adapter()(drifted(8))


def answers_are_finite_logits(subject: Subject) -> None:
    """Answer each batch of a stream, learning and not, with logits of the right shape and type."""
    adapter, model = subject.build()
    dtype = next(model.parameters()).dtype
    for x in drifted_stream():
        expect_logits(adapter(x), (len(x), NUM_CLASSES), dtype, "adapter(x)")
        expect_logits(adapter.predict(x), (len(x), NUM_CLASSES), dtype, "adapter.predict(x)")


def double_precision_stays_double(subject: Subject) -> None:
    """Answer in double precision with a model and a batch of that type."""
    model, source = make(subject.kind)
    came = subject.create(model.double(), source)(drifted(8).double()).dtype
    expect(
        came == torch.float64, f"expected torch.float64 answers of a model in double precision, got {came}"
    )


def learns_the_same_in_any_grad_mode(subject: Subject) -> None:
    """Learn the same inside of no_grad, inference_mode and enable_grad."""
    plain = subject.adapter()
    with torch.enable_grad():
        expected = answers(plain, drifted_stream())
    for mode in (torch.no_grad, torch.inference_mode):
        adapter, name = subject.adapter(), f"torch.{mode.__name__}()"
        with mode():
            came = [adapter(x.clone()) for x in drifted_stream()]
        expect_equal_answers(
            expected,
            came,
            f"inside of {name} the answer to {{}} is another one than inside of torch.enable_grad()",
        )
        expect_same_state(
            snapshot(plain),
            snapshot(adapter),
            f"inside of {name} a stream left {{}} other than inside of torch.enable_grad()",
        )


def works_in_inference_mode(subject: Subject) -> None:
    """Be made, reset and loaded in inference mode, and go on outside of it."""
    model, source = make(subject.kind)
    plain = subject.create(model, source)
    plain(drifted(8))
    with torch.inference_mode():
        adapter = subject.create(model, source)
        adapter(drifted(8))
        state = adapter.state_dict()
        adapter.reset()
        adapter.load_state_dict(state)
    expect_equal(
        plain(drifted(4)),
        adapter(drifted(4)),
        "an adapter made, reset and loaded in torch.inference_mode() answers otherwise than one made outside",
    )


def works_under_autocast(subject: Subject) -> None:
    """Answer with finite logits under autocast to bfloat16."""
    adapter = subject.adapter()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for number, logits in enumerate(answers(adapter, drifted_stream()), start=1):
            expect(
                bool(logits.isfinite().all()),
                f"under autocast to bfloat16, batch {number} of the stream has answers that are not finite",
            )


def leaves_the_given_model_unchanged(subject: Subject) -> None:
    """Leave weights, modes, gradients and hooks of the model that is passed in as they are."""
    model, source = make(subject.kind)
    model.train()
    model.register_forward_hook(lambda *_: None)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = len(model._forward_hooks)
    adapter = subject.create(model, source)
    for x in drifted_stream():
        adapter(x)
        adapter.predict(x)
    adapter.reset()
    for name, tensor in model.state_dict().items():
        expect_equal(before[name], tensor, f"'{name}' of the model passed in was changed")
    _expect_untouched(model, hooks)


def _expect_untouched(model: nn.Module, hooks: int) -> None:
    expect(
        all(module.training for module in model.modules()),
        "the model passed in was put into eval mode: change modes of `context.student` by its forwards only",
    )
    for name, parameter in model.named_parameters():
        expect(not parameter.requires_grad, f"'{name}' of the model passed in was made to require gradients")
        expect(parameter.grad is None, f"'{name}' of the model passed in was given a gradient")
    expect(len(model._forward_hooks) == hooks, "hooks were left on the model passed in, or removed from it")


def changes_declared_parameters_only(subject: Subject) -> None:
    """Leave the parameters that are not among `Method.learns` as they are."""
    adapter, model = subject.build()
    answers(adapter, drifted_stream())
    for name, parameter in adapter.student.named_parameters():
        if name not in adapter.learned:
            expect_equal(
                model.get_parameter(name),
                parameter,
                f"the step changed the parameter '{name}', which is not among those that `learns` declares",
            )


def predict_learns_nothing(subject: Subject) -> None:
    """Leave everything as it is in `predict`."""
    adapter = subject.adapter()
    for x in drifted_stream():
        adapter(x)
        before = snapshot(adapter)
        adapter.predict(drifted(8, seed=20))
        expect_same_state(before, snapshot(adapter), "predict() changed {}: `answer` may not learn")


def ignores_non_finite_samples(subject: Subject) -> None:
    """Answer NaN and infinite samples with NaN, and learn from the others as if those had not been there."""
    adapter, clean = subject.adapter(), subject.adapter()
    for x in drifted_stream():
        bad = torch.stack([torch.full_like(x[0], value) for value in NOT_FINITE])
        logits, expected = adapter(torch.cat([x[:1], bad, x[1:]])), clean(x)
        for value, answer in zip(NOT_FINITE, logits[1:], strict=False):
            expect(bool(answer.isnan().all()), f"expected NaN logits for a sample of {value}, got others")
        others = torch.cat([logits[:1], logits[1 + len(bad) :]])
        expect_equal(expected, others, "samples of NaN and infinity changed the answers to the others")
        last, samples = adapter.last, len(x) + len(bad)
        expect(
            last is not None and (last.samples, last.set_aside) == (samples, len(bad)),
            f"expected adapter.last to count {samples} samples with {len(bad)} set aside, got {last}",
        )
        expect(
            last is not None and "non-finite" in last.reason,
            f"expected adapter.last.reason to name the non-finite samples, got {last}",
        )
    expect_same_state(
        snapshot(clean), snapshot(adapter), "samples of NaN and infinity in a stream left {} changed"
    )


def learns_nothing_from_bad_batches(subject: Subject) -> None:
    """Answer a batch without a finite sample with NaN and leave everything as it is."""
    adapter = subject.adapter()
    adapter(drifted(8))
    before = snapshot(adapter)
    logits = adapter(torch.full((3, 3, 6, 6), torch.nan))
    expect(
        logits.shape == (3, NUM_CLASSES) and bool(logits.isnan().all()),
        f"expected NaN logits of shape {(3, NUM_CLASSES)} for a batch of NaN, got {tuple(logits.shape)}",
    )
    expect_same_state(before, snapshot(adapter), "a batch of NaN changed {}")
    last = adapter.last
    expect(
        last is not None and not last.updated and last.set_aside == 3,
        f"expected adapter.last to have 3 samples set aside and no update, got {last}",
    )


def keeps_no_overflow(subject: Subject) -> None:
    """Keep only finite numbers after a sample that is finite but too large for the model."""
    for size in TOO_LARGE:
        adapter = subject.adapter()
        x = drifted(8)
        x[3], x[5] = size, size * x[5].sign()
        for batch in (x, x[3:4], x[5:6], drifted(4)):
            adapter(batch)
            for name, tensor in snapshot(adapter).items():
                expect_equal(
                    tensor.nan_to_num(0.0, 0.0, 0.0),
                    tensor,
                    f"a sample of {size:g}, for which the model's answer is not finite, stays in "
                    f"{part_in_words(name)}: return a `Check` in `Update.checks` that new values are finite",
                )
        for call in (adapter, adapter.predict):
            logits = call(drifted(8, seed=1))
            expect(
                bool(logits.isfinite().all()),
                f"after a sample of {size:g} the answers to ordinary samples are not finite: {OWN_MEMORY}",
            )


def takes_no_labels(subject: Subject) -> None:
    """Take labels neither in a call nor by an option."""
    adapter = subject.adapter()
    for function in (type(adapter).__init__, adapter.forward, adapter.predict, adapter.adapt):
        for name in inspect.signature(function).parameters:
            expect(
                name != "y" and not any(word in name for word in ("label", "target", "truth")),
                f"{function.__name__}() takes {name!r}: an adapter learns without labels",
            )
    for field in fields(adapter.method):
        expect(
            field.name not in ("y", "labels", "targets", "truth"),
            f"the method has an option {field.name!r}: an adapter learns without labels",
        )


def adapt_is_a_pass_over_a_loader(subject: Subject) -> None:
    """Learn the same in `adapt` as in calls with the loader's batches."""
    by_hand, adapter = subject.adapter(), subject.adapter()
    answers(by_hand, drifted_stream())
    labels = torch.zeros(8)
    expect(
        adapter.adapt([(x, labels) for x in drifted_stream()], progress=False) is adapter,
        "expected adapt() to return the adapter",
    )
    expect_same_state(
        by_hand.state_dict(),
        adapter.state_dict(),
        f"adapt(loader) left {{}} other than calls do: {OWN_MEMORY}",
    )


def takes_keywords_and_logits_objects(subject: Subject) -> None:
    """Adapt a model that takes keyword inputs and returns an object with .logits."""
    wrapped = WithLogits(make(subject.kind)[0])
    source = measured(wrapped, [{"pixel_values": drifted(16)}])
    adapter, again = (subject.create(wrapped, source) for _ in range(2))
    for x in drifted_stream():
        mine, theirs = again(x, scale=1.0), adapter(pixel_values=x)
        for answer in (mine, theirs):
            kind = type(answer).__name__
            expect(hasattr(answer, "logits"), f"expected an object with .logits, as the model's, got {kind}")
        expect_equal(mine.logits, theirs.logits, "keyword inputs are answered otherwise than others")
    shape = tuple(adapter.predict(pixel_values=drifted(3)).logits.shape)
    expect(shape == (3, NUM_CLASSES), f"predict(pixel_values=x): expected {(3, NUM_CLASSES)}, got {shape}")
    adapter.adapt([{"pixel_values": drifted(4)}], progress=False)
    mixed = torch.cat([drifted(2), torch.full((1, 3, 6, 6), torch.nan)])
    rows = adapter(pixel_values=mixed, scale=1.0).logits.isnan().any(1).tolist()
    expect(
        rows == [False, False, True],
        f"expected NaN logits for the sample of NaN alone, the last of three, got NaN for {rows}",
    )


def detached_module_answers_as_predict(subject: Subject) -> None:
    """Give a plain module that answers as `predict` did, and that torch.export takes."""
    adapter = subject.adapter()
    if adapter.temper.kind == "sample":  # it has no single temperature, and is refused
        return
    answers(adapter, drifted_stream())
    module, expected = adapter.detach(), adapter.predict(drifted(6))
    words = "detach() gave a module that answers otherwise than predict(): `export` and `answer` differ"
    expect_equal(expected, module(drifted(6)), words, tolerance=1e-6)
    adapter(drifted(8))
    words = "a batch after detach() changed the detached module: `export` has to return copies"
    expect_equal(expected, module(drifted(6)), words, tolerance=1e-6)
    exported = torch.export.export(module, (drifted(6),)).module()
    words = "the module of detach() answers otherwise after torch.export"
    expect_equal(expected, exported(drifted(6)), words, tolerance=1e-6)


ROUNDING = 1e-5
"""Difference that the order of sums may make."""


def reset_is_exact(subject: Subject) -> None:
    """Go back to the source model bit for bit, and learn the same again from the same stream."""
    adapter, model = subject.build()
    fresh, untouched = snapshot(adapter), adapter.predict(drifted(4))
    first = answers(adapter, drifted_stream())
    label_last(adapter)
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
    label_last(adapter)
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
    label_last(adapter)
    state, before = adapter.state_dict(), snapshot(adapter)
    answers(adapter, drifted_stream())
    label_last(adapter)
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
    """An adapter that has seen a few batches and labels, so that all of its memory has arrived."""
    adapter = subject.adapter()
    for seed in range(3):
        adapter(drifted(8, seed))
    label_last(adapter)
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
