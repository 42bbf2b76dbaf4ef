"""Models that are built in ways a simple test model is not; each case here failed once."""

import pickle
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import equipoise as eq
from tests.support.models import drifted, images, make, same, snapshot

BY_HAND = eq.SourceStatistics(h0=0.5, kappa=2.0, num_classes=5)


class Aliased(nn.Module):
    """A model whose head and batch norm have two names each."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(108, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)
        )
        self.norm, self.head = self.net[2], self.net[4]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.net[3](self.norm(self.net[1](x.flatten(1)))))
        return logits


class Tied(nn.Module):
    """A model with two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(108, 108), nn.Linear(108, 108)
        self.second.weight = self.first.weight
        self.head = nn.Linear(108, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.second(self.first(x.flatten(1)).tanh()))
        return logits


class Caching(nn.Module):
    """Keeps its last feature, as models with hooks for explanations do."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(108, 8), nn.Linear(8, 5)
        self.feature: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.feature = self.body(x.flatten(1)).tanh()
        logits: Tensor = self.head(self.feature)
        return logits


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), parametrizations.weight_norm(nn.Linear(108, 5)))


def instance_norm() -> nn.Module:
    layers = [nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 5))


def odd_batch_norm() -> nn.Module:
    layers = [
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4, momentum=None),
        nn.BatchNorm2d(4, track_running_stats=False),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 5))


def bare_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(64, 5))


MODELS = [Aliased, Tied, Caching, normed, instance_norm, odd_batch_norm, bare_batch_norm]


@pytest.mark.parametrize("build", MODELS)
def test_the_whole_life_of_an_adapter(build: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build()
    model(images(4))
    model.eval()
    resident, swapped = (
        eq.DEC(model, BY_HAND, learning_rate=0.05, source_copy=t) for t in ("resident", "swapped")
    )
    fresh = snapshot(swapped)
    for seed in range(3):
        assert torch.allclose(resident(drifted(6, seed)), swapped(drifted(6, seed)), atol=1e-6)
        assert swapped.last is not None
        assert swapped.last.updated
    moved = [n for n, p in swapped.student.named_parameters() if not torch.equal(p, model.get_parameter(n))]
    assert any("weight" in name or "original" in name for name in moved)
    assert torch.allclose(swapped.detach()(drifted(4)), swapped.predict(drifted(4)), atol=1e-6)
    restored = eq.DEC(model, BY_HAND, learning_rate=0.05, source_copy="swapped")
    restored.load_state_dict(swapped.state_dict())
    assert same(snapshot(restored), snapshot(swapped))
    swapped.reset()
    assert same(fresh, snapshot(swapped))


def test_swapped_weights_and_autocast_do_not_mix() -> None:
    model, source = make("norm_free")
    adapters = [eq.DEC(model, source, learning_rate=1.0, source_copy=t) for t in ("resident", "swapped")]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for seed in range(3):
            left, right = (adapter(drifted(8, seed)) for adapter in adapters)
            assert torch.equal(left, right)


class Tokens(nn.Module):
    """Integer inputs and a float mask of -inf for padding, by keyword."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8, sparse=sparse)
        self.head = nn.Linear(8, 5)

    def forward(self, input_ids: Tensor, mask: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        scores = self.embedding(input_ids).sum(-1)
        weights = (scores if mask is None else scores + mask).softmax(1)
        features = (weights.unsqueeze(2) * self.embedding(input_ids)).sum(1)
        logits: Tensor = self.head(features if scale is None else features * scale)
        return logits


@pytest.mark.parametrize("sparse", [False, True])
def test_tokens_masks_and_mappings(sparse: bool) -> None:
    ids = torch.arange(12).reshape(3, 4) % 11
    mask = torch.zeros(3, 4)
    mask[1:, 3] = -torch.inf
    model = Tokens(sparse)
    loader = [UserDict(input_ids=ids, mask=mask)]  # as the batches of tokenizers are
    source = eq.SourceStatistics.measure(model, loader, progress=False)
    adapter = eq.DEC(model, source, learning_rate=0.1).adapt(loader, progress=False)
    assert adapter.last is not None
    assert (adapter.last.used, adapter.last.set_aside) == (3, 0)
    assert adapter(scale=torch.tensor(2.0), input_ids=ids, mask=mask).shape == (3, 5)
    assert adapter(scale=torch.ones(1, 8), input_ids=ids, mask=mask).shape == (3, 5)
    mask[0, 0] = torch.nan
    assert adapter(input_ids=ids, mask=mask).isnan().any(1).tolist() == [True, False, False]


def test_a_model_that_refuses_bad_frames_never_sees_one() -> None:
    class Refusing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(108, 5)

        def forward(self, x: Tensor) -> Tensor:
            if bool(x.isnan().any()):
                raise ValueError("the model saw a NaN")
            logits: Tensor = self.head(x.flatten(1))
            return logits

    for adapter in (eq.Poise(Refusing().bfloat16(), BY_HAND), eq.create("source", Refusing().bfloat16())):
        answer = adapter(torch.full((1, 3, 6, 6), torch.nan, dtype=torch.bfloat16))
        assert answer.shape == (1, 5)
        assert answer.dtype == torch.bfloat16
        assert bool(answer.isnan().all())


def test_parameters_that_the_loss_does_not_reach() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.spare = nn.Linear(108, 5), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(x.flatten(1))
            return logits

    patterns: Any = (name for name in ["spare.*"])
    adapter = eq.DEC(Spare(), BY_HAND, parameters=patterns)
    assert adapter(drifted(4)).shape == (4, 5)
    assert adapter.last is not None
    assert adapter.last.reason == "the loss depends on no parameter that adapts"


def test_pickles_like_a_module() -> None:
    model, source = make()
    adapter = eq.Poise(model, source, source_copy="swapped")
    adapter(drifted(8))
    twin = pickle.loads(pickle.dumps(adapter))
    assert torch.equal(twin(drifted(8, 1)), adapter(drifted(8, 1)))


def test_the_callers_graph_is_left_alone() -> None:
    model, source = make()
    adapter = eq.Poise(model, source)
    scale = torch.tensor(2.0, requires_grad=True)
    x = drifted(8) * scale
    assert not adapter(x).requires_grad
    x.sum().backward()
    assert scale.grad is not None


# Before 2.10 strict export could not trace a hook of the exported module itself.
STRICT = [False, True] if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10) else [False]


@pytest.mark.parametrize("strict", STRICT)
@pytest.mark.parametrize("form", ["by position", "by name"])
def test_detached_modules_export_with_a_dynamic_batch(form: str, strict: bool) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(108, 5)

        def forward(self, image: Tensor) -> Tensor:
            logits: Tensor = self.head(image.flatten(1))
            return logits

    adapter = eq.Poise(Named(), BY_HAND)
    adapter(drifted(8))
    module = adapter.detach()
    dynamic = {0: torch.export.Dim("batch")}
    shapes: Any = (dynamic,) if form == "by position" else {"image": dynamic}
    args, kwargs = ((drifted(4),), {}) if form == "by position" else ((), {"image": drifted(4)})
    exported = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=strict).module()
    assert torch.allclose(
        exported(drifted(7)) if args else exported(image=drifted(7)), adapter.predict(drifted(7)), atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision_that_learn_are_warned_of(dtype: torch.dtype) -> None:
    """30 batches moved no scale of a normalisation layer: steps of 1e-3 are below the resolution at 1."""
    model, _ = make()
    model.to(dtype)
    with pytest.warns(UserWarning, match=rf'tent learns weights of {dtype}.*precision="bf16"') as caught:
        eq.create("tent", model)
    assert caught[0].filename == __file__
    eq.create("norm", model)  # learns nothing
    eq.create("tent", model.float())
