"""Networks run by torch.compile where a shape comes often, and the modules inside a user's compiled ones."""

import sys
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from equipoise.network.batch import Batch

COMPILED_AT = 2
"""The sighting of a shape at which it is compiled, which takes a minute: a ragged last batch never is."""


def original(model: nn.Module) -> nn.Module:
    """The module that torch.compile has wrapped; any other module itself.

    A compiled module ignores hooks that are placed after its first call, and prefixes the names of weights.
    """
    # An import of the class takes a second; without one there is no module of it.
    wrapper = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    return original(model.get_submodule("_orig_mod")) if isinstance(model, wrapper) else model


def uncompiled(model: nn.Module) -> AbstractContextManager[Any]:
    """Run a model in the block as if neither it nor a part of it were compiled."""
    compiled = any(m._compiled_call_impl is not None or original(m) is not m for m in model.modules())
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


class Compiler:
    """Runs a network on a batch, compiled for its shape if that was wanted and is possible.

    Attributes:
        wanted: whether to compile at all.
        refusal: why nothing is compiled any more; empty while there is no reason.
    """

    def __init__(self, wanted: bool) -> None:
        self.wanted, self.refusal = wanted, ""
        self._seen: Counter[Any] = Counter()
        self._compiled: dict[int, Any] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Compiler":
        """A copy of an adapter compiles its own networks."""
        return Compiler(self.wanted)

    def __reduce__(self) -> tuple[type["Compiler"], tuple[bool]]:
        """Compiled networks cannot be written down."""
        return Compiler, (self.wanted,)

    @property
    def description(self) -> str:
        """The outcome of compiling, in words."""
        if self.refusal:
            return f"not compiled: {self.refusal}"
        return "compiled" if self._compiled else "nothing compiled yet"

    def run(self, network: nn.Module, batch: Batch) -> Any:
        """The network's output."""
        if self.wanted and not self.refusal and self._often(network, batch):
            if id(network) not in self._compiled:
                self._compiled[id(network)] = torch.compile(network, dynamic=False)
            try:
                return self._compiled[id(network)](*batch.args, **batch.kwargs)
            except Exception as error:
                # Compilers fail in many ways. If the network itself failed, its error is raised again.
                output = network(*batch.args, **batch.kwargs)
                self.refusal = f"{type(error).__name__}: {error}".splitlines()[0]
                return output
        return network(*batch.args, **batch.kwargs)

    def _often(self, network: nn.Module, batch: Batch) -> bool:
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in batch.tensors())
        key = (id(network), torch.is_grad_enabled(), shapes)
        self._seen[key] += 1
        return self._seen[key] >= COMPILED_AT
