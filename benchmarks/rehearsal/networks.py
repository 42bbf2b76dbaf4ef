"""Ordinary small networks for 32-pixel images with values from 0 to 255."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            _norm(norm, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            _norm(norm, after),
        )
        plain = before == after and stride == 1
        short = [nn.Conv2d(before, after, 1, stride, bias=False), _norm(norm, after)]
        self.short = nn.Identity() if plain else nn.Sequential(*short)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        made: Tensor = (self.body(x) + self.short(x)).relu()
        return made


def _norm(kind: str, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "bn" else nn.GroupNorm(8, channels)


class ResNet(nn.Module):
    """Five blocks with batch norm ("bn") or group norm ("gn")."""

    def __init__(self, classes: int, norm: str, channels: int = 1, width: int = 48) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, 1, 1, bias=False), _norm(norm, width), nn.ReLU()
        )
        sizes = [(1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1)]
        self.body = nn.Sequential(*[Block(a * width, b * width, s, norm) for a, b, s in sizes])
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        made: Tensor = self.head(self.body(self.stem(x.float() / 127.5 - 1)).mean((2, 3)))
        return made


class ViT(nn.Module):
    """Five transformer layers with layer norm on patches of four pixels."""

    def __init__(self, classes: int, channels: int = 1, width: int = 128, depth: int = 5) -> None:
        super().__init__()
        self.embed = nn.Conv2d(channels, width, 4, 4)
        self.position = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        layers = [
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        ]
        self.body = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        tokens = self.embed(x.float() / 127.5 - 1).flatten(2).transpose(1, 2) + self.position
        made: Tensor = self.head(self.norm(self.body(tokens)).mean(1))
        return made
