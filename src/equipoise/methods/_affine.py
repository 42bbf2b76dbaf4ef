"""Affine maps of images, one for each image of a batch: made, composed and applied without a matrix product.

Coordinates go from −1 to 1 across the width and down the height, as those of `grid_sample`. A map gives, for
a pixel of the result, its place in the image. Numbers are tensors of shape (N, 1, 1, 1).
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grid_sample


class Affine(NamedTuple):
    """The maps x ← xx · x + xy · y + x0 and y ← yx · x + yy · y + y0."""

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
