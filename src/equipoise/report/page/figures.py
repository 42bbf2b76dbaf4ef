"""The figures of a section with their captions: what to see, and what it is made from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from equipoise.bench.schema import RAW, Protocol
from equipoise.report.figures.ablation import ablation_figures
from equipoise.report.figures.norms import norms_figure
from equipoise.report.figures.reliability import bins_of, reliability_diagram
from equipoise.report.figures.scatter import Point, Track, scatter_diagram
from equipoise.report.figures.sections import Section, VariantResults, pooled
from equipoise.report.figures.svg import Shape, hue, nice_limit, shape
from equipoise.report.figures.taus import tau_figure
from equipoise.report.numbers.runs import TEMPERINGS, MethodVariant, Metric
from equipoise.report.page.captions import (
    ablation_caption,
    extent,
    reliability_caption,
    streams_caption,
)
from equipoise.report.page.words import SHORT, certainty_caption

DIAGRAMMED = (RAW, "mean", "median")
"""The temperings that have reliability diagrams, as far as they are there."""

MOST_PANELS = 3
"""How many temperings have a picture of certainty against calibration: as many as stand in a row."""


class Look(NamedTuple):
    """The colour and the shape of a method's points, the same on the whole page."""

    hue: str
    shape: Shape


Looks = Mapping[str, Look]


@dataclass(frozen=True)
class Panel:
    """One picture of a figure, with a few words above and below."""

    title: str
    drawing: str
    below: str = ""


def looks(sections: Iterable[Section]) -> dict[str, Look]:
    """The look of every label, in the order in which methods are shown."""
    labels = dict.fromkeys(label for section in sections for label in section.labels())
    return {label: Look(hue(place), shape(place)) for place, label in enumerate(labels)}


def figure(title: str, caption: str, panels: Sequence[Panel], kind: str) -> str:
    """A figure: its title, what to see in it, and its pictures side by side as far as there is room."""
    shown = "".join(
        f'<div class="panel"><p class="panel-title">{escape(panel.title)}</p>{panel.drawing}'
        + (f'<p class="note">{escape(panel.below)}</p>' if panel.below else "")
        + "</div>"
        for panel in panels
    )
    return (
        f'<figure class="figure"><figcaption><strong>{escape(title)}</strong> {escape(caption)}</figcaption>'
        f'<div class="panels {kind}">{shown}</div></figure>\n'
    )


def scatter_figures(section: Section, protocol: Protocol, look: Looks) -> str:
    """Entropy against ECE: on average for every tempering, and each domain or tier by itself."""
    groups = section.groups[protocol]
    there = dict.fromkeys(variant.tempering for variant in groups)
    kinds = [kind for kind in dict.fromkeys([*TEMPERINGS, *there]) if kind in there]
    divided = [kind for kind in kinds if kind != RAW][:MOST_PANELS] or kinds
    everything = frozenset[object]().union(*(group.places for group in groups.values()))
    incomplete = any(group.places != everything for group in groups.values())
    average = {kind: _tracks(section, protocol, kind, look, None) for kind in divided}
    panels = _scatter_panels({SHORT.get(kind, kind): tracks for kind, tracks in average.items()})
    caption = (
        "Hollow: raw; filled: the same answers divided by what is said above the picture. Further left is "
        "more certain, further up worse calibrated: over-certain methods are at the top left. "
        f"Averages over {extent(section)}; the same axes in all."
    )
    if incomplete:
        caption += " Methods marked * lack some shifts or seeds."
    if not panels:
        return ""
    drawn = figure("Certainty against calibration (the paper's figure 1)", caption, panels, "few")
    if len(section.places) < 2:
        return drawn
    kind = divided[0]
    where = "tier" if section.tiers else "domain"
    by_place = {
        f"tier {place}" if section.tiers else place: _tracks(section, protocol, kind, look, place)
        for place in section.places
    }
    caption = f"From raw to divided by the {SHORT.get(kind, kind)}, one picture for each {where}."
    each = figure(f"The same by {where}", caption, _scatter_panels(by_place), "few")
    return f"{drawn}<details><summary>Certainty against calibration by {where}</summary>{each}</details>\n"


def ablation_figure(section: Section, protocol: Protocol) -> str:
    """The certainty regulariser against a fixed temperature; empty if there is nothing to compare."""
    drawings = ablation_figures(section, protocol)
    if not drawings:
        return ""
    where = "tier" if section.tiers else "domain"
    titles = (f"ECE by {where}", f"NLL by {where}", f"τ by {where}")
    panels = [Panel(title, drawing) for title, drawing in zip(titles, drawings, strict=False)]
    title = "Is an adaptive τ better than a fixed one? (the paper's figure 3)"
    return figure(title, ablation_caption(section, protocol), panels, "few")


def reliability_figure(section: Section, protocol: Protocol, look: Looks) -> str:
    """Every method raw and divided: is it right as often as it says?"""
    groups = section.groups[protocol]
    parts = []
    for label in section.labels(protocol):
        shown = [
            groups[MethodVariant(label, kind)] for kind in DIAGRAMMED if MethodVariant(label, kind) in groups
        ]
        shown = shown or [group for group in groups.values() if group.label == label][:1]
        halves = "".join(_diagram(group) for group in shown if group.bins)
        if halves:
            mark = f'<span class="dot {look[label].hue} {look[label].shape}"></span>'
            parts.append(
                f'<div class="method"><p>{mark}{escape(label)}</p><div class="trio">{halves}</div></div>'
            )
    if not parts:
        return ""
    return (
        '<figure class="figure"><figcaption><strong>Right as often as it says?</strong> '
        f'{reliability_caption(section)}</figcaption><div class="methods">{"".join(parts)}</div></figure>\n'
    )


def streams_figures(section: Section) -> str:
    """What the source model makes of the streams: norms of logits, and tau; empty without streams."""
    norms, taus = norms_figure(section, "Norms of the logits"), tau_figure(section, "τ")
    where = "tier" if section.tiers else "domain"
    panels = [
        Panel(title, drawing)
        for title, drawing in ((f"Logit norms by {where}", norms), (f"τ by {where}", taus))
        if drawing
    ]
    if not panels:
        return ""
    title = "What the source model makes of it (the paper's figure 2)"
    return figure(title, streams_caption(section), panels, "pair")


def _tracks(section: Section, protocol: Protocol, kind: str, look: Looks, place: str | None) -> list[Track]:
    groups = section.groups[protocol]
    everything = frozenset[object]().union(*(group.places for group in groups.values()))
    tracks = []
    for label in section.labels(protocol):
        raw = groups.get(MethodVariant(label, RAW))
        divided = groups.get(MethodVariant(label, kind)) if kind != RAW else None
        whole = all(group.places == everything for group in (raw, divided) if group is not None)
        track = Track(
            label if whole else f"{label}*",
            look[label].hue,
            _point(section, raw, place),
            _point(section, divided, place),
            look[label].shape,
        )
        if track.drawn:
            tracks.append(track)
    return tracks


def _point(section: Section, group: VariantResults | None, place: str | None) -> Point | None:
    """Entropy and ECE on average, over all shifts or those of one tier or domain."""
    if group is None:
        return None
    where = {(shift, seed) for shift, seed in group.places if place is None or section.place(shift) == place}
    if not where:
        return None
    metrics: tuple[Metric, Metric] = ("entropy", "ece")
    entropy, ece = (list(group.values(metric, where).values()) for metric in metrics)
    return sum(entropy) / len(entropy), sum(ece) / len(ece)


def _scatter_panels(tracks: Mapping[str, Sequence[Track]]) -> list[Panel]:
    """Pictures with the same axes, those of the largest values."""
    points = [
        point
        for several in tracks.values()
        for track in several
        for point in (track.raw, track.tempered)
        if point
    ]
    if not points:
        return []
    limits = nice_limit(max(point[0] for point in points)), nice_limit(max(point[1] for point in points))
    return [
        Panel(title, scatter_diagram(several, title, "entropy (bits)", "ECE", limits))
        for title, several in tracks.items()
    ]


def _diagram(group: VariantResults) -> str:
    words = SHORT.get(group.variant.tempering, group.variant.tempering)
    drawing = reliability_diagram(
        bins_of(pooled(group.bins)), f"{group.label}, {words}", side=92, named=False
    )
    told = f"<b>{escape(words)}</b> ECE {group.mean('ece'):.3f}<br>{escape(certainty_caption(group))}"
    return f'<div>{drawing}<p class="note">{told}</p></div>'
