"""Streams: the orders in which a model meets the samples of one domain or of several.

`make_stream(labels, "correlated", seed=0)` draws one. docs/how-to/streams.md shows each kind.
"""

from equipoise.streams.kinds import KindName, Segment
from equipoise.streams.make import Stream, make_stream

__all__ = ["KindName", "Segment", "Stream", "make_stream"]
