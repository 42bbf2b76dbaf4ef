"""Fog, snow and frost before the image (Hendrycks and Dietterich, ICLR 2019); frosted panes are made here."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from equipoise.research.data.corruptions.arrays import (
    Floats,
    Generators,
    Pixels,
    Reals,
    in_each_channel,
    pixels,
)
from equipoise.research.data.corruptions.blur import along_lines, enlarged, zoomed


def fog(images: Pixels, generators: Generators, density: float, decay: float) -> Pixels:
    """Add a plasma fractal and darken: (x + density · plasma) · m / (m + density), m the image's maximum."""
    height, width = images.shape[1:3]
    size = 1 << (max(height, width) - 1).bit_length()
    plasma = plasmas(size, generators, decay)[:, :height, :width]
    brightest = images.max(axis=(1, 2, 3)).astype(np.float32)[:, None, None, None]
    foggy = in_each_channel(plasma * np.float32(255 * density))
    foggy += images
    foggy *= brightest / (brightest + np.float32(255 * density))
    return pixels(foggy)


def plasmas(size: int, generators: Generators, decay: float) -> Floats:
    """Fields (N, size, size) in [0, 1] by the diamond-square algorithm on a torus; size is a power of two.

    Level for level, the centres of the squares become the mean of their corners, then the centres of the
    diamonds that of theirs, each plus w² · U(−1, 1); after each level the grid is twice as fine and w is
    divided by `decay`. That w is squared is what the original does.
    """
    # Every place is drawn once: one number for each. Only ratios of w matter, since the outcome is scaled.
    draws = np.stack([g.random((size, size), dtype=np.float32) for g in generators])
    draws *= 2
    draws -= 1
    field = np.zeros_like(draws)
    step, wibble = size, 1.0
    while step >= 2:
        half, amplitude = step // 2, np.float32(wibble**2)
        corners = field[:, ::step, ::step]
        squares = corners + np.roll(corners, -1, axis=1)
        squares = squares + np.roll(squares, -1, axis=2)
        middle = (slice(None), slice(half, None, step), slice(half, None, step))
        field[middle] = squares * np.float32(0.25) + draws[middle] * amplitude
        centres = field[middle]
        for axis, place in (
            (1, (slice(None), slice(None, None, step), slice(half, None, step))),
            (2, (slice(None), slice(half, None, step), slice(None, None, step))),
        ):
            # A diamond on an edge of squares: the ends of the edge, and the centres on both sides of it.
            diamonds = corners + np.roll(corners, -1, axis=3 - axis)
            diamonds += centres
            diamonds += np.roll(centres, 1, axis=axis)
            field[place] = diamonds * np.float32(0.25) + draws[place] * amplitude
        step, wibble = half, wibble / decay
    field -= field.min(axis=(1, 2), keepdims=True)
    field /= field.max(axis=(1, 2), keepdims=True)
    return field


_RED, _GREEN, _BLUE = np.float32(0.299), np.float32(0.587), np.float32(0.114)


def snow(
    images: Pixels,
    generators: Generators,
    mean: float,
    scale: float,
    flake: float,
    threshold: float,
    radius: float,
    sigma: float,
    weight: float,
) -> Pixels:
    """Whiten the image, and add flakes that fall, and the same flakes turned by 180°.

    flakes = a field of N(mean, scale), zoomed into by `flake`, 0 below `threshold`, at most 1, blurred by a
             motion (radius, sigma) at an angle of U(−135°, −45°)
    out = weight · x + (1 − weight) · max(x, 1.5 · grey + 0.5) + flakes + turned flakes
    """
    height, width = images.shape[1:3]
    rows, columns = zoomed(height, max(1.0, flake)), zoomed(width, max(1.0, flake))
    # Of the field, only the places that the zoom shows are drawn.
    shape = (rows.shown, columns.shown)
    angles = [g.uniform(-135, -45) for g in generators]  # first: the field is of another shape at other tiers
    fields = np.stack([g.standard_normal(shape, dtype=np.float32) for g in generators])
    fields *= np.float32(scale)
    fields += np.float32(mean)
    fields = enlarged(fields, rows, columns)
    fields[fields < np.float32(threshold)] = 0
    np.minimum(fields, 1, out=fields)
    flakes = along_lines(fields, angles, radius, sigma, channels=1)
    fallen = in_each_channel((flakes + flakes[:, ::-1, ::-1]) * np.float32(255))
    return pixels(whitened(images, weight) + fallen)


def whitened(images: Pixels, weight: float) -> Floats:
    """A white sky, weight · x + (1 − weight) · max(x, 1.5 · grey + 0.5), in units of 1 / 255."""
    values = images.astype(np.float32)
    grey = values[..., 0] * _RED
    grey += values[..., 1] * _GREEN
    grey += values[..., 2] * _BLUE
    white = in_each_channel(grey * np.float32(1.5) + np.float32(127.5))
    np.maximum(white, values, out=white)
    white *= np.float32(1 - weight)
    values *= np.float32(weight)
    values += white
    return values


_SIZE = 256  # of a pane, at the scale of the tables
_DIRECTIONS = 24  # in which the arms of a crystal can grow
_ARMS = (9.0, 16.0)  # the lengths of a crystal's arms, in pixels, by turns


class Pane(NamedTuple):
    """The look of a pane: its mean colour, its standard deviation, and how much of it is crystals."""

    colour: tuple[float, float, float]
    contrast: float
    crystals: float


# The photographs of the original are five: a teal one, two white ones that look the same, two grey ones.
PANES = (
    Pane((0.30, 0.57, 0.64), contrast=0.07, crystals=0.60),
    Pane((0.78, 0.81, 0.84), contrast=0.08, crystals=0.70),
    Pane((0.80, 0.81, 0.83), contrast=0.08, crystals=0.75),
    Pane((0.54, 0.60, 0.65), contrast=0.10, crystals=0.80),
    Pane((0.45, 0.49, 0.54), contrast=0.13, crystals=0.80),
)


def frost(images: Pixels, generators: Generators, weight: float, thickness: float, scale: float) -> Pixels:
    """Weigh the image against a random window of a frosted pane: weight · x + thickness · pane.

    The panes of the original are photographs that are not ours to ship. These are drawn: star-shaped crystals
    on clouds, with colours, brightness and contrast like theirs. Results on them are not results on the
    official frost.
    """
    height, width = images.shape[1:3]
    rows, columns = math.ceil(height / scale), math.ceil(width / scale)
    wrapped = wrapped_panes(rows, columns)
    frosted = np.empty(images.shape, dtype=np.float32)
    for generator, target in zip(generators, frosted, strict=True):
        pane = wrapped[generator.integers(len(wrapped))]
        top, left = generator.integers(_SIZE, size=2)
        window = pane[top : top + rows, left : left + columns]
        if (rows, columns) != (height, width):
            resized = Image.fromarray(window).resize((width, height), Image.Resampling.BICUBIC)
            window = np.asarray(resized)
        np.multiply(window, np.float32(thickness), out=target)
    frosted += images * np.float32(weight)
    return pixels(frosted)


@lru_cache(maxsize=8)
def wrapped_panes(rows: int, columns: int) -> tuple[Pixels, ...]:
    """The panes, continued, so that a window of that size can start anywhere."""
    return tuple(np.pad(pane, ((0, rows), (0, columns), (0, 0)), mode="wrap") for pane in panes())


@lru_cache(maxsize=1)
def panes() -> tuple[Pixels, ...]:
    """The five panes, (256, 256, 3) each, always the same; each goes on at its other side."""
    generator = np.random.Generator(np.random.PCG64(20190506))
    arms = [
        np.fft.rfft2(arm(2 * math.pi * turn / _DIRECTIONS, _ARMS[turn % 2])) for turn in range(_DIRECTIONS)
    ]
    return tuple(_painted(pane, arms, generator) for pane in PANES)


def _painted(pane: Pane, arms: list[NDArray[np.complex128]], generator: np.random.Generator) -> Pixels:
    """A pane: clouds and crystals, of mean 0 and variance 1 each, mixed, scaled and coloured."""
    mixed = pane.crystals * _standardised(crystals(arms, generator))
    mixed += (1 - pane.crystals) * _standardised(clouds(1.6, generator))
    light = pane.contrast * _standardised(mixed)
    # Thick frost is whiter than thin frost: the colour fades where it is bright.
    colour = np.array(pane.colour)
    tint = (colour - colour.mean()) * np.clip(1 - 2 * light, 0, 1.5)[..., None]
    return pixels(((colour.mean() + light)[..., None] + tint).astype(np.float32) * np.float32(255))


def _standardised(field: Reals) -> Reals:
    centred = field - field.mean()
    scaled: Reals = centred / centred.std()
    return scaled


def clouds(exponent: float, generator: np.random.Generator) -> Reals:
    """Noise whose amplitude falls with the frequency f as f^−exponent."""
    down, across = np.fft.fftfreq(_SIZE)[:, None], np.fft.rfftfreq(_SIZE)
    frequency = np.hypot(down, across)
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(generator.standard_normal((_SIZE, _SIZE))) * frequency**-exponent
    return np.fft.irfft2(spectrum, s=(_SIZE, _SIZE))


def crystals(arms: list[NDArray[np.complex128]], generator: np.random.Generator) -> Reals:
    """Stars: each has a place and some arms, which are laid over those of the others.

    A star of a dozen arms would be a flower: each has from three to seven. The sum saturates, as ice does not
    get brighter than white.
    """
    count = _SIZE * _SIZE // 40
    places = generator.integers(_SIZE, size=(count, 2))
    brightness = generator.gamma(2.0, size=count)
    chance = generator.uniform(3, 7, size=count) / _DIRECTIONS
    spectrum = np.zeros((_SIZE, _SIZE // 2 + 1), dtype=np.complex128)
    for arm_spectrum in arms:
        grows = generator.random(count) < chance
        seeds = np.zeros((_SIZE, _SIZE))
        np.add.at(seeds, tuple(places[grows].T), (brightness * generator.uniform(0.3, 1, count))[grows])
        spectrum += np.fft.rfft2(seeds) * arm_spectrum
    summed = np.fft.irfft2(spectrum, s=(_SIZE, _SIZE))
    saturated: Reals = np.tanh(summed / (2 * summed.std()))
    return saturated


def arm(angle: float, length: float) -> Reals:
    """An arm of a crystal, from (0, 0) on a torus: a needle, bright on one side, dark on the other."""
    line = np.fft.fftfreq(_SIZE, 1 / _SIZE)
    along = math.cos(angle) * line + math.sin(angle) * line[:, None]
    aside = math.cos(angle) * line[:, None] - math.sin(angle) * line
    progress = np.clip(along / length, 0, 1)
    inside = (along >= 0) & (along <= length)
    thickness = 0.4 + 0.5 * (1 - progress)
    needle = np.exp(-(aside**2) / (2 * thickness**2)) - 0.7 * np.exp(
        -((aside - 1.6) ** 2) / (2 * thickness**2)
    )
    grown: Reals = np.where(inside, needle * (1 - progress), 0)
    return grown
