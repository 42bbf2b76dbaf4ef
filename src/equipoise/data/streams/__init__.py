"""Streams: the orders in which a model meets the images of one domain or of several.

`make_stream(labels, "correlated", seed=0)` draws one; `stream.batches(images, 50)` gathers its images batch
by batch. docs/streams.md shows each kind.
"""

from equipoise.data.streams.calibrated import calibrated_paths
from equipoise.data.streams.make import make_stream
from equipoise.data.streams.places import KindName
from equipoise.data.streams.stream import Stream

__all__ = ["KindName", "Stream", "calibrated_paths", "make_stream"]
