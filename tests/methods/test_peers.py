"""The defects of other implementations, each a test where they apply here.

 1  torch-ttt: TENT in eval mode is not TENT; layer norm alone fails; a filtered batch gives NaN
 2  torchmetrics' calibration error, and 3 the mean of batches' ECEs: tests/metrics
 4  ttab, torch-ttt: ETA's margin is that of 1,000 classes
 5  T3A: "keep all" drops a support of each class at each batch
 6  TENT: the user's own model loses its running statistics
 7  EATA: a reset leaves the moving average behind; margins by position land in other parameters
 8  SAR, SoTTA: layers are picked by parts of their names
 9  COME: raw logits overflow in half precision; 1,000 classes are assumed
10  one configuration for everything, four places for a new method: tests/test_readme.py adds one in one file
"""

import inspect
import math
from collections import OrderedDict
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import drifted, images, make, measured, same, snapshot


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


def test_1_a_model_with_layer_norms_alone_adapts() -> None:
    model, _ = make("layer_norm")
    adapter = eq.create("tent", model)
    adapter(drifted(8))
    moved = [n for n, p in adapter.student.named_parameters() if not torch.equal(p, model.get_parameter(n))]
    assert moved == ["2.weight", "2.bias"]


@pytest.mark.parametrize("method", ["eta", "eata"])
def test_1_a_batch_without_a_reliable_sample_takes_no_step(method: str) -> None:
    model, source = make()
    adapter = eq.create(method, model, source, margin=0.0)
    assert bool(adapter(drifted(8)).isfinite().all())
    assert adapter.last is not None
    assert (adapter.last.updated, adapter.last.loss) == (False, None)
    assert "none of 8 samples is reliable and new" in adapter.last.reason
    assert all(torch.equal(p, model.get_parameter(n)) for n, p in adapter.student.named_parameters())


def echo(classes: int) -> nn.Linear:
    """A classifier whose logits are its input."""
    model = nn.Linear(classes, classes, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(classes))
    return model


def peaked(classes: int, entropy: float) -> Tensor:
    """Logits of a given entropy in nats: one class stands out of the others as far as it takes."""
    low, high = 0.0, 100.0
    for _ in range(60):
        height = (low + high) / 2
        p = math.exp(height) / (math.exp(height) + classes - 1)
        rest = (1 - p) / (classes - 1)
        came = -p * math.log(p) - (classes - 1) * rest * math.log(rest) if rest > 0 else 0.0
        low, high = (height, high) if came > entropy else (low, height)
    return torch.tensor([low] + [0.0] * (classes - 1))


@pytest.mark.parametrize("classes", [7, 10, 200])
def test_4_the_margin_scales_with_the_number_of_classes(classes: int) -> None:
    limit = 0.4 * math.log(classes)
    x = torch.stack([peaked(classes, limit - 0.01), peaked(classes, limit + 0.01)])
    adapter = eq.create("eta", echo(classes), parameters="all")
    adapter(x)
    assert adapter.last is not None
    assert adapter.last.used == 1


def test_5_keeping_all_supports_keeps_them_all() -> None:
    # Every sample is of class 0, so the others have but their row of the head's weight.
    adapter = eq.create("t3a", echo(3))
    for _ in range(5):
        answer = adapter(torch.tensor([[5.0, 1.0, 1.0], [4.0, 0.5, 0.0]]))
    assert torch.allclose(answer[:, 1:], torch.tensor([[1.0, 1.0], [0.5, 0.0]]))


@pytest.mark.parametrize("method", eq.list_methods())
def test_6_the_users_model_keeps_its_statistics_and_reset_gives_it_back(method: str) -> None:
    model, source = make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapter = eq.create(method, model, source)
    adapter(drifted(8))
    adapter.reset()
    for state in (model.state_dict(), adapter.student.state_dict()):
        assert state.keys() == before.keys()
        assert all(torch.equal(before[name], tensor) for name, tensor in state.items())
    norm = adapter.student.get_submodule("1")
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.track_running_stats


@pytest.mark.parametrize("method", ["eta", "eata"])
def test_7_a_reset_forgets_the_average_of_probabilities(method: str) -> None:
    model, source = make()
    options: dict[str, Any] = {"margin": 1.0, "epsilon": 0.9}
    used, fresh = (eq.create(method, model, source, **options) for _ in range(2))
    used(images(8, seed=3) * 5)
    used.reset()
    for seed in range(3):
        assert torch.equal(used(drifted(8, seed)), fresh(drifted(8, seed)))
        assert used.last == fresh.last
    assert same(snapshot(used), snapshot(fresh))


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
