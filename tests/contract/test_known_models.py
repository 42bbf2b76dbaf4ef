"""Networks of timm and torchvision, as these build them, with random weights and small images."""

from collections.abc import Callable
from functools import partial

import pytest
import timm
import torch
import torchvision
from torch import nn
from torchvision.models import convnext
from torchvision.models.convnext import CNBlockConfig

import equipoise as eq
from tests.support.models import same, snapshot

MODELS: dict[str, Callable[[], nn.Module]] = {
    "timm efficientnet_b0": lambda: timm.create_model("efficientnet_b0", num_classes=7, drop_path_rate=0.2),
    "timm mobilenetv1_100": lambda: timm.create_model("mobilenetv1_100", num_classes=7),
    "timm vit_tiny": lambda: timm.create_model(
        "vit_tiny_patch16_224", num_classes=7, img_size=64, drop_rate=0.1
    ),
    "torchvision resnet18": lambda: torchvision.models.resnet18(num_classes=7),
    "torchvision ConvNeXt": lambda: (
        convnext.ConvNeXt(  # that of convnext_tiny, with fewer and narrower blocks
            [CNBlockConfig(24, 48, 1), CNBlockConfig(48, 96, 2), CNBlockConfig(96, None, 1)],
            0.1,
            num_classes=7,
        )
    ),
}


def images(seed: int) -> torch.Tensor:
    return torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", list(MODELS))
def test_dec_from_the_first_batch_to_reset(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODELS[name]().train()
    source = eq.SourceStatistics.measure(model, [images(0)], progress=False)
    # The layout of tensors is another for a teacher that only answers, and with it the last digits.
    make = partial(eq.DEC, model, source, learning_rate=1e-4, memory_format="contiguous")
    resident, swapped, norms = make(), make(source_copy="swapped"), make(parameters="norm")
    fresh = snapshot(swapped)
    for seed in (1, 2):
        logits = resident(images(seed))
        assert logits.shape == (4, 7)
        assert bool(logits.isfinite().all())
        assert torch.equal(logits, swapped(images(seed)))  # so dropout and stochastic depth are off
        norms(images(seed))
    assert not same(fresh, snapshot(swapped))
    assert 0 < len(norms.learned) < len(resident.learned)
    module = swapped.detach()
    assert type(module) is type(model)
    assert torch.allclose(module(images(3)), swapped.predict(images(3)), atol=1e-5)
    swapped.reset()
    assert same(fresh, snapshot(swapped))
