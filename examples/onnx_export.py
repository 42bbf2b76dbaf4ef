"""An adapted model as an ONNX file, run by ONNX Runtime with the same outputs: `python onnx_export.py`."""

from pathlib import Path

import onnxruntime
import torch

import equipoise as eq
from house_numbers import fit, images, network


def main(path: Path = Path("house-numbers.onnx")) -> float:
    """Adapt, detach, export, compare; returns the largest difference of a logit."""
    torch.manual_seed(0)
    model = network()
    inputs, labels = images("house numbers", 1000)
    fit(model, inputs[:800], labels[:800])
    # Leave samples= and shifts= away: a small rehearsal saves time here.
    source = eq.rehearse(model, [(inputs[800:], labels[800:])], samples=200, shifts=8, progress=False)
    adapter = eq.Poise(model, source)
    stream, _ = images("stream", 400)
    for batch in stream.split(50):
        adapter(batch)

    detached = adapter.detach()  # a plain module as adapted as now, temperature and all; it learns no more
    torch.onnx.export(
        detached,
        (stream[:2],),
        path,
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        external_data=False,  # the weights in the same file
        verbose=False,
    )

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": stream[-50:].numpy()})
    difference = float((torch.from_numpy(logits) - adapter.predict(stream[-50:])).abs().max())
    print(f"{path}: logits differ from the adapter's by {difference:.1e} at most")
    return difference


if __name__ == "__main__":
    main()
