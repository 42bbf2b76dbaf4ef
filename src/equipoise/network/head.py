"""The linear head of a classifier and its features, found in the forward itself."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from equipoise.errors import ModelError, OptionError
from equipoise.network.modules import frozen_copy


class Call(NamedTuple):
    """Input and output of the last call of a linear layer.

    Attributes:
        features: its input.
        output: its output.
        version: of the output, which goes up when it is written into.
        obstacle: why the layer can be no head, as a verb with its object: it was called before, or does not
            compute as nn.Linear does; empty if it can.
    """

    features: Tensor
    output: Tensor
    version: int
    obstacle: str

    def returned(self, logits: Tensor) -> bool:
        """Whether logits are the output itself, or a view of it, not changed since."""
        same = self.output.data_ptr() == logits.data_ptr() and self.output.shape[-1] == logits.shape[-1]
        return same and _version(self.output) == self.version


Calls: TypeAlias = dict[str, Call]
"""The calls of linear layers by their names in the model."""


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of a model by name, each once."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def check_head(model: nn.Module, name: object) -> None:
    """Refuse a name that is not that of a linear layer."""
    everything = dict(model.named_modules(remove_duplicate=False))
    if not isinstance(name, str) or not isinstance(everything.get(name), nn.Linear):
        known = ", ".join(list(linear_layers(model))[-8:]) or "none"
        raise OptionError(f"expected head as the name of an nn.Linear in the model ({known}), got {name!r}")


@dataclass
class FoundHead:
    """The linear head of a model in its last forward.

    Attributes:
        name: its name in the model; None where the model does not end in a linear layer.
        layer: the layer.
        features: its (N, D) input.
        is_output: whether its output is the model's output.
        refusal: why the linear layer that returned the logits is no head; empty if it is, or none did.
    """

    name: str | None = None
    layer: nn.Linear | None = None
    features: Tensor | None = None
    is_output: bool = False
    refusal: str = ""


class HeadFinder:
    """Finds the head of a model in the calls of its linear layers."""

    def __init__(self, model: nn.Module, calls: Calls, name: str | None, required: bool) -> None:
        self.watched = FoundHead()
        self._model, self._calls, self._name, self._required = model, calls, name, required

    def note(self, logits: Tensor) -> FoundHead:
        """Note the head of the forward that returned these logits."""
        seen, calls = self.watched, self._calls
        if self._required:
            seen.name = self._name or find_head(calls, logits)
            seen.features = head_features(calls, seen.name, logits)
        else:
            seen.name = head_of(calls, logits)
            seen.features = None if seen.name is None else calls[seen.name].features
            seen.refusal = _refusal(calls, logits) if seen.name is None else ""
        if seen.name is not None:
            seen.layer = linear_layer(self._model, seen.name)
            seen.is_output = calls[seen.name].returned(logits)
        calls.clear()  # a layer that runs in the next forward of the block has not run twice
        return seen


@contextmanager
def watch_head(model: nn.Module, name: str | None, required: bool) -> Iterator[HeadFinder]:
    """Note the calls of the named linear layer in the block; None: of all linear layers."""
    calls: Calls = {}

    def noting(layer: str) -> Callable[..., None]:
        def note(
            module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor
        ) -> None:
            own = type(module).forward is not nn.Linear.forward
            obstacle = "has a forward that is not nn.Linear's" if own else ""
            if layer in calls:
                obstacle = "runs more than once"
            calls[layer] = Call(args[0] if args else kwargs["input"], output, _version(output), obstacle)

        return note

    layers = linear_layers(model) if name is None else {name: model.get_submodule(name)}
    handles = [m.register_forward_hook(noting(layer), with_kwargs=True) for layer, m in layers.items()]
    try:
        yield HeadFinder(model, calls, name, required)
    finally:
        for handle in handles:
            handle.remove()


def linear_layer(model: nn.Module, name: str) -> nn.Linear:
    """The linear layer of a name."""
    layer = model.get_submodule(name)
    if not isinstance(layer, nn.Linear):
        raise TypeError(f"expected an nn.Linear, got {type(layer).__name__}")
    return layer


def head_of(calls: Calls, logits: Tensor) -> str | None:
    """The name of the plain linear layer that makes (N, D) features the model's output; None if none does."""
    for name, call in reversed(calls.items()):
        if (
            call.returned(logits)
            and not call.obstacle
            and call.features.ndim == 2
            and call.output.shape == logits.shape
        ):
            return name
    return None


def _refusal(calls: Calls, logits: Tensor) -> str:
    """The reason why the linear layer that returned the logits is no head; empty where none did."""
    for name, call in reversed(calls.items()):
        if call.returned(logits):
            shapes = (
                f"turns {tuple(call.features.shape)} into {tuple(call.output.shape)}, and the logits are "
                f"{tuple(logits.shape)}"
            )
            layer = repr(name) if name else "of the model itself"
            return f"the linear layer {layer} {call.obstacle or shapes}"
    return ""


def find_head(calls: Calls, logits: Tensor) -> str:
    """The name of the linear layer whose output is the model's output."""
    for name, call in reversed(calls.items()):
        if call.returned(logits):
            return name
    raise ModelError(
        f"the method needs a linear head, an nn.Linear whose output is the model's output, and none of the "
        f"{len(calls)} linear layers that ran is one; for t3a name the layer with head=..., or use a method "
        "that needs no head: norm, tent, eta and sotta need normalisation layers, poise nothing"
    )


def head_features(calls: Calls, name: str, logits: Tensor) -> Tensor:
    """The (N, D) features that the head got."""
    if name not in calls:
        raise ModelError(f"the linear layer {name!r} did not run in the model's forward")
    features, output, *_ = calls[name]
    if features.ndim != 2 or output.shape != logits.shape:
        raise ModelError(
            f"expected the head {name!r} to turn (N, D) features into the model's logits, "
            f"{tuple(logits.shape)}, got {tuple(features.shape)} to {tuple(output.shape)}; a head that runs "
            "on every token or pixel is not supported"
        )
    return features


def with_head(model: nn.Module, name: str, weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    """A frozen copy of the model with another linear head."""
    copy = frozen_copy(model)
    old = copy.get_submodule(name)
    new = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=weight.device, dtype=weight.dtype)
    new.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    if bias is not None:
        new.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    if old is copy:
        return new.eval()
    for parent in copy.modules():  # a layer may have more than one name
        for child, module in parent.named_children():
            if module is old:
                setattr(parent, child, new)
    return copy.eval()


def _version(tensor: Tensor) -> int:
    """The count of writes into a tensor; 0 for one made in inference mode, where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version
