"""Batch norm by a fixed blend of statistics, against formulas written out here and in `byhand`."""

from typing import Any

import pytest
from torch import Tensor

import equipoise as eq
from tests.support import byhand as by

MODELS = {"BatchNorm1d": by.flat_model, "BatchNorm2d": by.conv_model}
ROUNDING = 1e-6  # moments are taken in single precision where they are blended


def blend(expected: by.ByHand, x: Tensor, alpha: float, momentum: float = 0.1) -> Tensor:
    """The logits by (1 − alpha) · source + alpha · batch; the running variance follows the unbiased one."""
    h = expected.hidden(x)
    batch_mean, batch_var, count = expected.moments(h)
    mean = (1 - alpha) * expected.source["norm.running_mean"] + alpha * batch_mean
    source_var = expected.source["norm.running_var"]
    var = (1 - alpha) * source_var + alpha * batch_var
    later = (1 - alpha) * source_var + alpha * batch_var * count / max(count - 1, 1)
    expected.follow(mean, later, momentum)
    return expected.finish(h, mean, var)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("rows", [1, 2, 7, 50])
@pytest.mark.parametrize(("alpha", "momentum"), [(0.1, 0.1), (0.6, 0.3), (1.0, 0.0), (0.0, 0.1)])
def test_the_shares_are_the_same_for_batches_of_any_size(
    kind: str, rows: int, alpha: float, momentum: float
) -> None:
    model = MODELS[kind]()
    options: dict[str, Any] = {} if (alpha, momentum) == (0.1, 0.1) else {"alpha": alpha}
    adapter, expected = eq.create("bn_alpha", model, norm_momentum=momentum, **options), by.ByHand(model)
    for x in (*by.stream(2, rows, like=model), *by.stream(1, 5, like=model, seed=9)):
        assert by.close(adapter(x), blend(expected, x, alpha, momentum), ROUNDING)
    by.assert_alike(adapter, expected, ROUNDING)
    x = by.stream(1, rows=5, like=model, seed=4)[0]
    assert by.close(adapter.predict(x), expected.predict(x), ROUNDING)


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_for_batches_of_one_size_norm_with_a_prior_is_the_same(rows: int) -> None:
    model = by.conv_model()
    ours = eq.create("bn_alpha", model, alpha=0.2)
    theirs = eq.create("norm", model, prior=4.0 * rows)
    for x in by.stream(3, rows, like=model):
        assert by.close(ours(x), theirs(x))


def test_the_ends_are_the_source_model_and_the_batch_alone() -> None:
    model, (x,) = by.flat_model(), by.stream(1)
    assert by.close(eq.create("bn_alpha", model, alpha=0.0)(x), model(x), ROUNDING)
    assert by.close(eq.create("bn_alpha", model, alpha=1.0)(x), eq.create("norm", model)(x), ROUNDING)


def test_the_blend_starts_from_the_source_when_the_running_statistics_have_left() -> None:
    adapter = eq.create("bn_alpha", by.flat_model(), alpha=0.5, norm_momentum=1.0)
    for x in by.stream(4):
        adapter(x)
    assert by.close(adapter(x), blend(by.ByHand(by.flat_model()), x, 0.5), ROUNDING)


def test_a_single_sample_is_answered_alone_and_not_kept() -> None:
    adapter = eq.create("bn_alpha", by.flat_model())
    for x in by.stream(3, rows=1):
        assert by.close(adapter(x), blend(by.ByHand(by.flat_model()), x, 0.1), ROUNDING)
    assert not adapter.memory
    assert not adapter.footprint().stores_observations
