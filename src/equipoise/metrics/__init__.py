"""Accuracy, calibration and sharpness: pure functions, and classes for streams.

The classes are torchmetrics' and are imported when first touched, because torchmetrics takes seconds to
import.
"""

import importlib
from typing import TYPE_CHECKING

from equipoise.metrics.bins import ReliabilityBins
from equipoise.metrics.functional import (
    accuracy,
    adaptive_calibration_error,
    area_under_risk_coverage,
    brier_score,
    classwise_calibration_error,
    entropy,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    reliability_bins,
    risk_coverage,
    set_coverage,
    set_size,
)
from equipoise.metrics.risk_coverage import RiskCoverage, RiskCoveragePoint

if TYPE_CHECKING:
    from equipoise.metrics.stream_metrics import (
        Accuracy,
        AdaptiveCalibrationError,
        AreaUnderRiskCoverage,
        BrierScore,
        ClasswiseCalibrationError,
        Entropy,
        ExpectedCalibrationError,
        MaximumCalibrationError,
        NegativeLogLikelihood,
        Reliability,
        Summary,
        Window,
    )

__all__ = [
    "Accuracy",
    "AdaptiveCalibrationError",
    "AreaUnderRiskCoverage",
    "BrierScore",
    "ClasswiseCalibrationError",
    "Entropy",
    "ExpectedCalibrationError",
    "MaximumCalibrationError",
    "NegativeLogLikelihood",
    "Reliability",
    "ReliabilityBins",
    "RiskCoverage",
    "RiskCoveragePoint",
    "Summary",
    "Window",
    "accuracy",
    "adaptive_calibration_error",
    "area_under_risk_coverage",
    "brier_score",
    "classwise_calibration_error",
    "entropy",
    "expected_calibration_error",
    "maximum_calibration_error",
    "negative_log_likelihood",
    "reliability_bins",
    "risk_coverage",
    "set_coverage",
    "set_size",
]


# Hidden from type checkers, which would take any misspelled name for one it answers to.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # Only the classes get here: everything else in __all__ is already in the module.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module("equipoise.metrics.stream_metrics"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
