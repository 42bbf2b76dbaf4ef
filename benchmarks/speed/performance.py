"""Writes docs/performance.md from the measured lines beside this file, or the tables of one file.

python -m benchmarks.speed.performance > docs/performance.md
python -m benchmarks.speed.performance benchmarks/speed/local.csv
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.speed.bars import bars, memory_rows
from benchmarks.speed.cases import BACKBONES, METHODS
from benchmarks.speed.lines import BASES, MIB, Lines, ordered, over, table, variant

HERE = Path(__file__).parent
GPU, CPU = "h200.csv", "cpu.csv"
MAIN, OTHERS = 50, (1, 8, 200)
LEGEND = """Milliseconds are medians of rounds in which all variants take turns.
- plain forward: the model alone, without adaptation.
- reference: the method as its authors' code does it, in eager PyTorch (benchmarks/speed/reference.py). For
  `dec` and for `poise` it is the paper's DEC: two forwards, a backward and a step of all weights.
- eager, auto, graph, graph-bf16: this library's, by engine; `dec` is the paper's reading of DEC.
- **bold**: the time of this library's over that of the reference in the same rounds, with the quartiles in
  brackets. Below 1 this library is faster. In tables by batch size or classes the ratio follows the comma.
- growth of the bytes held: the model of that table is small, so that 100,000 images take seconds; zero means
  that no state grows with the stream."""


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
    """Growth of the bytes held over a stream, against those after its first images."""
    rows = [
        [
            f"`{line['cell']['method']}`",
            *(f"{held - line['held'][0]:+,}" for held in line["held"][1:]),
            *(f"{allocated - line['allocated'][0]:+,}" for allocated in line["allocated"][-1:]),
        ]
        for line in lines.of("stream")
    ]
    head = ["more bytes than after 1,000 images", "after 10,000", "after 100,000"]
    return table([*head, "of the GPU, after 100,000"][: max((len(row) for row in rows), default=0)], rows)


def passes_table(lines: Lines) -> str:
    """Forwards and backwards of a step, and the numbers that an adapter holds."""
    rows = []
    for line in lines.of("passes"):
        (forwards, backwards, samples), tempered = line["passes"]["none"], line["passes"]["median"]
        counts = [f"{count:g}" for count in (forwards, backwards, samples, tempered[0])]
        numbers = [f"{number:,}" for number in line["numbers"].values()]
        rows.append([f"`{line['cell']['method']}`", *counts, *numbers])
    head = ["", "forwards", "backwards", "samples forwarded", "forwards if tempered", "parameters held"]
    return table([*head, "learned", "buffers", "supports", "observations", "the paper's measure"], rows)


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
    return table(["not measured", "why"], rows)


def sections(lines: Lines) -> Iterator[str]:
    """All tables of one machine that have rows."""
    if not lines.machines:
        yield "Not measured yet."
        return
    yield f"{lines.device}:\n\n{lines.commands}"
    for title, body in _tables(lines):
        if body:
            yield f"### {title}\n\n{body}"


def _tables(lines: Lines) -> Iterator[tuple[str, str]]:
    """Every table with its title; empty where nothing was measured."""
    for name, backbone in BACKBONES.items():
        yield f"{backbone.title}, batches of {MAIN}", main_table(lines, name, MAIN)
    for name, backbone in BACKBONES.items():
        if any(lines.of("step", backbone=name, batch=size) for size in OTHERS):
            yield f"{backbone.title} by the size of batches", batches_table(lines, name)
    yield "SmallCNN by the number of classes, batches of 50", classes_table(lines)
    model = "SmallCNN" if lines.machines[-1]["device"] == "cuda" else "one convolution with batch norm"
    yield f"A stream of 100,000 images: growth of the bytes held, {model}", stream_table(lines)
    yield "Streaming metrics, SmallCNN, batches of 50", metrics_table(lines)
    yield "Passes of a step and numbers held, SmallCNN, batches of 50", passes_table(lines)
    yield (
        "Peak memory in MiB, batches of 50",
        _joined(table(["", "", "reference", "ours"], memory_rows(lines)), swapped_table(lines)),
    )
    yield "What ran", _joined(executions(lines), left_out(lines))


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def main() -> None:
    """Print the page, or the tables of the file that is named."""
    if len(sys.argv) > 1:
        print("\n\n".join([LEGEND, *sections(Lines(Path(sys.argv[1])))]))
        return
    gpu, cpu = (Lines(HERE / name) for name in (GPU, CPU))
    text = (HERE / "performance.template.md").read_text()
    parts = {"bars": bars(gpu, cpu), "gpu": "\n\n".join(sections(gpu)), "cpu": "\n\n".join(sections(cpu))}
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
