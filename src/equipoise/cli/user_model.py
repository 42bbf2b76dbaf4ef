"""A model of the user, by the name of the function that returns it; the same for every command."""

import importlib
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from equipoise.data.reader import Transform, resized
from equipoise.errors import ModelError, OptionError


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


def unit_floats(size: int | None) -> Transform:
    """Images as floats from 0 to 1, (3, height, width), as they are or as squares."""

    def transform(image: Image.Image) -> Tensor:
        shown = image if size is None else resized(image, size)
        return torch.from_numpy(np.array(shown)).permute(2, 0, 1).float() / 255

    return transform


def device_named(name: str | None) -> torch.device:
    """The device of a name; a GPU without one, if there is any."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"no device {name!r} here: {str(error).splitlines()[0]}") from error
    return device
