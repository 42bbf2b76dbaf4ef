"""Results as one HTML file that needs nothing else (no script, no network), and as Markdown.

Both begin with findings: a short list of sentences, each decided by comparing the numbers that it quotes, as
written. A case is one method on one data set with one network. Two methods are compared on the shifts and
seeds that both have, so that a run that is not complete compares like with like.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from equipoise.research.experiment.schema import CellResult, StreamSummary
from equipoise.research.report import figures, tables
from equipoise.research.report.paper import counted, experiments, paper_name
from equipoise.research.report.part import Part, Place, parts, pooled
from equipoise.research.report.results import BETTER, Results, Variant, grouped
from equipoise.research.report.story import over_time_figures
from equipoise.research.report.style import render, svg
from equipoise.research.report.table import (
    Entry,
    Table,
    html_frame,
    html_table,
    listed,
    markdown_table,
    markdown_text,
    shortened,
)

PROTOCOLS = {
    "online": "online: the answers given while adapting count",
    "after-pass": "after a pass: the answers of a second pass, when adapting is done, count",
}
DECIMALS = 3
"""The decimals that decide; numbers that a reader sees as equal are called equal."""
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
        every=every,
        networks=grouped(every, lambda part: part.scope._replace(protocol="")),
        protocols=PROTOCOLS,
        there={each: by_protocol[each] for each in PROTOCOLS if each in by_protocol},
        overview=html_frame(_overview(every), "Overview"),
        options=html_frame(_options(results), "Methods, batch sizes and options"),
        failures=failures(results.failures),
        made=[f"{key} {', '.join(sorted(set(frame[key])))}" for key in ("equipoise", "torch", "device")],
        cautions=cautions(results, every),
        overall_findings=overall_findings,
        tempering_counts=tempering_counts,
        part_findings=part_findings,
        tables=tables,
        stream_tables=tables.stream_tables(every),
        tests=lambda part: tables.comparison_tables(part, compare),
        html_table=html_table,
        figures=lambda part: figures_of(part, figures.streams_of(part, results.streams)),
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
    blocks = ["# Results", _bullets([*cautions(results, every), *failures(results.failures)])]
    for protocol, words in PROTOCOLS.items():
        several = [part for part in every if part.scope.protocol == protocol]
        blocks += [f"## Answers {words}", _bullets(overall_findings(several))] if several else []
    for table in tables.stream_tables(every):
        blocks += [f"## {markdown_text(table.title)}", markdown_table(table)]
    for part in every:
        blocks += [f"## {markdown_text(tables.subject(part.scope))}", _bullets(part_findings(part))]
        for table in (*_part_tables(part, compare), *tables.run_to_run_tables([part])):
            blocks += [f"### {markdown_text(table.title)}", markdown_table(table)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def figures_of(part: Part, streams: Sequence[StreamSummary]) -> dict[str, Mapping[Any, Figure]]:
    """Every figure of a part: by its kind, then by its title."""
    return {
        "error over time": figures.error_figures(part),
        "over time": over_time_figures(part.runs),
        "certainty": figures.certainty_figures(part),
        "certainty by place": figures.certainty_figures(part, by_place=True),
        "ablation": figures.ablation_figures(part, streams),
        "reliability": figures.reliability_figures(part),
        "streams": figures.stream_figures(part, streams),
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


def direction(part: Part, first: Variant, second: Variant, metric: str) -> int | None:
    """-1 if the first is lower, 1 if higher, 0 if they are written alike; None if they share no run."""
    one, other = part.at.get(Place(*first)), part.at.get(Place(*second))
    if one is None or other is None or not one.coverage & other.coverage:
        return None
    means = [one.mean[metric], other.mean[metric]]
    if one.coverage != other.coverage:
        both = part.of(first).merge(part.of(second), on=["shift", "seed"])
        means = both.groupby("shift")[[f"{metric}_x", f"{metric}_y"]].mean().mean().tolist()
    mine, theirs = (round(mean, DECIMALS) for mean in means)
    return (mine > theirs) - (mine < theirs)


def overall_findings(parts: Sequence[Part]) -> list[str]:
    """The findings of several parts of one protocol together: over-certainty, and DEC as in the paper."""
    cases = [(part, each, base) for part in parts if (base := source_of(part)) for each in _adapting(part)]
    told = []
    if cases:
        surer = sum(direction(*case, "entropy") == -1 for case in cases)
        told.append(
            "Before any tempering, adapting makes the answers more certain than no adaptation in "
            f"{surer} of {counted(len(cases), 'case')}; in {sum(map(_is_over_certain, cases))} also worse "
            "calibrated by ECE."
        )
    wins = [
        f"by {tables.NAMES[metric]} in {_dec_wins(parts, metric)}" for metric in ("ece", "nll", "accuracy")
    ]
    if any("DEC" in part.papers for part in parts):
        told.append(
            "Each network on each data set counted once, DEC as in the paper, divided by the mean of τ, is "
            f"better than every other method raw {listed(wins)}."
        )
    return told


def part_findings(part: Part) -> list[str]:
    """The findings of one part: no adaptation, the methods that are over-certain, and the best."""
    told, base = [], source_of(part)
    if base is not None and (claim := sureness(part, base)):
        worse = [each.name for each in _adapting(part) if _is_over_certain((part, each, base))]
        told = [
            f"Without adaptation, {claim[1]:.1%} of answers are right, at a confidence of {claim[0]:.1%}.",
            f"Raw, more certain and worse calibrated than that: {listed(worse) if worse else 'none'} "
            f"({len(worse)} of {counted(len(_adapting(part)), 'method')}).",
        ]
    best = [f"{metric} {value:.3f}, {who}" for metric, (who, value) in best_of(part).items()]
    return [*told, f"Best: {'; '.join(best)}."] if best else told


def best_of(part: Part) -> dict[str, tuple[str, float]]:
    """The best by ECE, NLL and accuracy, of the methods and temperings that have every shift and seed."""
    whole, found = [variant for variant in part.variants if part.whole(variant)], {}
    for metric in ("ece", "nll", "accuracy") if len(whole) > 1 else ():
        values = {each: round(part.at[Place(*each)].mean[metric], DECIMALS) for each in whole}
        best = max(values.values(), key=lambda value: BETTER[metric] * value)
        winners = [each for each, value in values.items() if value == best]
        # Dividing the logits leaves the accuracy as it was: a method is named once.
        names = dict.fromkeys(each.name if metric == "accuracy" else str(each) for each in winners)
        found[tables.NAMES[metric]] = (listed(names), best)
    return found


def sureness(part: Part, variant: Variant) -> tuple[float, float] | None:
    """Confidence and accuracy on average."""
    sums = pooled(part.of(variant))
    return None if sums is None else (sum(sums["confidence"]), sum(sums["correct"]))


def source_of(part: Part) -> Variant | None:
    """The raw answers without adaptation."""
    return next((each for each in _raw(part) if part.methods[each.name] == "source"), None)


def tempering_counts(parts: Sequence[Part], protocol: str) -> list[Table]:
    """Each tempering against raw, and some against others: the cases in which ECE and NLL move which way."""
    kinds = dict.fromkeys(kind for part in parts for kind in part.temperings if kind != "none")
    pairs = [*((kind, "none") for kind in kinds), ("median", "mean"), ("mean", "fixed"), ("median", "fixed")]
    rows: dict[str, list[Entry]] = {}
    for kind, other in pairs:
        ways = [(part, Variant(name, kind), Variant(name, other)) for part in parts for name in part.names]
        moves = {metric: [direction(*way, metric) for way in ways] for metric in ("ece", "nll")}
        numbers = [moves[metric].count(to) for metric in moves for to in (-1, 1)]
        cases = len(ways) - moves["ece"].count(None)
        if cases:
            entries = [Entry(number, spec=".0f") for number in (cases, *numbers)]
            rows[f"{tables.short(kind)} instead of {tables.short(other)}"] = entries
    heads = [("Cases", ""), ("ECE", "lower"), ("ECE", "higher"), ("NLL", "lower"), ("NLL", "higher")]
    columns = {head: [row[at] for row in rows.values()] for at, head in enumerate(heads)}
    title = f"What dividing the logits changes, counted over cases, {protocol}"
    return [Table(title, columns, list(rows))] if rows else []


def cautions(results: Results, parts: Sequence[Part]) -> list[str]:
    """Warnings about the results as a whole: missing, failed and left-aside cells."""
    single = sum(len(part.seeds) == 1 for part in parts)
    failed, damaged = len(results.failures), results.damaged
    files = int(results.frame["left_out"].max() if len(results.frame) else 0)
    old = int((results.frame["code"] == "").sum())
    told = {
        **{trial: 1 for trial in map(_trial, parts) if trial},
        f"Of a single seed: {single} of {len(parts)} parts; another may differ by an unknown amount.": single,
        f"{counted(failed, 'cell')} failed; numbers that lack them are marked ‡.": failed,
        f"Left out: {counted(damaged, 'line')} that could not be read.": damaged,
        **{f"Left out: {counted(n, 'result')} {reason}.": n for reason, n in results.left_aside.items()},
        f"Up to {counted(files, 'image file')} of a stream and its training set could not be read.": files,
        f"Not known: the code that made {counted(old, 'result')}, written by an older equipoise.": old,
    }
    return [words for words, number in told.items() if number]


def _trial(part: Part) -> str:
    """Whether a data set of the paper was run otherwise or in part."""
    papers = experiments().get(part.scope.data)
    if papers is None:
        return ""
    differences = papers.differences(part.scope)
    lacks = papers.lacking(len(part.targets), len(part.tiers), part.seeds)
    told = "; ".join(filter(None, (*differences, lacks)))
    name = f"{paper_name(part.scope.data)} with {paper_name(part.scope.backbone)}"
    return f"{name} is {'a trial' if differences else 'not complete'}: {told}." if told else ""


def _raw(part: Part) -> list[Variant]:
    return [each for each in part.variants if each.tempering == "none"]


def _adapting(part: Part) -> list[Variant]:
    return [each for each in _raw(part) if part.methods[each.name] != "source"]


def _is_over_certain(case: tuple[Part, Variant, Variant]) -> bool:
    return direction(*case, "entropy") == -1 and direction(*case, "ece") == 1


def _dec_wins(parts: Sequence[Part], metric: str) -> str:
    wins = settings = 0
    for part in parts:
        if dec := part.papers.get("DEC"):
            others = [each for each in _raw(part) if part.methods[each.name] != "dec"]
            moves = {direction(part, dec, other, metric) for other in others} - {None}
            settings += bool(moves)
            wins += moves == {BETTER[metric]}
    return f"{wins} of {settings}"


def _overview(every: Sequence[Part]) -> pd.DataFrame:
    """A row for each network on each data set and protocol: no adaptation, and the best."""
    rows = {}
    for part in every:
        base, best = source_of(part), best_of(part)
        plain = part.at[Place(*base)].mean if base else {}
        sure = sureness(part, base) if base else None
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
