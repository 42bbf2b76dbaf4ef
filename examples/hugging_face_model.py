"""A classifier of Hugging Face that adapts to a stream: `python hugging_face_model.py`.

The model is built from a configuration and trained for a moment, to need no download. Yours:
`ResNetForImageClassification.from_pretrained(...)`.
"""

from typing import Any

import torch
import transformers

import equipoise as eq
from house_numbers import images, right

HF: Any = transformers  # its annotations lack options that it has


def trained_model(channels: int = 1) -> Any:
    """A model that was trained on the first 800 house numbers; images of several channels are grey, too."""
    torch.manual_seed(0)
    config = HF.ResNetConfig(
        num_channels=channels,
        num_labels=10,
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        layer_type="basic",
    )
    model = HF.ResNetForImageClassification(config)
    inputs, labels = images("house numbers", 1000)
    inputs = inputs.expand(-1, channels, -1, -1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(10):
        for rows in torch.randperm(800).split(50):
            optimizer.zero_grad()
            model(pixel_values=inputs[rows], labels=labels[rows]).loss.backward()
            optimizer.step()
    return model.eval()


def rehearsed(model: Any, channels: int = 1) -> eq.SourceStatistics:
    """The rehearsal of the model on the other 200."""
    inputs, labels = images("house numbers", 1000)
    # Loaders of dicts are taken as they are. Leave samples= and shifts= away: fewer save time here.
    held_out = [{"pixel_values": inputs[800:].expand(-1, channels, -1, -1), "labels": labels[800:]}]
    return eq.rehearse(model, held_out, samples=200, shifts=8, progress=False)


def main() -> eq.Adapter:
    """Train, rehearse, adapt; returns the adapter."""
    model = trained_model()
    adapter = eq.Poise(model, rehearsed(model))
    stream, truth = images("stream", 400)
    answers = torch.cat([adapter(pixel_values=batch).logits for batch in stream.split(50)])
    print(f"right: {right(answers, truth):.2f}; estimated at the end of the stream: {adapter.accuracy}")
    return adapter


if __name__ == "__main__":
    main()
