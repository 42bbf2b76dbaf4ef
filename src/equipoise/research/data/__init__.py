"""The data sets of the experiments: found on disk, read in parallel, kept in a cache, put into an order.

`open_data_set("pacs", Path("data"))` finds one; `list_data_sets()` names them. A new one is a subclass of
`DataSet` in a file of its own, with `@register_data_set`.
"""

from equipoise.research.data.cache import Cache, Stored, read_stored
from equipoise.research.data.changing_corruptions import calibrated_paths
from equipoise.research.data.corrupted import Corrupted, corrupted_version
from equipoise.research.data.corruptions import corrupt
from equipoise.research.data.dataset import (
    DataSet,
    Origin,
    Shift,
    data_set_class,
    list_data_sets,
    open_data_set,
    register_data_set,
)
from equipoise.research.data.demo import Demo, Drift
from equipoise.research.data.digits import Digits
from equipoise.research.data.folders import PACS, OfficeHome
from equipoise.research.data.image_stream import ImageKindName, ImageStream, make_image_stream
from equipoise.research.data.images import Images, chosen
from equipoise.research.data.reader import Problem, Reader
from equipoise.research.data.tiny_imagenet import TinyImageNetC

__all__ = [
    "PACS",
    "Cache",
    "Corrupted",
    "DataSet",
    "Demo",
    "Digits",
    "Drift",
    "ImageKindName",
    "ImageStream",
    "Images",
    "OfficeHome",
    "Origin",
    "Problem",
    "Reader",
    "Shift",
    "Stored",
    "TinyImageNetC",
    "calibrated_paths",
    "chosen",
    "corrupt",
    "corrupted_version",
    "data_set_class",
    "list_data_sets",
    "make_image_stream",
    "open_data_set",
    "read_stored",
    "register_data_set",
]
