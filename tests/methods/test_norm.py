"""Batch normalisation by the statistics of the stream, against formulas written out here and in `byhand`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.byhand import ByHand, assert_alike, close, conv_model, flat_model, stream
from tests.support.models import drifted, make, same, snapshot

MODELS: dict[str, Callable[[], nn.Sequential]] = {"BatchNorm1d": flat_model, "BatchNorm2d": conv_model}
BLENDED = 1e-6  # moments are taken in single precision where they are blended


def blend(expected: ByHand, x: Tensor, prior: float, momentum: float = 0.1) -> Tensor:
    """The logits by (prior · source + n · batch) / (prior + n); the running variance follows the unbiased."""
    h, n = expected.hidden(x), len(x)
    mean, var, count = expected.moments(h)
    unbiased = var * count / max(count - 1, 1)
    mean = (prior * expected.source["norm.running_mean"] + n * mean) / (prior + n)
    var, later = (
        (prior * expected.source["norm.running_var"] + n * each) / (prior + n) for each in (var, unbiased)
    )
    expected.follow(mean, later, momentum)
    return expected.finish(h, mean, var)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    "options", [{}, {"norm_momentum": 0.0}, {"norm_momentum": 0.3}, {"norm_momentum": 1}]
)
def test_each_batch_is_normalised_by_itself(kind: str, options: dict[str, Any]) -> None:
    model = MODELS[kind]()
    adapter, expected = eq.create("norm", model, **options), ByHand(model)
    for x in stream(3, like=model):
        assert close(adapter(x), expected.forward(x, options.get("norm_momentum", 0.1)))
    assert_alike(adapter, expected)
    x = stream(1, rows=5, like=model, seed=4)[0]
    assert close(adapter.predict(x), expected.predict(x))
    assert_alike(adapter, expected)  # predict moves nothing


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize(("prior", "momentum"), [(16.0, 0.1), (0.5, 0.3), (4.0, 0.0)])
def test_a_prior_blends_the_source_in(kind: str, rows: int, prior: float, momentum: float) -> None:
    model = MODELS[kind]()
    adapter = eq.create("norm", model, prior=prior, norm_momentum=momentum)
    expected = ByHand(model)
    for x in stream(3, rows, like=model):
        assert close(adapter(x), blend(expected, x, prior, momentum), BLENDED)
    assert_alike(adapter, expected, BLENDED)
    x = stream(1, rows=5, like=model, seed=4)[0]
    assert close(adapter.predict(x), expected.predict(x), BLENDED)


def test_the_blend_goes_from_the_batch_alone_to_the_source_alone() -> None:
    model = flat_model()
    (x,) = stream(1)
    assert close(eq.create("norm", model, prior=1e-9)(x), ByHand(model).forward(x), BLENDED)
    assert close(eq.create("norm", model, prior=1e9)(x), ByHand(model).predict(x), BLENDED)


def test_the_prior_stays_with_the_source_when_the_running_statistics_have_left() -> None:
    model = flat_model()
    adapter = eq.create("norm", model, prior=16, norm_momentum=1.0)
    for x in stream(4):
        adapter(x)
    assert close(adapter(x), blend(ByHand(model), x, 16), BLENDED)


@pytest.mark.parametrize("source_copy", ["resident", "swapped"])
def test_a_reset_brings_the_source_statistics_back(source_copy: str) -> None:
    model = conv_model()
    adapter = eq.create("norm", model, prior=4.0, source_copy=source_copy)
    (x,) = stream(1, like=model)
    first = adapter(x)
    adapter.reset()
    assert_alike(adapter, ByHand(model))
    assert torch.equal(adapter(x), first)


class TestLoneSamples:
    @pytest.mark.parametrize("kind", MODELS)
    def test_are_normalised_in_a_window_of_the_last(self, kind: str) -> None:
        model = MODELS[kind]()
        adapter, expected = eq.create("norm", model, window=3), ByHand(model)
        samples = stream(6, rows=1, like=model)
        for place, x in enumerate(samples):
            window = torch.cat(samples[max(0, place - 2) : place + 1])
            z = expected.forward(window) if place else expected.predict(x)
            assert close(adapter(x), z[-1:]), place
            assert_alike(adapter, expected)

    def test_the_window_holds_sixteen_by_default(self) -> None:
        adapter, expected = eq.create("norm", flat_model()), ByHand(flat_model())
        samples = stream(18, rows=1)
        answers = [adapter(x) for x in samples]
        assert close(answers[-1], expected.forward(torch.cat(samples[-16:]))[-1:])
        assert not close(answers[-1], expected.forward(torch.cat(samples[-15:]))[-1:], 1e-4)
        assert not close(answers[-1], expected.forward(torch.cat(samples[-17:]))[-1:], 1e-4)

    def test_in_a_window_of_one_go_by_the_running_statistics(self) -> None:
        adapter, expected = eq.create("norm", flat_model(), window=1), ByHand(flat_model())
        for x in stream(3, rows=1):
            assert close(adapter(x), expected.predict(x))
        assert_alike(adapter, expected)

    def test_batches_between_them_stay_out_of_the_window(self) -> None:
        adapter, expected = eq.create("norm", flat_model(), window=3), ByHand(flat_model())
        (batch,) = stream(1, seed=8)
        left, right = stream(2, rows=1)
        assert close(adapter(left), expected.predict(left))
        assert close(adapter(batch), expected.forward(batch))
        assert close(adapter(right), expected.forward(torch.cat([left, right]))[-1:])
        assert_alike(adapter, expected)

    def test_with_a_prior_keep_no_window(self) -> None:
        adapter = eq.create("norm", flat_model(), prior=2.0)
        left, right = stream(2, rows=1)
        adapter(left)
        assert close(adapter(right), blend(ByHand(flat_model()), right, 2.0), BLENDED)
        assert not adapter.memory

    def test_a_reset_empties_the_window(self) -> None:
        adapter, expected = eq.create("norm", flat_model(), window=3), ByHand(flat_model())
        left, right = stream(2, rows=1)
        adapter(left)
        adapter.reset()
        assert close(adapter(right), expected.predict(right))


@pytest.mark.parametrize("prior", [0.0, 16.0])
def test_no_weight_moves_and_the_record_says_so(prior: float) -> None:
    model, _ = make("batch_norm")
    adapter = eq.create("norm", model, prior=prior)
    adapter(drifted(8))
    assert all(torch.equal(p, model.get_parameter(n)) for n, p in adapter.student.named_parameters())
    assert not any(p.requires_grad for p in adapter.student.parameters())
    assert adapter.last is not None
    assert (adapter.last.updated, adapter.last.used, adapter.last.loss) == (False, 0, None)
    assert "statistics" in adapter.last.reason


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("method", ["norm", "tent"])
def test_statistics_that_overflow_are_undone_and_are_the_reason(method: str, rows: int) -> None:
    adapter = eq.create(method, flat_model().float())
    for x in stream(2, rows):
        adapter(x.float())
    before = snapshot(adapter)
    adapter(1e30 * stream(1, rows)[0].float())
    assert adapter.last is not None
    assert (adapter.last.updated, adapter.last.reason) == (False, "non-finite statistics")
    assert same(before, snapshot(adapter))


@pytest.mark.parametrize("prior", [0.0, 16.0])
def test_the_layers_are_left_in_eval_mode(prior: float) -> None:
    model, _ = make("batch_norm")
    adapter = eq.create("norm", model, prior=prior)
    adapter(drifted(8))
    assert not any(module.training for module in adapter.student.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in adapter.student.modules())
    assert vars(adapter.student.get_submodule("1"))["momentum"] == 0.1


@pytest.mark.parametrize(
    ("kind", "able"),
    [("layer_norm", "tent"), ("group_norm", "tent"), ("norm_free", "poise"), ("norm_free", "t3a")],
)
def test_a_model_without_batch_norm_is_sent_to_a_method_that_can(kind: str, able: str) -> None:
    model, source = make(kind)
    with pytest.raises(eq.errors.ModelError, match=rf"norm needs batch-normalisation layers.*\b{able}\b"):
        eq.create("norm", model)
    assert eq.create(able, model, source)(drifted(4)).isfinite().all()


@pytest.mark.parametrize("options", [{"prior": -1.0}, {"prior": "16"}, {"norm_momentum": 1.1}, {"window": 0}])
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(eq.errors.OptionError, match=next(iter(options))):
        eq.create("norm", flat_model(), **options)
