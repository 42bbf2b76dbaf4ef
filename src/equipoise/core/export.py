"""Plain modules without an adapter: the adapted classifier with its temperature, and the source model."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.core.student import Student
from equipoise.network.batch import InputsFunction, called_batch
from equipoise.network.forward import OutputsFunction, checked_logits, form_of, logits_of

_TEMPERATURE = "equipoise_temperature"


def with_temperature(
    model: nn.Module, temperature: float, outputs: OutputsFunction | None = None
) -> nn.Module:
    """The model itself, changed to answer with its logits divided by a constant temperature.

    It keeps its class and the signature of its forward, and answers with a tensor or an object with `.logits`
    as before (`form_of`), or with the tensor that `outputs` picks out of its output; torch.export wants that
    of a model whose object it cannot flatten. The temperature is one of its buffers, part of its state, and a
    hook divides by it.
    """
    like = next(model.parameters(), torch.zeros(()))
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    with torch.inference_mode(False):
        model.register_buffer(_TEMPERATURE, torch.tensor(temperature, dtype=wide, device=like.device))
    # A bare function, where it can be: torch.export traces it.
    model.register_forward_hook(_temper if outputs is None else partial(_temper, outputs=outputs))
    return model


def _temper(module: nn.Module, _inputs: Any, output: Any, outputs: OutputsFunction | None = None) -> Any:
    temperature: Tensor = getattr(module, _TEMPERATURE)  # get_buffer is too much for torch.export's tracing
    logits = logits_of(output, outputs) / temperature
    return logits if outputs is not None or isinstance(output, Tensor) else form_of(output)(logits=logits)


class SourceModel:
    """A copy of the source model in eval mode, which may answer while its adapter is busy.

    Args:
        student: the network whose source model it is.
        inputs: turns a batch into the model's arguments, as the adapter's.
    """

    def __init__(self, student: Student, inputs: InputsFunction | None) -> None:
        self._model = student.export(student.source_values(student.adapting)).eval()
        self._inputs, self._outputs, self._device = inputs, student.outputs, student.device

    def __call__(self, inputs: Tensor) -> Tensor:
        """Logits (N, C) of a tensor of inputs, on the host, untempered; NaN where an input is not finite."""
        with torch.inference_mode():
            batch = called_batch(self._model, (inputs.to(self._device),), {}, self._inputs)
            output = self._model(*batch.args, **batch.kwargs)
            logits = checked_logits(output, len(inputs), None, self._outputs).float().cpu()
        return masked(logits, inputs)


def masked(logits: Tensor, inputs: Tensor) -> Tensor:
    """Logits with NaN in the rows whose inputs are not finite."""
    finite = inputs.flatten(1).isfinite().all(1)
    return logits if bool(finite.all()) else torch.where(finite.unsqueeze(1), logits, torch.nan)
