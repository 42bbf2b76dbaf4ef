"""Random views of images, made on their device and for all of a batch at once.

Every function takes images (N, C, H, W) and uniform random numbers in [0, 1), a row for each image, so that
views repeat with the numbers (`Context.rand`) and can be captured. Values may have any range: 0 to 255, 0 to
1 or normalised. Each image is scaled to its own smallest and largest value and clipped to them, so that a
view depends neither on the other images of the batch nor on the process that has them.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate, pad

from equipoise.errors import BatchError
from equipoise.functional import at_least_single
from equipoise.network.batch import Batch

WEAK_DRAWS = 13
"""Random numbers that `weak_views` takes for each image."""

AUGMIX_DRAWS = 28
"""Random numbers that `augmix_views` takes for each image."""

TILE = (64, 64)
"""Shape of the random numbers from which `weak_views` makes the noise of all images."""

ROWS_AT_ONCE = 256
"""Views that are made, or answered, at once."""

_LUMA = (0.299, 0.587, 0.114)  # shares of red, green and blue in the brightness
_CHAINS, _LINKS = 3, 3  # of AugMix: chains that are mixed, and the most operations in a chain
_NOTHING = 8  # the number of operations, and the number of the one that does nothing


class Affine(NamedTuple):
    """Maps of images, one for each: x ← xx · x + xy · y + x0 and y ← yx · x + yy · y + y0.

    Coordinates go from −1 to 1 across the width and down the height, as those of `grid_sample`. A map gives,
    for a pixel of the result, its place in the image. Numbers are tensors of shape (N, 1, 1, 1).
    """

    xx: Tensor
    xy: Tensor
    x0: Tensor
    yx: Tensor
    yy: Tensor
    y0: Tensor

    def then(self, after: "Affine") -> "Affine":
        """First this map, then another one."""
        return Affine(
            after.xx * self.xx + after.xy * self.yx,
            after.xx * self.xy + after.xy * self.yy,
            after.xx * self.x0 + after.xy * self.y0 + after.x0,
            after.yx * self.xx + after.yy * self.yx,
            after.yx * self.xy + after.yy * self.yy,
            after.yx * self.x0 + after.yy * self.y0 + after.y0,
        )


def in_range(u: Tensor, low: float, high: float) -> Tensor:
    """Uniform random numbers from `low` to `high`, of such from 0 to 1."""
    return low + (high - low) * u


def rotated(degrees: Tensor, ratio: float) -> Affine:
    """A rotation of images whose width is `ratio` times their height."""
    angle, zero = torch.deg2rad(degrees), torch.zeros_like(degrees)
    cos, sin = angle.cos(), angle.sin()
    return Affine(cos, -sin / ratio, zero, sin * ratio, cos, zero)


def scaled(factor: Tensor) -> Affine:
    """An enlargement by a factor."""
    zero = torch.zeros_like(factor)
    return Affine(1 / factor, zero, zero, zero, 1 / factor, zero)


def leaned(degrees: Tensor, lean_x: Tensor, lean_y: Tensor, x: Tensor, y: Tensor, ratio: float) -> Affine:
    """A rotation, a shear or a shift: for each image at most one of the numbers is not 0.

    A shear moves a pixel by `lean_x` pixels across for each pixel down, or `lean_y` down for each across; a
    shift is a share of width or height.
    """
    turn = rotated(degrees, ratio)
    return Affine(turn.xx, turn.xy + lean_x / ratio, 2 * x, turn.yx + lean_y * ratio, turn.yy, 2 * y)


def shifted(x: Tensor, y: Tensor) -> Affine:
    """A shift by shares of width and height."""
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    return Affine(one, zero, 2 * x, zero, one, 2 * y)


def flipped(u: Tensor) -> Affine:
    """Left and right exchanged in the images whose random number is at least ½."""
    one, zero = torch.ones_like(u), torch.zeros_like(u)
    return Affine(torch.where(u < 0.5, 1.0, -1.0).to(u), zero, zero, zero, one, zero)


def moved(images: Tensor, where: Affine) -> Tensor:
    """Images (N, C, H, W) with their pixels taken from other places, bilinearly; edges are repeated."""
    height, width = images.shape[2:]
    x = (2 * torch.arange(width, device=images.device).to(images) + 1).reshape(1, 1, 1, width) / width - 1
    y = (2 * torch.arange(height, device=images.device).to(images) + 1).reshape(1, 1, height, 1) / height - 1
    across = where.xx * x + where.xy * y + where.x0
    down = where.yx * x + where.yy * y + where.y0
    grid = torch.stack((across, down), -1).squeeze(1)
    return grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def repeated(batch: Batch, each: int) -> Batch:
    """A batch with every sample `each` times in a row; what belongs to all samples stays."""
    return batch.with_samples({name: _times(rows, each) for name, rows in batch.samples().items()})


def _times(rows: Tensor, each: int) -> Tensor:
    """Every row `each` times in a row."""
    return rows.unsqueeze(1).expand(-1, each, *rows.shape[1:]).flatten(0, 1)


def views_of(batch: Batch, draws: Tensor, view: Callable[[Tensor, Tensor], Tensor]) -> Batch:
    """A batch of several views of each image, those of an image in a row.

    Args:
        batch: the batch, with images among its inputs (`Batch.change`).
        draws: uniform random numbers (N, views, K).
        view: makes a view of each image out of K random numbers, such as `weak_views`.
    """
    many = repeated(batch, draws.shape[1])
    return many.change(lambda images: view(images, draws.flatten(0, 1)))


def samples_with_views(
    batch: Batch, draws: Tensor, view: Callable[[Tensor, Tensor], Tensor]
) -> Iterator[tuple[Batch, Batch]]:
    """Each sample as a batch of its own, and its views (`views_of`), which are made for several at once."""
    views = draws.shape[1]
    at_once = max(1, ROWS_AT_ONCE // views)
    for first in range(0, batch.rows, at_once):
        some = _rows(batch, first, first + at_once)
        made = views_of(some, draws[first : first + at_once], view)
        for row in range(some.rows):
            yield _rows(some, row, row + 1), _rows(made, row * views, (row + 1) * views)


def _rows(batch: Batch, first: int, end: int) -> Batch:
    return batch.with_samples({name: rows[first:end] for name, rows in batch.samples().items()})


def weak_views(
    images: Tensor, draws: Tensor, *, tile: Tensor | None = None, mirrored: bool = False
) -> Tensor:
    """A view of each image that keeps its class: CoTTA's with a tile, ROID's without.

    Brightness times .6 to 1.4, contrast .7 to 1.3, saturation .5 to 1.5, hue turned by ±.06 of the circle
    (both for three channels only), gamma .7 to 1.3; rotated by ±15°, scaled by .9 to 1.1, shifted by ±1/16,
    edges repeated. With a tile also blurred by a Gaussian of σ .001 to .5 pixels, and noise of σ .005.

    Args:
        images: the images (N, C, H, W).
        draws: uniform random numbers (N, WEAK_DRAWS).
        tile: uniform random numbers of shape TILE: the noise of an image is a piece of it at a random place,
            since a draw for every pixel of every view would cost more than the forwards.
        mirrored: whether half of the views are mirrored left to right; not for digits and text.
    """
    pixels, low, span = _unit(images)
    u = draws.to(pixels).reshape(len(draws), WEAK_DRAWS, 1, 1, 1).unbind(1)
    pixels = _jittered(pixels, u[:5])
    ratio = images.shape[3] / images.shape[2]
    where = rotated(in_range(u[5], -15, 15), ratio).then(scaled(in_range(u[6], 0.9, 1.1)))
    where = where.then(shifted(in_range(u[7], -1 / 16, 1 / 16), in_range(u[8], -1 / 16, 1 / 16)))
    pixels = moved(pixels, where.then(flipped(u[9])) if mirrored else where)
    if tile is not None:
        pixels = _blurred(pixels, in_range(u[10], 0.001, 0.5)) + 0.005 * _noise(pixels, tile, u[11], u[12])
    return _restored(pixels, low, span, images)


def augmix_views(images: Tensor, draws: Tensor, *, mirrored: bool = False) -> Tensor:
    """AugMix-like views (Hendrycks et al., ICLR 2020) as MEMO uses them.

    An image x is shifted by up to ⅛ and becomes m x + (1 − m) Σ_k w_k chain_k(x), with m uniform and w from
    Dirichlet(1, 1, 1). A chain is one to three of: rotate ±9°, shear or shift in x or y by ±.09 or ±.1,
    autocontrast, posterise to 3 or 4 bits, solarise above .7 to 1 (severity 3 of 10). The geometric
    operations of a chain are composed and sampled once, before the others; histograms are not equalised,
    which would sort the pixels of every view.

    Args:
        images: the images (N, C, H, W).
        draws: uniform random numbers (N, AUGMIX_DRAWS).
        mirrored: whether half of the views are mirrored left to right; not for digits and text.
    """
    pixels, low, span = _unit(images)
    sizes = (3, 1, _CHAINS, _CHAINS * (1 + 2 * _LINKS))
    place, share, parts, chains = draws.to(pixels).split(sizes, 1)
    exponential = -(1 - parts).log()  # divided by their sum, a draw from Dirichlet(1, 1, 1)
    mix = exponential / exponential.sum(1, keepdim=True).clamp(min=torch.finfo(pixels.dtype).tiny)
    weights = torch.cat((share, (1 - share) * mix), 1)
    length, kinds, strengths = chains.unflatten(1, (_CHAINS, -1)).split((1, _LINKS, _LINKS), 2)
    links = torch.arange(_LINKS, device=images.device)
    kinds = torch.where(links <= (length * _LINKS).floor(), (kinds * _NOTHING).floor(), _NOTHING)
    kinds = pad(kinds, (0, 0, 1, 0), value=_NOTHING)  # before the chains the image itself
    strengths = pad(strengths, (0, 0, 1, 0))
    x, y, side = _times(place, 1 + _CHAINS).reshape(-1, 3, 1, 1, 1).unbind(1)
    start = shifted(in_range(x, -1 / 8, 1 / 8), in_range(y, -1 / 8, 1 / 8))
    start = start.then(flipped(side)) if mirrored else start
    many = _chained(_times(pixels, 1 + _CHAINS), start, kinds.flatten(0, 1), strengths.flatten(0, 1))
    mixed = (weights[..., None, None, None] * many.unflatten(0, (-1, 1 + _CHAINS))).sum(1)
    return _restored(mixed, low, span, images)


def patch_shuffle(images: Tensor, draws: Tensor, grid: int = 4) -> Tensor:
    """Images cut into grid × grid patches that change places at random, each image in its own way.

    Sizes that are no multiples of `grid` are first reduced to one, and brought back afterwards.

    Args:
        images: the images (N, C, H, W).
        draws: uniform random numbers (N, grid²).
        grid: patches in a row, and in a column.
    """
    _check(images)
    rows, channels, *size = images.shape
    if min(size) < grid:
        raise BatchError(f"expected images of at least {grid} x {grid} pixels to shuffle, got {tuple(size)}")
    height, width = (one // grid for one in size)
    fits = [height * grid, width * grid] == size
    whole = images if fits else _resized(images, (height * grid, width * grid))
    patches = whole.reshape(rows, channels, grid, height, grid, width).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    chosen = patches[torch.arange(rows, device=images.device).unsqueeze(1), draws.argsort(1)]
    joined = chosen.unflatten(1, (grid, grid)).permute(0, 3, 1, 4, 2, 5).reshape(whole.shape)
    return joined if fits else _resized(joined, (size[0], size[1]))


def _check(images: Tensor) -> None:
    if images.ndim != 4:
        raise BatchError(
            f"expected images (N, C, H, W) to make views of, got inputs of shape {tuple(images.shape)}"
        )


def _resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    return _typed(interpolate(_wide(images), size=size, mode="bilinear", antialias=True), images)


def _wide(images: Tensor) -> Tensor:
    return at_least_single(images) if images.is_floating_point() else images.float()


def _typed(pixels: Tensor, like: Tensor) -> Tensor:
    return pixels.to(like.dtype) if like.is_floating_point() else pixels.round().to(like.dtype)


def _unit(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Images between 0 and 1, with the smallest value of each and its distance to the largest."""
    _check(images)
    wide = _wide(images)
    low, high = wide.amin((1, 2, 3), keepdim=True), wide.amax((1, 2, 3), keepdim=True)
    span = high - low
    return (wide - low) / torch.where(span > 0, span, 1.0), low, span


def _restored(pixels: Tensor, low: Tensor, span: Tensor, like: Tensor) -> Tensor:
    return _typed(low + span * pixels.clamp(0, 1), like)


def _jittered(pixels: Tensor, u: tuple[Tensor, ...]) -> Tensor:
    """Another brightness, contrast, saturation, hue and gamma."""
    coloured = pixels.shape[1] == len(_LUMA)
    pixels = (pixels * in_range(u[0], 0.6, 1.4)).clamp(0, 1)
    grey = _grey(pixels) if coloured else pixels.mean(1, keepdim=True)
    pixels = torch.lerp(grey.mean((2, 3), keepdim=True), pixels, in_range(u[1], 0.7, 1.3)).clamp(0, 1)
    if coloured:
        pixels = torch.lerp(_grey(pixels), pixels, in_range(u[2], 0.5, 1.5)).clamp(0, 1)
        pixels = _turned(pixels, 2 * math.pi * in_range(u[3], -0.06, 0.06)).clamp(0, 1)
    return torch.pow(pixels, in_range(u[4], 0.7, 1.3))


def _grey(pixels: Tensor) -> Tensor:
    red, green, blue = pixels[:, :1], pixels[:, 1:2], pixels[:, 2:]
    return red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2]


def _turned(pixels: Tensor, angle: Tensor) -> Tensor:
    """Colours turned about the grey axis (Rodrigues' formula): another hue."""
    across = (pixels.roll(1, 1) - pixels.roll(-1, 1)) / math.sqrt(3)
    return torch.lerp(pixels.mean(1, keepdim=True), pixels, angle.cos()) + across * angle.sin()


def _blurred(pixels: Tensor, sigma: Tensor) -> Tensor:
    """Convolved with a Gaussian of five by five pixels, edges repeated."""
    weights = torch.stack([torch.exp(-0.5 * (distance / sigma) ** 2) for distance in range(-2, 3)])
    weights = weights / weights.sum(0)
    for axis, edges in ((2, (0, 0, 2, 2)), (3, (2, 2, 0, 0))):
        size, edged = pixels.shape[axis], pad(pixels, edges, mode="replicate")
        pixels = torch.zeros_like(pixels)
        for place, weight in enumerate(weights):
            pixels = torch.addcmul(pixels, weight, edged.narrow(axis, place, size))
    return pixels


def _noise(pixels: Tensor, tile: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Normal noise of the images' shape: pieces of one tile, at a place of its own for each image."""
    channels, height, width = pixels.shape[1:]
    normal = torch.erfinv((2 * tile.to(pixels) - 1).clamp(-1 + 1e-6, 1 - 1e-6)) * math.sqrt(2)

    def places(start: Tensor, size: int, period: int) -> Tensor:
        apart = torch.arange(channels, device=pixels.device) * (period // channels + 1)
        first = (start.reshape(-1, 1) * period).long() + apart
        return (first.unsqueeze(2) + torch.arange(size, device=pixels.device)) % period

    rows, columns = places(down, height, len(tile)), places(across, width, tile.shape[1])
    return normal[rows.unsqueeze(3), columns.unsqueeze(2)]


def _chained(pixels: Tensor, start: Affine, kinds: Tensor, strengths: Tensor) -> Tensor:
    """The chains of AugMix, one for each image: (N, links) operations by number, and their strengths."""
    ratio, where = pixels.shape[3] / pixels.shape[2], start
    kinds, strengths = kinds[..., None, None, None], strengths[..., None, None, None]
    for kind, strength in zip(kinds.unbind(1), strengths.unbind(1), strict=True):
        # At most one of the five numbers is not 0.
        turn, lean_x, lean_y, right, down = ((kind == one) * (2 * strength - 1) for one in range(5))
        where = where.then(leaned(9 * turn, 0.09 * lean_x, 0.09 * lean_y, 0.1 * right, 0.1 * down, ratio))
    pixels = moved(pixels, where)
    for kind, strength in zip(kinds.unbind(1), strengths.unbind(1), strict=True):
        low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
        levels = torch.where(strength < 0.5, 8.0, 16.0)
        pixels = torch.where(kind == 5, (pixels - low) / torch.where(high > low, high - low, 1.0), pixels)
        pixels = torch.where(kind == 6, (pixels * levels).floor().clamp(max=levels - 1) / levels, pixels)
        pixels = torch.where((kind == 7) & (pixels >= 1 - 0.3 * strength), 1 - pixels, pixels)
    return pixels
