"""One file a method, found by being there; `parts` has what several methods share.

Each file defines one frozen dataclass of options that derives from `core.method.Method`, and registers it
under its name, which is the file's.
"""

import pkgutil
from importlib import import_module

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
