"""Inputs that are refused: with the right status, a message, and no trace in the service."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.production.server.app import create_app
from equipoise.production.server.limits import DoorLimits
from tests.production.server.door import JSON, NPY, FakeService, client_of, npy, picture

PNG = {"Content-Type": "image/png"}


def npy_with(header: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin1")
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text))
    return b"\x93NUMPY" + version + size + text + body


def declared_png(width: int, height: int) -> bytes:
    """A PNG that declares a size, with next to no data."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def whole(image: Image.Image) -> torch.Tensor:
    return torch.tensor([1.0, 2.0])


BAD_JSON = {
    "nothing": b"",
    "no JSON": b"{inputs",
    "not UTF-8": b'{"inputs": [["\xff"]]}',
    "no object": b"[[1, 2]]",
    "another name": b'{"rows": [[1, 2]]}',
    "a name too many": b'{"inputs": [[1, 2]], "stream": "a"}',
    "no rows": b'{"inputs": []}',
    "empty rows": b'{"inputs": [[], []]}',
    "a number": b'{"inputs": 3}',
    "ragged rows": b'{"inputs": [[1, 2], [3]]}',
    "text": b'{"inputs": [["1", "2"]]}',
    "null": b'{"inputs": [[null, 1]]}',
    "an object": b'{"inputs": [{"a": 1}]}',
    "a huge integer": b'{"inputs": [[1' + b"0" * 400 + b", 2]]}",
    "an integer of too many digits": b'{"inputs": [[' + b"9" * 5000 + b", 2]]}",
    "deep lists": b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "70 dimensions": b'{"inputs": ' + b"[" * 70 + b"1" + b"]" * 70 + b"}",
    "a wrong shape": b'{"inputs": [[1, 2, 3]]}',
}
HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"
BAD_NPY = {
    "nothing": b"",
    "no npy": b"PK\x03\x04 a zip",
    "a cut header": npy(np.zeros((1, 2)))[:40],
    "a cut body": npy(np.zeros((1, 2)))[:-1],
    "a byte too many": npy(np.zeros((1, 2))) + b"\0",
    "a scalar": npy(np.float32(1)),
    "no rows": npy(np.zeros((0, 2))),
    "objects": npy_with(HEADER % ("|O", "(1, 2)"), b"cos\nsystem\n(S'true'\ntR."),
    "text": npy(np.array([["a", "b"]])),
    "complex numbers": npy(np.ones((1, 2), complex)),
    "fields": npy(np.zeros(1, [("a", "f4"), ("b", "f4")])),
    "a terabyte declared": npy_with(HEADER % ("<f4", "(1000000000000, 2)"), b"\0" * 8),
    "a negative shape": npy_with(HEADER % ("<f4", "(-1, -2)"), b"\0" * 8),
    "a shape of text": npy_with(HEADER % ("<f4", "('a',)"), b"\0" * 8),
    "a header of code": npy_with("__import__('os').system('true')"),
    "a header of brackets": npy_with("(" * 3000),
    "a long header": npy_with(HEADER % ("<f4", "(1, 2)") + " " * 60_000, b"\0" * 8),
    "a header of another version": npy_with(HEADER % ("<f4", "(1, 2)"), b"\0" * 8, b"\x03\x00"),
    "an unknown version": npy_with(HEADER % ("<f4", "(1, 2)"), b"\0" * 8, b"\x09\x00"),
    "a type of no size": npy_with(HEADER % ("|V0", "(1, 2)")),
    "another shape": npy(np.zeros((1, 3))),
}


BAD_PICTURES = {
    "nothing": b"",
    "no image": b"x" * 100,
    "a cut image": picture(size=(50, 50), colour=(1, 2, 3))[:60],
    "a JPEG": picture("JPEG"),
    "a GIF": picture("GIF"),
    "16 bits": picture(mode="I;16"),
}


def refusal(body: bytes, headers: dict[str, str], status: int = 422, **options: Any) -> str:
    """The error of a request that is refused, and leaves no trace."""
    service = FakeService()
    response = client_of(service, **options).post("/v1/predict", content=body, headers=headers)
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    assert not service.state()
    return str(response.json()["error"])


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        *(pytest.param(body, JSON, id=f"JSON: {name}") for name, body in BAD_JSON.items()),
        *(pytest.param(body, NPY, id=f"npy: {name}") for name, body in BAD_NPY.items()),
    ],
)
@pytest.mark.filterwarnings("ignore:Reading `.npy`")
def test_a_body_that_is_no_batch_is_refused(body: bytes, headers: dict[str, str]) -> None:
    refusal(body, headers)


@pytest.mark.parametrize("name", BAD_PICTURES)
def test_a_damaged_image_is_refused(name: str) -> None:
    error = refusal(BAD_PICTURES[name], PNG, transform=whole)
    assert error.startswith("expected a PNG image, got ")
    assert "object at" not in error


@pytest.mark.parametrize("kind", ["", "text/plain", "multipart/form-data", "image/gif", "application/pickle"])
def test_other_content_types_are_refused(kind: str) -> None:
    assert "application/x-npy" in refusal(b"x", {"Content-Type": kind}, 415)


@pytest.mark.parametrize("side", [5000, 20_000, 60_000])
def test_a_decompression_bomb_is_refused_by_its_header(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    assert "16,777,216 pixels" in refusal(declared_png(side, side), PNG, 413, transform=whole)


def test_a_real_bomb_of_a_few_kilobytes_is_refused() -> None:
    body = picture("PNG", (5000, 5000), "1")
    assert len(body) < 10_000
    refusal(body, PNG, 413, transform=whole)


def too_dark(image: Image.Image) -> torch.Tensor:
    raise RuntimeError("too dark")


@pytest.mark.parametrize(
    ("transform", "status", "words"),
    [
        (None, 415, "(model, transform)"),
        (too_dark, 422, "too dark"),
        (lambda image: [1.0], 422, "got list"),
    ],
    ids=["none", "fails", "returns no tensor"],
)
def test_a_transform_that_cannot_be_used_is_said(transform: Any, status: int, words: str) -> None:
    assert words in refusal(picture(), PNG, status, transform=transform)


def test_the_limit_of_pixels_is_the_last_size_that_is_taken() -> None:
    client = client_of(FakeService(), transform=whole, limits=DoorLimits(image_pixels=64))
    sizes = {(8, 8): 200, (8, 9): 413}
    for size, status in sizes.items():
        assert client.post("/v1/predict", content=picture(size=size), headers=PNG).status_code == status


def test_pillows_own_limit_is_left_alone() -> None:
    before = Image.MAX_IMAGE_PIXELS
    create_app(FakeService(), limits=DoorLimits(image_pixels=10**9))
    assert before == Image.MAX_IMAGE_PIXELS


def test_no_file_is_read_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for body in BAD_NPY.values():
        client_of(FakeService()).post("/v1/predict", content=body[:20], headers=NPY)
    assert not list(tmp_path.iterdir())
