"""Writes docs/performance.md and its full tables from the files beside this one, or prints those of one file.

python -m benchmarks.speed.performance
python -m benchmarks.speed.performance benchmarks/speed/local.csv
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.pages import DOCS, fill, table, told, write
from benchmarks.results.figures import WIDTH, standalone
from benchmarks.speed.cases import BACKBONES, METHODS, PLAIN
from benchmarks.speed.deployed import DEFAULT, ONE_FORWARD, PREDICT, WATCHED
from benchmarks.speed.flat_csv import read_lines
from benchmarks.speed.layouts import layouts_table
from equipoise.research.report.style import ACCENT, INK, MUTED, SERIES, panels, themed

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
- poise as it is deployed: rehearsed, with one forward (`falls_back=False`) or two, and guarded and monitored.
- growth of the bytes held: the model of that table is small, so that 100,000 images take seconds; zero means
  that no state grows with the stream."""
BASES = (PLAIN, "reference", "tent")
MIB = 2**20
Row = Sequence[str]
FORMS = {
    ONE_FORWARD: "one forward",
    DEFAULT: "default",
    WATCHED: "guarded and monitored",
    PREDICT: "`predict`",
}
"""How poise is used, in words."""
MARKS = {ONE_FORWARD: ("o", MUTED), DEFAULT: ("D", ACCENT), WATCHED: ("s", SERIES[0])}
PAPER = ("smallcnn", "mobilenet_v1", "efficientnet_b0")
AGAINST_DEC = ("dec", "poise")  # measured against the paper's DEC


class Lines:
    """The measured cells of one machine."""

    def __init__(self, path: Path) -> None:
        found = read_lines(path)
        self.machines = [line for line in found if line.get("kind") == "machine"]
        # Of a cell that was measured again, the last.
        self.cells = list({str(line["cell"]): line for line in found if "cell" in line}.values())

    def of(self, kind: str, **where: Any) -> list[dict[str, Any]]:
        """Cells of a kind that were measured, and match."""
        return [line for line in self.asked(kind, **where) if not {"skipped", "failed"} & line.keys()]

    def asked(self, kind: str, **where: Any) -> list[dict[str, Any]]:
        """Cells of a kind that match, measured or not."""
        return [
            line
            for line in self.cells
            if line["cell"]["kind"] == kind and all(line["cell"][key] == each for key, each in where.items())
        ]

    def one(self, kind: str, **where: Any) -> dict[str, Any] | None:
        """The cell that matches, if it was measured."""
        return next(iter(self.of(kind, **where)), None)

    @property
    def device(self) -> str:
        """What it ran on, in words."""
        last = self.machines[-1]
        where = f"{last['threads']} CPU cores ({last['name']})" if last["device"] == "cpu" else last["name"]
        return f"{where}, torch {last['torch']}, Python {last['python']}"

    @property
    def engine(self) -> str:
        """The engine that the goals are about: what a user gets on this device, in float32."""
        return "graph" if self.machines[-1]["device"] == "cuda" else "auto"

    @property
    def commands(self) -> str:
        """The commands that made the lines, each once."""
        return "\n".join(f"    {each}" for each in dict.fromkeys(line["command"] for line in self.machines))


def variant(line: dict[str, Any], name: str) -> dict[str, Any] | None:
    """What a cell has of a variant that ran."""
    found: dict[str, Any] = line["variants"].get(name, {})
    return found if "ms" in found else None


def over(line: dict[str, Any] | None, name: str, base: str = "reference") -> float | None:
    """How much longer a variant takes than another of the same rounds."""
    found = None if line is None else variant(line, name)
    return None if found is None or base not in found["over"] else float(found["over"][base][0])


def label(cell: dict[str, Any]) -> str:
    """A cell in words."""
    return f"{cell['method']}, {cell['backbone']}, batch {cell['batch']}"


def ordered(names: Iterable[str]) -> list[str]:
    """Methods in the order of the tables."""
    wanted = set(names)
    return [name for name in METHODS if name in wanted]


def tabled(head: Row, rows: Iterable[Row]) -> str:
    """A table; empty where it has no rows."""
    found = list(rows)
    return table(head, found, narrow=True) if found else ""


def bars(gpu: Lines, cpu: Lines) -> str:
    """All goals, on both machines."""
    rows = [*_gpu(gpu), *_cpu(cpu), *_outputs(gpu), *_shared("H200", gpu), *_shared("two CPU cores", cpu)]
    return tabled(["where", "goal", "measured", ""], rows)


def judged(
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
            yield judged(where, goal, ratio and 1 / ratio, "{:.2f} times", least=times)
            ratio = over(line, lines.engine, "tent") if line else None
            goal = f"{place}: faster than eager TENT"
            yield judged(where, goal, ratio and 1 / ratio, "{:.2f} times", least=1)
    yield _worst(where, "every method no slower than its reference, anywhere", lines, 1.0)
    for method in ("tent", "eta", "sotta"):
        for backbone in ("smallcnn", "mobilenet_v1"):
            line = lines.one("step", backbone=backbone, batch=50, method=method)
            ratio = over(line, lines.engine) if line else None
            goal = f"`{method}`, {BACKBONES[backbone].title}, batch 50: at least 2 times as fast as eager"
            yield judged(where, goal, ratio and 1 / ratio, "{:.2f} times", least=2)


def _cpu(lines: Lines) -> Iterator[Row]:
    where = "two CPU cores"
    yield _worst(where, "every method at most 1.05 of its reference's time, anywhere", lines, 1.05)
    for backbone in PAPER:
        for method in AGAINST_DEC:
            line = lines.one("step", backbone=backbone, batch=50, method=method)
            goal = f"`{method}`, {BACKBONES[backbone].title}, batch 50: at most .95 of eager DEC's time"
            ratio = over(line, lines.engine) if line else None
            yield judged(where, goal, ratio, "{:.2f}", most=0.95)


def _worst(where: str, goal: str, lines: Lines, most: float) -> Row:
    """The slowest of all cells against its reference, and how many keep the goal."""
    found = [
        (ratio, label(line["cell"]))
        for line in lines.of("step")
        if (ratio := over(line, lines.engine)) is not None
    ]
    if not found:
        return judged(where, goal, None, "")
    kept = sum(ratio <= most for ratio, _ in found)
    ratio, place = max(found)
    text = f"{{:.2f}} at worst ({place}); {kept} of {len(found)} cells keep it"
    return judged(where, goal, ratio, text, most=most)


def _outputs(lines: Lines) -> Iterator[Row]:
    where = "H200"
    graph, half = (_worst_of(lines, name) for name in ("graph", "graph-bf16"))
    goal = "graph equals eager to 1e-4, float32"
    yield judged(where, goal, graph.get("apart"), "{:.1e} at most", most=1e-4)
    goal = "graph decides as eager does"
    yield judged(where, goal, graph.get("undecided"), "{:.2%} differ at most", most=0)
    goal = "bfloat16: ECE within .005 of eager's"
    text = f"{{:.4f}} at most (logits {half.get('apart', inf):.2g} apart)"
    yield judged(where, goal, half.get("ece_apart"), text, most=0.005)


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
        yield judged(where, goal, value, "{:+.1%}", most=0.15)
    grown = [line["held"][-1] - line["held"][0] for line in lines.of("stream")]
    grown += [each[-1] - each[0] for line in lines.of("stream") if (each := line["allocated"])]
    goal = "nothing grows with the stream, 1,000 to 100,000 images"
    yield judged(where, goal, max(grown, default=None), "{:,} bytes at most", most=0)
    shares: list[dict[str, Any]] = lines.of("metrics")
    worst = max((line["share"][0] for line in shares), default=None)
    goal = "five streaming metrics under 2 % of a SmallCNN step, batch 50"
    yield judged(where, goal, worst, "{:.1%} at worst", most=0.02)


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


def milliseconds(value: float) -> str:
    """A time in words: three digits, or whole milliseconds."""
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def times(ratio: float | None) -> str:
    """A ratio with two digits or, from 1 on, one after the point; a dash for None."""
    return "-" if ratio is None else told(ratio, 2 if ratio < 1 else 1)


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
        plain, official = (variant(line, base) for base in (PLAIN, "reference"))
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
    return tabled(["", "plain forward", "reference", *names, "images/s, reference → best"], rows)


def batches_table(lines: Lines, backbone: str) -> str:
    """Ours in milliseconds a step and as a ratio to the reference, by the size of batches."""
    sizes = sorted((*OTHERS, MAIN))
    rows = []
    for method in METHODS:
        cells = [lines.one("step", backbone=backbone, batch=size, method=method) for size in sizes]
        if any(cells):
            rows.append([f"`{method}`", *(_short(cell, lines.engine) for cell in cells)])
    return tabled([lines.engine, *(f"batch {size}" for size in sizes)], rows)


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
    return tabled([lines.engine, *(f"{count:,} classes" for count in counts)], rows)


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
    return tabled([*head, "of the GPU, after 100,000"][: max((len(row) for row in rows), default=0)], rows)


def passes_table(lines: Lines) -> str:
    """Forwards and backwards of a step, and the numbers that an adapter holds."""
    rows = []
    for line in lines.of("passes"):
        (forwards, backwards, samples), tempered = line["passes"]["none"], line["passes"]["median"]
        counts = [f"{count:g}" for count in (forwards, backwards, samples, tempered[0])]
        numbers = [f"{number:,}" for number in line["numbers"].values()]
        rows.append([f"`{line['cell']['method']}`", *counts, *numbers])
    head = ["", "forwards", "backwards", "samples forwarded", "forwards if tempered", "parameters held"]
    return tabled([*head, "learned", "buffers", "supports", "observations", "the paper's measure"], rows)


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
    return tabled(["", "step", "metrics", "share"], rows)


def swapped_table(lines: Lines) -> str:
    """Peaks of TENT and of the paper's DEC with its teacher here and there."""
    peaks = (lines.one("memory") or {"peaks": {}})["peaks"]
    rows = [[n, f"{p['peak'] / MIB:,.0f}", f"{p['held'] / MIB:,.0f}"] for n, p in peaks.items()]
    return tabled(["EfficientNet-B0, batch 50", "peak, MiB", "held after it, MiB"], rows)


def executions(lines: Lines) -> str:
    """What the adapters say that they ran as."""
    found: dict[str, set[str]] = {}
    for line in lines.of("step"):
        for name, each in line["variants"].items():
            if each.get("execution"):
                found.setdefault(f"{name}: {each['execution']}", set()).add(line["cell"]["method"])
    return tabled(
        ["engine and what it came to", "methods"], ([n, ", ".join(ordered(m))] for n, m in found.items())
    )


def left_out(lines: Lines) -> str:
    """What would have taken too long."""
    rows = [
        [f"{c['method']}, {BACKBONES[c['backbone']].title}, batch {c['batch']}", line["skipped"]]
        for line in lines.asked("step")
        if "skipped" in line and (c := line["cell"])
    ]
    return tabled(["not measured", "why"], rows)


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
    yield "Poise as it is deployed, in plain forwards", costs_table(lines)
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
        _joined(tabled(["", "", "reference", "ours"], memory_rows(lines)), swapped_table(lines)),
    )
    yield "What ran", _joined(executions(lines), left_out(lines))


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def costs_table(lines: Lines) -> str:
    """Poise as it is deployed: a plain forward in milliseconds, and the other forms in plain forwards."""
    rows = []
    for batch in (MAIN, 1):
        for name, backbone in BACKBONES.items():
            line = lines.one("deployed", backbone=name, batch=batch)
            if line is not None and (plain := variant(line, PLAIN)):
                forms = [over(line, form, PLAIN) for form in FORMS]
                rows.append(
                    [
                        f"{backbone.title}, {'batches of 50' if batch == MAIN else 'single images'}",
                        milliseconds(plain["ms"][0]),
                        *map(times, forms),
                    ]
                )
    return tabled(["", "`model(x)`", *FORMS.values()], rows)


def rivals_table(gpu: Lines, cpu: Lines) -> str:
    """Every method in plain forwards, batches of 50; poise as it is deployed."""
    places = [(gpu, "resnet50"), (gpu, "efficientnet_b0"), (cpu, "efficientnet_b0"), (cpu, "smallcnn")]
    rows = []
    for method in METHODS:
        ratios = [_in_forwards(lines, backbone, method) for lines, backbone in places]
        rows.append([f"`{method}`", *map(times, ratios)])
    where = {id(gpu): "H200", id(cpu): "two CPU cores"}
    return tabled(["", *(f"{BACKBONES[name].title}, {where[id(lines)]}" for lines, name in places)], rows)


def _in_forwards(lines: Lines, backbone: str, method: str) -> float | None:
    if method == "poise":
        return over(lines.one("deployed", backbone=backbone, batch=MAIN), DEFAULT, PLAIN)
    return over(lines.one("step", backbone=backbone, batch=MAIN, method=method), lines.engine, PLAIN)


@themed
def costs_figure(machines: Mapping[str, Lines]) -> Figure:
    """A panel for each machine and size of batch that was measured: the forms of poise in plain forwards."""
    found = [
        (f"{name}, {'batches of 50' if batch == MAIN else 'single images'}", lines, batch)
        for name, lines in machines.items()
        for batch in (MAIN, 1)
        if lines.of("deployed", batch=batch)
    ]
    figure, axes = panels(WIDTH, 2.5, columns=len(found))
    names = list(reversed(BACKBONES))
    for axis, (title, lines, batch) in zip(axes, found, strict=True):
        for form, (marker, colour) in MARKS.items():
            at = {
                height: ratio
                for height, name in enumerate(names)
                if (ratio := over(lines.one("deployed", backbone=name, batch=batch), form, PLAIN))
            }
            axis.plot([*at.values()], [*at], marker, color=colour.light, label=FORMS[form], markersize=6)
        axis.axvline(1, color=INK.light, linewidth=0.8)
        axis.set_xscale("log")
        axis.set_xlim(0.3, 32)
        axis.set_xticks([0.5, 1, 2, 4, 8, 16], ["½", "1", "2", "4", "8", "16"])
        axis.minorticks_off()
        axis.set_yticks(range(len(names)), [BACKBONES[name].title for name in names])
        axis.set_ylim(-0.5, len(names) - 0.5)
        axis.set_title(title, fontsize=9)
        if axis is not axes[0]:
            axis.tick_params(axis="y", labelleft=False)
    figure.supxlabel("times of a plain forward, log scale", fontsize=9, color=INK.light)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8.5)
    return figure


def parts(page: str) -> dict[str, str]:
    """The regions of a page."""
    gpu, cpu = (Lines(HERE / name) for name in (GPU, CPU))
    return PAGES[page](gpu, cpu)


def _answer(gpu: Lines, cpu: Lines) -> dict[str, str]:
    measured = {"gpu_costs": costs_table(gpu), "cpu_costs": costs_table(cpu) or "Not measured yet."}
    return {**measured, "methods": rivals_table(gpu, cpu)}


PAGES: Mapping[str, Callable[[Lines, Lines], dict[str, str]]] = {
    "performance.md": _answer,
    "tables/performance-goals.md": lambda gpu, cpu: {"bars": bars(gpu, cpu)},
    "tables/performance-h200.md": lambda gpu, _: {"gpu": "\n\n".join(sections(gpu))},
    "tables/performance-cpu.md": lambda _, cpu: {
        "cpu": "\n\n".join(sections(cpu)),
        "layouts": layouts_table(),
    },
}
"""What each page has in its regions."""


def main() -> None:
    """Write the pages and the picture, or print the tables of the file that is named."""
    if len(sys.argv) > 1:
        print("\n\n".join([LEGEND, *sections(Lines(Path(sys.argv[1])))]))
        return
    for page in PAGES:
        fill(page, parts(page))
    machines = {name: Lines(HERE / file) for name, file in (("H200", GPU), ("two CPU cores", CPU))}
    write(DOCS / "performance.svg", standalone(costs_figure(machines), "What a step of poise costs"))


if __name__ == "__main__":
    main()
