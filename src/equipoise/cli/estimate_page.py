"""The page of `equipoise estimate`: pictures and tables of all chunks in one file that needs nothing else."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from equipoise.calibration.rehearsal import Estimate
from equipoise.cli.estimate import (
    EstimatedChunk,
    EstimatedFile,
    chunk_count,
    files_of,
    remarks_of,
    table_of,
    unit_of,
)
from equipoise.research.report.style import (
    ACCENT,
    INK,
    MUTED,
    OVER,
    SERIES,
    Colour,
    panels,
    render,
    svg,
    themed,
)
from equipoise.research.report.table import html_frame, write_text
from equipoise.version import __version__

SCREEN, PHONE = (10.8, 3.6), (4.0, 3.4)
"""Inches of the large pictures on a screen, and on a phone."""
SMALL = (3.4, 2.2)
MOST_CLASSES = 12
"""More classes than these have no pictures of their own."""
MOST_UNFOLDED = 60
"""A table of more chunks than these is folded at first."""
_INCHES_A_SIGN = 0.085


class ChunkCurve(NamedTuple):
    """An estimate of each chunk as a picture shows it; None where there is none."""

    name: str
    colour: Colour
    values: Sequence[Estimate | None]


def write_page(found: EstimatedFile, limit: float | None, path: Path) -> None:
    """Write the page to a file that is whole or not there."""
    write_text(path, estimate_page(found, limit))


def estimate_page(found: EstimatedFile, limit: float | None) -> str:
    """The whole page."""
    heads, rows = table_of(found, limit)
    *remarks, limits = remarks_of(found, limit)
    return render(
        "estimate.html",
        title=f"equipoise: {found.stream[0]}",
        kind="estimate",
        headline=page_headline(found),
        files=files_of(found),
        remarks=remarks,
        limits=limits,
        unit=unit_of(found),
        use=found.use,
        unfolded=len(found.chunks) <= MOST_UNFOLDED,
        pictures=[_picture(found, limit, *size) for size in (SCREEN, PHONE)],
        others=[_others(found, *size) for size in (SCREEN, PHONE)],
        roc_auc=any(each.report.roc_auc for each in found.chunks),
        by_class=[_class_picture(found, place) for place in _hardest(found)],
        classes=len(found.classes),
        table=html_frame(pd.DataFrame(rows, columns=heads).set_index(heads[0]), "Chunks"),
        last=found.chunks[-1].chunk.name,
        last_table=html_frame(_class_table(found), "Classes in the last chunk"),
        facts=f"equipoise {__version__}, {chunk_count(found)}.",
    )


def page_headline(found: EstimatedFile) -> str:
    """One sentence: the estimate of the last chunk, and the accuracy in the reference."""
    accuracy = found.chunks[-1].report.accuracy
    return (
        f"In the last {unit_of(found)}, an estimated {_percent(accuracy.value)} of the answers are right "
        f"({_percent(accuracy.low)} to {_percent(accuracy.high)}), against {_percent(found.held_out)} in the "
        "reference."
    )


def _picture(found: EstimatedFile, limit: float | None, width: float, height: float) -> str:
    curve = ChunkCurve("estimated accuracy, 90\N{NO-BREAK SPACE}% interval", ACCENT, _each(found, "accuracy"))
    return svg(_accuracy_figure(found, curve, limit, width, height), page_headline(found))


@themed
def _accuracy_figure(
    found: EstimatedFile, curve: ChunkCurve, limit: float | None, width: float, height: float
) -> Figure:
    """The estimated accuracy over the chunks, the truth where labels came, and a stripe where drift is."""
    figure, (axes,) = panels(width, height)
    shown = _draw(axes, found, [curve], width)
    lines = [(found.held_out, MUTED, ":", "accuracy in the reference")]
    lines += [] if limit is None else [(limit, OVER, "--", f"limit, {limit}")]
    for value, colour, style, name in lines:
        shown[name] = axes.axhline(value, color=colour.light, linestyle=style, linewidth=1.2)
    true = [(_edges(each), each.truth) for each in found.chunks if each.truth]
    if true:
        middles = [(start + end) / 2 for (start, end), _ in true]
        at = [truth.accuracy for _, truth in true]
        ends = [[t.accuracy - t.low for _, t in true], [t.high - t.accuracy for _, t in true]]
        shown["right, by labels"] = axes.errorbar(
            middles, at, yerr=ends, fmt="o", color=INK.light, ecolor=MUTED.light, markersize=3, linewidth=0.8
        )
    heights = [found.held_out, *(end for _, each in true for end in (each.low, each.high))]
    heights += [end for each in curve.values if each is not None for end in (each.low, each.high)]
    heights += [] if limit is None else [limit]
    room = 0.08 * (max(heights) - min(heights)) + 0.005
    axes.set_ylim(min(heights) - room, max(heights) + room)
    if any(each.report.drift for each in found.chunks):
        shown["drift"] = _drift_stripe(axes, found)
    _legend(figure, shown, width)
    return figure


def _drift_stripe(axes: Axes, found: EstimatedFile) -> Any:
    """Draw a stripe at the foot of the picture below chunks with drift."""
    edges, places = _steps(found)
    heights = np.full(len(edges) - 1, np.nan)
    heights[[place for place, each in zip(places, found.chunks, strict=True) if each.report.drift]] = 0.035
    foot = axes.get_xaxis_transform()
    return axes.stairs(heights, edges, fill=True, color=OVER.light, linewidth=0, transform=foot)


def _others(found: EstimatedFile, width: float, height: float) -> str:
    curves = [ChunkCurve("macro F1", SERIES[1], _each(found, "macro_f1"))]
    if any(each.report.roc_auc for each in found.chunks):
        curves.append(ChunkCurve("ROC AUC", SERIES[3], _each(found, "roc_auc")))
    names = " and ".join(curve.name for curve in curves)
    return svg(_plain_figure(found, curves, width, height), f"Estimated {names} of each chunk")


def _class_picture(found: EstimatedFile, place: int) -> tuple[str, str]:
    """The name of a class, and its precision and recall."""
    chosen: list[tuple[str, Colour, Callable[[Any], Sequence[Estimate]]]] = [
        ("precision", SERIES[0], lambda report: report.precision),
        ("recall", SERIES[4], lambda report: report.recall),
    ]
    curves = [
        ChunkCurve(name, colour, [values(each.report)[place] for each in found.chunks])
        for name, colour, values in chosen
    ]
    name = found.classes[place]
    return name, svg(_plain_figure(found, curves, *SMALL), f"Estimated precision and recall of {name}")


@themed
def _plain_figure(found: EstimatedFile, curves: Sequence[ChunkCurve], width: float, height: float) -> Figure:
    figure, (axes,) = panels(width, height)
    _legend(figure, _draw(axes, found, curves, width), width)
    return figure


def _draw(axes: Axes, found: EstimatedFile, curves: Sequence[ChunkCurve], width: float) -> dict[str, Any]:
    """Draw each estimate as wide as its chunk; what the legend shows, by its name."""
    edges, places = _steps(found)
    shown: dict[str, Any] = {}
    for curve in curves:
        ends = np.full((3, len(edges) - 1), np.nan)
        for place, each in zip(places, curve.values, strict=True):
            if each is not None:
                ends[:, place] = each.low, each.value, each.high
        low, value, high = ends
        colour = curve.colour.light
        band = axes.stairs(high, edges, baseline=low, fill=True, color=colour, alpha=0.18, linewidth=0)
        shown[curve.name] = (band, axes.stairs(value, edges, baseline=None, color=colour, linewidth=2))
    axes.set_xlim(edges[0], edges[-1])
    axes.yaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    _name_places(axes, found, width)
    return shown


def _steps(found: EstimatedFile) -> tuple[list[float], list[int]]:
    """Ascending edges of steps, and the step of each chunk; a time without rows between chunks has one."""
    spans = [_edges(each) for each in found.chunks]
    edges, places = list(spans[0]), [0]
    for (_, before), (start, end) in pairwise(spans):
        edges += [start, end] if start > before else [end]
        places.append(len(edges) - 2)
    return edges, places


def _edges(each: EstimatedChunk) -> tuple[float, float]:
    """The ends of a chunk on the axis: rows, or days."""
    start, end = each.chunk.start, each.chunk.end
    if isinstance(start, int) or isinstance(end, int):
        return float(start) - 1, float(end)
    first, last = (np.datetime64(each, "s").astype(np.int64) / 86400 for each in (start, end))
    return float(first), float(last)


def _name_places(axes: Axes, found: EstimatedFile, width: float) -> None:
    """Name the axis: numbers of rows, or the starts of chunks, as many as have room."""
    if isinstance(found.by, int):
        axes.xaxis.set_major_locator(MaxNLocator(9 if width == SCREEN[0] else 3, integer=True))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("rows of the stream")
        return
    starts = [_edges(each)[0] for each in found.chunks]
    names = [each.chunk.name for each in found.chunks]
    room = _INCHES_A_SIGN * (len(names[0]) + 3) / width * (_edges(found.chunks[-1])[1] - starts[0])
    kept = [0]
    for place, start in enumerate(starts):
        if start - starts[kept[-1]] >= room:
            kept.append(place)
    axes.set_xticks([starts[place] for place in kept], [names[place] for place in kept])


def _legend(figure: Figure, shown: dict[str, Any], width: float) -> None:
    figure.legend(
        list(shown.values()), list(shown), loc="outside upper left", fontsize=8.5, handlelength=1.5,
        ncols=5 if width == SCREEN[0] else 2, columnspacing=1.2, labelcolor=MUTED.light,
    )  # fmt: skip


def _each(found: EstimatedFile, name: str) -> list[Estimate | None]:
    return [getattr(each.report, name) for each in found.chunks]


def _hardest(found: EstimatedFile) -> list[int]:
    """The classes with pictures: those with the lowest F1 in the last chunk, in the order of the classes."""
    f1 = [each.value for each in found.chunks[-1].report.f1]
    return sorted(np.argsort(f1, kind="stable")[:MOST_CLASSES].tolist())


def _class_table(found: EstimatedFile) -> pd.DataFrame:
    """A row for each class: its precision, recall and F1 in the last chunk."""
    report = found.chunks[-1].report
    columns = {"precision": report.precision, "recall": report.recall, "F1": report.f1}
    frame = pd.DataFrame({name: list(map(_written, each)) for name, each in columns.items()})
    return frame.set_index(pd.Index(found.classes))


def _written(each: Estimate) -> str:
    if np.isnan(each.value):
        return "\N{EN DASH}"
    return f"{each.value:.3f} ({each.low:.3f} to {each.high:.3f})"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", "\N{NO-BREAK SPACE}%")
