"""Label-free estimates of the accuracy of a classifier on a stream, from the literature.

Predictions come by name, as `logits=` of shape (N, C), and estimates are tensors of a single number in the
dtype of the predictions, as in `equipoise.metrics`; they take part in no gradient. Rows that are NaN in every
class are left out. No samples give NaN, and logits that are NaN or infinite elsewhere are errors, except for
-inf of classes that cannot be.

An estimate that needs labels of held-out source data is a frozen dataclass, fitted once and evaluated on any
number of windows of a stream:

    ATC.fit(logits=held_out, target=labels).accuracy(logits=window)
"""

from equipoise.estimators.confidence import (
    ATC,
    CBPE,
    TemperatureScaledConfidence,
    fit_temperature,
    mean_confidence,
)
from equipoise.estimators.further_answers import aetta, dropout_logits, sicl, style_logits
from equipoise.estimators.probability_matrix import COT, NuclearNorm, nuclear_norm

__all__ = [
    "ATC",
    "CBPE",
    "COT",
    "NuclearNorm",
    "TemperatureScaledConfidence",
    "aetta",
    "dropout_logits",
    "fit_temperature",
    "mean_confidence",
    "nuclear_norm",
    "sicl",
    "style_logits",
]
