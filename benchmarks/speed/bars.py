"""The goals, and how far each was reached, from the measured lines alone."""

from collections.abc import Iterator
from math import inf
from typing import Any

from benchmarks.speed.cases import BACKBONES
from benchmarks.speed.lines import BASES, MIB, Lines, Row, label, over, table, variant

PAPER = ("smallcnn", "mobilenet_v1", "efficientnet_b0")
AGAINST_DEC = ("dec", "poise")  # measured against the paper's DEC


def bars(gpu: Lines, cpu: Lines) -> str:
    """All goals, on both machines."""
    rows = [*_gpu(gpu), *_cpu(cpu), *_outputs(gpu), *_shared("H200", gpu), *_shared("two CPU cores", cpu)]
    return table(["where", "goal", "measured", ""], rows)


def told(
    where: str, goal: str, value: float | None, text: str, *, least: float = -inf, most: float = inf
) -> Row:
    """A row: the goal, what was measured, and whether it is met."""
    if value is None:
        return [where, goal, "not measured", "-"]
    return [where, goal, text.format(value), "met" if least <= value <= most else "**missed**"]


def _gpu(lines: Lines) -> Iterator[Row]:
    where = "H200"
    for backbone, times in zip(PAPER, (3.0, 3.0, 2.5), strict=True):
        for method in AGAINST_DEC:
            line = lines.one("step", backbone=backbone, batch=50, method=method)
            place = f"`{method}`, {BACKBONES[backbone].title}, batch 50"
            ratio = over(line, lines.engine) if line else None
            goal = f"{place}: at least {times:g} times as fast as eager DEC"
            yield told(where, goal, ratio and 1 / ratio, "{:.2f} times", least=times)
            ratio = over(line, lines.engine, "tent") if line else None
            goal = f"{place}: faster than eager TENT"
            yield told(where, goal, ratio and 1 / ratio, "{:.2f} times", least=1)
    yield _worst(where, "every method no slower than its reference, anywhere", lines, 1.0)
    for method in ("tent", "eta", "sotta"):
        for backbone in ("smallcnn", "mobilenet_v1"):
            line = lines.one("step", backbone=backbone, batch=50, method=method)
            ratio = over(line, lines.engine) if line else None
            goal = f"`{method}`, {BACKBONES[backbone].title}, batch 50: at least 2 times as fast as eager"
            yield told(where, goal, ratio and 1 / ratio, "{:.2f} times", least=2)


def _cpu(lines: Lines) -> Iterator[Row]:
    where = "two CPU cores"
    yield _worst(where, "every method at most 1.05 of its reference's time, anywhere", lines, 1.05)
    for backbone in PAPER:
        for method in AGAINST_DEC:
            line = lines.one("step", backbone=backbone, batch=50, method=method)
            goal = f"`{method}`, {BACKBONES[backbone].title}, batch 50: at most .95 of eager DEC's time"
            ratio = over(line, lines.engine) if line else None
            yield told(where, goal, ratio, "{:.2f}", most=0.95)


def _worst(where: str, goal: str, lines: Lines, most: float) -> Row:
    """The slowest of all cells against its reference, and how many keep the goal."""
    found = [
        (ratio, label(line["cell"]))
        for line in lines.of("step")
        if (ratio := over(line, lines.engine)) is not None
    ]
    if not found:
        return told(where, goal, None, "")
    kept = sum(ratio <= most for ratio, _ in found)
    ratio, place = max(found)
    text = f"{{:.2f}} at worst ({place}); {kept} of {len(found)} cells keep it"
    return told(where, goal, ratio, text, most=most)


def _outputs(lines: Lines) -> Iterator[Row]:
    where = "H200"
    graph, half = (_worst_of(lines, name) for name in ("graph", "graph-bf16"))
    goal = "graph equals eager to 1e-4, float32"
    yield told(where, goal, graph.get("apart"), "{:.1e} at most", most=1e-4)
    goal = "graph decides as eager does"
    yield told(where, goal, graph.get("undecided"), "{:.2%} differ at most", most=0)
    goal = "bfloat16: ECE within .005 of eager's"
    text = f"{{:.4f}} at most (logits {half.get('apart', inf):.2g} apart)"
    yield told(where, goal, half.get("ece_apart"), text, most=0.005)


def _worst_of(lines: Lines, name: str) -> dict[str, float]:
    """How far a variant's answers were from the eager ones at most."""
    found = [each for line in lines.of("step") if (each := variant(line, name)) and "apart" in each]
    if not found:
        return {}
    return {
        "apart": max(each["apart"] for each in found),
        "undecided": max(1 - each["decided_alike"] for each in found),
        "ece_apart": max(each["ece_apart"] for each in found),
    }


def _shared(where: str, lines: Lines) -> Iterator[Row]:
    peaks = (lines.one("memory") or {}).get("peaks")
    for engine in ("eager", "auto"):
        goal = f'`source_copy="swapped"` DEC peaks at most 15 % over TENT, EfficientNet-B0, {engine}'
        value = peaks and peaks[f"dec swapped, {engine}"]["peak"] / peaks[f"tent, {engine}"]["peak"] - 1
        yield told(where, goal, value, "{:+.1%}", most=0.15)
    grown = [line["held"][-1] - line["held"][0] for line in lines.of("stream")]
    grown += [each[-1] - each[0] for line in lines.of("stream") if (each := line["allocated"])]
    goal = "nothing grows with the stream, 1,000 to 100,000 images"
    yield told(where, goal, max(grown, default=None), "{:,} bytes at most", most=0)
    shares: list[dict[str, Any]] = lines.of("metrics")
    worst = max((line["share"][0] for line in shares), default=None)
    goal = "five streaming metrics under 2 % of a SmallCNN step, batch 50"
    yield told(where, goal, worst, "{:.1%} at worst", most=0.02)


def memory_rows(lines: Lines) -> Iterator[Row]:
    """Peak memory of every variant, batch 50, in MiB."""
    for line in lines.of("step", batch=50):
        peaks = {name: each["peak"] for name, each in line["variants"].items() if "peak" in each}
        mine = [f"{name} {peak / MIB:,.0f}" for name, peak in peaks.items() if name not in BASES]
        cell, official = line["cell"], peaks.get("reference", 0)
        yield [
            BACKBONES[cell["backbone"]].title,
            f"`{cell['method']}`",
            f"{official / MIB:,.0f}",
            ", ".join(mine),
        ]
