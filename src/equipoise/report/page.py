"""Results as one HTML file that needs nothing else: no script, no network, light or dark."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from equipoise.bench.schema import CellResult, StreamSummary
from equipoise.report.drawing import svg
from equipoise.report.figures.ablation import ablated, ablation_figures
from equipoise.report.figures.certainty import certainty_by_place, certainty_figures
from equipoise.report.figures.reliability import pooled, reliability_figure
from equipoise.report.figures.streams import norms_figure, streams_of, tau_figure
from equipoise.report.findings import best_of, cautions, certainty, findings, part_findings, source_of, tempering_counts
from equipoise.report.formats import html_frame, html_table
from equipoise.report.names import PROTOCOL_WORDS, part_note, setting_words, short
from equipoise.report.pages import render
from equipoise.report.paper import counted, paper_name
from equipoise.report.paper_tables import paper_tables, run_to_run_tables
from equipoise.report.results import PROTOCOLS, Results, Variant
from equipoise.report.summary import Part, Place, parts
from equipoise.report.table import Entry
from equipoise.report.tables import average_tables, detail_tables, test_tables

Drawings = Mapping[str, Figure]
MOST_ERRORS = 20
"""The most different errors that are shown."""


def report_page(results: Results, compare: str | None = None) -> str:
    """The whole page."""
    every = parts(results)
    networks: dict[tuple[Any, str], list[Part]] = {}
    for part in every:
        networks.setdefault((part.scope.setting, part.scope.backbone), []).append(part)
    frame = results.frame
    return render(
        "report.html",
        title="equipoise report",
        kind="report",
        counts=[
            counted(len(frame), "result"),
            *(counted(frame[column].nunique(), noun) for column, noun in _COUNTED.items()),
        ],
        cautions=cautions(results, every),
        findings=[_protocol_findings(every, protocol) for protocol in PROTOCOLS if _of(every, protocol)],
        overview=html_frame(_overview(every), "Overview"),
        options=html_frame(_options(results), "Methods, batch sizes and options"),
        failures=_failures(results.failures),
        sections=[_section(at, several, results, compare) for at, several in enumerate(networks.values())],
        run_to_run=[html_table(table) for table in run_to_run_tables(every)],
        protocols=list(PROTOCOL_WORDS.values()),
        made=_made(frame),
    )


def figures_of(results: Results) -> dict[str, Figure]:
    """Every figure by a name for its file."""
    found: dict[str, Figure] = {}
    for part in parts(results):
        start = f"{part.scope.setting.data}-{part.scope.backbone}-{part.scope.protocol}-{setting_words(part.scope.setting)}"
        streams = streams_of(part, results.streams)
        groups: dict[str, Drawings] = {
            "certainty": certainty_figures(part),
            "certainty-by-place": _by_place(part),
            "streams": _stream_figures(part, streams),
            "ablation": ablation_figures(part, streams),
            "reliability": {str(variant): figure for variant, (figure, _) in _reliability(part).items()},
        }
        found |= {f"{start}-{kind}-{name}": drawn for kind, each in groups.items() for name, drawn in each.items()}
    return found


_COUNTED = {"data": "data set", "backbone": "network", "seed": "seed", "label": "method", "tempering": "tempering"}


def _section(at: int, several: Sequence[Part], results: Results, compare: str | None) -> dict[str, Any]:
    """One network on one data set: its streams, then each protocol by itself."""
    part = several[0]
    streams = streams_of(part, results.streams)
    return {
        "anchor": f"part-{at}",
        "title": f"{paper_name(part.scope.setting.data)} with {paper_name(part.scope.backbone)}",
        "setting": setting_words(part.scope.setting),
        "note": part_note(part),
        "where": part.axis[0],
        "streams": _panels(_stream_figures(part, streams), "the source model on the streams"),
        "protocols": [_protocol(each, streams, compare) for each in several],
    }


def _protocol(part: Part, streams: Sequence[StreamSummary], compare: str | None) -> dict[str, Any]:
    averages = [html_table(table) for table in average_tables(part)]
    found = ablated(part)
    return {
        "words": PROTOCOL_WORDS[part.scope.protocol],
        "findings": part_findings(part),
        "certainty": _panels(certainty_figures(part), "entropy against ECE, raw to"),
        "by_place": _panels(_by_place(part), "entropy against ECE"),
        "by_place_tempering": short(_shown_tempering(part)),
        "incomplete": not all(map(part.whole, part.variants)),
        "paper": [html_table(table) for table in paper_tables(part)],
        "averages": averages[:2],
        "more_averages": averages[2:],
        "ablation": _panels(ablation_figures(part, streams), f"temperings of {found[0]}" if found else ""),
        "ablated": found[0] if found else "",
        "reliability": _reliability_rows(part),
        "tests": [html_table(table) for table in test_tables(part, compare)],
        "details": [html_table(table) for table in detail_tables(part)],
    }


def _panels(figures: Drawings, about: str) -> list[str]:
    return [svg(figure, f"{about} {title}") for title, figure in figures.items()]


def _shown_tempering(part: Part) -> str:
    return next((kind for kind in part.temperings if kind != "none"), part.temperings[0])


def _by_place(part: Part) -> Drawings:
    return certainty_by_place(part, _shown_tempering(part)) if len(part.axis[1]) > 1 else {}


def _stream_figures(part: Part, streams: Sequence[StreamSummary]) -> Drawings:
    return {"norms": norms_figure(part, streams), "tau": tau_figure(part, streams)} if streams else {}


def _reliability(part: Part) -> dict[Variant, tuple[Figure, str]]:
    """A diagram for each method and tempering, with its numbers in a few words."""
    found = {}
    for variant in part.variants:
        runs = part.runs[(part.runs["name"] == variant.name) & (part.runs["tempering"] == variant.tempering)]
        if (sums := pooled(runs)) is not None:
            sure, right = sum(sums["confidence"]), sum(sums["correct"])
            ece = part.at[Place(*variant)].mean["ece"]
            found[variant] = reliability_figure(sums), f"ECE {ece:.3f}; {sure:.0%} sure, {right:.0%} right"
    return found


def _reliability_rows(part: Part) -> list[dict[str, Any]]:
    rows: dict[str, list[dict[str, str]]] = {}
    for variant, (figure, words) in _reliability(part).items():
        drawn = svg(figure, f"reliability of {variant}: {words}")
        rows.setdefault(variant.name, []).append({"title": short(variant.tempering), "drawing": drawn, "words": words})
    return [{"name": name, "diagrams": diagrams} for name, diagrams in rows.items()]


def _of(every: Iterable[Part], protocol: str) -> list[Part]:
    return [part for part in every if part.scope.protocol == protocol]


def _protocol_findings(every: Sequence[Part], protocol: str) -> dict[str, Any]:
    there = _of(every, protocol)
    counts = tempering_counts(there, protocol)
    return {
        "words": PROTOCOL_WORDS[protocol],
        "told": findings(there),
        "counts": html_table(counts) if counts else "",
    }


def _overview(every: Sequence[Part]) -> pd.DataFrame:
    """A row for each network on each data set and protocol: no adaptation, and the best."""
    rows = {}
    for part in every:
        scope, base = part.scope, source_of(part)
        name = f"{paper_name(scope.setting.data)}, {paper_name(scope.backbone)}, {scope.protocol} ({setting_words(scope.setting)})"
        plain = part.at[Place(*base)].mean if base else {}
        sure = certainty(part, base) if base else None
        best = best_of(part)
        who = {metric: best.get(metric, ("", None)) for metric in ("ECE", "accuracy")}
        expected = len(part.variants) * len(set(part.runs["shift"])) * len(part.seeds)
        rows[name] = {
            ("No adaptation", "accuracy"): Entry(plain.get("accuracy")),
            ("No adaptation", "confidence"): Entry(sure[0] if sure else None),
            ("No adaptation", "ECE"): Entry(plain.get("ece")),
            ("Lowest ECE", ""): Entry(who["ECE"][1]),
            ("Lowest ECE", "of"): _brief(who["ECE"][0]),
            ("Highest accuracy", ""): Entry(who["accuracy"][1]),
            ("Highest accuracy", "of"): _brief(who["accuracy"][0]),
            ("Results", ""): f"{len(part.runs):,} of {expected:,}",
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _brief(names: str) -> str:
    return names if len(names) <= 32 else f"{names[:31]}…"


def _options(results: Results) -> pd.DataFrame:
    """What each label stands for, and where."""
    columns = ["name", "method", "batch_size", "options"]
    where = results.frame["data"].map(paper_name) + ", " + results.frame["backbone"].map(paper_name)
    groups = results.frame.assign(where=where).groupby(columns, sort=False)["where"].unique().reset_index()
    groups["where"] = ["; ".join(several) for several in groups["where"]]
    groups["options"] = groups["options"].str.strip("{}").replace("", "defaults")
    return groups.set_index("name").rename(columns={"batch_size": "batch size"})


def _failures(lines: Sequence[CellResult]) -> list[dict[str, Any]]:
    """Every error once, with the number of its cells, the first of them, and its traceback."""
    found: dict[str, list[CellResult]] = {}
    for line in lines:
        found.setdefault(line["error"] or "no error was written", []).append(line)
    shown = sorted(found.items(), key=lambda item: -len(item[1]))[:MOST_ERRORS]
    return [
        {
            "cells": counted(len(several), "cell"),
            "error": error[:300],
            "where": cell_words(several[0]),
            "trace": (several[0]["traceback"] or "no traceback was written")[-6000:],
        }
        for error, several in shown
    ]


def cell_words(line: CellResult) -> str:
    """The experiment of a line, in one line."""
    cell = line["cell"]
    tier = "" if cell["tier"] is None else f", tier {cell['tier']}"
    return (
        f"{cell['data']}, {cell['backbone']}, {cell['target']}{tier}, seed {cell['seed']}, "
        f"{Variant(cell['label'], cell['tempering'])}, {cell['protocol']}"
    )


def _made(frame: pd.DataFrame) -> str:
    parts_of = [f"{name} {', '.join(sorted(set(frame[name])))}" for name in ("equipoise", "torch")]
    return f"Made by {' with '.join(parts_of)} on {', '.join(sorted(set(frame['device'])))}." if len(frame) else ""
