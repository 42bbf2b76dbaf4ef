"""Printed digits over cluttered backgrounds, drawn with the fonts that matplotlib ships.

The look is that of house numbers: any grey on any grey, neighbouring digits cut off at the sides, a little
blur and noise.
"""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

CANVAS = 64
"""Side of the square the scene is drawn on; it is halved at the end, which smooths the edges."""

FONT_SIZE = 64
LOWEST_CONTRAST, HIGHEST_CONTRAST = 60.0, 160.0
GLYPH_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Grey = NDArray[np.float32]


def draw_digits(labels: NDArray[np.int64], seed: int, fonts: Sequence[str] = ()) -> Grey:
    """Draw one 32x32 image (0..255) for each label; the same seed gives the same images.

    `fonts` are names of files without their ending ("DejaVuSans"); all that have digits by default.
    """
    rng = np.random.default_rng(seed)
    paths = [path for path in digit_fonts() if not fonts or path.stem in fonts]
    return np.stack(
        [photograph(write_digit(background(rng), int(label), rng, paths), rng) for label in labels]
    )


@cache
def digit_fonts() -> tuple[Path, ...]:
    """The fonts matplotlib ships whose characters 0 to 9 are really digits.

    Symbol fonts map these characters too, to arrows, brackets or placeholder boxes, so the names of the
    glyphs decide.
    """
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return tuple(path for path in sorted(folder.glob("*.ttf")) if _has_digits(path))


def _has_digits(path: Path) -> bool:
    font = FT2Font(str(path))
    characters = font.get_charmap()
    codes = [ord(character) for character in "0123456789"]
    if not all(code in characters for code in codes):
        return False
    return tuple(font.get_glyph_name(characters[code]) for code in codes) == GLYPH_NAMES


@cache
def glyph(font: Path, digit: int) -> Image.Image:
    """The shape of one digit, white on black and cut to its outline."""
    canvas = Image.new("L", (2 * FONT_SIZE, 2 * FONT_SIZE), 0)
    ImageDraw.Draw(canvas).text(
        (FONT_SIZE // 2, FONT_SIZE // 2), str(digit), fill=255, font=ImageFont.truetype(font, FONT_SIZE)
    )
    return canvas.crop(canvas.getbbox())


def background(rng: np.random.Generator) -> Grey:
    """A grey gradient with a few lines and blobs on it, CANVAS pixels wide and high."""
    angle = rng.uniform(0, 2 * math.pi)
    start, end = rng.uniform(0, 255, size=2)
    rows, columns = np.mgrid[0:CANVAS, 0:CANVAS] / (CANVAS - 1) - 0.5
    position = np.cos(angle) * columns + np.sin(angle) * rows + 0.5
    gradient = Image.fromarray(np.clip(start + (end - start) * position, 0, 255).astype(np.uint8))

    pen = ImageDraw.Draw(gradient)
    for _ in range(rng.integers(0, 4)):
        x, y, other_x, other_y = rng.uniform(0, CANVAS, size=4)
        pen.line((x, y, other_x, other_y), fill=int(rng.integers(0, 256)), width=int(rng.integers(1, 4)))
    for _ in range(rng.integers(0, 4)):
        x, y = rng.uniform(0, CANVAS, size=2)
        width, height = rng.uniform(3, 14, size=2)
        pen.ellipse((x - width, y - height, x + width, y + height), fill=int(rng.integers(0, 256)))
    softened = gradient.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.5, 2.5))))
    return np.asarray(softened, dtype=np.float32)


def write_digit(scene: Grey, digit: int, rng: np.random.Generator, fonts: Sequence[Path]) -> Grey:
    """Write the digit in the middle of the scene and parts of other digits at its sides."""
    font = fonts[int(rng.integers(len(fonts)))]
    height = rng.uniform(0.55, 0.85) * CANVAS
    tilt = rng.uniform(-15, 15)
    x, y = CANVAS / 2 + rng.uniform(-4, 4, size=2)
    ink = _ink(scene, x, y, rng)

    neighbours = Image.new("L", (CANVAS, CANVAS), 0)
    for side in (-1, 1):
        if rng.random() < 0.5:
            shape = _turned(glyph(font, int(rng.integers(10))), height, tilt)
            _paste(neighbours, shape, x + side * rng.uniform(0.55, 0.7) * CANVAS, y)
    scene = _blend(scene, neighbours, ink)

    middle = Image.new("L", (CANVAS, CANVAS), 0)
    _paste(middle, _turned(glyph(font, digit), height, tilt), x, y)
    return _blend(scene, middle, ink)


def photograph(scene: Grey, rng: np.random.Generator) -> Grey:
    """Blur the scene, halve its size and add noise, as a cheap camera does."""
    blurred = Image.fromarray(scene.astype(np.uint8)).filter(
        ImageFilter.GaussianBlur(float(rng.uniform(0, 1.5)))
    )
    small = np.asarray(blurred.reduce(2), dtype=np.float32)
    noise = rng.normal(0, rng.uniform(0, 12), size=small.shape)
    return np.clip(small + noise, 0, 255).astype(np.float32)


def _ink(scene: Grey, x: float, y: float, rng: np.random.Generator) -> float:
    """A grey that stands out from the middle of the scene, lighter or darker by chance."""
    reach = CANVAS // 4
    top, left = int(y) - reach, int(x) - reach
    ground = float(scene[top : top + 2 * reach, left : left + 2 * reach].mean())
    contrast = rng.uniform(LOWEST_CONTRAST, HIGHEST_CONTRAST)
    lighter = rng.random() < 0.5
    if lighter and ground + contrast > 255:
        lighter = False
    elif not lighter and ground - contrast < 0:
        lighter = True
    return float(np.clip(ground + contrast if lighter else ground - contrast, 0, 255))


def _turned(shape: Image.Image, height: float, tilt: float) -> Image.Image:
    scale = height / shape.height
    resized = shape.resize((max(1, round(shape.width * scale)), round(height)), Image.Resampling.BILINEAR)
    return resized.rotate(tilt, Image.Resampling.BILINEAR, expand=True)


def _paste(mask: Image.Image, shape: Image.Image, x: float, y: float) -> None:
    """Put the shape's middle at (x, y); what lies outside the mask is cut off."""
    mask.paste(shape, (round(x - shape.width / 2), round(y - shape.height / 2)))


def _blend(scene: Grey, mask: Image.Image, ink: float) -> Grey:
    cover = np.asarray(mask, dtype=np.float32) / 255
    return (scene * (1 - cover) + ink * cover).astype(np.float32)
