"""Python files of the user's that define methods or data sets of their own."""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from equipoise.errors import RecipeError
from equipoise.registry import is_shipped, list_methods, method_class


def load_modules(paths: Iterable[str]) -> None:
    """Run the files of a recipe, each once in this process, so that what they register is there."""
    try:
        for path in paths:
            load_module(path)
    except RecipeError as error:
        raise RecipeError(f"modules: {error}") from error


def load_module(path: str) -> ModuleType:
    """Run a file, once in this process; RecipeError if it cannot be run."""
    name = f"equipoise_module {path}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise RecipeError(f"expected a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise RecipeError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module


def methods_of(path: str) -> list[str]:
    """The names of the registered methods that a file defines or imports, without those of equipoise."""
    there = list(vars(load_module(path)).values())
    others = [name for name in list_methods() if not is_shipped(name)]
    return [name for name in others if any(method_class(name) is value for value in there)]
