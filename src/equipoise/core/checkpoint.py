"""State dicts: checks before one is loaded, and the entries of an adapter inside another module's."""

import hashlib
import json
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import Memory
from equipoise.errors import StateError
from equipoise.network.named_tensors import part


def state_of(method: str, state: Any) -> dict[str, Any]:
    """The entries of a state dict without the name of the method; StateError if it is that of another."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise StateError(f"expected a state as a mapping of names to tensors, got {type(state).__name__}")
    if others := sorted({name.split(".")[0] for name in state} - {method}):
        raise StateError(f"expected the state of {method!r}, got that of {', '.join(others)}")
    return part(state, f"{method}.")


def check_state(expected: Memory, came: Mapping[str, Any], optional: tuple[str, ...]) -> None:
    """Raise StateError unless `came` has the names, shapes and types of `expected`, and finite values.

    Names that match a pattern in `optional` may be there or not, in any shape.
    """
    if missing := sorted(set(expected) - set(came)):
        raise StateError(f"the state lacks {_listed(missing)}; other options, another model, or damaged?")
    unknown = [n for n in came if n not in expected and not any(fnmatchcase(n, o) for o in optional)]
    if unknown:
        raise StateError(f"the state has unknown entries: {_listed(sorted(unknown))}")
    for name, value in came.items():
        if not isinstance(value, Tensor):
            raise StateError(f"{name}: expected a tensor, got {type(value).__name__}")
        like = expected.get(name, value)
        if value.shape != like.shape or value.dtype != like.dtype:
            raise StateError(f"{name}: expected {_described(like)}, got {_described(value)}")
        if not bool(value.isfinite().all()):
            raise StateError(f"{name}: expected finite values, got some that are not")


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


EXTRA_STATE = "_extra_state"
"""The entry that says which adapter a state is of, under torch's name for entries that are no weight."""

_VERSION = 1


def identity(
    method: str,
    options: Mapping[str, Any],
    model_fingerprint: str,
    source: SourceStatistics | None,
    rehearsed: bool,
) -> dict[str, Any]:
    """The facts that two adapters must share for one to go on with the state of the other."""
    rehearsal = source.rehearsal_of(method).to_json() if source and rehearsed else ""
    return {
        "version": _VERSION,
        "method": method,
        "options": dict(options),
        "model": model_fingerprint,
        "source": [source.h0, source.kappa] if source else [],
        "rehearsal": hashlib.blake2b(rehearsal.encode(), digest_size=16).hexdigest(),
    }


def encoded(own: Mapping[str, Any]) -> Tensor:
    """An identity as a tensor of bytes: a checkpoint with it can be read without unpickling objects."""
    return torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)


def check_identity(entry: Any, own: Mapping[str, Any]) -> None:
    """Raise StateError if a state dict's entry is not the identity of this adapter."""
    try:
        came = dict(json.loads(bytes(entry.cpu().tolist()).decode()))
        if came["version"] != own["version"]:
            raise ValueError(f"expected version {own['version']}, got {came['version']}")
        options, numbers = dict(came["options"]), [float(number) for number in came["source"]]
        method, model, rehearsal = came["method"], str(came["model"]), came["rehearsal"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"the entry {EXTRA_STATE} is damaged, or of another version: {error}") from error
    if method != own["method"]:
        raise StateError(f"expected method {own['method']!r}, got {method!r}")
    if model != own["model"]:
        raise StateError(
            f"the state is of an adapter of another model (other weights or layers): expected fingerprint "
            f"{own['model'][:12]}, got {model[:12]}; give the source model its weights before the "
            "adapter is made"
        )
    wanted = json.loads(json.dumps(own["options"]))  # tuples are lists there
    for name in sorted({*wanted, *options}):
        if wanted.get(name) != options.get(name):
            raise StateError(f"expected option {name} {wanted.get(name)!r}, got {options.get(name)!r}")
    ours = own["source"]
    near = [math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-4) for a, b in zip(ours, numbers, strict=False)]
    if len(ours) != len(numbers) or not all(near):
        raise StateError(f"expected source statistics with h0 and kappa {ours}, got {numbers}")
    if rehearsal != own["rehearsal"]:
        raise StateError("the state is of an adapter with another rehearsal: make the adapter with that one")
