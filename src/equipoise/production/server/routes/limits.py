"""The largest requests that the HTTP door takes."""

from dataclasses import dataclass

from equipoise.options import integer

CONTROL_BYTES = 2**20
"""The largest body of a request that has no inputs in it."""


@dataclass(frozen=True)
class DoorLimits:
    """The largest requests that the HTTP door takes; a larger one is refused before it is decoded.

    Attributes:
        request_bytes: of a body with inputs.
        image_pixels: width × height of an image.
        rows: of a batch.
    """

    request_bytes: int = 32 * 2**20
    image_pixels: int = 4096 * 4096
    rows: int = 256

    def __post_init__(self) -> None:
        for name in ("request_bytes", "image_pixels", "rows"):
            integer(name, getattr(self, name), low=1)
