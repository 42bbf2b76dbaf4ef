"""Batch norm by a fixed blend of statistics, against formulas written out here and in `byhand`."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.byhand import ByHand, assert_alike, close, conv_model, flat_model, stream
from tests.support.models import drifted, make, same, snapshot

MODELS = {"BatchNorm1d": flat_model, "BatchNorm2d": conv_model}
ROUNDING = 1e-6  # moments are taken in single precision where they are blended


def blend(expected: ByHand, x: Tensor, alpha: float, momentum: float = 0.1) -> Tensor:
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
    adapter, expected = eq.create("bn_alpha", model, norm_momentum=momentum, **options), ByHand(model)
    for x in (*stream(2, rows, like=model), *stream(1, 5, like=model, seed=9)):
        assert close(adapter(x), blend(expected, x, alpha, momentum), ROUNDING)
    assert_alike(adapter, expected, ROUNDING)
    x = stream(1, rows=5, like=model, seed=4)[0]
    assert close(adapter.predict(x), expected.predict(x), ROUNDING)


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_for_batches_of_one_size_norm_with_a_prior_is_the_same(rows: int) -> None:
    model = conv_model()
    ours = eq.create("bn_alpha", model, alpha=0.2)
    theirs = eq.create("norm", model, prior=4.0 * rows)
    for x in stream(3, rows, like=model):
        assert close(ours(x), theirs(x))


def test_the_ends_are_the_source_model_and_the_batch_alone() -> None:
    model, (x,) = flat_model(), stream(1)
    assert close(eq.create("bn_alpha", model, alpha=0.0)(x), model(x), ROUNDING)
    assert close(eq.create("bn_alpha", model, alpha=1.0)(x), eq.create("norm", model)(x), ROUNDING)


def test_the_blend_starts_from_the_source_when_the_running_statistics_have_left() -> None:
    adapter = eq.create("bn_alpha", flat_model(), alpha=0.5, norm_momentum=1.0)
    for x in stream(4):
        adapter(x)
    assert close(adapter(x), blend(ByHand(flat_model()), x, 0.5), ROUNDING)


def test_a_single_sample_is_answered_alone_and_not_kept() -> None:
    adapter = eq.create("bn_alpha", flat_model())
    for x in stream(3, rows=1):
        assert close(adapter(x), blend(ByHand(flat_model()), x, 0.1), ROUNDING)
    assert not adapter.memory
    assert not adapter.footprint().stores_observations


@pytest.mark.parametrize("method", ["bn_alpha", "bn_ema"])
class TestBoth:
    def test_no_weight_moves_and_the_record_says_so(self, method: str) -> None:
        model, _ = make("batch_norm")
        adapter = eq.create(method, model)
        adapter(drifted(8))
        assert all(torch.equal(p, model.get_parameter(n)) for n, p in adapter.student.named_parameters())
        assert adapter.last is not None
        assert (adapter.last.updated, adapter.last.used) == (False, 0)
        assert adapter.last.reason == "only the statistics follow"
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in adapter.student.modules())

    def test_equal_samples_and_those_of_nan_are_harmless(self, method: str) -> None:
        model, _ = make("batch_norm")
        adapter, clean = eq.create(method, model), eq.create(method, model)
        x = drifted(1).repeat(6, 1, 1, 1)
        logits = adapter(torch.cat([x, torch.full_like(x[:1], torch.nan)]))
        assert torch.equal(logits[:6], clean(x))
        assert logits[:6].isfinite().all()
        assert same(snapshot(adapter), snapshot(clean))

    def test_statistics_that_overflow_are_undone(self, method: str) -> None:
        adapter = eq.create(method, flat_model().float())
        adapter(stream(1)[0].float())
        before = snapshot(adapter)
        adapter(1e30 * stream(1)[0].float())
        assert adapter.last is not None
        assert adapter.last.reason == "non-finite statistics"
        assert same(before, snapshot(adapter))

    @pytest.mark.parametrize("kind", ["layer_norm", "group_norm", "norm_free"])
    def test_a_model_without_batch_norm_is_sent_elsewhere(self, method: str, kind: str) -> None:
        with pytest.raises(eq.errors.ModelError, match=f"{method} needs batch-norm.*tent.*t3a.*poise"):
            eq.create(method, make(kind)[0])

    def test_a_model_with_dropout_and_several_norms_goes_through(self, method: str) -> None:
        model = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4), nn.BatchNorm1d(4))
        adapter, again = (eq.create(method, model.double().eval()) for _ in range(2))
        for x in stream(3, rows=4):
            assert torch.equal(adapter(x), again(x))


@pytest.mark.parametrize("options", [{"alpha": -0.1}, {"alpha": 1.1}, {"norm_momentum": 2.0}])
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(eq.errors.OptionError, match=next(iter(options))):
        eq.create("bn_alpha", flat_model(), **options)
