"""A small classifier of house numbers: trained, rehearsed and written to files that `equipoise serve` takes.

    python house_numbers.py
    equipoise serve house_numbers:factory --source house-numbers/source.safetensors --state state

The other examples take their images from here. They are drawn, not downloaded.
"""

import os
from functools import cache
from pathlib import Path

import torch
from PIL.Image import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.research.data import Reader, open_data_set

FOLDER = Path(os.environ.get("HOUSE_NUMBERS", "house-numbers"))
"""The folder of the files."""

TRAINED_ON, HELD_OUT = 1000, 500


@cache
def images(part: str, count: int) -> tuple[Tensor, Tensor]:
    """Images (N, 1, 32, 32) from 0 to 1, and labels: "house numbers" by day, or a "stream" that drifts."""
    drawn = open_data_set("drift", Path()).read(part, count, Reader(workers=1))
    return drawn.pixels / 255, drawn.labels


def network() -> nn.Module:
    """Two convolutions with batch norm and a linear head."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def fit(model: nn.Module, inputs: Tensor, labels: Tensor, epochs: int = 6) -> None:
    """Train a model in place."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(50):
            optimizer.zero_grad()
            cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    model.eval()


def right(logits: Tensor, labels: Tensor) -> float:
    """The share of right answers."""
    return (logits.argmax(1) == labels).double().mean().item()


def transform(image: Image) -> Tensor:
    """An input of the network from an image of any size."""
    grey = image.convert("L").resize((32, 32))
    return torch.tensor(list(grey.tobytes()), dtype=torch.float32).view(1, 32, 32) / 255


def factory() -> tuple[nn.Module, object]:
    """The trained model and the transform of its images, for `equipoise serve`."""
    model = network()
    model.load_state_dict(load_file(FOLDER / "model.safetensors"))
    return model.eval(), transform


def main() -> None:
    """Train, rehearse on images that were not trained on, and write both files."""
    torch.manual_seed(0)
    model = network()
    inputs, labels = images("house numbers", TRAINED_ON + HELD_OUT)
    fit(model, inputs[:TRAINED_ON], labels[:TRAINED_ON])
    held_out = [(inputs[TRAINED_ON:], labels[TRAINED_ON:])]
    source = eq.rehearse(model, held_out, samples=HELD_OUT, shifts=16)
    print(source.rehearsal)
    FOLDER.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), FOLDER / "model.safetensors")
    source.save(FOLDER / "source.safetensors")
    print(f"{FOLDER}: model.safetensors, source.safetensors")


if __name__ == "__main__":
    main()
