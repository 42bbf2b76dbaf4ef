"""Methods that adapt the statistics of batch norm, and nothing else."""

from equipoise.errors import ModelError
from equipoise.network.normalisation import batch_norm_layers
from equipoise.network.student import Student

STATISTICS_FOLLOW = "only the statistics follow"
"""The reason why no sample was learned from."""


def check_batch_norm(method: str, student: Student) -> None:
    """Raise ModelError unless the model has batch norm with running statistics."""
    if not batch_norm_layers(student.model):
        raise ModelError(
            f"{method} needs batch-normalisation layers with running statistics, and the model has none; "
            "tent adapts other normalisation layers, t3a needs but a linear head, and poise works on any "
            "model"
        )
