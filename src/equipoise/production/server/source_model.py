"""The source model beside the adapter: answers while the learner is busy, and takes no part in learning."""

import torch
from torch import Tensor

from equipoise.adapter import Adapter
from equipoise.network.inputs import called_batch
from equipoise.network.outputs import checked_logits


class SourceAnswers:
    """A copy of the source model in eval mode, for a thread of its own.

    Args:
        adapter: whose source model it is.
    """

    def __init__(self, adapter: Adapter) -> None:
        student = adapter._respond.student
        self._model = student.export(student.source_values(student.adapting)).eval()
        self._inputs, self._outputs, self._device = adapter._inputs, student.outputs, student.device

    def __call__(self, inputs: Tensor) -> Tensor:
        """Logits (N, C) on the host, untempered; NaN for a sample that is not finite."""
        with torch.inference_mode():
            batch = called_batch(self._model, (inputs.to(self._device),), {}, self._inputs)
            output = self._model(*batch.args, **batch.kwargs)
            logits = checked_logits(output, len(inputs), None, self._outputs)
        return masked(logits.float().cpu(), inputs)


def masked(logits: Tensor, inputs: Tensor) -> Tensor:
    """Logits with NaN in the rows whose inputs are not finite."""
    finite = inputs.flatten(1).isfinite().all(1)
    return logits if bool(finite.all()) else torch.where(finite.unsqueeze(1), logits, torch.nan)
