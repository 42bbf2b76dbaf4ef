"""Inputs of the model from the body of a request: JSON, npy, PNG or JPEG."""

import io
import json
import math
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from equipoise.files import on_white
from equipoise.production.server.errors import InputError
from equipoise.production.server.limits import DoorLimits
from equipoise.production.server.model_factory import Transform
from equipoise.production.server.routes.refusals import JSON, ContentTypeError, RequestTooLargeError

NPY = "application/x-npy"
FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG"}
"""The content types of images, and Pillow's names of their formats."""

CONTENT_TYPES = (JSON, NPY, *FORMATS)
"""The content types that inputs may come in."""

_HEADER_BYTES = 4096
_NUMBERS = "biuf"
"""Numpy's kinds of types that are numbers; the service turns them into those of the model."""


def read_inputs(
    body: bytes, content_type: str, limits: DoorLimits, transform: Transform | None = None
) -> np.ndarray[Any, Any]:
    """The batch (N, …) in a body, with the types of numbers that came."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in CONTENT_TYPES:
        raise ContentTypeError(f"expected a content type of {', '.join(CONTENT_TYPES)}, got {kind!r}")
    if kind in FORMATS:
        inputs = read_image(body, kind, limits.image_pixels, transform)
    else:
        inputs = read_json(body) if kind == JSON else read_npy(body)
    if inputs.ndim == 0 or inputs.size == 0:
        raise InputError(f"expected a batch of at least one row, got shape {inputs.shape}")
    if len(inputs) > limits.rows:
        raise RequestTooLargeError(f"expected at most {limits.rows:,} rows, got {len(inputs):,}")
    return inputs


def read_json(body: bytes) -> np.ndarray[Any, Any]:
    """The numbers of `{"inputs": […]}`, nested lists of one shape."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected JSON, got {len(body):,} bytes that are none: {error}") from error
    if not isinstance(document, dict) or document.keys() != {"inputs"}:
        got = sorted(document)[:5] if isinstance(document, dict) else type(document).__name__
        raise InputError(f'expected {{"inputs": [row, …]}} and nothing else, got {got}')
    try:
        inputs = np.asarray(document["inputs"])
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected rows of one shape: {error}") from error
    if inputs.dtype.kind not in _NUMBERS:
        raise InputError("expected nested lists of numbers as inputs, got something else among them")
    return inputs


def read_npy(body: bytes) -> np.ndarray[Any, Any]:
    """The array of an npy file, checked against the number of bytes before memory is taken for it."""
    shape, fortran, dtype, start = _npy_header(body)
    if dtype.kind not in _NUMBERS:
        raise InputError(f"expected an array of numbers, got {dtype}")
    expected, got = math.prod(shape) * dtype.itemsize, len(body) - start
    if min(shape, default=0) < 0 or expected != got:
        raise InputError(f"expected {expected:,} bytes for {dtype} of shape {shape}, got {got:,}")
    flat = np.frombuffer(body, dtype, offset=start)
    return flat.reshape(shape, order="F" if fortran else "C")


def _npy_header(body: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order and type that an npy file declares, and the place where its numbers start."""
    file = io.BytesIO(body)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        version = np.lib.format.read_magic(file)
        shape, fortran, dtype = readers[version](file, max_header_size=_HEADER_BYTES)
    # The header is Python text of a stranger: SyntaxError, TokenError, RecursionError, KeyError …
    except Exception as error:
        raise InputError(
            f"expected an npy file of version 1 or 2, got another header: {str(error)[:200]}"
        ) from error
    return shape, fortran, dtype, file.tell()


def read_image(
    body: bytes, content_type: str, most_pixels: int, transform: Transform | None
) -> np.ndarray[Any, Any]:
    """The input of the model for an image, (1, …)."""
    if transform is None:
        raise ContentTypeError(
            f"{content_type} needs a transform from an image to an input of the model: let the factory "
            "return (model, transform), or start the server with --size SIDE; inputs can be sent as "
            "application/x-npy or application/json"
        )
    image = decoded(body, FORMATS[content_type], most_pixels)
    try:
        made: Any = transform(image)
    except Exception as error:  # the function is the user's: it may raise anything
        raise InputError(f"the transform cannot take this image: {type(error).__name__}: {error}") from error
    if not isinstance(made, Tensor):
        raise InputError(f"expected the transform to return a tensor, got {type(made).__name__}")
    rows: np.ndarray[Any, Any] = made.detach().cpu().unsqueeze(0).numpy()
    return rows


def decoded(body: bytes, kind: str, most_pixels: int) -> Image.Image:
    """The image in RGB on white; one of too many pixels is refused by its header alone."""
    try:
        with Image.open(io.BytesIO(body), formats=[kind]) as image:
            if image.width * image.height > most_pixels:
                raise _too_many(f"{image.width} x {image.height}", most_pixels)
            return on_white(image, "RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many("many more", most_pixels) from error
    except RequestTooLargeError:
        raise
    except UnidentifiedImageError as error:  # its message has the address of the bytes in memory
        raise InputError(f"expected a {kind} image, got {len(body):,} bytes that are none") from error
    # A decoder raises anything on a damaged file: struct.error, SyntaxError, ZeroDivisionError …
    except Exception as error:
        raise InputError(
            f"expected a {kind} image, got {len(body):,} bytes that are none: {error}"
        ) from error


def _too_many(found: str, most: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"expected an image of at most {most:,} pixels, got {found}")
