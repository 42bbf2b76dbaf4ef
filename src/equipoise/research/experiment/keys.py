"""The key of an experiment: a hash of everything that its result depends on."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def content_key(content: Mapping[str, Any]) -> str:
    """A hash of plain JSON content, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
