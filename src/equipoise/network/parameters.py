"""The parameters that learn: all, the encoder's, those of normalisation layers, or by name patterns."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from equipoise.errors import ModelError, OptionError
from equipoise.network.head import linear_layers
from equipoise.network.normalisation import NORMALISATION

Parameters: TypeAlias = str | Sequence[str]
"""Which parameters learn: "all", "encoder" (all but those of the last linear layer), "norm" (normalisation
weights and biases), or patterns (fnmatch) of the names of parameters or of the modules they are in."""

NAMED = ("all", "encoder", "norm")
"""The choices of parameters that have a name."""


def gradients_of(loss: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Differentiate a loss; parameters that it does not depend on are left out."""
    found = torch.autograd.grad(loss, [*parameters.values()], allow_unused=True) if loss.requires_grad else ()
    return {
        name: gradient.to_dense() if gradient.is_sparse else gradient
        for name, gradient in zip(parameters, found, strict=False)
        if gradient is not None
    }


def checked_parameters(name: str, which: Any) -> str | list[str]:
    """A choice of parameters as a name or a list of patterns; OptionError for anything else."""
    if isinstance(which, str) and which in NAMED:
        return which
    try:
        patterns = [] if isinstance(which, str) else list(which)
    except TypeError:  # a tensor of a single number has `__iter__` all the same
        patterns = []
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        known = ", ".join(f'"{choice}"' for choice in NAMED)
        raise OptionError(f"expected {name}={known} or a list of name patterns, got {which!r}")
    return patterns


def select_parameters(model: nn.Module, which: Parameters) -> dict[str, nn.Parameter]:
    """The parameters of the model that adapt, by name; ModelError or OptionError where there are none.

    Whether the model's own parameters require gradients plays no part: a deployed model is often frozen.
    """
    everything = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
    if which == "all":
        if not everything:
            raise ModelError("expected a model with parameters to adapt, got one without any")
        return everything
    if which == "encoder":
        return _encoder(model, everything)
    if which == "norm":
        chosen = {id(p) for m in model.modules() if isinstance(m, NORMALISATION) for p in m.parameters(False)}
        if not chosen:
            raise ModelError(
                'parameters="norm" needs normalisation layers with weights (batch, layer, group, instance '
                'or RMS norm, of torch\'s own types; others go by name, parameters=["*norm*"]) and the model '
                'has none; parameters="all" works on any model, and so does the '
                'method "poise"; "t3a" needs but a linear head'
            )
        return {name: p for name, p in everything.items() if id(p) in chosen}
    unmatched = [pattern for pattern in which if not any(_matches(name, pattern) for name in everything)]
    if unmatched:
        raise OptionError(f"parameters: no parameter matches {unmatched}; the model has {_some(everything)}")
    return {n: p for n, p in everything.items() if any(_matches(n, pattern) for pattern in which)}


def _encoder(model: nn.Module, everything: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """The parameters of a model but those of its last linear layer, in the order of registration."""
    linear = linear_layers(model).values()
    head = {id(p) for layer in list(linear)[-1:] for p in layer.parameters()}
    chosen = {name: p for name, p in everything.items() if id(p) not in head}
    if not head or not chosen:
        lacks = "no linear layer" if not head else "nothing else"
        raise ModelError(
            'parameters="encoder" needs a linear layer as the head and parameters before it, and the model '
            f'has {lacks}; parameters=["features*"] chooses those that learn by name'
        )
    return chosen


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern names the parameter or a module that it is in."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _some(names: dict[str, nn.Parameter]) -> str:
    shown = list(names)[:8]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
