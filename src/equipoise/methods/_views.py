"""Random views of images, made on their device and for all of a batch at once.

Every function takes images (N, C, H, W) and uniform random numbers in [0, 1), a row for each image, so that
views repeat with the numbers (`Context.rand`) and can be captured. Values may have any range: 0 to 255, 0 to
1 or normalised. Each image is scaled to its own smallest and largest value and clipped to them, so that a
view depends neither on the other images of the batch nor on the process that has them.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from equipoise.errors import BatchError
from equipoise.functional import at_least_single
from equipoise.methods._affine import Affine, between, flipped, moved, rotated, scaled, sheared, shifted
from equipoise.network.batch import Batch

WEAK_DRAWS = 13
"""Random numbers that `weak_views` takes for each image."""

AUGMIX_DRAWS = 28
"""Random numbers that `augmix_views` takes for each image."""

TILE = (64, 64)
"""Shape of the random numbers from which `weak_views` makes the noise of all images."""

_LUMA = (0.299, 0.587, 0.114)  # shares of red, green and blue in the brightness
_CHAINS, _LINKS = 3, 3  # of AugMix: chains that are mixed, and the most operations in a chain


def repeated(batch: Batch, each: int) -> Batch:
    """A batch with every sample `each` times in a row; what belongs to all samples stays."""
    samples = batch.samples()
    return batch.with_samples(
        {name: t.unsqueeze(1).expand(-1, each, *t.shape[1:]).flatten(0, 1) for name, t in samples.items()}
    )


def views_of(batch: Batch, draws: Tensor, view: Callable[[Tensor, Tensor], Tensor]) -> Batch:
    """A batch of several views of each image, those of an image in a row.

    Args:
        batch: the batch, whose first tensor is the images.
        draws: uniform random numbers (N, views, K).
        view: makes a view of each image out of K random numbers, such as `weak_views`.
    """
    many = repeated(batch, draws.shape[1])
    return many.change(lambda images: view(images, draws.flatten(0, 1)))


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
    where = rotated(between(u[5], -15, 15), ratio).then(scaled(between(u[6], 0.9, 1.1)))
    where = where.then(shifted(between(u[7], -1 / 16, 1 / 16), between(u[8], -1 / 16, 1 / 16)))
    pixels = moved(pixels, where.then(flipped(u[9])) if mirrored else where)
    if tile is not None:
        pixels = _blurred(pixels, between(u[10], 0.001, 0.5)) + 0.005 * _noise(pixels, tile, u[11], u[12])
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
    u = draws.to(pixels).reshape(len(draws), AUGMIX_DRAWS, 1, 1, 1).unbind(1)
    start = shifted(between(u[0], -1 / 8, 1 / 8), between(u[1], -1 / 8, 1 / 8))
    start = start.then(flipped(u[2])) if mirrored else start
    share = u[3]
    parts = torch.stack([-(1 - one).log() for one in u[4 : 4 + _CHAINS]])  # exponential: Dirichlet's parts
    weights = parts / parts.sum(0).clamp(min=torch.finfo(parts.dtype).tiny)
    mixed = share * moved(pixels, start)
    for chain, weight in enumerate(weights):
        first = 4 + _CHAINS + chain * (1 + 2 * _LINKS)
        mixed = mixed + (1 - share) * weight * _chain(pixels, start, u[first : first + 1 + 2 * _LINKS])
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
    pixels = (pixels * between(u[0], 0.6, 1.4)).clamp(0, 1)
    grey = _grey(pixels) if coloured else pixels.mean(1, keepdim=True)
    pixels = torch.lerp(grey.mean((2, 3), keepdim=True), pixels, between(u[1], 0.7, 1.3)).clamp(0, 1)
    if coloured:
        pixels = torch.lerp(_grey(pixels), pixels, between(u[2], 0.5, 1.5)).clamp(0, 1)
        pixels = _turned(pixels, 2 * math.pi * between(u[3], -0.06, 0.06)).clamp(0, 1)
    return pixels.pow(between(u[4], 0.7, 1.3))


def _grey(pixels: Tensor) -> Tensor:
    parts = [share * channel for share, channel in zip(_LUMA, pixels.split(1, 1), strict=True)]
    return parts[0] + parts[1] + parts[2]


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


def _chain(pixels: Tensor, start: Affine, u: tuple[Tensor, ...]) -> Tensor:
    """One chain of AugMix: its length, and a kind and a strength for each link."""
    length, ratio = (u[0] * _LINKS).floor(), pixels.shape[3] / pixels.shape[2]
    kinds = [torch.where(length >= link, (u[1 + 2 * link] * 8).floor(), 8) for link in range(_LINKS)]
    where = start
    for kind, strength in zip(kinds, u[2::2], strict=True):
        signed = 2 * strength - 1
        turn, lean_x, lean_y, right, down = ((kind == one) * signed for one in range(5))
        where = where.then(rotated(9 * turn, ratio)).then(sheared(0.09 * lean_x, 0.09 * lean_y, ratio))
        where = where.then(shifted(0.1 * right, 0.1 * down))
    pixels = moved(pixels, where)
    for kind, strength in zip(kinds, u[2::2], strict=True):
        low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
        levels = torch.where(strength < 0.5, 8.0, 16.0)
        threshold = 1 - 0.3 * strength
        pixels = torch.where(kind == 5, (pixels - low) / torch.where(high > low, high - low, 1.0), pixels)
        pixels = torch.where(kind == 6, (pixels * levels).floor().clamp(max=levels - 1) / levels, pixels)
        pixels = torch.where((kind == 7) & (pixels >= threshold), 1 - pixels, pixels)
    return pixels
