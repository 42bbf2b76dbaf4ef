"""The data sets of the experiments: found on disk, read in parallel, kept in a cache, put into an order.

`open_data_set("pacs", Path("data"))` finds one; `list_data_sets()` names them. A new one is a subclass of
`DataSet` in a file of its own, with `@register_data_set`.
"""

from equipoise.data import corrupted, demo, digits, drift, folders, tiny_imagenet
from equipoise.data.cache import Cache, Stored, read_stored
from equipoise.data.corrupted import Corrupted, corrupted_version
from equipoise.data.corruptions import corrupt
from equipoise.data.dataset import DataSet, Origin, Segment, Shift
from equipoise.data.images import Images, chosen
from equipoise.data.reader import Problem, Reader
from equipoise.data.registry import data_set_class, list_data_sets, open_data_set, register_data_set
from equipoise.data.streams import KindName, Stream, calibrated_paths, make_stream

__all__ = [
    "Cache",
    "Corrupted",
    "DataSet",
    "Images",
    "KindName",
    "Origin",
    "Problem",
    "Reader",
    "Segment",
    "Shift",
    "Stored",
    "Stream",
    "calibrated_paths",
    "chosen",
    "corrupt",
    "corrupted",
    "corrupted_version",
    "data_set_class",
    "demo",
    "digits",
    "drift",
    "folders",
    "list_data_sets",
    "make_stream",
    "open_data_set",
    "read_stored",
    "register_data_set",
    "tiny_imagenet",
]
