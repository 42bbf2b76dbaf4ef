"""An uploaded image: measured by its header, decoded if it is small enough, transformed for the model."""

import io
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from equipoise.files import on_white
from equipoise.production.server.errors import InputError
from equipoise.production.server.model_factory import Transform
from equipoise.production.server.routes.refusals import ContentTypeError, RequestTooLargeError

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG"}
"""The content types of images, and Pillow's names of their formats."""


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
