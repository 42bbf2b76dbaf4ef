"""Precision of the forwards, and the memory format of convolution weights."""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from equipoise.options import one_of

Precision: TypeAlias = Literal["fp32", "bf16"]
MemoryFormat: TypeAlias = Literal["contiguous", "channels_last"]

_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Layout:
    """Precision and memory format, as asked for.

    Attributes:
        precision: "bf16" runs convolutions and matrix products in bfloat16 where the device supports it (any
            recent GPU; a CPU with instructions for it, others would take ten times as long and stay with
            fp32). Weights, statistics, losses, temperatures and answers are float32 all the same.
        memory_format: of the weights of 2-d convolutions; None: the fastest by measurement
            (docs/performance.md). Group norm learns on a CPU with contiguous tensors only.
        as_given: whether None leaves the weights in the format of the model that was passed.
    """

    precision: Precision = "fp32"
    memory_format: MemoryFormat | None = None
    as_given: bool = False

    @classmethod
    def checked(cls, precision: Any, memory_format: Any, *, as_given: bool) -> "Layout":
        """A layout of options as a user gives them; OptionError for unknown values."""
        one_of("precision", precision, get_args(Precision))
        names = {value: name for name, value in _FORMATS.items()}
        if isinstance(memory_format, torch.memory_format):
            memory_format = names.get(memory_format, memory_format)
        if memory_format is not None:
            one_of("memory_format", memory_format, _FORMATS)
        return cls(precision, memory_format, as_given)

    def plainer(self, model: nn.Module, device: torch.device, error: Exception) -> "Layout | None":
        """The contiguous layout after an error that channels_last may have caused; None for other errors.

        Some models flatten by `x.view(len(x), -1)`, which wants contiguous tensors.
        """
        picked = self.memory_format is None and self._format(model, device, ()) == "channels_last"
        return replace(self, memory_format="contiguous") if picked and "view size" in str(error) else None

    def casting(self, device: torch.device) -> AbstractContextManager[Any]:
        """The context of forwards: autocast to bfloat16 if asked for and supported by the device."""
        if self.precision == "bf16" and _has_bf16(device):
            return torch.autocast(device.type, torch.bfloat16)
        return nullcontext()

    def apply(self, model: nn.Module, device: torch.device, learned: Collection[Tensor] = ()) -> None:
        """Bring the 2-d convolution weights of a network, of whose parameters some learn, into the format."""
        chosen = self._format(model, device, learned)
        if chosen is None:
            return
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                weight = module.weight.data
                # `contiguous` would leave those with one input channel as they are, whose layout is either.
                laid_out = torch.empty_like(weight, memory_format=_FORMATS[chosen])
                if laid_out.stride() != weight.stride():
                    module.weight.data = laid_out.copy_(weight)

    def _format(
        self, model: nn.Module, device: torch.device, learned: Collection[Tensor]
    ) -> MemoryFormat | None:
        if learned and needs_contiguous(model, device):
            return "contiguous"
        if self.memory_format is not None or self.as_given:
            return self.memory_format
        if device.type != "cpu" or not learned:
            return "channels_last"
        # On a CPU forwards take two thirds of the time with the channels last. Backwards take twice that of
        # depthwise convolutions, and a third more where only the gradient of their input is wanted.
        convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
        chosen = {id(tensor) for tensor in learned}
        fast = all(module.groups == 1 and id(module.weight) in chosen for module in convolutions)
        return "channels_last" if fast else "contiguous"

    def describe(self, model: nn.Module, device: torch.device, learned: Collection[Tensor]) -> str:
        """Precision and layout in words."""
        laid_out = self._format(model, device, learned) if _has_images(model) else None
        words = [] if laid_out is None else [laid_out.replace("_", " ")]
        if self.precision == "bf16":
            words.append("bf16" if _has_bf16(device) else "fp32, as this device is slow in bf16")
        return ", ".join(words)


@contextmanager
def fresh_autocast_cache() -> Iterator[None]:
    """Under autocast, cast the weights anew: its cache would answer with those of before the update."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


def needs_contiguous(model: nn.Module, device: torch.device) -> bool:
    """Whether a backward with the channels last would crash the process.

    On a CPU torch's group norm does (2.10), if the gradient of its weights is wanted and not of its input.
    """
    return device.type == "cpu" and any(isinstance(module, nn.GroupNorm) for module in model.modules())


def _has_images(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
