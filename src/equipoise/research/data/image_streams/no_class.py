"""Images of no class, made from images of the stream: uniform noise, textures and phase-scrambled images."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.research.data.corruptions.fog import plasmas

ROUGHNESS = 1.6
"""The decay of a texture's details: the larger, the smoother."""

Image = NDArray[np.uint8]
"""An image (channels, height, width)."""


def without_class(pixels: Tensor, seeds: Sequence[int]) -> Tensor:
    """An image of no class for each image (N, channels, height, width), uint8, by a seed of its own.

    One of three, each as likely: pixels of uniform noise; a texture (a plasma fractal between two random
    colours); or the image with random phases in its Fourier transform, which keeps its colours and its
    spectrum and nothing of its shapes.
    """
    made = np.empty(tuple(pixels.shape), dtype=np.uint8)
    for place, (image, seed) in enumerate(zip(pixels.numpy(), seeds, strict=True)):
        generator = np.random.default_rng(seed)
        make = (uniform_noise, texture, phase_scrambled)[int(generator.integers(3))]
        made[place] = make(image, generator)
    return torch.from_numpy(made)


def uniform_noise(image: Image, generator: np.random.Generator) -> Image:
    """Noise of the shape of the image: each value from 0 to 255 as likely."""
    return generator.integers(0, 256, image.shape, dtype=np.uint8)


def texture(image: Image, generator: np.random.Generator) -> Image:
    """A plasma fractal of the shape of the image, between two random colours."""
    channels, height, width = image.shape
    side = 1 << (max(height, width) - 1).bit_length()
    field = plasmas(side, [generator], ROUGHNESS)[0, :height, :width]
    low, high = generator.uniform(0, 255, (2, channels, 1, 1))
    return _levels(low + (high - low) * field)


def phase_scrambled(image: Image, generator: np.random.Generator) -> Image:
    """The image with phases of white noise added to those of its Fourier transform, in all channels alike."""
    height, width = image.shape[1:]
    phases = np.angle(np.fft.rfft2(generator.standard_normal((height, width))))
    phases[0, 0] = 0  # the mean stays
    spectrum = np.fft.rfft2(image) * np.exp(1j * phases)
    return _levels(np.fft.irfft2(spectrum, s=(height, width)))


def _levels(values: NDArray[np.float64]) -> Image:
    levels: Image = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return levels
