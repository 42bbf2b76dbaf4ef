"""The paper's figure 3: adaptive temperatures against one temperature fitted on the source."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from equipoise.research.experiment.schema import StreamSummary
from equipoise.research.report.drawing import ACCENT, INK, SERIES, panels, themed
from equipoise.research.report.figures.streams import Points, by_place, place_axes, tau_median
from equipoise.research.report.paper import paper_variants
from equipoise.research.report.part import Part, Place, Spread
from equipoise.research.report.tables import short

LOOKS = {
    "mean": (SERIES[0], "o"), "median": (SERIES[1], "D"), "sample": (SERIES[3], "^"),
    "agreement": (SERIES[4], "v"), "rehearsed": (ACCENT, "P"), "fixed": (INK, "s"),
}  # fmt: skip


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
    over: Spread = "domains" if part.tiers else "seeds"
    values: dict[str, dict[str, Points]] = {}
    for metric, title in (("ece", "ECE"), ("nll", "NLL, nats")):
        there = {each: {p: part.at.get(Place(name, each, kind, p)) for p in places} for each in kinds}
        values[title] = {
            each: {p: (found.mean[metric], found.std[over][metric]) for p, found in points.items() if found}
            for each, points in there.items()
        }
    taus = {
        "mean": lambda each: each["tau_mean"],
        "median": tau_median,
        "fixed": lambda each: each["fixed_tau"],
    }
    if streams:
        values["temperature τ"] = {
            each: by_place(part, streams, taus[each]) for each in kinds if each in taus
        }
    drawn = {}
    for title, several in values.items():
        drawn[title], (axes,) = panels(3.6, 3.0 if part.tiers else 0.42 * len(places) + 1.4)
        looks = {
            short(each): (*LOOKS.get(each, (SERIES[7], "X")), points) for each, points in several.items()
        }
        place_axes(axes, part, title, looks)
        drawn[title].legend(loc="outside lower center", ncols=3, fontsize=8)
    return drawn
