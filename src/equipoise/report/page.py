"""Results as one HTML file that needs nothing else (no script, no network, light or dark), and as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from equipoise.bench.schema import CellResult, StreamSummary
from equipoise.report.drawing import svg
from equipoise.report.figures.ablation import ablated, ablation_figures
from equipoise.report.figures.certainty import certainty_figures
from equipoise.report.figures.reliability import reliability_figures
from equipoise.report.figures.streams import stream_figures, streams_of
from equipoise.report.findings import (
    best_of,
    cautions,
    certainty,
    findings,
    part_findings,
    source_of,
    tempering_counts,
)
from equipoise.report.formats import html_frame, html_table, markdown_table, markdown_text
from equipoise.report.pages import render
from equipoise.report.paper import counted, paper_name
from equipoise.report.part import Part, Place, parts
from equipoise.report.results import Results, Scope, Variant
from equipoise.report.table import Entry
from equipoise.report.tables import (
    average_tables, detail_tables, paper_tables, part_note, run_to_run_tables, setting_words, short, subject, test_tables,
)  # fmt: skip

PROTOCOLS = {
    "online": "online: the answers given while adapting count",
    "after-pass": "after a pass: the answers of a second pass, when adapting is done, count",
}
_COUNTED = {
    "data": "data set",
    "backbone": "network",
    "seed": "seed",
    "label": "method",
    "tempering": "tempering",
}


def report_page(results: Results, compare: str | None = None) -> str:
    """The whole page."""
    every, frame = parts(results), results.frame
    networks: dict[Scope, list[Part]] = {}
    for part in every:
        networks.setdefault(part.scope._replace(protocol=""), []).append(part)
    made = [f"{name} {', '.join(sorted(set(frame[name])))}" for name in ("equipoise", "torch", "device")]
    return render(
        "report.html",
        title="equipoise report",
        kind="report",
        counts=[
            counted(len(frame), "result"),
            *(counted(frame[key].nunique(), noun) for key, noun in _COUNTED.items()),
        ],
        cautions=cautions(results, every),
        findings=_findings(every),
        overview=html_frame(_overview(every), "Overview"),
        options=html_frame(_options(results), "Methods, batch sizes and options"),
        failures=_failures(results.failures),
        sections=[_section(several, results.streams, compare) for several in networks.values()],
        run_to_run=[html_table(table) for table in run_to_run_tables(every)],
        protocols=list(PROTOCOLS.values()),
        made=", ".join(made),
    )


def report_markdown(results: Results, compare: str | None = None) -> str:
    """Findings, all tables and failures as GitHub Markdown."""
    every = parts(results)
    blocks = ["# Results", counted(len(results.frame), "result") + ".", _bullets(cautions(results, every))]
    for each in _findings(every):
        blocks += [f"## Answers {each['words']}", _bullets(each["told"])]
    for part in every:
        blocks += [f"## {markdown_text(subject(part.scope))}", _bullets(part_findings(part))]
        for table in (*paper_tables(part), *average_tables(part), *test_tables(part, compare)):
            blocks += [f"### {markdown_text(table.title)}", markdown_table(table)]
        for table in detail_tables(part):
            title = markdown_text(table.title)
            blocks += [f"<details><summary>{title}</summary>", markdown_table(table), "</details>"]
    for table in run_to_run_tables(every):
        blocks += [f"### {markdown_text(table.title)}", markdown_table(table)]
    if results.failures:
        failed = (
            f"{_cell_words(line)}: {line['error'] or 'no error was written'}" for line in results.failures
        )
        blocks += ["## Failures", _bullets(list(failed))]
    return "\n\n".join(filter(None, blocks)) + "\n"


def figures_of(part: Part, streams: Sequence[StreamSummary]) -> dict[str, Mapping[str, Figure]]:
    """Every figure of a part: by its kind, then by its title."""
    return {
        "certainty": certainty_figures(part),
        "certainty by place": certainty_figures(part, by_place=True),
        "ablation": ablation_figures(part, streams),
        "streams": stream_figures(part, streams),
        "reliability": {str(variant): drawn for variant, (drawn, _) in reliability_figures(part).items()},
    }


def _section(
    several: Sequence[Part], streams: Sequence[StreamSummary], compare: str | None
) -> dict[str, Any]:
    """One network on one data set: each protocol by itself, then its streams."""
    scope = several[0].scope
    met = streams_of(several[0], streams)
    return {
        "title": f"{paper_name(scope.data)} with {paper_name(scope.backbone)}",
        "setting": setting_words(scope),
        "note": part_note(several[0]),
        "where": several[0].axis[0],
        "protocols": [_protocol(part, met, compare) for part in several],
        "streams": _drawn(stream_figures(several[0], met), "the source model on the streams"),
    }


def _protocol(part: Part, streams: Sequence[StreamSummary], compare: str | None) -> dict[str, Any]:
    averages = [html_table(table) for table in average_tables(part)]
    diagrams: dict[str, list[tuple[str, str, str]]] = {}
    for variant, (figure, words) in reliability_figures(part).items():
        drawing = svg(figure, f"reliability of {variant}: {words}")
        diagrams.setdefault(variant.name, []).append((short(variant.tempering), drawing, words))
    found = ablated(part)
    return {
        "words": PROTOCOLS[part.scope.protocol],
        "findings": part_findings(part),
        "certainty": _drawn(certainty_figures(part), "entropy against ECE,"),
        "by_place": _drawn(certainty_figures(part, by_place=True), "entropy against ECE,"),
        "incomplete": not all(map(part.whole, part.variants)),
        "paper": [html_table(table) for table in paper_tables(part)],
        "averages": averages[:2],
        "more_averages": averages[2:],
        "ablation": _drawn(ablation_figures(part, streams), "each tempering by"),
        "ablated": found[0] if found else "",
        "diagrams": diagrams,
        "tests": [html_table(table) for table in test_tables(part, compare)],
        "details": [html_table(table) for table in detail_tables(part)],
    }


def _drawn(figures: Mapping[str, Figure], about: str) -> list[str]:
    return [svg(figure, f"{about} {title}") for title, figure in figures.items()]


def _findings(every: Sequence[Part]) -> list[dict[str, Any]]:
    found = []
    for protocol, words in PROTOCOLS.items():
        if there := [part for part in every if part.scope.protocol == protocol]:
            counts = [html_table(table) for table in tempering_counts(there, protocol)]
            found.append({"words": words, "told": findings(there), "counts": counts})
    return found


def _overview(every: Sequence[Part]) -> pd.DataFrame:
    """A row for each network on each data set and protocol: no adaptation, and the best."""
    rows = {}
    for part in every:
        base, best = source_of(part), best_of(part)
        plain = part.at[Place(*base)].mean if base else {}
        sure = certainty(part, base) if base else None
        (ece, low), (accuracy, high) = (best.get(name, ("", None)) for name in ("ECE", "accuracy"))
        expected = len(part.variants) * part.runs["shift"].nunique() * len(part.seeds)
        rows[subject(part.scope)] = {
            ("No adaptation", "accuracy"): Entry(plain.get("accuracy")),
            ("No adaptation", "confidence"): Entry(sure[0] if sure else None),
            ("No adaptation", "ECE"): Entry(plain.get("ece")),
            ("Lowest ECE", "of all"): Entry(low, best=True),
            ("Lowest ECE", "by"): ece if len(ece) < 32 else f"{ece[:31]}…",
            ("Highest accuracy", "of all"): Entry(high, best=True),
            ("Highest accuracy", "by"): accuracy if len(accuracy) < 32 else f"{accuracy[:31]}…",
            ("Results", ""): f"{len(part.runs):,} of {expected:,}",
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _options(results: Results) -> pd.DataFrame:
    """The method, batch size and options of each name, and where."""
    where = results.frame["data"].map(paper_name) + ", " + results.frame["backbone"].map(paper_name)
    keys = ["name", "method", "batch_size", "options"]
    groups = (
        results.frame.assign(where=where)
        .groupby(keys, sort=False)["where"]
        .agg(lambda each: "; ".join(each.unique()))
    )
    return groups.reset_index().set_index("name")


def _failures(lines: Sequence[CellResult]) -> list[dict[str, Any]]:
    """Every error once, with the number of its cells, the first of them, and its traceback."""
    found: dict[str, list[CellResult]] = {}
    for line in lines:
        found.setdefault(line["error"] or "no error was written", []).append(line)
    return [
        {
            "cells": counted(len(several), "cell"),
            "error": error[:300],
            "where": _cell_words(several[0]),
            "trace": (several[0]["traceback"] or "no traceback was written")[-6000:],
        }
        for error, several in sorted(found.items(), key=lambda item: -len(item[1]))
    ]


def _cell_words(line: CellResult) -> str:
    cell = line["cell"]
    tier = f" tier {cell['tier']}" if cell["tier"] else ""
    variant = Variant(cell["label"], cell["tempering"])
    return f"{cell['data']}, {cell['backbone']}, {cell['target']}{tier}, seed {cell['seed']}, {variant}, {cell['protocol']}"


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {markdown_text(told)}" for told in sentences)
