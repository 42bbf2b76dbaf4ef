"""Logits turned into the answer to a request, and errors into refusals."""

from typing import Any

import numpy as np
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.production.server.errors import InputError, ServiceError, StorageError
from equipoise.production.server.interface import Prediction


def reply(request: str, stream: str, logits: Tensor, **facts: Any) -> Prediction:
    """The answer to a request from its tempered logits (N, C) on the host; `facts` are the other fields."""
    probabilities = logits.softmax(1).numpy()
    answered = np.isfinite(probabilities).all(1)
    probabilities = np.where(answered[:, None], probabilities, np.float32(np.nan))
    classes = np.where(answered, probabilities.argmax(1), -1)
    return Prediction(request, stream, classes.tolist(), probabilities, **facts)


def refusal_of(error: Exception) -> ServiceError:
    """The error of a service for one of the adapter or of the model."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, OSError):
        return StorageError(f"the state folder cannot be used: {error}")
    of_inputs = isinstance(error, (EquipoiseError, RuntimeError, ValueError, TypeError, LookupError))
    kind = InputError if of_inputs else ServiceError
    return kind(f"the model cannot answer these inputs: {type(error).__name__}: {error}")
