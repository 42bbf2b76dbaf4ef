"""Streams: the orders in which a model meets the samples of one domain or of several.

`make_stream(labels, "correlated", seed=0)` draws one. docs/streams.md shows each kind.
"""

from equipoise.streams.make import make_stream
from equipoise.streams.places import KindName, Segment
from equipoise.streams.stream import Stream

__all__ = ["KindName", "Segment", "Stream", "make_stream"]
