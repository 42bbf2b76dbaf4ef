"""norm, bn_alpha and bn_ema: statistics of batch norm, against formulas written out here and in `byhand`."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

import equipoise as eq
from tests.support import byhand as by

KINDS = ["BatchNorm1d", "BatchNorm2d"]
ROUNDING = 1e-6  # moments are taken in single precision where they are blended
Formula: TypeAlias = Callable[[by.ByHand, Tensor], Tensor]


def alone(expected: by.ByHand, x: Tensor, momentum: float = 0.1) -> Tensor:
    """The logits by the batch's own statistics; those of a lone sample by the running ones."""
    return expected.forward(x, momentum) if len(x) > 1 else expected.predict(x)


def shared(expected: by.ByHand, x: Tensor, alpha: float, momentum: float = 0.1) -> Tensor:
    """The logits by (1 − alpha) · source + alpha · batch; the running variance follows the unbiased one."""
    h = expected.hidden(x)
    batch_mean, batch_var, count = expected.moments(h)
    mean = (1 - alpha) * expected.source["norm.running_mean"] + alpha * batch_mean
    source_var = expected.source["norm.running_var"]
    var = (1 - alpha) * source_var + alpha * batch_var
    later = (1 - alpha) * source_var + alpha * batch_var * count / max(count - 1, 1)
    expected.follow(mean, later, momentum)
    return expected.finish(h, mean, var)


def counted(expected: by.ByHand, x: Tensor, prior: float, momentum: float = 0.1) -> Tensor:
    """The logits by (prior · source + n · batch) / (prior + n)."""
    return shared(expected, x, len(x) / (prior + len(x)), momentum)


def followed(expected: by.ByHand, x: Tensor, momentum: float = 0.1) -> Tensor:
    """Let a batch join the running moments, E[x] and E[x²], by its share; the logits by the new ones."""
    h = expected.hidden(x)
    mean, var, _ = expected.moments(h)
    share = 1 - (1 - momentum) ** (len(x) / 50)
    second = (1 - share) * (expected.var + expected.mean**2) + share * (var + mean**2)
    expected.mean = (1 - share) * expected.mean + share * mean
    expected.var = second - expected.mean**2
    return expected.finish(h, expected.mean, expected.var)


EXACT: list[tuple[str, dict[str, Any], Formula]] = [
    ("norm", {}, alone),
    *[("norm", {"norm_momentum": m}, partial(alone, momentum=m)) for m in (0.0, 0.3, 1)],
    *[
        ("norm", {"prior": prior, "norm_momentum": m}, partial(counted, prior=prior, momentum=m))
        for prior, m in ((16.0, 0.1), (0.5, 0.3), (4.0, 0.0))
    ],
    ("bn_alpha", {}, partial(shared, alpha=0.1)),
    *[
        ("bn_alpha", {"alpha": alpha, "norm_momentum": m}, partial(shared, alpha=alpha, momentum=m))
        for alpha, m in ((0.6, 0.3), (1.0, 0.0), (0.0, 0.1))
    ],
    ("bn_ema", {}, followed),
    *[("bn_ema", {"norm_momentum": m}, partial(followed, momentum=m)) for m in (0.5, 1.0, 0.0)],
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 7, 50])
@pytest.mark.parametrize(("method", "options", "formula"), EXACT)
def test_batches_of_any_size_are_exact(
    kind: str, rows: int, method: str, options: dict[str, Any], formula: Formula
) -> None:
    model = by.MODELS[kind]()
    if (method, rows, options.get("prior", 0)) == ("norm", 1, 0):
        options = {**options, "window": 1}  # of lone samples: TestLoneSamples
    rtol = 1e-9 if formula is alone else ROUNDING
    adapter, expected = eq.create(method, model, **options), by.ByHand(model)
    for x in (*by.stream(3, rows, like=model), *by.stream(1, 5, like=model, seed=9)):
        assert by.close(adapter(x), formula(expected, x), rtol)
    by.assert_alike(adapter, expected, rtol)
    (x,) = by.stream(1, rows=5, like=model, seed=4)
    assert by.close(adapter.predict(x), expected.predict(x), rtol)
    by.assert_alike(adapter, expected, rtol)  # predict moves nothing


def test_a_blend_goes_from_the_batch_alone_to_the_source_alone() -> None:
    model, (x,) = by.flat_model(), by.stream(1)
    batch, source = by.ByHand(model).forward(x), by.ByHand(model).predict(x)
    ends: list[tuple[str, dict[str, Any], Tensor]] = [
        ("norm", {"prior": 1e-9}, batch),
        ("norm", {"prior": 1e9}, source),
        ("bn_alpha", {"alpha": 1.0}, batch),
        ("bn_alpha", {"alpha": 0.0}, source),
    ]
    for method, options, expected in ends:
        assert by.close(eq.create(method, model, **options)(x), expected, ROUNDING)


@pytest.mark.parametrize(
    ("method", "options", "formula"),
    [
        ("norm", {"prior": 16}, partial(counted, prior=16)),
        ("bn_alpha", {"alpha": 0.5}, partial(shared, alpha=0.5)),
    ],
)
def test_a_blend_stays_with_the_source_when_the_running_statistics_have_left(
    method: str, options: dict[str, Any], formula: Formula
) -> None:
    model = by.flat_model()
    adapter = eq.create(method, model, norm_momentum=1.0, **options)
    for x in by.stream(4):
        adapter(x)
    assert by.close(adapter(x), formula(by.ByHand(model), x), ROUNDING)


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_for_batches_of_one_size_bn_alpha_and_norm_with_a_prior_are_the_same(rows: int) -> None:
    model = by.conv_model()
    ours = eq.create("bn_alpha", model, alpha=0.2)
    theirs = eq.create("norm", model, prior=4.0 * rows)
    for x in by.stream(3, rows, like=model):
        assert by.close(ours(x), theirs(x))


def test_the_memory_of_bn_ema_does_not_depend_on_the_size_of_batches() -> None:
    x = by.stream(1, rows=100)[0]
    found = []
    for size in (1, 10, 100):
        adapter = eq.create("bn_ema", by.flat_model(), norm_momentum=0.3)
        for batch in x.split(size):
            adapter(batch)
        found.append(adapter.student.get_buffer("norm.running_mean"))
    assert by.close(found[0], found[2], 0.3)
    assert by.close(found[1], found[2], 0.3)


class TestLoneSamples:
    @pytest.mark.parametrize("kind", KINDS)
    def test_are_normalised_in_a_window_of_the_last(self, kind: str) -> None:
        model = by.MODELS[kind]()
        adapter, expected = eq.create("norm", model, window=3), by.ByHand(model)
        samples = by.stream(6, rows=1, like=model)
        for place, x in enumerate(samples):
            window = torch.cat(samples[max(0, place - 2) : place + 1])
            assert by.close(adapter(x), alone(expected, window)[-1:]), place
            by.assert_alike(adapter, expected)

    def test_the_window_holds_sixteen_by_default(self) -> None:
        adapter, expected = eq.create("norm", by.flat_model()), by.ByHand(by.flat_model())
        samples = by.stream(18, rows=1)
        answers = [adapter(x) for x in samples]
        assert by.close(answers[-1], expected.forward(torch.cat(samples[-16:]))[-1:])
        assert not by.close(answers[-1], expected.forward(torch.cat(samples[-15:]))[-1:], 1e-4)
        assert not by.close(answers[-1], expected.forward(torch.cat(samples[-17:]))[-1:], 1e-4)

    def test_batches_between_them_stay_out_of_the_window(self) -> None:
        adapter, expected = eq.create("norm", by.flat_model(), window=3), by.ByHand(by.flat_model())
        (batch,) = by.stream(1, seed=8)
        left, right = by.stream(2, rows=1)
        assert by.close(adapter(left), expected.predict(left))
        assert by.close(adapter(batch), expected.forward(batch))
        assert by.close(adapter(right), expected.forward(torch.cat([left, right]))[-1:])
        by.assert_alike(adapter, expected)

    @pytest.mark.parametrize(
        ("method", "options"), [("norm", {"prior": 2.0}), ("bn_alpha", {}), ("bn_ema", {})]
    )
    def test_are_not_kept_where_no_window_is_needed(self, method: str, options: dict[str, Any]) -> None:
        adapter = eq.create(method, by.flat_model(), **options)
        for x in by.stream(2, rows=1):
            adapter(x)
        assert not adapter.memory
        assert not adapter.footprint().stores_observations
