"""What cameras and files do: brightness, contrast, pixelate, JPEG (Hendrycks and Dietterich, ICLR 2019)."""

from functools import lru_cache
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from equipoise.research.data.corruptions.arrays import Pixels, pixels


def brightness(images: Pixels, shift: float) -> Pixels:
    """Add to the value of HSV: V = max(R, G, B) becomes V' = min(V + shift, 1), hue and saturation stay.

    So every channel is multiplied by V' / V, and black becomes a grey of V' = shift.
    """
    largest = np.maximum(np.maximum(images[..., 0], images[..., 1]), images[..., 2]).astype(np.uint16)
    largest <<= 8
    places = np.empty(images.shape, dtype=np.uint16)
    for channel in range(3):
        np.bitwise_or(largest, images[..., channel], out=places[..., channel])
    return _brighter(shift).take(places)


@lru_cache(maxsize=16)
def _brighter(shift: float) -> NDArray[np.uint8]:
    """A channel's new level, at 256 · V + its level."""
    levels = np.arange(256, dtype=np.float64)
    values = np.minimum(levels / 255 + shift, 1)
    table = levels * (values / np.maximum(levels / 255, 1 / 255))[:, None]
    table[0] = 255 * values[0]
    return pixels(table.astype(np.float32)).ravel()


def contrast(images: Pixels, factor: float) -> Pixels:
    """Pull every channel to its mean over the image: (x − mean) · factor + mean."""
    count, height, width = images.shape[:3]
    # Sums of whole numbers are exact in any order; over whole rows first, since that is fastest.
    sums = images.reshape(count, height, width * 3).sum(axis=1, dtype=np.uint32).reshape(count, width, 3)
    means = sums.sum(axis=1, dtype=np.uint64) / (height * width)
    shifts = np.tile((means * (1 - factor)).astype(np.float32), width)[:, None]
    values = images.reshape(count, height, width * 3) * np.float32(factor)
    values += shifts
    return pixels(values).reshape(images.shape)


def pixelate(images: Pixels, part: float) -> Pixels:
    """Shrink height and width to that part, rounded down, and enlarge again, both by a box filter."""
    height, width = images.shape[1:3]
    rows, columns = max(1, int(height * part)), max(1, int(width * part))
    small = np.empty((len(images), rows, columns, 3), dtype=np.uint8)
    for image, target in zip(images, small, strict=True):
        target[:] = np.asarray(Image.fromarray(image).resize((columns, rows), Image.Resampling.BOX))
    # To enlarge by a box filter is to take the pixel in which the middle of the new one is.
    down = ((np.arange(height) + 0.5) * (rows / height)).astype(np.intp)
    across = ((np.arange(width) + 0.5) * (columns / width)).astype(np.intp)
    enlarged: Pixels = small.take(across, axis=2).take(down, axis=1)
    return enlarged


def compressed(images: Pixels, quality: float) -> Pixels:
    """Encode each image as JPEG of that quality, as Pillow does, and decode it."""
    decoded = np.empty_like(images)
    for image, target in zip(images, decoded, strict=True):
        file = BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=round(quality))
        target[:] = np.asarray(Image.open(file, formats=["JPEG"]))
    return decoded
