"""The paper's figure 3: adaptive temperatures against one temperature fitted on the source."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from equipoise.bench.schema import StreamSummary
from equipoise.report.drawing import ACCENT, INK, SERIES, Colour, panels, themed
from equipoise.report.figures.by_place import Series, by_place_axes
from equipoise.report.figures.streams import by_place, tau_median
from equipoise.report.names import short
from equipoise.report.paper import paper_variants
from equipoise.report.summary import Part, Place

LOOKS: dict[str, tuple[Colour, str]] = {
    "mean": (SERIES[0], "o"),
    "median": (SERIES[1], "D"),
    "sample": (SERIES[3], "^"),
    "agreement": (SERIES[4], "v"),
    "rehearsed": (ACCENT, "P"),
    "fixed": (INK, "s"),
}


def ablated(part: Part) -> tuple[str, list[str]] | None:
    """The method whose temperings are compared, the paper's DEC or no adaptation, with its temperings.

    None unless one of them is the fixed temperature: without it there is nothing to compare with.
    """
    dec = paper_variants(part.runs)[0].get("DEC")
    sources = [name for name in part.names if part.methods[name] == "source"]
    for name in [*([dec.name] if dec else []), *sources]:
        kinds = [kind for kind in part.temperings if kind != "none" and Place(name, kind) in part.at]
        if "fixed" in kinds and len(kinds) > 1:
            return name, kinds
    return None


@themed
def ablation_figures(part: Part, streams: Sequence[StreamSummary]) -> dict[str, Figure]:
    """ECE, NLL and tau, each over the tiers or the domains; empty if there is nothing to compare."""
    found = ablated(part)
    if found is None:
        return {}
    name, kinds = found
    kind, places = part.axis
    drawn = {}
    over = "domains" if kind == "tier" else "seeds"
    values: dict[str, dict[str, dict[str, tuple[float, float]]]] = {
        title: {
            tempering: {
                place: (summary.mean[metric], summary.std["domains" if over == "domains" else "seeds"][metric])
                for place in places
                if (summary := part.at.get(Place(name, tempering, kind, place)))
            }
            for tempering in kinds
        }
        for metric, title in (("ece", "ECE"), ("nll", "NLL, nats"))
    }
    if streams:
        taus = {
            "mean": by_place(part, streams, lambda stream: stream["tau_mean"]),
            "median": by_place(part, streams, tau_median),
            "fixed": by_place(part, streams, lambda stream: stream["fixed_tau"]),
        }
        values["temperature τ"] = {each: taus[each] for each in kinds if each in taus}
    for title, by_tempering in values.items():
        height = 3.0 if kind == "tier" else 0.42 * len(places) + 1.4
        figure, (axes,) = panels(3.6, height)
        series = {
            short(each): Series(*LOOKS.get(each, (SERIES[7], "X")), points) for each, points in by_tempering.items()
        }
        by_place_axes(axes, series, places, kind, title)
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)
        drawn[title] = figure
    return drawn
