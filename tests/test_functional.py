import doctest
import math
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise import adapter, factory, functional
from equipoise.calibration import source_statistics
from equipoise.functional import certainty_regularizer, entropy, soft_cross_entropy

SOURCE, FIRST, SECOND = [8.0, 7.29], [1.92, 1.00], [6.10, 6.50]


def by_hand(z: list[float], h0: float, kappa: float, t_min: float, t_max: float) -> tuple[float, float]:
    """Algorithm 1 for one sample in plain Python."""
    largest = max(z)
    weights = [math.exp(v - largest) for v in z]
    p = [w / sum(weights) for w in weights]
    h = -sum(q * math.log2(q) for q in p if q > 0)
    scaled = 1 / (1 + math.exp(-(h - h0) / math.sqrt(math.log2(len(z)))))
    t = t_min + scaled * (t_max - t_min)
    return t, t * kappa / math.sqrt(sum(v * v for v in z))


@pytest.mark.parametrize("module", [functional, source_statistics, factory, adapter])
def test_doctests(module: ModuleType) -> None:
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0


def test_example_1_entropies() -> None:
    # The paper prints 0.92, 0.86 and 0.97 bits; the first is 0.9145, rounded up.
    bits = entropy(torch.tensor([SOURCE, FIRST, SECOND], dtype=torch.float64))
    assert bits.tolist() == pytest.approx([0.9145, 0.8621, 0.9717], abs=5e-5)


def test_example_2_regularizers() -> None:
    # The paper prints tau = 1.49, 7.42 for g_t2 and 1.83 for g_t1. The last two are swapped (its prose says
    # that t1 is the unreliable one), and 1.49 and 7.42 come from h0 rounded to 0.92 and then truncating:
    # by construction the source sample has contrast exactly 1/2, so t = tau = 1.5.
    z = torch.tensor([SOURCE, FIRST, SECOND], dtype=torch.float64)
    h0, kappa = float(entropy(z[0])), float(z[0].norm())
    t, tau = certainty_regularizer(z, h0, kappa, t_min=1.0, t_max=2.0)
    assert (t - 1).tolist() == pytest.approx([0.5, 0.4869, 0.5143], abs=5e-5)
    assert tau.tolist() == pytest.approx([1.5, 7.4340, 1.8386], abs=5e-5)
    _, printed = certainty_regularizer(z, 0.92, kappa, t_min=1.0, t_max=2.0)
    assert [math.floor(100 * v) / 100 for v in printed.tolist()] == [1.49, 7.42, 1.83]


logit_rows = st.integers(2, 12).flatmap(
    lambda c: st.lists(st.lists(st.floats(-30, 30, width=32), min_size=c, max_size=c), min_size=1, max_size=6)
)


@settings(deadline=None, derandomize=True)
@given(logit_rows, st.floats(0, 1), st.floats(0.1, 50), st.floats(0.1, 3), st.floats(0, 3))
def test_regularizer_is_algorithm_1_in_its_bounds(
    rows: list[list[float]], h0: float, kappa: float, t_min: float, width: float
) -> None:
    z = torch.tensor(rows, dtype=torch.float64)
    t, tau = certainty_regularizer(z, h0, kappa, t_min, t_min + width)
    assert bool(((t >= t_min - 1e-12) & (t <= t_min + width + 1e-12)).all())
    for i, row in enumerate(rows):
        if any(row):
            assert (float(t[i]), float(tau[i])) == pytest.approx(
                by_hand(row, h0, kappa, t_min, t_min + width)
            )
        else:
            assert math.isinf(float(tau[i]))


@settings(deadline=None, derandomize=True)
@given(logit_rows, st.integers(0, 2**16))
def test_regularizer_does_not_depend_on_order_or_company(rows: list[list[float]], seed: int) -> None:
    z = torch.tensor(rows, dtype=torch.float64)
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))
    whole = certainty_regularizer(z, 0.3, 5.0, 1.0, 3.0)[1]
    assert torch.allclose(certainty_regularizer(z[order], 0.3, 5.0, 1.0, 3.0)[1], whole[order], rtol=1e-12)
    single = torch.cat([certainty_regularizer(row[None], 0.3, 5.0, 1.0, 3.0)[1] for row in z])
    assert torch.allclose(single, whole, rtol=1e-12)


@settings(deadline=None, derandomize=True)
@given(st.floats(0.5, 20), st.floats(1.01, 5))
def test_tau_falls_as_the_logits_grow(norm: float, factor: float) -> None:
    # A longer logit vector of the same direction is more certain (lower t) and nearer to kappa (lower gamma).
    z = torch.tensor([[3.0, 2.0, 1.0]], dtype=torch.float64) / math.sqrt(14) * norm
    (_, small), (_, large) = (certainty_regularizer(v, 0.3, 5.0, 1.0, 3.0) for v in (z, z * factor))
    assert float(large) < float(small)


def test_a_source_sample_of_median_norm_and_mean_entropy_gets_the_middle() -> None:
    z = torch.tensor([[2.0, -1.0, 0.5]], dtype=torch.float64)
    _, tau = certainty_regularizer(z, float(entropy(z)), float(z.norm()), 1.0, 3.0)
    assert float(tau) == pytest.approx(2.0)


def test_half_precision_logits_are_computed_in_single() -> None:
    z = torch.tensor([[2.0, -1.0, 0.5]])
    wide = certainty_regularizer(z, 0.3, 5.0, 1.0, 3.0)[1]
    for dtype in (torch.float16, torch.bfloat16):
        _, tau = certainty_regularizer(z.to(dtype), 0.3, 5.0, 1.0, 3.0)
        assert tau.dtype == torch.float32
        assert float(tau) == pytest.approx(float(wide), rel=1e-2)


def test_soft_cross_entropy_is_the_sum_written_out() -> None:
    z, q = np.array([1.0, -2.0, 0.3]), np.array([0.2, 0.5, 0.3])
    log_p = z - np.log(np.exp(z).sum())
    came = soft_cross_entropy(torch.tensor(z[None]), torch.tensor(q[None]))
    assert float(came) == pytest.approx(-(q * log_p).sum())


@pytest.mark.parametrize(
    ("h0", "kappa", "t_min", "t_max"),
    [(0.3, 5, 2, 1), (0.3, 5, 0, 1), (0.3, 5, -1, 1), (0.3, 0, 1, 3), (-0.1, 5, 1, 3), (0.3, 5, 1, math.inf)],
)
def test_options_out_of_range(h0: float, kappa: float, t_min: float, t_max: float) -> None:
    with pytest.raises(eq.errors.OptionError, match="expected"):
        certainty_regularizer(torch.zeros(1, 3), h0, kappa, t_min, t_max)


@pytest.mark.parametrize("logits", [torch.zeros(4, 1), torch.zeros(()), torch.zeros(2, 3, dtype=torch.long)])
def test_logits_that_are_none(logits: torch.Tensor) -> None:
    with pytest.raises(eq.errors.OptionError, match="expected floating-point logits"):
        certainty_regularizer(logits, 0.3, 5.0, 1.0, 3.0)
