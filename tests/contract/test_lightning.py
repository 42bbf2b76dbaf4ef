"""A LightningModule with an adapter: its Trainer's checkpoints hold the adapter's whole state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

import equipoise as eq
from tests.support.models import drifted, make, rehearsed


class Service(LightningModule):
    """Answers by an adapter, and trains a layer of its own."""

    def __init__(self, adapter: eq.Adapter) -> None:
        super().__init__()
        self.adapter = adapter
        self.offset = nn.Parameter(torch.zeros(5))

    def training_step(self, batch: Tensor) -> Tensor:
        logits: Tensor = self.adapter(batch)
        return (logits + self.offset).square().mean()

    def predict_step(self, batch: Tensor) -> Tensor:
        logits: Tensor = self.adapter(batch)
        return logits

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self.offset], lr=0.1)


def service(name: str) -> Service:
    model, source = make()
    options: dict[str, Any] = {"learning_rate": 0.05} if name in ("tent", "dec") else {}
    return Service(eq.create(name, model, rehearsed(source, "poise"), **options))


def trainer(folder: Path) -> Trainer:
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def stream(*seeds: int) -> DataLoader[Tensor]:
    batches: Any = [drifted(6, seed) for seed in seeds]
    return DataLoader(batches, batch_size=None)


@pytest.mark.filterwarnings("ignore")  # of Lightning, about workers and checkpoints
@pytest.mark.parametrize("name", ["poise", "tent", "dec"])
def test_a_checkpoint_of_a_trainer_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    old, path = service(name), tmp_path / "service.ckpt"
    running = trainer(tmp_path)
    running.fit(old, stream(0, 1, 2))
    running.save_checkpoint(path)
    held = torch.load(path, weights_only=True)["state_dict"]
    assert all(isinstance(tensor, Tensor) for tensor in held.values())
    expected = [old.adapter(drifted(6, seed)) for seed in (3, 4)]

    new = service(name)
    new.adapter(drifted(6, 9))  # nothing of it stays
    answers = trainer(tmp_path).predict(new, stream(3, 4), ckpt_path=path, weights_only=True)
    assert answers is not None
    for answer, wanted in zip(answers, expected, strict=True):
        assert isinstance(answer, Tensor)
        assert torch.equal(answer, wanted)

    loaded = Service.load_from_checkpoint(path, adapter=service(name).adapter, weights_only=True)
    assert torch.equal(loaded.offset, old.offset)
    assert torch.equal(loaded.adapter(drifted(6, 3)), expected[0])


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_another_method_is_refused(tmp_path: Path) -> None:
    running, path = trainer(tmp_path), tmp_path / "service.ckpt"
    running.fit(service("tent"), stream(0))
    running.save_checkpoint(path)
    with pytest.raises(RuntimeError, match=r"adapter: expected method 'poise', got 'tent'"):
        Service.load_from_checkpoint(path, adapter=service("poise").adapter, weights_only=True)
