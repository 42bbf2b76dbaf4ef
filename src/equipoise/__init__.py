"""equipoise keeps a deployed classifier accurate and honestly calibrated when its inputs drift.

A public name is imported when it is first used: `equipoise --help` does not wait for PyTorch, and the library
works without the packages of its wings.
"""

import importlib
from typing import TYPE_CHECKING

from equipoise.version import __version__

if TYPE_CHECKING:
    from equipoise import errors, estimators, functional, methods, metrics
    from equipoise.adapter import Adapter, Selection, Tempered
    from equipoise.calibration.rehearsal import Estimate, Rehearsal
    from equipoise.calibration.sets import sets
    from equipoise.calibration.source_statistics import SourceStatistics
    from equipoise.core.describe import Footprint
    from equipoise.core.method import Method
    from equipoise.core.record import Step
    from equipoise.errors import EquipoiseError
    from equipoise.factory import DEC, Poise, create, load
    from equipoise.probabilities.estimator import Estimator
    from equipoise.probabilities.report import Report
    from equipoise.production.guard.decider import Event
    from equipoise.production.guard.guarded import Guarded
    from equipoise.production.guard.log import replay
    from equipoise.production.monitor import Monitor
    from equipoise.recommendation.recommend import recommend
    from equipoise.recommendation.recommendation import Recommendation
    from equipoise.registry import list_methods, register
    from equipoise.rehearsal.rehearse import rehearse, wrap
    from equipoise.research import models

__all__ = [
    "DEC",
    "Adapter",
    "EquipoiseError",
    "Estimate",
    "Estimator",
    "Event",
    "Footprint",
    "Guarded",
    "Method",
    "Monitor",
    "Poise",
    "Recommendation",
    "Rehearsal",
    "Report",
    "Selection",
    "SourceStatistics",
    "Step",
    "Tempered",
    "__version__",
    "create",
    "errors",
    "estimators",
    "functional",
    "list_methods",
    "load",
    "methods",
    "metrics",
    "models",
    "recommend",
    "register",
    "rehearse",
    "replay",
    "sets",
    "wrap",
]

# The module of each public name that is not one itself; a test compares them with the imports above.
_MODULES = {
    "DEC": "equipoise.factory",
    "Adapter": "equipoise.adapter",
    "EquipoiseError": "equipoise.errors",
    "Estimate": "equipoise.calibration.rehearsal",
    "Estimator": "equipoise.probabilities.estimator",
    "Event": "equipoise.production.guard.decider",
    "Footprint": "equipoise.core.describe",
    "Guarded": "equipoise.production.guard.guarded",
    "Method": "equipoise.core.method",
    "Monitor": "equipoise.production.monitor",
    "Poise": "equipoise.factory",
    "Recommendation": "equipoise.recommendation.recommendation",
    "Rehearsal": "equipoise.calibration.rehearsal",
    "Report": "equipoise.probabilities.report",
    "Selection": "equipoise.adapter",
    "SourceStatistics": "equipoise.calibration.source_statistics",
    "Step": "equipoise.core.record",
    "Tempered": "equipoise.adapter",
    "create": "equipoise.factory",
    "list_methods": "equipoise.registry",
    "load": "equipoise.factory",
    "models": "equipoise.research",
    "recommend": "equipoise.recommendation.recommend",
    "register": "equipoise.registry",
    "rehearse": "equipoise.rehearsal.rehearse",
    "replay": "equipoise.production.guard.log",
    "sets": "equipoise.calibration.sets",
    "wrap": "equipoise.rehearsal.rehearse",
}

# Hidden from type checkers, which would take any misspelled name for one it answers to.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _MODULES:
            value = getattr(importlib.import_module(_MODULES[name]), name)
        else:
            value = importlib.import_module(f"{__name__}.{name}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
