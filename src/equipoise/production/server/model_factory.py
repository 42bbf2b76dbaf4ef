"""The model that a function of the user makes, by the name of the function."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor, nn

from equipoise.errors import ModelError, OptionError

if TYPE_CHECKING:
    from PIL import Image

Transform: TypeAlias = Callable[["Image.Image"], Tensor]
"""A function from an RGB image to an input of a model, without the batch dimension."""


def load_factory(name: str) -> tuple[nn.Module, Transform | None]:
    """The model that `module:factory` returns, and the transform of its images if it returns one."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise OptionError(
            f"expected module:factory, as in mymodel:load for load() of mymodel.py, got {name!r}"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # an installed command does not have it
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except ModuleNotFoundError as error:
        searched = f" in {Path.cwd()}, nor among the installed packages" if error.name == module else ""
        raise OptionError(f"{name}: there is no module {error.name}{searched}") from error
    except Exception as error:  # the file is the user's: it may raise anything
        raise OptionError(f"{name} cannot be called: {type(error).__name__}: {error}") from error
    model, transform = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module) or not (transform is None or callable(transform)):
        types = f"({', '.join(type(part).__name__ for part in made)})" if isinstance(made, tuple) else ""
        raise ModelError(
            f"{name}: expected a torch.nn.Module, or a torch.nn.Module and a function from an image to a "
            f"tensor, got {types or type(made).__name__}"
        )
    return model, transform
