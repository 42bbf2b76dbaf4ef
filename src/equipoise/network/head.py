"""The linear head of a classifier, and the features it gets, found in the forward itself."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from equipoise.errors import ModelError, OptionError
from equipoise.network.copying import frozen_copy


class Call(NamedTuple):
    """What a linear layer got and gave when it was last called.

    Attributes:
        features: what it got.
        output: what it gave.
        version: of the output, which goes up when it is written into.
        plain: whether the layer was called once and does as nn.Linear does.
    """

    features: Tensor
    output: Tensor
    version: int
    plain: bool

    def gave(self, logits: Tensor) -> bool:
        """Whether logits are its output itself, or a view of it, not changed since."""
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


@contextmanager
def watched(model: nn.Module, name: str | None) -> Iterator[Calls]:
    """Note what the named linear layer gets and gives in this block; None: all linear layers."""
    calls: Calls = {}

    def noting(layer: str) -> Callable[..., None]:
        def note(
            module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor
        ) -> None:
            plain = layer not in calls and type(module).forward is nn.Linear.forward
            calls[layer] = Call(args[0] if args else kwargs["input"], output, _version(output), plain)

        return note

    layers = linear_layers(model) if name is None else {name: model.get_submodule(name)}
    handles = [m.register_forward_hook(noting(layer), with_kwargs=True) for layer, m in layers.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def head_of(calls: Calls, logits: Tensor) -> str | None:
    """The name of the plain linear layer that makes (N, D) features the model's output; None if none does."""
    for name, call in reversed(calls.items()):
        if call.gave(logits) and call.plain and call.features.ndim == 2 and call.output.shape == logits.shape:
            return name
    return None


def find_head(calls: Calls, logits: Tensor) -> str:
    """The name of the linear layer whose output is the model's output."""
    for name, call in reversed(calls.items()):
        if call.gave(logits):
            return name
    raise ModelError(
        f"t3a needs a linear head, an nn.Linear whose output is the model's output, and none of the "
        f"{len(calls)} linear layers that ran is one; name the layer with head=..., or use a method that "
        "needs no head: norm, tent, eta and sotta need normalisation layers, poise nothing"
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
    """How often a tensor was written into; torch does not count for those made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version
