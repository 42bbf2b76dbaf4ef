"""References of the speed benchmark: plain code that answers as our methods do, batch after batch."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn

import equipoise as eq
from benchmarks.speed.reference import T3A, Dec, Eata, Eta, Norm, Reference, SoTTA, Source, Tent, Windowed
from tests.support.models import CLASSES, drifted, make

Made = Callable[[nn.Module, eq.SourceStatistics], Reference]
FILTERS = {"margin": 0.97, "epsilon": 0.985}  # some samples pass both, some fail either
RATE = 0.05  # so that four steps can be seen
ETA = {**FILTERS, "learning_rate": RATE}
PAIRS: dict[str, tuple[str, Mapping[str, object], Made]] = {
    "source": ("source", {}, lambda model, _: Source(model)),
    "norm": ("norm", {}, lambda model, _: Norm(model)),
    "tent": ("tent", {}, lambda model, _: Tent(model)),
    "eta": ("eta", ETA, lambda model, _: Eta(model, **FILTERS, rate=RATE)),
    "eata": ("eata", ETA, lambda model, source: Eata(model, source.fisher, **FILTERS, rate=RATE)),
    "t3a": ("t3a", {"supports": 10}, lambda model, _: T3A(model, 10)),
    "sotta": ("sotta", {"confidence": 0.3}, lambda model, _: SoTTA(model, CLASSES, 0.3)),
    "dec": (
        "dec",
        {"learning_rate": 1e-2},
        lambda model, source: Dec(model, source.h0, source.kappa, 1e-2),
    ),
}


def toy(kind: str) -> tuple[nn.Module, eq.SourceStatistics]:
    """A small model without dropout, which the references leave on, as the authors do."""
    model, source = make(kind)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model, source


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "batch_norm") for name in PAIRS),
        *((name, "layer_norm") for name in PAIRS if name != "norm"),
    ],
)
def test_a_reference_answers_as_ours(name: str, kind: str) -> None:
    model, source = toy(kind)
    method, options, made = PAIRS[name]
    ours, plain = eq.create(method, model, source, **options), made(model, source)
    for seed in range(4):
        x = drifted(32, seed)
        torch.testing.assert_close(plain.step(x), ours(x), rtol=1e-4, atol=1e-4)


def test_a_window_of_single_samples_answers_as_ours() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), toy("group_norm")[0]).eval()
    ours, plain = eq.create("tent", model, learning_rate=1e-3), Windowed(Tent(model))
    for seed in range(40):
        x = drifted(1, seed)
        expected, answer = plain.step(x), ours(x)
        if seed > 0:  # a first sample has the running statistics in ours, its own in the reference
            torch.testing.assert_close(expected, answer, rtol=1e-4, atol=1e-4)
