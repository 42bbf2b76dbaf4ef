"""Batch norm by statistics that follow the stream, against formulas written out here and in `byhand`.

Faults are in test_bn_alpha.py, for both methods.
"""

from typing import Any

import pytest
from torch import Tensor

import equipoise as eq
from tests.support import byhand as by

MODELS = {"BatchNorm1d": by.flat_model, "BatchNorm2d": by.conv_model}
ROUNDING = 1e-6  # moments are taken in single precision


def follow(expected: by.ByHand, x: Tensor, momentum: float) -> Tensor:
    """Let a batch join the running moments, E[x] and E[x²], by its share; the logits by the new ones."""
    h = expected.hidden(x)
    mean, var, _ = expected.moments(h)
    share = 1 - (1 - momentum) ** (len(x) / 50)
    second = (1 - share) * (expected.var + expected.mean**2) + share * (var + mean**2)
    expected.mean = (1 - share) * expected.mean + share * mean
    expected.var = second - expected.mean**2
    return expected.finish(h, expected.mean, expected.var)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("rows", [1, 2, 7, 50])
@pytest.mark.parametrize("momentum", [0.1, 0.5, 1.0, 0.0])
def test_a_batch_is_normalised_by_the_average_that_it_has_joined(
    kind: str, rows: int, momentum: float
) -> None:
    model = MODELS[kind]()
    options: dict[str, Any] = {} if momentum == 0.1 else {"norm_momentum": momentum}
    adapter, expected = eq.create("bn_ema", model, **options), by.ByHand(model)
    for x in (*by.stream(3, rows, like=model), *by.stream(1, 5, like=model, seed=9)):
        assert by.close(adapter(x), follow(expected, x, momentum), ROUNDING)
    by.assert_alike(adapter, expected, ROUNDING)
    x = by.stream(1, rows=5, like=model, seed=4)[0]
    assert by.close(adapter.predict(x), expected.predict(x), ROUNDING)


def test_the_memory_does_not_depend_on_the_size_of_batches() -> None:
    x = by.stream(1, rows=100)[0]
    found = []
    for size in (1, 10, 100):
        adapter = eq.create("bn_ema", by.flat_model(), norm_momentum=0.3)
        for batch in x.split(size):
            adapter(batch)
        found.append(adapter.student.get_buffer("norm.running_mean"))
    assert by.close(found[0], found[2], 0.3)
    assert by.close(found[1], found[2], 0.3)
