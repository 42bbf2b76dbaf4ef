"""The images among the inputs of a batch, for methods that make views of them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from equipoise.errors import BatchError

_CHANNELS = (3, 1)  # of several inputs with four dimensions, those in colour are the images, or else the grey


def images_among(samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs that can be the images: (N, C, H, W), of floats or bytes where there are other inputs.

    Of several, those with three channels, or else with one; more than one are left if that does not decide.
    """
    found = {
        name: value
        for name, value in samples.items()
        if value.ndim == 4 and (len(samples) == 1 or value.is_floating_point() or value.dtype == torch.uint8)
    }
    for channels in _CHANNELS:
        chosen = {name: value for name, value in found.items() if value.shape[1] == channels}
        if len(found) > 1 and chosen:
            return chosen
    return found


def not_one_image(asker: str, samples: Mapping[str, Tensor]) -> BatchError:
    """The error of a batch that has no images to make views of, or several inputs that can be the images."""
    images = images_among(samples)
    shown = ", ".join(f"{name} {tuple(value.shape)}" for name, value in (images or samples).items())
    if images:
        expected = "one input of images (N, C, H, W) to make views of, or one of them with three channels"
        advice = "join these in one tensor, which a module around the model splits, or use"
    else:
        expected, advice = "images (N, C, H, W) to make views of", "without images use"
        shown = shown if len(samples) > 1 else f"inputs of shape {tuple(next(iter(samples.values())).shape)}"
    return BatchError(
        f"{asker}: expected {expected}, got {shown}; {advice} a method that makes no views, such as "
        '"poise", "tent", "bn_ema" or "sotta"'
    )
