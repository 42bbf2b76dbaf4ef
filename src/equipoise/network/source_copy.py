"""The source model beside the one that adapts: a second copy, or one module that alternates its weights."""

from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from equipoise.network.batch import Batch
from equipoise.network.forward import Compiler, Layout
from equipoise.network.modules import frozen_copy
from equipoise.network.named_tensors import named_tensors
from equipoise.network.normalisation import frozen_statistics
from equipoise.options import one_of

Residence: TypeAlias = Literal["resident", "swapped"]


class ResidentCopy(nn.Module):
    """A second, frozen copy of the model: no copying between batches, twice the weights in memory."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = frozen_copy(model)

    def forward(self, batch: Batch, compiler: Compiler) -> Any:
        """The source model's output."""
        with frozen_statistics(self.model):
            return compiler.run(self.model, batch)

    def lay_out(self, layout: Layout, device: torch.device) -> None:
        """Bring the weights into the layout of a network that only answers."""
        layout.apply(self.model, device)

    def tensors(self, names: list[str]) -> dict[str, Tensor]:
        """The source's own values of the named parameters and buffers."""
        everything = self.held()
        return {name: everything[name].detach() for name in names}

    def held(self) -> dict[str, Tensor]:
        """The tensors held beside the student."""
        return named_tensors(self.model)


class SwappedCopy(nn.Module):
    """The student's module run with the source's values in place of those that adapt.

    Only tensors that adapt exist twice, and the source's values wait in the host's memory: a GPU holds them
    no longer than its forward (the paper's note on memory).
    """

    def __init__(self, student: nn.Module, adapting: dict[str, Tensor]) -> None:
        super().__init__()
        self._student = (student,)  # in a tuple, so that it is not registered here a second time
        self._values = {name: self._to_host(tensor.detach().clone()) for name, tensor in adapting.items()}

    @staticmethod
    def _to_host(tensor: Tensor) -> Tensor:
        return tensor.cpu().pin_memory() if tensor.is_cuda else tensor

    def forward(self, batch: Batch, compiler: Compiler) -> Any:
        """The source model's output."""
        (student,) = self._student
        everything = named_tensors(student)
        adapted = {name: everything[name].data for name in self._values}
        try:
            for name, value in self._values.items():
                # A copy: an interrupt before the swap back must not let the student write into the source.
                everything[name].data = value.to(adapted[name].device, non_blocking=True, copy=True)
            with frozen_statistics(student):
                return compiler.run(student, batch)
        finally:
            for name, value in adapted.items():
                everything[name].data = value
            torch.clear_autocast_cache()  # it would take the source's cast weights for the student's

    def lay_out(self, _layout: Layout, _device: torch.device) -> None:
        """Bring the source's values into the memory format of the student's, which they replace."""
        (student,) = self._student
        likes = named_tensors(student)
        for name, value in self._values.items():
            if value.stride() != likes[name].stride():
                self._values[name] = self._to_host(torch.empty_like(likes[name]).copy_(value))

    def tensors(self, names: list[str]) -> dict[str, Tensor]:
        """The source's own values of the named parameters and buffers."""
        return {name: self._values[name] for name in names}

    def held(self) -> dict[str, Tensor]:
        """The tensors held beside the student."""
        return dict(self._values)

    def _apply(self, fn: Any, recurse: bool = True) -> "SwappedCopy":
        self._values = {name: self._to_host(fn(value)) for name, value in self._values.items()}
        return self


SourceCopy: TypeAlias = ResidentCopy | SwappedCopy


def make_source_copy(residence: Residence, student: nn.Module, adapting: dict[str, Tensor]) -> SourceCopy:
    """The source model of a student that has not adapted yet; if nothing adapts, the student itself."""
    one_of("source_copy", residence, get_args(Residence))
    if residence == "resident" and adapting:
        return ResidentCopy(student)
    return SwappedCopy(student, adapting)
