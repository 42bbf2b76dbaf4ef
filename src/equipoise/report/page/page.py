"""Results as one HTML file that needs nothing else: no script, no network, light or dark, on paper too.

The prose is in page.html; the looks are in page.css and in base.css, which all pages share.
"""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import NamedTuple

from equipoise.bench.schema import Protocol
from equipoise.report.figures.sections import Section, sections
from equipoise.report.numbers.paper import paper_name
from equipoise.report.numbers.results import RunResults, TableScope
from equipoise.report.page.figures import (
    Looks,
    ablation_figure,
    looks,
    reliability_figure,
    scatter_figures,
    streams_figures,
)
from equipoise.report.page.run import facts, failures, made, options, overview
from equipoise.report.page.style import style
from equipoise.report.page.tables import plain_table, table_html
from equipoise.report.page.words import cautions, findings, run_cautions, section_findings, tempering_counts
from equipoise.report.tables.own_tables import own_tables
from equipoise.report.tables.papers import paper_tables
from equipoise.report.tables.pivot import pivoted
from equipoise.report.tables.run_to_run import run_to_run_tables
from equipoise.report.tables.table import Table
from equipoise.report.tables.wording import PROTOCOL_WORDS, capital, setting_note, setting_words, table_key

_NOTHING = "<p>There is no result yet to say anything about.</p>"


class ContentsEntry(NamedTuple):
    """A heading in the table of contents; those of `level` 3 belong to the last one of level 2."""

    level: int
    anchor: str
    title: str


def report_page(results: RunResults) -> str:
    """The whole page."""
    parts = sections(results)
    by_data: dict[str, list[Section]] = {}
    for section in parts:
        by_data.setdefault(section.setting.data, []).append(section)
    contents, body, look = [], [], looks(parts)
    for at, (data, several) in enumerate(by_data.items()):
        anchor = f"data-{at}"
        contents.append(ContentsEntry(2, anchor, paper_name(data)))
        body.append(f'<section><h2 id="{anchor}">{escape(paper_name(data))}</h2>\n')
        for within, section in enumerate(several):
            title = _title(section, several)
            contents.append(ContentsEntry(3, f"{anchor}-{within}", title))
            body.append(_section(section, title, f"{anchor}-{within}", look))
        body.append(f"{_run_to_run(several, results)}</section>\n")
    template = Template(files("equipoise.report.page").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        style=style("equipoise.report.page"),
        contents=_contents(contents),
        facts=facts(results, parts),
        cautions=_list(run_cautions(results, parts), "care"),
        overview=overview(parts),
        options=options(parts),
        failures=failures(results),
        findings="".join(_findings(parts, protocol) for protocol in results.protocols()) or _NOTHING,
        protocols=escape(f"{capital('; '.join(PROTOCOL_WORDS.values()))}."),
        sections="".join(body),
        made=escape(made(results)),
    )


def _section(section: Section, title: str, anchor: str, look: Looks) -> str:
    """One network on one data set: the streams, then each protocol by itself."""
    notes = f"{setting_note(section.setting)} {cautions(section)}".strip()
    return (
        f'<section><h3 id="{anchor}">{escape(paper_name(section.setting.data))} with {escape(title)}</h3>\n'
        f'<p class="note">{escape(notes)}</p>\n'
        f"{'' if section.lines else '<p>There is no result yet.</p>'}{streams_figures(section)}"
        f"{''.join(_protocol(section, protocol, look) for protocol in section.lines)}</section>\n"
    )


def _protocol(section: Section, protocol: Protocol, look: Looks) -> str:
    """Everything under one protocol: sentences, figures, the paper's tables, ours."""
    alone, scope = (
        RunResults(lines=section.lines[protocol]),
        TableScope(section.setting, section.backbone, protocol),
    )
    together = _run_to_run_key(section, protocol)
    theirs = [table for table in paper_tables(alone, protocol) if table.key != together]
    ours = {table.key: table for table in own_tables(alone, protocol)}
    averages, tests = (
        [ours.pop(key)] if (key := table_key(scope, kind)) in ours else []
        for kind in ("average", "significance-dec")
    )
    return (
        f"<h4>{escape(capital(PROTOCOL_WORDS[protocol]))}</h4>\n"
        f"{_list(section_findings(section, protocol))}"
        f"{scatter_figures(section, protocol, look)}"
        f"{_tables(theirs)}{_tables([pivoted(table, list(section.groups[protocol])) for table in averages])}"
        f"{ablation_figure(section, protocol)}"
        f"{reliability_figure(section, protocol, look)}"
        f"{_folded('Paired tests', tests)}"
        f"{_folded('Every number: averages, then each domain and tier', [*averages, *ours.values()])}"
    )


def _run_to_run(several: Sequence[Section], results: RunResults) -> str:
    """The tables that are about all networks on a data set together."""
    settings = {section.setting for section in several}
    found = [
        table
        for protocol in results.protocols()
        for table in run_to_run_tables(
            {
                scope: found
                for scope, found in results.variant_scores.items()
                if scope.protocol == protocol and scope.setting in settings
            },
            protocol,
        )
    ]
    return _folded("How much the averages move from run to run", found)


def _run_to_run_key(section: Section, protocol: Protocol) -> str:
    return table_key(TableScope(section.setting, "", protocol), "paper-run-to-run")


def _title(section: Section, several: Sequence[Section]) -> str:
    """The network, and the setting where a data set has several."""
    name = paper_name(section.backbone)
    alone = len({other.setting for other in several}) == 1
    return name if alone else f"{name} ({setting_words(section.setting)})"


def _contents(entries: Sequence[ContentsEntry]) -> str:
    """Links to the data sets and, within each, to its networks."""
    parts, inner = [], False
    for entry in entries:
        link = f'<a href="#{entry.anchor}">{escape(entry.title)}</a>'
        if entry.level == 2:
            parts.append(f"{'</ul></li>' if inner else ''}<li>{link}<ul>")
            inner = True
        else:
            parts.append(f"<li>{link}</li>")
    return "".join(parts) + ("</ul></li>" if inner else "")


def _findings(parts: Sequence[Section], protocol: Protocol) -> str:
    told, counts = findings(parts, protocol), tempering_counts(parts, protocol)
    if not told:
        return ""
    heads = "compared", "cases", "ECE lower", "ECE higher", "NLL lower", "NLL higher"
    title = "What dividing the logits changes, counted over cases"
    table = plain_table(title, heads, counts, "counts") if counts else ""
    return f"<h3>{escape(capital(PROTOCOL_WORDS[protocol]))}</h3>\n{_list(told)}{table}"


def _tables(tables: Sequence[Table]) -> str:
    return "".join(table_html(table) for table in tables)


def _folded(title: str, tables: Sequence[Table]) -> str:
    return f"<details><summary>{escape(title)}</summary>{_tables(tables)}</details>\n" if tables else ""


def _list(sentences: Sequence[str], kind: str = "findings") -> str:
    if not sentences:
        return ""
    return f'<ul class="{kind}">' + "".join(f"<li>{escape(told)}</li>" for told in sentences) + "</ul>\n"
