"""The methods by name: make one, list them, and load one from a state file."""

import hashlib
import inspect
import json
import os
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from equipoise.adapter import STATE_KIND, STATE_VERSION, Adapter
from equipoise.calibration.source_statistics import SourceStatistics, fingerprint
from equipoise.errors import EquipoiseError, SourceError, StateError, UnknownMethodError
from equipoise.files import read_tensors
from equipoise.network.layout import Engine

_METHODS: dict[str, type[Adapter]] = {}
_Method = TypeVar("_Method", bound=type[Adapter])


def register(method: _Method) -> _Method:
    """Add a method under its name; a decorator of the class."""
    if _METHODS.get(method.name, method) is not method:
        raise ValueError(f"the name {method.name!r} is taken by {_METHODS[method.name].__qualname__}")
    _METHODS[method.name] = method
    return method


def list_methods() -> list[str]:
    """The names that `create` takes."""
    return sorted(_METHODS)


def options_of(name: str) -> dict[str, Any]:
    """The options of a method with their defaults; `inspect.Parameter.empty` where there is none."""
    return method_class(name).known_options()


def code_digest(name: str) -> str:
    """A hash of the file that defines a method; empty for those of this package, which have a version."""
    method = method_class(name)
    if method.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return ""
    return hashlib.blake2b(Path(inspect.getfile(method)).read_bytes(), digest_size=16).hexdigest()


def create(name: str, model: nn.Module, source: SourceStatistics | None = None, **options: Any) -> Adapter:
    """Make the adapter of a name; unknown names and options raise errors that list the known ones.

    Args:
        name: one of `list_methods()`.
        model: a classifier that returns (N, C) logits, or an object with `.logits`. It is copied.
        source: its statistics on the source domain (`SourceStatistics.measure`): for "dec", "eata", "poise"
            and any `tempering`; others do without.
        options: those of the method; `help(equipoise.methods.tent.TENT)` and the like tell them.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    >>> adapter = create("tent", model, optimizer="sgd", learning_rate=1e-3)
    >>> adapter(torch.randn(8, 3, 4)).shape
    torch.Size([8, 3])
    """
    return method_class(name)(model, source, **options)


def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    source: SourceStatistics | None = None,
    *,
    engine: Engine = "auto",
    distributed: bool = True,
) -> Adapter:
    """Make the adapter that `Adapter.save` wrote, with its method, options and state.

    `model` is the source model; its weights must be those the adapter started from. The file holds the source
    statistics: passing them again is a check that they are the same. `engine` and `distributed` belong to the
    machine and not to the state: as in `create`.
    """
    tensors, text = read_tensors(path, STATE_KIND, STATE_VERSION)
    try:
        method, options = text["method"], dict(json.loads(text["options"]))
        saved = SourceStatistics.from_parts(text["source"], tensors) if text["source"] else None
        expected = text["model_fingerprint"]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: damaged header: {error}") from error
    if method not in _METHODS:
        raise StateError(f"{path}: the state is of method {method!r}; there are {', '.join(list_methods())}")
    if (came := fingerprint(model)) != expected:
        raise StateError(
            f"{path}: the adapter started from another model (other weights or layers): expected fingerprint "
            f"{expected[:12]}, got {came[:12]}; load it with the source model, not an adapted one"
        )
    if source is not None and not (saved and saved.agrees_with(source)):
        raise SourceError(f"{path}: expected the source statistics it was saved with, {saved}, got {source}")
    if source is not None and saved is not None and options.get("tempering") == "rehearsed":
        held = [statistics.rehearsal_of(method).to_json() for statistics in (saved, source)]
        if held[0] != held[1]:
            raise SourceError(
                f"{path}: expected the rehearsal of {method!r} that it was saved with, got another one; make "
                "a new adapter with it, or load without the source statistics to go on with the old one"
            )
    try:
        adapter = create(method, model, saved, **options, engine=engine, distributed=distributed)
    except EquipoiseError as error:
        raise StateError(f"{path}: its header does not make a {method!r}: {error}") from error
    of_source = saved.tensors() if saved else {}
    adapter.load_state_dict({name: tensor for name, tensor in tensors.items() if name not in of_source})
    return adapter


def method_class(name: str) -> type[Adapter]:
    """The class of a method; UnknownMethodError lists the known ones."""
    if not isinstance(name, str) or name not in _METHODS:
        raise UnknownMethodError(f"no method {name!r}; there are {', '.join(list_methods())}")
    return _METHODS[name]
