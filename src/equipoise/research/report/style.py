"""The look of pages and figures: templates, and figures as files or as SVG that follows light and dark.

Figures are drawn in the light colours; in SVG each becomes a CSS variable of the page, so that one drawing is
right in both. `palette_css` defines the variables.
"""

import io
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise.files import whole_file


class Colour(NamedTuple):
    """A colour of the page: its CSS variable, and its value in light and in dark."""

    variable: str
    light: str
    dark: str


INK = Colour("--ink", "#1b1f24", "#e7ebef")
MUTED = Colour("--muted", "#5b6570", "#9eabb8")
GRID_LINES = Colour("--grid", "#dfe4e8", "#323a43")
PAPER = Colour("--paper", "#fefefe", "#12161a")
PANEL = Colour("--panel", "#f4f6f7", "#1a2026")
ACCENT = Colour("--accent", "#0b7285", "#4cc4d4")
OVER = Colour("--over", "#e8590c", "#ff9a4d")
"""More certain than right."""
UNDER = Colour("--under", "#1971c2", "#74b4f0")
"""Less certain than right."""

SERIES = (
    Colour("--series-orange", "#c2410c", "#ff8a3d"),
    Colour("--series-violet", "#7048e8", "#ab93ff"),
    Colour("--series-pink", "#c2255c", "#ff7fab"),
    Colour("--series-green", "#237a35", "#6fcf84"),
    Colour("--series-blue", "#1864ab", "#6cb3f5"),
    Colour("--series-brown", "#846204", "#d9b13d"),
    Colour("--series-grey", "#495057", "#b5bec7"),
    Colour("--series-lime", "#4d7c0f", "#a9d65a"),
)
METHODS = {
    **dict(zip(("source", "tent", "dec", "eta", "t3a", "sotta", "norm", "eata"), SERIES, strict=True)),
    "poise": ACCENT,
}
"""The colour of a method, the same in all figures."""

PALETTE = (INK, MUTED, GRID_LINES, PAPER, PANEL, ACCENT, OVER, UNDER, *SERIES)

themed = rc_context(
    {
        "axes.axisbelow": True,
        "axes.edgecolor": MUTED.light,
        "axes.grid": True,
        "axes.labelcolor": MUTED.light,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": INK.light,
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
        "font.size": 9.5,
        "grid.color": GRID_LINES.light,
        "grid.linewidth": 0.7,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "equipoise",
        "text.color": INK.light,
        "xtick.color": MUTED.light,
        "ytick.color": MUTED.light,
    }
)
"""Decorator of functions that draw: the look of all figures, without touching the caller's settings."""


def method_colour(method: str, place: int = 0) -> Colour:
    """The colour of a method; `place` picks one for a method that has none."""
    return METHODS.get(method, SERIES[place % len(SERIES)])


def panels(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure in inches, and its axes from left to right."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False).flat)


@themed
def svg(figure: Figure, description: str) -> str:
    """A figure as SVG for a page: as wide as its place, in the page's colours."""
    out = io.StringIO()
    figure.savefig(
        out, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
    )
    text = out.getvalue()
    text = text[text.index("<svg") :]
    for colour in PALETTE:
        text = text.replace(colour.light, f"var({colour.variable})")
    head, _, body = text.partition(">")
    view = head.partition('viewBox="')[2].partition('"')[0]
    width = float(view.split()[2])
    return (
        f'<svg class="drawn" role="img" aria-label="{escape(description)}" viewBox="{view}" '
        f'style="max-width: {width * 4 / 3:.0f}px" xmlns:xlink="http://www.w3.org/1999/xlink">{body}'
    )


@themed
def write_figures(figures: Mapping[str, Figure], folder: Path) -> None:
    """Write each figure as SVG and PDF, in the light colours, under its name."""
    for name, figure in figures.items():
        for kind in ("svg", "pdf"):
            with whole_file(folder / f"{name}.{kind}") as partial:
                figure.savefig(partial, format=kind)


def palette_css() -> str:
    """The CSS variables of all colours, for light and for dark."""
    light = "".join(f"{colour.variable}: {colour.light}; " for colour in PALETTE)
    dark = "".join(f"{colour.variable}: {colour.dark}; " for colour in PALETTE)
    return f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"


def render(template: str, **values: Any) -> str:
    """A template of `templates/` with these values; text is escaped unless the template says `safe`."""
    style = palette_css() + template_text("style.css")
    return _environment().get_template(template).render(style=style, **values)


def template_text(name: str) -> str:
    """A file of `templates/` as it is."""
    return files(__package__).joinpath(f"templates/{name}").read_text("utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
