"""Batch normalisation by the statistics of the stream, against formulas written out here and in `byhand`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support import byhand as by

MODELS: dict[str, Callable[[], nn.Sequential]] = {"BatchNorm1d": by.flat_model, "BatchNorm2d": by.conv_model}
BLENDED = 1e-6  # moments are taken in single precision where they are blended


def blend(expected: by.ByHand, x: Tensor, prior: float, momentum: float = 0.1) -> Tensor:
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
    adapter, expected = eq.create("norm", model, **options), by.ByHand(model)
    for x in by.stream(3, like=model):
        assert by.close(adapter(x), expected.forward(x, options.get("norm_momentum", 0.1)))
    by.assert_alike(adapter, expected)
    x = by.stream(1, rows=5, like=model, seed=4)[0]
    assert by.close(adapter.predict(x), expected.predict(x))
    by.assert_alike(adapter, expected)  # predict moves nothing


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize(("prior", "momentum"), [(16.0, 0.1), (0.5, 0.3), (4.0, 0.0)])
def test_a_prior_blends_the_source_in(kind: str, rows: int, prior: float, momentum: float) -> None:
    model = MODELS[kind]()
    adapter = eq.create("norm", model, prior=prior, norm_momentum=momentum)
    expected = by.ByHand(model)
    for x in by.stream(3, rows, like=model):
        assert by.close(adapter(x), blend(expected, x, prior, momentum), BLENDED)
    by.assert_alike(adapter, expected, BLENDED)
    x = by.stream(1, rows=5, like=model, seed=4)[0]
    assert by.close(adapter.predict(x), expected.predict(x), BLENDED)


def test_the_blend_goes_from_the_batch_alone_to_the_source_alone() -> None:
    model = by.flat_model()
    (x,) = by.stream(1)
    assert by.close(eq.create("norm", model, prior=1e-9)(x), by.ByHand(model).forward(x), BLENDED)
    assert by.close(eq.create("norm", model, prior=1e9)(x), by.ByHand(model).predict(x), BLENDED)


def test_the_prior_stays_with_the_source_when_the_running_statistics_have_left() -> None:
    model = by.flat_model()
    adapter = eq.create("norm", model, prior=16, norm_momentum=1.0)
    for x in by.stream(4):
        adapter(x)
    assert by.close(adapter(x), blend(by.ByHand(model), x, 16), BLENDED)


class TestLoneSamples:
    @pytest.mark.parametrize("kind", MODELS)
    def test_are_normalised_in_a_window_of_the_last(self, kind: str) -> None:
        model = MODELS[kind]()
        adapter, expected = eq.create("norm", model, window=3), by.ByHand(model)
        samples = by.stream(6, rows=1, like=model)
        for place, x in enumerate(samples):
            window = torch.cat(samples[max(0, place - 2) : place + 1])
            z = expected.forward(window) if place else expected.predict(x)
            assert by.close(adapter(x), z[-1:]), place
            by.assert_alike(adapter, expected)

    def test_the_window_holds_sixteen_by_default(self) -> None:
        adapter, expected = eq.create("norm", by.flat_model()), by.ByHand(by.flat_model())
        samples = by.stream(18, rows=1)
        answers = [adapter(x) for x in samples]
        assert by.close(answers[-1], expected.forward(torch.cat(samples[-16:]))[-1:])
        assert not by.close(answers[-1], expected.forward(torch.cat(samples[-15:]))[-1:], 1e-4)
        assert not by.close(answers[-1], expected.forward(torch.cat(samples[-17:]))[-1:], 1e-4)

    def test_in_a_window_of_one_go_by_the_running_statistics(self) -> None:
        adapter, expected = eq.create("norm", by.flat_model(), window=1), by.ByHand(by.flat_model())
        for x in by.stream(3, rows=1):
            assert by.close(adapter(x), expected.predict(x))
        by.assert_alike(adapter, expected)

    def test_batches_between_them_stay_out_of_the_window(self) -> None:
        adapter, expected = eq.create("norm", by.flat_model(), window=3), by.ByHand(by.flat_model())
        (batch,) = by.stream(1, seed=8)
        left, right = by.stream(2, rows=1)
        assert by.close(adapter(left), expected.predict(left))
        assert by.close(adapter(batch), expected.forward(batch))
        assert by.close(adapter(right), expected.forward(torch.cat([left, right]))[-1:])
        by.assert_alike(adapter, expected)

    def test_with_a_prior_keep_no_window(self) -> None:
        adapter = eq.create("norm", by.flat_model(), prior=2.0)
        left, right = by.stream(2, rows=1)
        adapter(left)
        assert by.close(adapter(right), blend(by.ByHand(by.flat_model()), right, 2.0), BLENDED)
        assert not adapter.memory
