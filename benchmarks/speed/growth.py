"""What does not depend on one batch alone: classes, a long stream, metrics beside it, and memory.

Cost against the batch is in the main cells, which have batches of 1, 8, 50 and 200.
"""

from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq
from benchmarks.speed.cases import BACKBONES, METHODS, Case, ours
from benchmarks.speed.measure import Memory, measure, ratios, seconds_of, settle, spread, turns, warmed_up
from equipoise.metrics import Summary

CLASSES = (10, 100, 1_000, 10_000)
LOOKS = (1_000, 10_000, 100_000)
"""After how many images of a stream the state is weighed."""
_STREAM_BATCH = 200


def usual(device: str) -> str:
    """The engine that a device gets by default."""
    return "graph" if device == "cuda" else "auto"


def over_classes(case: Case, label: str, seconds: float) -> dict[str, Any]:
    """A cell with another number of classes: reference and ours."""
    return measure(case, METHODS[label], seconds, [usual(case.device)])


def over_stream(device: str, label: str) -> dict[str, Any]:
    """Bytes held after 1,000, 10,000 and 100,000 images.

    SmallCNN on a GPU; on the CPU, to end in minutes, one convolution with batch norm and 8 × 8 images.
    """
    model, x = _stream_model(device)
    fisher = {f"{name}.{part}": torch.ones(p.shape) for name, part, p in _norm_weights(model)}
    source = eq.SourceStatistics(h0=0.5, kappa=10.0, num_classes=10, fisher=fisher)
    method = METHODS[label]
    adapter = eq.create(method.name, model, source, **method.options)
    held, allocated, seen = [], [], 0
    for look in LOOKS:
        while seen < look:
            adapter(x[seen % len(x) :][:_STREAM_BATCH])
            seen += _STREAM_BATCH
        held.append(adapter.footprint().total.bytes)
        if device == "cuda":
            settle(device)
            allocated.append(torch.cuda.memory_allocated())
    return {"images": list(LOOKS), "held": held, "allocated": allocated, "execution": adapter.execution}


def _stream_model(device: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    if device == "cuda":
        return eq.models.SmallCNN().to(device).eval(), torch.rand(1_000, 1, 32, 32, device=device) * 255
    small = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)
    )
    return small.eval(), torch.rand(1_000, 1, 8, 8)


def _norm_weights(model: nn.Module) -> list[tuple[str, str, nn.Parameter]]:
    return [
        (name, part, parameter)
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for part, parameter in module.named_parameters()
    ]


def metrics_cost(case: Case, label: str, seconds: float) -> dict[str, Any]:
    """The update of accuracy, ECE, NLL, Brier score and entropy by a batch, as a share of the step."""
    adapter, images = ours(case, METHODS[label]), case.images()
    warmed_up(adapter, images, 4)
    answer = adapter(images[0])
    target = torch.arange(case.batch, device=case.device) % case.classes
    metrics = Summary().to(case.device)

    def update(answers: Tensor) -> Tensor:
        metrics.update(logits=answers, target=target)
        return answers

    seconds_of(lambda _: update(answer), images)
    times = turns({"step": adapter, "metrics": lambda _: update(answer)}, images, 4, seconds)
    return {
        "ms": {name: spread([1000 * value for value in each]) for name, each in times.items()},
        "share": ratios(times, "metrics", "step"),
        "execution": adapter.execution,
    }


def swapped_memory(case: Case) -> dict[str, Any]:
    """Peak bytes of a step of TENT, and of the paper's DEC with its teacher swapped and resident."""
    images, peaks = case.prepare(), {}
    tent, dec = METHODS["tent"], METHODS["dec"]
    for name, method, options in (
        ("tent", tent, {}),
        ("dec swapped", dec, {"source_copy": "swapped"}),
        ("dec resident", dec, {"source_copy": "resident"}),
    ):
        for engine in ("eager", "auto"):
            with Memory(case.device) as memory:
                adapter = ours(case, method, engine=engine, **options)
                warmed_up(adapter, images, 4)
            peaks[f"{name}, {engine}"] = {
                "peak": memory.peak,
                "held": memory.held,
                "execution": adapter.execution,
            }
            del adapter
    return {"peaks": peaks}


def stretched(classes: int, device: str) -> Case:
    """SmallCNN with so many classes, batches of 50."""
    return Case(BACKBONES["smallcnn"], 50, classes, device)
