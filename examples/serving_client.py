"""A camera that sends its images to `equipoise serve`, and later their labels, with Python's own HTTP.

    python house_numbers.py && equipoise serve house_numbers:factory \
        --source house-numbers/source.safetensors --state state &
    python serving_client.py http://127.0.0.1:8000

http://127.0.0.1:8000/ shows the stream while it runs.
"""

import io
import json
import os
import sys
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

from house_numbers import images

STREAM = "camera-1"
TOKEN = os.environ.get("EQUIPOISE_TOKEN")
"""The token for changing, which a server needs that is not on this machine."""


def post(address: str, body: bytes, kind: str = "application/json") -> dict[str, Any]:
    """Send a request and read its answer."""
    headers = {"Content-Type": kind} | ({"Authorization": f"Bearer {TOKEN}"} if TOKEN else {})
    if not address.startswith(("http://", "https://")):
        raise SystemExit(f"expected an address that starts with http:// or https://, got {address}")
    with urlopen(Request(address, body, headers), timeout=60) as response:  # noqa: S310 - checked above
        answer: dict[str, Any] = json.load(response)
    return answer


def as_npy(inputs: np.ndarray[Any, Any]) -> bytes:
    """An array in NumPy's file format."""
    file = io.BytesIO()
    np.save(file, inputs)
    return file.getvalue()


def main(server: str, batches: int = 16) -> float:
    """Send a stream in batches of 25, label every second one; returns the share of right answers of those."""
    inputs, labels = images("stream", 25 * batches)
    right = labelled = 0
    for at, (batch, truth) in enumerate(zip(inputs.split(25), labels.split(25), strict=True)):
        address = f"{server}/v1/predict?stream={STREAM}"
        answer = post(address, as_npy(batch.numpy()), "application/x-npy")
        estimate = answer["estimated_accuracy"]
        known = (
            f"{estimate['value']:.2f} ({estimate['low']:.2f} to {estimate['high']:.2f})"
            if estimate
            else "unknown"
        )
        print(f"batch {at}: classes {answer['classes'][:5]}…, estimated accuracy {known}")
        if at % 2 == 0:
            body = json.dumps({"request": answer["request"], "labels": truth.tolist()}).encode()
            taken = post(f"{server}/v1/labels?stream={STREAM}", body)
            right, labelled = right + taken["right"], labelled + taken["rows"]
    print(f"{right} of {labelled} labelled answers were right")
    return right / labelled


if __name__ == "__main__":
    main(sys.argv[1])
