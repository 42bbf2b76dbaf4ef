"""equipoise keeps a deployed classifier accurate and honestly calibrated when its inputs drift."""

from equipoise import errors, estimators, functional, methods, metrics, models
from equipoise.adapter import Adapter
from equipoise.calibration.rehearsal import Estimate, Rehearsal
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.footprint import Footprint
from equipoise.core.method import Method
from equipoise.core.record import Step
from equipoise.errors import EquipoiseError
from equipoise.factory import DEC, Poise, create, load
from equipoise.guard.events import Event
from equipoise.guard.guarded import Guarded
from equipoise.guard.replay import replay
from equipoise.monitor import Monitor
from equipoise.recommending.recommend import recommend
from equipoise.recommending.recommendation import Recommendation
from equipoise.registry import list_methods, register
from equipoise.rehearsing.rehearse import rehearse
from equipoise.tempered import Tempered
from equipoise.version import __version__

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
