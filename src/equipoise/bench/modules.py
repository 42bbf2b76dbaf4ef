"""Python files of the user's that define methods or data sets of their own."""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from equipoise.errors import RecipeError


def load_modules(paths: Iterable[str]) -> None:
    """Run each file once in this process, so that what it registers is there."""
    for path in paths:
        name = f"equipoise_module {path}"
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None or not Path(path).is_file():
            raise RecipeError(f"modules: expected a Python file, got {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise RecipeError(f"modules: {path} cannot be run: {type(error).__name__}: {error}") from error
