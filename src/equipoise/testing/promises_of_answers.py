"""Promises about answers: each function raises ConformanceError if a method breaks the one in its name."""

import inspect
from dataclasses import fields

import torch
from torch import nn

from equipoise.testing.models import (
    NUM_CLASSES,
    WithLogits,
    drifted,
    drifted_stream,
    make,
    measured,
)
from equipoise.testing.subject import (
    OWN_MEMORY,
    Subject,
    answers,
    expect,
    expect_equal,
    expect_equal_answers,
    expect_logits,
    expect_same_state,
    part_in_words,
    snapshot,
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
        expect_equal(
            again(x, scale=1.0), adapter(pixel_values=x), "keyword inputs are answered otherwise than others"
        )
    shape = tuple(adapter.predict(pixel_values=drifted(3)).shape)
    expect(shape == (3, NUM_CLASSES), f"predict(pixel_values=x): expected {(3, NUM_CLASSES)}, got {shape}")
    adapter.adapt([{"pixel_values": drifted(4)}], progress=False)
    mixed = torch.cat([drifted(2), torch.full((1, 3, 6, 6), torch.nan)])
    rows = adapter(pixel_values=mixed, scale=1.0).isnan().any(1).tolist()
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
