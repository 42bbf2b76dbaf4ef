"""The mean teacher of CONTRIBUTING.md: a second set of weights in memory, a noisy view, random draws."""

import re
from pathlib import Path
from typing import Any

import equipoise as eq
from equipoise import registry


def contributed(name: str) -> type[eq.Method]:
    """A method of CONTRIBUTING.md, not registered: a test that needs its name registers it."""
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    for example in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        found: dict[str, Any] = {"__name__": "contributed"}
        if f'name = "{name}"' in example:
            exec(example, found)
            return registry._METHODS.pop(name)
    raise LookupError(f"CONTRIBUTING.md has no method {name!r}")


MeanTeacher = contributed("mean_teacher")
