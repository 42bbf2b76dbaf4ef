"""One file a method; a file in this folder is all that a new method takes.

Each file defines one subclass of Adapter and registers it under its name, which is the file's.
"""

import pkgutil
from importlib import import_module

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
