"""What is timed: networks with random weights, random images, and every method in every way to run it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import equipoise as eq
from benchmarks.speed import reference
from benchmarks.speed.reference import Reference
from equipoise.research.models import create_backbone

Step: TypeAlias = Callable[[Tensor], Tensor]
POOL = 4
"""Batches that every variant sees in turn."""
_SETTLING = 16  # images that a random network's batch norms, and the source statistics, are made from


@dataclass(frozen=True)
class Backbone:
    """A network, and the images it gets.

    Attributes:
        name: as `create_backbone` has it.
        title: in the tables.
        size: side of the images on a GPU.
        cpu_size: side of the images on the CPU.
        channels: of the images.
        classes: unless a case says otherwise.
        pooled: whether it has batch norm.
    """

    name: str
    title: str
    size: int
    cpu_size: int
    channels: int = 3
    classes: int = 200
    pooled: bool = True


BACKBONES = {
    each.name: each
    for each in (
        Backbone("smallcnn", "SmallCNN", 32, 32, channels=1, classes=10),
        Backbone("mobilenet_v1", "MobileNet v1", 128, 128),
        Backbone("efficientnet_b0", "EfficientNet-B0", 227, 128),
        Backbone("resnet50", "ResNet-50", 224, 224),
        Backbone("vit_base_patch16_224", "ViT-B/16", 224, 224, pooled=False),
    )
}


@dataclass(frozen=True)
class Case:
    """A network on a device, with a number of classes, and batches of a size."""

    backbone: Backbone
    batch: int
    classes: int
    device: str

    def images(self) -> list[Tensor]:
        """The pool of batches, values from 0 to 255, the same in every run."""
        return list(_images(self.backbone, POOL * self.batch, self.device).split(self.batch))

    def held_out(self, rows: int) -> Tensor:
        """So many images in one tensor."""
        return _images(self.backbone, rows, self.device)

    def network(self) -> nn.Module:
        """The model, in eval mode; nothing here changes it."""
        return _network(self.backbone, self.classes, self.device)

    def prepare(self) -> list[Tensor]:
        """Make everything that variants share, so that none of them is charged for it; gives the images."""
        self.source()
        return self.images()

    def source(self) -> eq.SourceStatistics:
        """Its source statistics, with a Fisher diagonal."""
        return _source(self.backbone, self.classes, self.device)


@lru_cache(maxsize=2)
def _images(backbone: Backbone, rows: int, device: str) -> Tensor:
    size = backbone.size if device == "cuda" else backbone.cpu_size
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(rows, backbone.channels, size, size, generator=generator) * 255).to(device)


@lru_cache(maxsize=1)
def _network(backbone: Backbone, classes: int, device: str) -> nn.Module:
    """A network with random weights whose batch norms have seen images, so that answers are of usual size."""
    torch.manual_seed(0)
    model = create_backbone(backbone.name, classes, in_channels=backbone.channels).to(device)
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for layer in layers:
        layer.momentum = 1.0
    with torch.no_grad():
        model.train()(_images(backbone, _SETTLING, device))
    for layer in layers:
        layer.momentum = 0.1
    return model.eval()


@lru_cache(maxsize=1)
def _source(backbone: Backbone, classes: int, device: str) -> eq.SourceStatistics:
    seen = [_images(backbone, _SETTLING, device)]
    model = _network(backbone, classes, device)
    return eq.SourceStatistics.measure(model, seen, fisher=True, features=True, progress=False)


@dataclass(frozen=True)
class Method:
    """A method of ours, with options that make it do what its reference does.

    Attributes:
        label: in the tables.
        name: as `eq.create` has it.
        reference: makes the reference from a case.
        forwards: what a step costs, in forwards, to tell beforehand whether a case takes too long.
        options: of ours.
        every: samples between updates, where there is not one for each batch.
        windowed: whether a batch of one sample is answered in a window, on batch norm.
    """

    label: str
    name: str
    reference: Callable[[Case], Reference]
    forwards: float
    options: Mapping[str, Any] = field(default_factory=dict)
    every: int = 1
    windowed: bool = False

    def fits(self, backbone: Backbone) -> bool:
        """Whether the method works on the network."""
        return backbone.pooled or self.name != "norm"

    def period(self, case: Case) -> int:
        """Batches between updates."""
        alone = self.windowed and case.batch == 1 and case.backbone.pooled
        return -(-(reference.Windowed.size if alone else self.every) // case.batch)


# Every sample is kept, and every sample is sure enough: the most expensive case of these methods, and one
# that random networks, whose answers are near even, would otherwise not come to.
_FILTERS = {"margin": 1.01, "epsilon": 2.0}
_SUPPORTS = 100


def _dec(case: Case) -> Reference:
    source = case.source()
    return reference.Dec(case.network(), source.h0, source.kappa)


METHODS = {
    each.label: each
    for each in (
        Method("source", "source", lambda case: reference.Source(case.network()), 1),
        Method("norm", "norm", lambda case: reference.Norm(case.network()), 1, windowed=True),
        Method("tent", "tent", lambda case: reference.Tent(case.network()), 3, windowed=True),
        Method(
            "eta", "eta", lambda case: reference.Eta(case.network(), **_FILTERS), 3, _FILTERS, windowed=True
        ),
        Method(
            "eata",
            "eata",
            lambda case: reference.Eata(case.network(), case.source().fisher, **_FILTERS),
            3,
            _FILTERS,
            windowed=True,
        ),
        Method(
            "t3a", "t3a", lambda case: reference.T3A(case.network(), _SUPPORTS), 1, {"supports": _SUPPORTS}
        ),
        Method(
            "sotta",
            "sotta",
            lambda case: reference.SoTTA(case.network(), case.classes, 0.0),
            8,
            {"confidence": 0.0},
            every=reference.SoTTA.every,
        ),
        Method("dec", "dec", _dec, 4),
        Method("poise", "poise", _dec, 3),
    )
}
PLAIN, REFERENCE, RIVAL = "plain", "reference", "tent"
_ENGINES: dict[str, dict[str, str]] = {
    "eager": {"engine": "eager"},
    "auto": {"engine": "auto"},
    "graph": {"engine": "graph"},
    "graph-bf16": {"engine": "graph", "precision": "bf16"},
    "compile": {"engine": "compile"},
}


def ours(case: Case, method: Method, **options: Any) -> eq.Adapter:
    """An adapter for a case."""
    return eq.create(method.name, case.network(), case.source(), **{**method.options, **options})


def engines(case: Case) -> list[str]:
    """The ways in which ours is run; compiling takes minutes and has cells of its own."""
    return ["eager", "auto"] if case.device == "cpu" else ["eager", "graph", "graph-bf16"]


def variants(case: Case, method: Method, names: list[str]) -> dict[str, Callable[[], Step]]:
    """What is timed in turn: the plain forward, the reference, TENT's for DEC and poise, ours by engine."""

    def official(each: Method) -> Step:
        made = each.reference(case)
        return (reference.Windowed(made) if each.period(case) > 1 and each.windowed else made).step

    made: dict[str, Callable[[], Step]] = {
        PLAIN: lambda: reference.Source(case.network()).step,
        REFERENCE: lambda: official(method),
    }
    if method.name in ("dec", "poise"):
        made[RIVAL] = lambda: official(METHODS[RIVAL])
    # Answers are compared with the eager ones: on a GPU both in the layout that "auto" picks.
    layout = {"memory_format": "channels_last"} if case.device == "cuda" else {}
    options = {name: {**_ENGINES[name], **layout} for name in names}
    return {**made, **{name: partial(ours, case, method, **each) for name, each in options.items()}}
