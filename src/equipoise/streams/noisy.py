"""Streams in which some images are of no class: what a sensor sees when there is nothing to recognise."""

from dataclasses import dataclass

import torch

from equipoise.errors import OptionError
from equipoise.options import option
from equipoise.streams.places import Domains, Kind, Places, Segment, in_turn, one_after_another, permutation

MOST_NOISE = 0.9


@dataclass(frozen=True, kw_only=True)
class Noisy(Kind):
    """The continual stream with images of no class at random places: row −1, label −1.

    Gong et al., "SoTTA: Robust Test-Time Adaptation on Noisy Data Streams", NeurIPS 2023.

    Args:
        share: of all images of the stream that are of no class.
    """

    share: float = option(0.2, low=0, high=MOST_NOISE)

    @property
    def about(self) -> str:
        """With the share."""
        return (
            f"one domain after the other, each in random order; {100 * self.share:g} % of the images, at "
            "random places, are of no class: uniform noise, textures and phase-scrambled images of the stream"
        )

    def draw(self, domains: Domains, generator: torch.Generator) -> Places:
        """An image of no class belongs to the domain and the segment of the image before it."""
        base = one_after_another(in_turn(domains, generator), domains.sizes)
        noise = round(len(base.rows) * self.share / (1 - self.share))
        if self.share and not noise:
            raise OptionError(
                f"expected a share of images of no class that is at least one in {len(base.rows)}, "
                f"got {self.share:g}"
            )
        real = torch.ones(len(base.rows) + noise, dtype=torch.bool)
        real[permutation(len(real), generator)[:noise]] = False
        before = (real.cumsum(0) - 1).clamp(min=0)
        rows = torch.where(real, base.rows[before], -1)
        lengths = torch.tensor([segment.images for segment in base.segments])
        segment = torch.arange(len(lengths)).repeat_interleave(lengths)[before]
        counts = segment.bincount(minlength=len(lengths)).tolist()
        segments = [Segment(old.name, count) for old, count in zip(base.segments, counts, strict=True)]
        return Places(rows, base.domains[before], tuple(segments))
