"""How an adapter runs: by which engine, in which precision, with tensors laid out how."""

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from equipoise.errors import OptionError
from equipoise.options import one_of

Engine: TypeAlias = Literal["auto", "eager", "graph", "compile"]
Precision: TypeAlias = Literal["fp32", "bf16"]
MemoryFormat: TypeAlias = Literal["contiguous", "channels_last"]

RUN_BY = ("engine", "precision", "memory_format", "distributed")
"""The options of every adapter that say how it runs, and not what it does."""

_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Execution:
    """What was asked for, and what it comes to on a device.

    Attributes:
        engine: "eager", one kernel after the other; "graph", the whole step as one CUDA graph; "compile",
            the networks by torch.compile (in a graph on a GPU); "auto", a graph on a GPU and else "eager".
        precision: "bf16" runs convolutions and matrix products in bfloat16 where the device has it (any
            recent GPU; a CPU with instructions for it, others would take ten times as long and stay with
            fp32). Weights, statistics, losses, temperatures and answers are float32 all the same.
        memory_format: how the kernels of 2-d convolutions lie in memory; None: what is fastest by measurement
            (docs/performance.md), or with engine="eager" as in the model that was passed. Group norm learns
            on a CPU with contiguous tensors only.
    """

    engine: Engine = "auto"
    precision: Precision = "fp32"
    memory_format: MemoryFormat | None = None

    @classmethod
    def checked(cls, engine: Any, precision: Any, memory_format: Any, device: torch.device) -> "Execution":
        """Refuse what there is not, on this device or at all."""
        one_of("engine", engine, get_args(Engine))
        one_of("precision", precision, get_args(Precision))
        names = {value: name for name, value in _FORMATS.items()}
        if isinstance(memory_format, torch.memory_format):
            memory_format = names.get(memory_format, memory_format)
        if memory_format is not None:
            one_of("memory_format", memory_format, _FORMATS)
        if engine == "graph" and device.type != "cuda":
            raise OptionError(
                f'engine="graph" is a CUDA graph and the model is on {device}: move it to a GPU first, '
                'or use engine="auto"'
            )
        return cls(engine, precision, memory_format)

    def plainer(self, model: nn.Module, device: torch.device, error: Exception) -> "Execution | None":
        """What to try after an error that the layout which was picked may have caused; None if it did not.

        Some models flatten by `x.view(len(x), -1)`, which wants contiguous tensors.
        """
        picked = self.memory_format is None and self._format(model, device, ()) == "channels_last"
        return replace(self, memory_format="contiguous") if picked and "view size" in str(error) else None

    def casting(self, device: torch.device) -> AbstractContextManager[Any]:
        """Where forwards run: in bfloat16 if that was asked for and the device has it."""
        if self.precision == "bf16" and _has_bf16(device):
            return torch.autocast(device.type, torch.bfloat16)
        return nullcontext()

    def arrange(self, model: nn.Module, device: torch.device, learned: Collection[Tensor] = ()) -> None:
        """Lay out the kernels of the 2-d convolutions of a network, of whose tensors some are `learned`."""
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
        if self.memory_format is not None or self.engine == "eager":
            return self.memory_format
        if device.type != "cpu" or not learned:
            return "channels_last"
        # On a CPU forwards take two thirds of the time with the channels last. Backwards take twice that of
        # depthwise convolutions, and a third more where only the gradient of their input is wanted.
        convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
        chosen = {id(tensor) for tensor in learned}
        fast = all(module.groups == 1 and id(module.weight) in chosen for module in convolutions)
        return "channels_last" if fast else "contiguous"

    def told(self, model: nn.Module, device: torch.device, learned: Collection[Tensor]) -> str:
        """Precision and layout in words."""
        laid_out = self._format(model, device, learned) if _has_images(model) else None
        words = [] if laid_out is None else [laid_out.replace("_", " ")]
        if self.precision == "bf16":
            words.append("bf16" if _has_bf16(device) else "fp32, as this device is slow in bf16")
        return ", ".join(words)


def needs_contiguous(model: nn.Module, device: torch.device) -> bool:
    """Whether a backward with the channels last would take down the process.

    On a CPU torch's group norm does (2.10), if the gradient of its weights is wanted and not of its input.
    """
    return device.type == "cpu" and any(isinstance(module, nn.GroupNorm) for module in model.modules())


def _has_images(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
