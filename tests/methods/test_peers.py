"""The defects of other implementations, each a test where they apply here.

 1  torch-ttt: TENT in eval mode is not TENT; layer norm alone fails (test_tent); a filtered batch gives NaN
    (test_eta)
 2  torchmetrics' calibration error, and 3 the mean of batches' ECEs: tests/metrics
 4  ttab, torch-ttt: ETA's margin is that of 1,000 classes: test_eta
 5  T3A: "keep all" drops a support of each class at each batch: test_t3a
 6  TENT: the user's own model loses its running statistics, and
 7  EATA: a reset leaves the moving average behind: the conformance suite; margins by position land in other
    parameters
 8  SAR, SoTTA: layers are picked by parts of their names
 9  COME: raw logits overflow in half precision; 1,000 classes are assumed
10  one configuration for everything, four places for a new method: tests/test_readme.py adds one in one file
"""

import inspect
from collections import OrderedDict
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import drifted, images, make, measured, snapshot


def batch_normalised(model: nn.Module, x: Tensor) -> Tensor:
    """The answer of a model whose batch norms use the batch, from torch alone."""
    layers = [m for m in model.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    for layer in layers:
        layer.train()
    with torch.no_grad():
        logits: Tensor = model(x)
    return logits


@pytest.mark.parametrize("method", ["tent", "eta", "norm"])
def test_1_in_eval_mode_it_still_answers_by_the_batch_and_still_learns(method: str) -> None:
    model, _ = make()
    adapter = eq.create(method, model)
    adapter.eval()
    for module in adapter.modules():
        module.eval()
    first = adapter(drifted(8))
    assert torch.allclose(first, batch_normalised(make()[0], drifted(8)), atol=1e-5)
    fresh = eq.create(method, model)
    assert not torch.equal(adapter.predict(drifted(8, 1)), fresh.predict(drifted(8, 1)))


@pytest.mark.parametrize("method", eq.list_methods())
def test_7_options_go_by_name_alone(method: str) -> None:
    model, source = make()
    kind: Any = type(eq.create(method, model, source).method)
    assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(kind).parameters.values())
    with pytest.raises(TypeError):
        kind(0.5)
    calls: list[Any] = [partial(eq.create, method), partial(eq.Adapter, kind()), eq.DEC, eq.Poise]
    for call in calls:
        with pytest.raises(TypeError):
            call(model, source, 0.5, 0.05)


@pytest.mark.parametrize("method", ["tent", "sotta", "sar", "deyo"])
def test_8_layers_are_found_whatever_their_names(method: str) -> None:
    plain, _ = make()
    named = nn.Sequential(
        OrderedDict(
            zip(
                ("a", "layer4", "c", "d", "e", "blocks_9", "norm", "f", "head"), plain.children(), strict=True
            )
        )
    )
    expected, came = (list(eq.create(method, model).learned.values()) for model in (plain, named))
    assert len(expected) == 4
    assert all(torch.equal(a, b) for a, b in zip(expected, came, strict=True))


@pytest.mark.filterwarnings("ignore:.*are lost")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", eq.list_methods())
def test_9_large_logits_in_half_precision_stay_finite(method: str, dtype: torch.dtype) -> None:
    model, _ = make()
    with torch.no_grad():
        model.get_parameter("8.weight").mul_(1000)
    model.to(dtype)
    source = measured(model, [images(16).to(dtype)])
    options: dict[str, Any] = {"confidence": 0.0, "every": 4} if method == "sotta" else {}
    adapter = eq.create(method, model, source, **options)
    for seed in range(3):
        logits = adapter(drifted(8, seed).to(dtype))
        assert logits.dtype == dtype
        assert bool(logits.isfinite().all())
    assert float(model(drifted(8).to(dtype)).detach().abs().max()) > 100
    assert all(bool(tensor.isfinite().all()) for tensor in snapshot(adapter).values())


def test_9_no_number_of_classes_is_assumed() -> None:
    for classes in (2, 3, 1200):
        adapters = [eq.create("tent", nn.Sequential(nn.LayerNorm(4), nn.Linear(4, classes)))]
        adapters.append(eq.create("t3a", nn.Linear(4, classes)))
        for adapter in adapters:
            assert adapter(torch.randn(3, 4)).shape == (3, classes)
