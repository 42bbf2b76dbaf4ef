"""Made-up shifts of images that a model is rehearsed on; none is one of the 15 benchmark corruptions."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, avg_pool2d, conv2d, grid_sample, interpolate, pad

ShiftFunction: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]
"""Changes a batch of inputs; everything random comes from the generator, which is on the CPU."""

_AT_ONCE = 64  # samples that are measured at once


class Scale(NamedTuple):
    """The range of images, one of each for every channel, shaped to broadcast over a batch.

    Attributes:
        low: smallest values.
        high: largest values.
    """

    low: Tensor
    high: Tensor


def scale_of(inputs: Tensor) -> Scale:
    """Measure (N, C, H, W) images channel by channel.

    One common range serves channels that are constant, so that nothing is divided by zero.
    """
    over = (0, 2, 3)
    parts = inputs.split(_AT_ONCE)  # all at once would be a copy of everything
    low = torch.stack([part.amin(over, keepdim=True) for part in parts]).amin(0).double()
    high = torch.stack([part.amax(over, keepdim=True) for part in parts]).amax(0).double()
    flat = high <= low
    low, high = torch.where(flat, low.min(), low), torch.where(flat, high.max(), high)
    high = torch.where(high <= low, low + 1, high)
    return Scale(low.float(), high.float())


def image_shifts(scale: Scale, channels: int) -> dict[str, ShiftFunction]:
    """Geometric, occluding, mixing, colour, texture and frequency changes of (N, C, H, W) images.

    The order alternates between the kinds, so that the first few are a fair choice of all. Values stay
    between the lowest and the highest of each channel, which `scale` has: normalised images work, too.
    """
    plain: dict[str, ShiftFunction] = {
        "rotate 25": partial(_affine, degrees=25),
        "cut .4": partial(_cut, side=0.4),
        "mix .2": partial(_mix, share=0.2),
        "invert": lambda x, _: 1 - x,
        "convolve 3": partial(_convolve, size=3),
        "zoom in .75": partial(_affine, zoom=0.75),
        "fourier .5": partial(_fourier, share=0.5),
        "shuffle 2x2": partial(_shuffle, tiles=2),
        "rotate 12": partial(_affine, degrees=12),
        "posterise": lambda x, _: (x * 3).round() / 3,
        "zoom out 1.5": partial(_affine, zoom=1.5),
        "gamma 2.5": lambda x, _: x**2.5,
        "smooth 3": partial(_smooth, size=3),
        "shear .3": partial(_affine, shear=0.3),
        "grain .2": partial(_grain, strength=0.2),
        "cut .6": partial(_cut, side=0.6),
        "rotate 45": partial(_affine, degrees=45),
        "solarise": lambda x, _: torch.where(x > 0.5, 1 - x, x),
        "fourier 1": partial(_fourier, share=1.0),
        "zoom in .55": partial(_affine, zoom=0.55),
        "convolve 7": partial(_convolve, size=7),
        "sharpen": _sharpen,
        "shear .7": partial(_affine, shear=0.7),
        "shuffle 4x4": partial(_shuffle, tiles=4),
        "zoom out 2.2": partial(_affine, zoom=2.2),
        "grain .5": partial(_grain, strength=0.5),
        "gamma .4": lambda x, _: x**0.4,
        "rotate 90": partial(_affine, degrees=90),
        "cut .75": partial(_cut, side=0.75),
        "smooth 5": partial(_smooth, size=5),
    }
    if channels > 1:
        plain["grey"] = lambda x, _: x.mean(1, keepdim=True).expand_as(x)
        plain["permute channels"] = _permute_channels
        plain["convolve 1"] = partial(_convolve, size=1)
    return {name: partial(_in_unit_range, shift=shift, scale=scale) for name, shift in plain.items()}


# ---------------------------------------------------------------------- units


def _in_unit_range(x: Tensor, generator: torch.Generator, *, shift: ShiftFunction, scale: Scale) -> Tensor:
    low, high = scale.low.to(x.device), scale.high.to(x.device)
    unit = ((x.float() - low) / (high - low)).clamp(0, 1)
    changed = low + shift(unit, generator).clamp(0, 1) * (high - low)
    return changed.to(x.dtype) if x.is_floating_point() else changed.round().to(x.dtype)


def _drawn(generator: torch.Generator, *shape: int, like: Tensor) -> Tensor:
    return torch.rand(shape, generator=generator).to(like.device)


# ---------------------------------------------------------------------- images, with values from 0 to 1


def _affine(
    x: Tensor, generator: torch.Generator, *, degrees: float = 0, zoom: float = 1, shear: float = 0
) -> Tensor:
    """Rotate and shear, each image either way round, and crop to `zoom` of its side."""
    way = torch.where(_drawn(generator, len(x), like=x) < 0.5, -1.0, 1.0)
    angle = way * math.radians(degrees)
    cos, sin, none = zoom * angle.cos(), zoom * angle.sin(), torch.zeros_like(angle)
    rows = torch.stack([cos, -sin + way * shear, none], 1), torch.stack([sin, cos, none], 1)
    grid = affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return grid_sample(x, grid, align_corners=False)


def _cut(x: Tensor, generator: torch.Generator, *, side: float) -> Tensor:
    """Replace a square, somewhere in each image, by the image's mean."""
    places = []
    for dim in (2, 3):
        size = x.shape[dim]
        start = (_drawn(generator, len(x), like=x) * (1 - side) * size).unsqueeze(1)
        at = torch.arange(size, device=x.device)
        places.append((at >= start) & (at < start + side * size))
    inside = (places[0].unsqueeze(2) & places[1].unsqueeze(1)).unsqueeze(1)
    return torch.where(inside, x.mean((2, 3), keepdim=True), x)


def _mix(x: Tensor, generator: torch.Generator, *, share: float) -> Tensor:
    """Let another sample of the batch show through."""
    return torch.lerp(x, x[_partners(x, generator)], share)


def _partners(x: Tensor, generator: torch.Generator) -> Tensor:
    """Another sample of the batch for each: the neighbour in a random ring, so never itself."""
    order = torch.randperm(len(x), generator=generator)
    partners = torch.empty_like(order)
    partners[order] = order.roll(1)
    return partners.to(x.device)


def _shuffle(x: Tensor, generator: torch.Generator, *, tiles: int) -> Tensor:
    """Cut all images of the batch into tiles × tiles patches, and put them together in another order."""
    height, width = x.shape[2] // tiles * tiles, x.shape[3] // tiles * tiles
    even = interpolate(x, (height, width), mode="bilinear") if x.shape[2:] != (height, width) else x
    patches = even.unflatten(3, (tiles, -1)).unflatten(2, (tiles, -1))  # N, C, tile, row, tile, column
    order = torch.randperm(tiles * tiles, generator=generator).to(x.device)
    listed = patches.transpose(3, 4).flatten(2, 3)[:, :, order].unflatten(2, (tiles, tiles))
    whole = listed.transpose(3, 4).flatten(4, 5).flatten(2, 3)
    return interpolate(whole, x.shape[2:], mode="bilinear") if whole.shape != x.shape else whole


def _convolve(x: Tensor, generator: torch.Generator, *, size: int) -> Tensor:
    """Random convolution of all channels, stretched so that each image of the batch fills the range again.

    Random convolutions change texture and colour and keep shapes (Xu et al., ICLR 2021).
    """
    channels = x.shape[1]
    kernel = torch.randn((channels, channels, size, size), generator=generator).to(x.device)
    kernel = kernel / (channels * size * size) ** 0.5
    around = size // 2
    changed = conv2d(pad(x, (around,) * 4, mode="replicate"), kernel)
    low, high = changed.amin((1, 2, 3), keepdim=True), changed.amax((1, 2, 3), keepdim=True)
    return (changed - low) / (high - low).clamp(min=1e-6)


def _fourier(x: Tensor, generator: torch.Generator, *, share: float) -> Tensor:
    """Take a share of the Fourier amplitudes from another image of the batch, and keep the phases."""
    spectrum: Tensor = torch.fft.rfft2(x)
    amplitude = spectrum.abs()
    mixed = torch.lerp(amplitude, amplitude[_partners(x, generator)], share)
    changed: Tensor = torch.fft.irfft2(torch.polar(mixed, spectrum.angle()), s=x.shape[2:])
    return changed


def _smooth(x: Tensor, _: torch.Generator, *, size: int) -> Tensor:
    """Take medians of `size` pixels along rows, then along columns: they leave edges and remove texture."""
    around = pad(x, (size // 2,) * 4, mode="replicate")
    for dim in (3, 2):
        around = around.unfold(dim, size, 1).median(-1).values
    return around


def _sharpen(x: Tensor, _: torch.Generator) -> Tensor:
    """Add the difference from a mean of 3 × 3 pixels, twice."""
    return x + 2 * (x - avg_pool2d(pad(x, (1,) * 4, mode="replicate"), 3, 1))


def _grain(x: Tensor, generator: torch.Generator, *, strength: float) -> Tensor:
    """Multiply by the grain of a film: smooth random spots of about four pixels, the same in all channels."""
    coarse = (len(x), 1, max(2, x.shape[2] // 4), max(2, x.shape[3] // 4))
    spots = interpolate(torch.randn(coarse, generator=generator).to(x.device), x.shape[2:], mode="bilinear")
    return x + strength * spots * (0.25 + x)


def _permute_channels(x: Tensor, _: torch.Generator) -> Tensor:
    return x.roll(1, 1)
