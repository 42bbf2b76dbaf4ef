"""The source model beside the one that adapts: a second copy, or one module that alternates its weights."""

from copy import deepcopy
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from equipoise.batch import Batch
from equipoise.errors import OptionError
from equipoise.source import device_of

Residence: TypeAlias = Literal["resident", "swapped"]


class ResidentTeacher(nn.Module):
    """A second, frozen copy of the model: no copying between batches, twice the weights in memory."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = deepcopy(model).eval().requires_grad_(False)

    def forward(self, batch: Batch) -> Any:
        """The source model's output."""
        return self.model(*batch.args, **batch.kwargs)

    def tensors(self, names: list[str]) -> dict[str, Tensor]:
        """The source's own values of the named parameters and buffers."""
        everything = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        return {name: everything[name].detach() for name in names}


class SwappedTeacher(nn.Module):
    """The student's module run with the source's values in place of those that adapt.

    Only tensors that adapt exist twice, and the source's values wait in the host's memory: a GPU holds them
    no longer than the teacher's forward (the paper's note on memory).
    """

    def __init__(self, student: nn.Module, adapting: dict[str, Tensor]) -> None:
        super().__init__()
        self._student = (student,)  # in a tuple, so that it is not registered here a second time
        self._values = {name: self._to_host(tensor.detach().clone()) for name, tensor in adapting.items()}

    @staticmethod
    def _to_host(tensor: Tensor) -> Tensor:
        return tensor.cpu().pin_memory() if tensor.is_cuda else tensor

    def forward(self, batch: Batch) -> Any:
        """The source model's output."""
        (student,) = self._student
        device = device_of(student)
        values = {name: value.to(device, non_blocking=True) for name, value in self._values.items()}
        return functional_call(student, values, batch.args, batch.kwargs)

    def tensors(self, names: list[str]) -> dict[str, Tensor]:
        """The source's own values of the named parameters and buffers."""
        return {name: self._values[name] for name in names}

    def _apply(self, fn: Any, recurse: bool = True) -> "SwappedTeacher":
        self._values = {name: self._to_host(fn(value)) for name, value in self._values.items()}
        return self


Teacher: TypeAlias = ResidentTeacher | SwappedTeacher


def make_teacher(residence: Residence, student: nn.Module, adapting: dict[str, Tensor]) -> Teacher:
    """The source model of a student that has not adapted yet."""
    with torch.no_grad():
        if residence == "resident":
            return ResidentTeacher(student)
        if residence == "swapped":
            return SwappedTeacher(student, adapting)
    raise OptionError(f'expected teacher="resident" or "swapped", got {residence!r}')
