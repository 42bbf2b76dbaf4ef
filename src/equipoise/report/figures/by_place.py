"""Means with their deviations over the tiers as lines, or over the domains as rows of points."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from equipoise.report.drawing import Colour


class Series(NamedTuple):
    """Values and deviations at some places, in one colour and shape."""

    colour: Colour
    marker: str
    values: Mapping[str, tuple[float, float]]


def by_place_axes(axes: Axes, series: Mapping[str, Series], places: Sequence[str], kind: str, name: str) -> None:
    """Draw series; `kind` is "tier" for lines, "domain" for rows; `name` is that of the values."""
    for at, (label, one) in enumerate(series.items()):
        there = [place for place in places if place in one.values]
        at_places = np.array([places.index(place) for place in there], dtype=float)
        values = np.array([one.values[place][0] for place in there])
        bars = np.nan_to_num(np.array([one.values[place][1] for place in there]))
        style = {"color": one.colour.light, "label": label, "markersize": 4.5, "elinewidth": 0.8}
        if kind == "tier":
            axes.errorbar(at_places, values, bars, fmt=f"{one.marker}-", linewidth=1.2, **style)
        else:
            offset = 0.5 * (at / max(len(series) - 1, 1) - 0.5)
            axes.errorbar(values, at_places + offset, xerr=bars, fmt=one.marker, **style)
    if kind == "tier":
        axes.set(xticks=range(len(places)), xticklabels=places, xlabel="tier", ylabel=name)
        axes.set_ylim(bottom=0)
    else:
        shown = [place if len(place) <= 18 else f"{place[:17]}…" for place in places]
        axes.set(yticks=range(len(places)), yticklabels=shown, xlabel=name)
        axes.invert_yaxis()
        axes.set_xlim(left=0)
