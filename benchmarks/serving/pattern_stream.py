"""A small classifier and a stream of images for it, both made on the spot."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import equipoise as eq
from equipoise.research.models import SmallCNN

CLASSES = 10
SHIFT = 0.7
"""The contrast of the stream; that of the source domain is 1."""


def images(number: int, seed: int, contrast: float = 1.0) -> tuple[Tensor, Tensor]:
    """Ten patterns of 32×32 with noise, values from 0 to 255, and their classes."""
    patterns = torch.rand(CLASSES, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (number,), generator=generator)
    noise = torch.randn(number, 1, 32, 32, generator=generator)
    mixed = 0.5 + contrast * (patterns[labels] - 0.5) + 0.3 * noise
    return (255 * mixed).clamp(0, 255), labels


def trained_model() -> nn.Module:
    """SmallCNN after 20 steps on the source domain."""
    torch.manual_seed(0)
    model = SmallCNN(CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(20):
        batch, labels = images(64, 1000 + step)
        loss = nn.functional.cross_entropy(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def prepare(folder: Path) -> None:
    """Write the model, and its source statistics with a rehearsal of poise, for the servers."""
    model = trained_model()
    held_out = [images(50, 2000 + part) for part in range(4)]
    save_file(model.state_dict(), folder / "model.safetensors")
    eq.rehearse(model, held_out, shifts=8, progress=False).save(folder / "source.safetensors")


def prepared_model(folder: Path) -> nn.Module:
    """The model that `prepare` wrote."""
    model = SmallCNN(CLASSES)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def prepared_source(folder: Path) -> eq.SourceStatistics:
    """Its source statistics."""
    return eq.SourceStatistics.load(folder / "source.safetensors")
