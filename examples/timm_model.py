"""A model of timm that adapts to a stream: `python timm_model.py`.

The model is built without weights and trained for a moment, to need no download. Yours:
`timm.create_model(name, pretrained=True, num_classes=...)`, fine-tuned.
"""

import timm
import torch

import equipoise as eq
from house_numbers import fit, images, right


def main() -> eq.Adapter:
    """Train, rehearse, adapt; returns the adapter."""
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", pretrained=False, in_chans=1, num_classes=10)
    inputs, labels = images("house numbers", 1000)
    fit(model, inputs[:800], labels[:800], epochs=4)

    # Leave samples= and shifts= away: a small rehearsal saves time here.
    source = eq.rehearse(model, [(inputs[800:], labels[800:])], samples=200, shifts=8, progress=False)
    adapter = eq.Poise(model, source)
    print(adapter.describe())

    stream, truth = images("stream", 400)
    answers = torch.cat([adapter(batch) for batch in stream.split(50)])
    print(f"right: {right(answers, truth):.2f}; estimated at the end of the stream: {adapter.accuracy}")
    return adapter


if __name__ == "__main__":
    main()
