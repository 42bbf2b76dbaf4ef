"""Ray and Ray Serve, imported when they are needed."""

import warnings
from typing import Any

from equipoise.errors import OptionError


def import_ray() -> tuple[Any, Any]:
    """The modules `ray` and `ray.serve`; OptionError says what to install where there are none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray Serve uses what pydantic deprecates
            import ray
            from ray import serve
    except ModuleNotFoundError as missing:
        raise OptionError("--engine ray needs Ray Serve: pip install 'equipoise[ray]'") from missing
    return ray, serve
