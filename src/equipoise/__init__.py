"""equipoise keeps a deployed classifier accurate and honestly calibrated when its inputs drift."""

import importlib
from typing import TYPE_CHECKING

from equipoise import errors, estimators, functional, methods, metrics
from equipoise.adapter import Adapter, Tempered
from equipoise.calibration.rehearsal import Estimate, Rehearsal
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.describe import Footprint
from equipoise.core.method import Method
from equipoise.core.record import Step
from equipoise.errors import EquipoiseError
from equipoise.factory import DEC, Poise, create, load
from equipoise.recommendation.recommend import recommend
from equipoise.recommendation.recommendation import Recommendation
from equipoise.registry import list_methods, register
from equipoise.rehearsal.rehearse import rehearse
from equipoise.version import __version__

if TYPE_CHECKING:
    from equipoise.production.guard.decider import Event
    from equipoise.production.guard.guarded import Guarded
    from equipoise.production.guard.log import replay
    from equipoise.production.monitor import Monitor
    from equipoise.research import models

__all__ = [
    "DEC",
    "Adapter",
    "EquipoiseError",
    "Estimate",
    "Event",
    "Footprint",
    "Guarded",
    "Method",
    "Monitor",
    "Poise",
    "Recommendation",
    "Rehearsal",
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
]

# Public names of the wings, by their module: a wing is imported when one of its names is first used.
_IN_WINGS = {
    "Event": "equipoise.production.guard.decider",
    "Guarded": "equipoise.production.guard.guarded",
    "Monitor": "equipoise.production.monitor",
    "models": "equipoise.research",
    "replay": "equipoise.production.guard.log",
}

# Hidden from type checkers, which would take any misspelled name for one it answers to.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _IN_WINGS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_IN_WINGS[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
