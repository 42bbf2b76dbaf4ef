"""The diagonal Fisher information used by EATA."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from equipoise.errors import ModelError
from equipoise.functional import at_least_single
from equipoise.network.batch import Batch
from equipoise.network.forward import OutputsFunction, checked_logits
from equipoise.network.modules import frozen_copy
from equipoise.network.normalisation import batch_statistics
from equipoise.network.optimizer import slope
from equipoise.network.parameters import Parameters, select_parameters


class Fisher:
    """The mean over batches of the squared gradient of the loss against the model's own answers.

    F = mean_b (∂/∂θ mean_{i∈b} CE(z_i, argmax z_i))², with the model as EATA adapts it: normalised by the
    batch's statistics. As in the authors' code it is the square of a batch's mean gradient, not the mean of
    the samples' squares, so it depends on the batch size; they use 2,000 samples in batches of 64 (Niu et
    al., ICML 2022).
    """

    def __init__(self, model: nn.Module, which: Parameters, outputs: OutputsFunction | None = None) -> None:
        self._outputs = outputs
        self._model = frozen_copy(model)
        self._parameters = select_parameters(self._model, which)
        for parameter in self._parameters.values():
            parameter.requires_grad_()
        self._sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in self._parameters.items()}
        self._batches = 0

    def observe(self, batch: Batch) -> None:
        """Take in a batch of samples with finite logits."""
        with torch.inference_mode(False), torch.enable_grad():
            inputs = batch.learnable()
            with batch_statistics(self._model, 0.0, inputs.rows):
                output = self._model(*inputs.args, **inputs.kwargs)
                logits = checked_logits(output, inputs.rows, None, self._outputs)
            found = slope(cross_entropy(at_least_single(logits), logits.argmax(1)), self._parameters)
        if found.failure:
            raise ModelError(
                f"expected answers that depend on the parameters that fisher= chooses, but {found.failure}: "
                "a model with torch.no_grad inside its forward, or detached logits, has no gradients"
            )
        for name, gradient in found.gradients.items():
            self._sums[name] += gradient.float() ** 2
        self._batches += 1

    def result(self) -> dict[str, Tensor]:
        """The diagonal by the parameters' names, on the CPU."""
        return {name: (total / max(self._batches, 1)).cpu() for name, total in self._sums.items()}
