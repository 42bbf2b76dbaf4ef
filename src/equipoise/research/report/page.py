"""Results as one HTML file that needs nothing else (no script, no network), and as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from equipoise.research.experiment.schema import CellResult, StreamSummary
from equipoise.research.report import findings as found
from equipoise.research.report import tables
from equipoise.research.report.drawing import render, svg
from equipoise.research.report.figures import (
    ablation_figures,
    certainty_figures,
    error_figures,
    reliability_figures,
    stream_figures,
    streams_of,
)
from equipoise.research.report.paper import counted, paper_name
from equipoise.research.report.part import Part, Place, parts
from equipoise.research.report.results import Results, Variant, grouped
from equipoise.research.report.story import over_time_figures
from equipoise.research.report.table import (
    Entry,
    Table,
    html_frame,
    html_table,
    markdown_table,
    markdown_text,
    shortened,
)

PROTOCOLS = {
    "online": "online: the answers given while adapting count",
    "after-pass": "after a pass: the answers of a second pass, when adapting is done, count",
}
_COUNTED = {"data": "data set", "backbone": "network", "seed": "seed", "label": "method"}


def report_page(results: Results, compare: str | None = None) -> str:
    """The whole page."""
    every, frame = parts(results), results.frame
    by_protocol = grouped(every, lambda part: part.scope.protocol)
    return render(
        "report.html",
        title="equipoise report",
        kind="report",
        counts=[counted(frame[key].nunique(), noun) for key, noun in _COUNTED.items()],
        results=results,
        every=every,
        networks=grouped(every, lambda part: part.scope._replace(protocol="")),
        protocols=PROTOCOLS,
        there={each: by_protocol[each] for each in PROTOCOLS if each in by_protocol},
        overview=html_frame(_overview(every), "Overview"),
        options=html_frame(_options(results), "Methods, batch sizes and options"),
        failures=failures(results.failures),
        made=[f"{key} {', '.join(sorted(set(frame[key])))}" for key in ("equipoise", "torch", "device")],
        found=found,
        tables=tables,
        stream_tables=tables.stream_tables(every),
        tests=lambda part: tables.comparison_tables(part, compare),
        html_table=html_table,
        figures=lambda part: figures_of(part, streams_of(part, results.streams)),
        svg=svg,
        paper_name=paper_name,
    )


def all_tables(every: Sequence[Part], compare: str | None = None) -> Iterator[Table]:
    """Every table: part by part the paper's and ours, then the streams and the run-to-run variances."""
    for part in every:
        yield from _part_tables(part, compare)
    yield from tables.stream_tables(every)
    yield from tables.run_to_run_tables(every)


def _part_tables(part: Part, compare: str | None) -> Iterator[Table]:
    yield from tables.paper_tables(part)
    yield from tables.average_tables(part)
    yield from tables.comparison_tables(part, compare)
    yield from tables.estimate_tables(part)
    yield from tables.detail_tables(part)


def report_markdown(results: Results, compare: str | None = None) -> str:
    """Findings, all tables and failures as GitHub Markdown."""
    every = parts(results)
    blocks = ["# Results", _bullets([*found.cautions(results, every), *failures(results.failures)])]
    for protocol, words in PROTOCOLS.items():
        several = [part for part in every if part.scope.protocol == protocol]
        blocks += [f"## Answers {words}", _bullets(found.overall_findings(several))] if several else []
    for table in tables.stream_tables(every):
        blocks += [f"## {markdown_text(table.title)}", markdown_table(table)]
    for part in every:
        blocks += [f"## {markdown_text(tables.subject(part.scope))}", _bullets(found.part_findings(part))]
        for table in (*_part_tables(part, compare), *tables.run_to_run_tables([part])):
            blocks += [f"### {markdown_text(table.title)}", markdown_table(table)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def figures_of(part: Part, streams: Sequence[StreamSummary]) -> dict[str, Mapping[Any, Figure]]:
    """Every figure of a part: by its kind, then by its title."""
    return {
        "error over time": error_figures(part),
        "over time": over_time_figures(part.runs),
        "certainty": certainty_figures(part),
        "certainty by place": certainty_figures(part, by_place=True),
        "ablation": ablation_figures(part, streams),
        "reliability": reliability_figures(part),
        "streams": stream_figures(part, streams),
    }


def failures(lines: Sequence[CellResult]) -> dict[str, str]:
    """The cells that failed: every error once, with its cells and the first of them, and its traceback."""
    told = {}
    for error, several in grouped(lines, lambda line: line["error"] or "no error was written").items():
        cell = several[0]["cell"]
        variant = Variant(cell["label"], cell["tempering"])
        where = ", ".join((cell["data"], cell["backbone"], cell["target"], cell["protocol"]))
        start = f"{counted(len(several), 'cell')} failed, the first is {variant} on {where}"
        told[f"{start}, seed {cell['seed']}: {error[:300]}"] = (several[0]["traceback"] or "")[-6000:]
    return told


def _overview(every: Sequence[Part]) -> pd.DataFrame:
    """A row for each network on each data set and protocol: no adaptation, and the best."""
    rows = {}
    for part in every:
        base, best = found.source_of(part), found.best_of(part)
        plain = part.at[Place(*base)].mean if base else {}
        sure = found.sureness(part, base) if base else None
        (ece, low), (accuracy, high) = (best.get(name, ("", None)) for name in ("ECE", "accuracy"))
        expected = len(part.variants) * part.runs["shift"].nunique() * len(part.seeds)
        rows[tables.subject(part.scope)] = {
            ("No adaptation", "accuracy"): Entry(plain.get("accuracy")),
            ("No adaptation", "confidence"): Entry(sure[0] if sure else None),
            ("No adaptation", "ECE"): Entry(plain.get("ece")),
            ("Lowest ECE", "of all"): Entry(low, best=True),
            ("Lowest ECE", "by"): shortened(ece, 32),
            ("Highest accuracy", "of all"): Entry(high, best=True),
            ("Highest accuracy", "by"): shortened(accuracy, 32),
            ("Results", ""): f"{len(part.runs):,} of {expected:,}",
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _options(results: Results) -> pd.DataFrame:
    """The method, batch size and options of each name, and where."""
    where = results.frame["data"].map(paper_name) + ", " + results.frame["backbone"].map(paper_name)
    keys = ["name", "method", "batch_size", "options"]
    groups = results.frame.assign(where=where).groupby(keys, sort=False)["where"]
    return groups.agg(lambda each: "; ".join(each.unique())).reset_index().set_index("name")


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {markdown_text(told)}" for told in sentences)
