"""The device and the images of a user's model; the same for every command."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from equipoise.data.reader import resized
from equipoise.errors import OptionError
from equipoise.models.factory import Transform


def unit_floats(size: int | None) -> Transform:
    """Images as floats from 0 to 1, (3, height, width), as they are or as squares."""

    def transform(image: Image.Image) -> Tensor:
        shown = image if size is None else resized(image, size)
        return torch.from_numpy(np.array(shown)).permute(2, 0, 1).float() / 255

    return transform


def device_named(name: str | None) -> torch.device:
    """The device of a name; a GPU without one, if there is any."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"no device {name!r} here: {str(error).splitlines()[0]}") from error
    return device
