"""A row of example pictures of a domain, small enough to live inside the page."""

import base64
import io

import torch
from PIL import Image

from equipoise.data.demo import CLASSES, Domain


def sample_strip(domain: Domain) -> str:
    """The first picture of each digit, 0 to 9, side by side, as a PNG data URI."""
    firsts = [domain.images[domain.labels == digit][0, 0] for digit in range(CLASSES)]
    strip = torch.cat(firsts, dim=1).round().to(torch.uint8).numpy()
    buffer = io.BytesIO()
    Image.fromarray(strip).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
