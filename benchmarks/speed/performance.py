"""Writes docs/performance.md from the measured lines beside this file, or the tables of one file.

python benchmarks/speed/performance.py > docs/performance.md
python benchmarks/speed/performance.py benchmarks/speed/local.jsonl
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bars import bars, memory_rows
from cases import BACKBONES, METHODS
from lines import BASES, MIB, Lines, Row, ordered, over, table, variant

HERE = Path(__file__).parent
GPU, CPU = "h200.jsonl", "cpu.jsonl"
MAIN, OTHERS = 50, (1, 8, 200)


def milliseconds(value: float) -> str:
    """A time in words: three digits, or whole milliseconds."""
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def timed(line: dict[str, Any], name: str) -> str:
    """Milliseconds a step, and the ratio to the reference with its quartiles."""
    found = line["variants"].get(name)
    if found is None:
        return ""
    if "failed" in found:
        return f"failed: {found['failed'].partition(':')[0]}"
    if "reference" not in found["over"]:
        return milliseconds(found["ms"][0])
    ratio, low, high = found["over"]["reference"]
    return f"{milliseconds(found['ms'][0])}, **{ratio:.2f}** ({low:.2f} to {high:.2f})"


def main_table(lines: Lines, backbone: str, batch: int) -> str:
    """Every method on one network: plain forward, reference, and ours by engine."""
    found = {line["cell"]["method"]: line for line in lines.of("step", backbone=backbone, batch=batch)}
    names = list(dict.fromkeys(n for line in found.values() for n in line["variants"] if n not in BASES))
    rows = []
    for method in ordered(found):
        line = found[method]
        plain, official = (variant(line, base) for base in ("plain", "reference"))
        if plain is None or official is None:
            continue
        best = max(each["images_per_second"] for n in names if (each := variant(line, n)))
        rows.append(
            [
                f"`{method}`",
                milliseconds(plain["ms"][0]),
                milliseconds(official["ms"][0]),
                *(timed(line, name) for name in names),
                f"{official['images_per_second']:,.0f} → {best:,.0f}",
            ]
        )
    return table(["", "plain forward", "reference", *names, "images/s, reference → best"], rows)


def batches_table(lines: Lines, backbone: str) -> str:
    """Ours in milliseconds a step and as a ratio to the reference, by the size of batches."""
    sizes = sorted((*OTHERS, MAIN))
    rows = []
    for method in METHODS:
        cells = [lines.one("step", backbone=backbone, batch=size, method=method) for size in sizes]
        if any(cells):
            rows.append([f"`{method}`", *(_short(cell, lines.engine) for cell in cells)])
    return table([lines.engine, *(f"batch {size}" for size in sizes)], rows)


def _short(line: dict[str, Any] | None, name: str) -> str:
    ratio, found = over(line, name), line and variant(line, name)
    return "-" if found is None or ratio is None else f"{milliseconds(found['ms'][0])}, {ratio:.2f}"


def classes_table(lines: Lines) -> str:
    """The same by the number of classes."""
    counts = sorted({line["cell"]["classes"] for line in lines.of("classes")})
    rows = [
        [
            f"`{method}`",
            *(_short(lines.one("classes", classes=count, method=method), lines.engine) for count in counts),
        ]
        for method in ordered(line["cell"]["method"] for line in lines.of("classes"))
    ]
    return table([lines.engine, *(f"{count:,} classes" for count in counts)], rows)


def stream_table(lines: Lines) -> str:
    """Bytes held over a stream."""
    rows = [
        [f"`{line['cell']['method']}`", *(f"{held:,}" for held in line["held"]), *_allocated(line)]
        for line in lines.of("stream")
    ]
    return table(["", "after 1,000 images", "10,000", "100,000", "the GPU's, first → last"], rows)


def _allocated(line: dict[str, Any]) -> Row:
    each = line["allocated"]
    return [f"{each[0]:,} → {each[-1]:,}" if each else "-"]


def metrics_table(lines: Lines) -> str:
    """The update of five metrics beside a step."""
    rows = [
        [
            f"`{line['cell']['method']}`",
            milliseconds(line["ms"]["step"][0]),
            milliseconds(line["ms"]["metrics"][0]),
            f"{line['share'][0]:.1%} ({line['share'][1]:.1%} to {line['share'][2]:.1%})",
        ]
        for line in lines.of("metrics")
    ]
    return table(["", "step", "metrics", "share"], rows)


def swapped_table(lines: Lines) -> str:
    """Peaks of TENT and of the paper's DEC with its teacher here and there."""
    peaks = (lines.one("memory") or {"peaks": {}})["peaks"]
    rows = [[n, f"{p['peak'] / MIB:,.0f}", f"{p['held'] / MIB:,.0f}"] for n, p in peaks.items()]
    return table(["EfficientNet-B0, batch 50", "peak, MiB", "held after it, MiB"], rows)


def executions(lines: Lines) -> str:
    """What the adapters say that they ran as."""
    found: dict[str, set[str]] = {}
    for line in lines.of("step"):
        for name, each in line["variants"].items():
            if each.get("execution"):
                found.setdefault(f"{name}: {each['execution']}", set()).add(line["cell"]["method"])
    return table(
        ["engine and what it came to", "methods"], ([n, ", ".join(ordered(m))] for n, m in found.items())
    )


def left_out(lines: Lines) -> str:
    """What would have taken too long."""
    rows = [
        [f"{c['method']}, {BACKBONES[c['backbone']].title}, batch {c['batch']}", line["skipped"]]
        for line in lines.asked("step")
        if "skipped" in line and (c := line["cell"])
    ]
    return table(["not measured", "why"], rows) if rows else "Nothing was left out."


def sections(lines: Lines) -> Iterator[str]:
    """All tables of one machine."""
    if not lines.machines:
        yield "Not measured yet."
        return
    yield f"{lines.device}:\n\n{lines.commands}"
    for name, backbone in BACKBONES.items():
        if lines.of("step", backbone=name, batch=MAIN):
            yield f"### {backbone.title}, batches of {MAIN}\n\n{main_table(lines, name, MAIN)}"
    for name, backbone in BACKBONES.items():
        if any(lines.of("step", backbone=name, batch=size) for size in OTHERS):
            yield f"### {backbone.title} by the size of batches\n\n{batches_table(lines, name)}"
    yield f"### SmallCNN by the number of classes, batches of 50\n\n{classes_table(lines)}"
    yield f"### A stream of 100,000 images: bytes held\n\n{stream_table(lines)}"
    yield f"### Streaming metrics, SmallCNN, batches of 50\n\n{metrics_table(lines)}"
    peaks = table(["", "", "reference", "ours"], memory_rows(lines))
    yield f"### Peak memory in MiB, batches of 50\n\n{peaks}\n\n{swapped_table(lines)}"
    yield f"### What ran\n\n{executions(lines)}\n\n{left_out(lines)}"


def main() -> None:
    """Print the page, or the tables of the file that is named."""
    if len(sys.argv) > 1:
        print("\n\n".join(sections(Lines(Path(sys.argv[1])))))
        return
    gpu, cpu = (Lines(HERE / name) for name in (GPU, CPU))
    text = (HERE / "performance.template.md").read_text()
    parts = {"bars": bars(gpu, cpu), "gpu": "\n\n".join(sections(gpu)), "cpu": "\n\n".join(sections(cpu))}
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
