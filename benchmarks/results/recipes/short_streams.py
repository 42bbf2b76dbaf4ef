"""TinyImageNet-C at three of its five tiers with 2,500 images a stream, and all images to train on."""

from collections.abc import Sequence

from equipoise.research.data.dataset import Shift, register_data_set
from equipoise.research.data.images import Images
from equipoise.research.data.reader import Reader
from equipoise.research.data.tiny_imagenet import TinyImageNetC

IMAGES = 2500
"""The most images of a stream."""
TIERS = (1, 3, 5)


@register_data_set
class ShortTinyImageNetC(TinyImageNetC):
    """TinyImageNet-C in streams that are fewer and shorter, where the time on a GPU is short."""

    name = "tiny-imagenet-c-2500"

    @property
    def shifts(self) -> Sequence[Shift]:
        """Forty-five: fifteen corruptions in three tiers, all from the training images."""
        return [shift for shift in super().shifts if shift.tier in TIERS]

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        """The training images, or at most 2,500 of a corruption at a tier."""
        return super().read(part, limit if part == "train" else min(limit or IMAGES, IMAGES), reader)
