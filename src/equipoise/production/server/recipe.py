"""A service from the name of a function that makes the model, and the file of its source statistics."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.factory import create
from equipoise.production.server.limits import Limits
from equipoise.production.server.model_factory import load_factory
from equipoise.production.server.service import Service


@dataclass(frozen=True)
class ServiceFromFactory:
    """Makes a service in whatever process calls it: only names and paths go from one to another.

    Attributes:
        factory: "module:function"; the function returns the model, or the model and a transform of images.
        source: the file of the model's source statistics (`SourceStatistics.save`); None for methods that do
            without. If it holds a rehearsal of the method, answers are tempered by it, and their accuracy is
            estimated.
        method: the name of the adapting method.
        limits: of the service.
    """

    factory: str
    source: Path | None
    method: str
    limits: Limits

    def __call__(self, state_folder: Path) -> Service:
        """The service, on a GPU where there is one."""
        return self.around(load_factory(self.factory)[0], state_folder)

    def around(self, model: nn.Module, state_folder: Path) -> Service:
        """The service around a model that the factory has made already."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        statistics = None if self.source is None else SourceStatistics.load(self.source)
        rehearsed = statistics is not None and self.method in statistics.rehearsals
        tempering = {"tempering": "rehearsed"} if rehearsed else {}
        adapter = create(self.method, model.to(device).eval(), statistics, **tempering)
        return Service(adapter, state_folder, limits=self.limits)
