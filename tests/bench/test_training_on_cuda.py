"""Source training on a GPU: bfloat16, and the same bits from the same seed all the same."""

from pathlib import Path

import pytest
import torch

from equipoise.bench.plan import ModelPlan
from equipoise.bench.recipe import Training
from equipoise.bench.source_model import model_path, read_source_model
from equipoise.bench.training import train_source_model
from equipoise.data import Cache, Reader

from .toy import Toy

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]


@pytest.mark.parametrize("backbone", ["smallcnn", "efficientnet_b0", "mobilenet_v1"])
def test_the_same_seed_gives_the_same_bits(backbone: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    sources = [cache.store(Toy(tmp_path), part, None, Reader()).path for part in ("plain", "dark")]
    plan = ModelPlan(
        key="key",
        name="toy",
        backbone=backbone,
        num_classes=3,
        seed=0,
        sources=tuple(sources),
        training=Training(optimizer="rmsprop", learning_rate=2e-4, epochs=2, batch_size=16),
        input_size=None if backbone == "smallcnn" else 64,
        weights=None,
    )
    torch.ones(8, 8, device="cuda").mm(torch.ones(8, 8, device="cuda"))  # a process that has used cuBLAS
    found = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        train_source_model(plan, folder)
        read_source_model.cache_clear()
        trained = read_source_model(model_path(folder, "key"), plan, 1, torch.device("cuda"))
        found.append((trained.model.state_dict(), trained.source, trained.fixed_tau))
    for name, tensor in found[0][0].items():
        assert torch.equal(tensor, found[1][0][name]), name
    assert found[0][1:] == found[1][1:]
