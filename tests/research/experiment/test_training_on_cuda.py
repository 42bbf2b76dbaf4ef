"""Source training on a GPU: bfloat16, and the same bits from the same seed all the same."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from equipoise.research.experiment import training
from equipoise.research.experiment.recipe import Training
from equipoise.research.experiment.repeatable import repeatable, seeded
from equipoise.research.experiment.trained_model import model_path, on_device, read_source_model
from equipoise.research.experiment.training import TrainingStep, fit, make_optimizer, train_source_model
from equipoise.research.models import create_backbone

from .toy import model_plan, toy_images

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]
RMSPROP = Training(optimizer="rmsprop", learning_rate=2e-4, epochs=1, batch_size=16)


@pytest.mark.parametrize("backbone", ["smallcnn", "efficientnet_b0", "mobilenet_v1"])
def test_the_same_seed_gives_the_same_bits_after_a_kill_too(
    backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = RMSPROP.model_copy(update={"epochs": 2})
    size = None if backbone == "smallcnn" else 64
    plan = model_plan(tmp_path, backbone=backbone, training=steps, input_size=size)
    torch.ones(8, 8, device="cuda").mm(torch.ones(8, 8, device="cuda"))  # a process that has used cuBLAS
    found = []
    save: Any = training._save

    def save_and_die(*args: object) -> None:
        save(*args)
        raise KeyboardInterrupt

    for folder in (tmp_path / "whole", tmp_path / "again", tmp_path / "killed"):
        folder.mkdir()
        if folder.name == "killed":
            monkeypatch.setattr(training, "_save", save_and_die)
            with pytest.raises(KeyboardInterrupt):
                train_source_model(plan, folder)
        train_source_model(plan, folder)
        read_source_model.cache_clear()
        trained = read_source_model(model_path(folder, "key"), torch.device("cuda"))
        found.append((trained.model.state_dict(), trained.source, trained.fixed_tau))
    for other in found[1:]:
        for name, tensor in found[0][0].items():
            assert torch.equal(tensor, other[0][name]), name
        assert found[0][1:] == other[1:]


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
@pytest.mark.parametrize("backbone", ["smallcnn", "efficientnet_b0", "mobilenet_v1"])
def test_a_graph_takes_the_same_steps_to_the_bit(backbone: str, kind: Literal["adam", "rmsprop"]) -> None:
    images = toy_images("plain", 40)
    found = []
    for graph in (True, False):
        with repeatable(), seeded(3):
            size = None if backbone == "smallcnn" else 64
            made = create_backbone(backbone, 3, in_channels=1, input_size=size)
            model = on_device(made, torch.device("cuda")).train()
            step = TrainingStep(
                model, make_optimizer(model, RMSPROP.model_copy(update={"optimizer": kind})), images, 16
            )
            assert step.captured
            if not graph:
                step._graph = None
            torch.manual_seed(0)
            for rows in torch.arange(40, device="cuda").split(16):  # the last has 8
                step(rows)
        found.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


class Waits(nn.Module):
    """Looks at a number of the GPU's in its forward: no graph can have that."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1024, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scale = max(float(images.max()), 1.0)
        logits: torch.Tensor = self.linear(images.flatten(1) / scale)
        return logits


def test_a_model_that_waits_is_trained_without_a_graph() -> None:
    images = toy_images("plain", 40)
    model = Waits().cuda()
    before = model.linear.weight.detach().clone()
    step = TrainingStep(model, make_optimizer(model, RMSPROP), images, 16)
    assert not step.captured
    assert torch.equal(model.linear.weight, before)
    fit(model, images, RMSPROP, 0)
    assert not torch.equal(model.linear.weight, before)
