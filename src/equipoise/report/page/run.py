"""What was run, as HTML: what there is, how complete it is, with which options, and what failed."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from equipoise.bench.schema import CellResult
from equipoise.report.figures.sections import Section
from equipoise.report.numbers.paper import counted, paper_name
from equipoise.report.numbers.results import RunResults
from equipoise.report.page.tables import plain_table
from equipoise.report.page.words import lacking
from equipoise.report.tables.wording import listed, setting_words

MOST_ERRORS = 20
"""How many different errors are shown."""
LONGEST_TRACEBACK = 6000
"""How many characters of a traceback are shown: its end, where the error is."""


class Progress(NamedTuple):
    """How many results there are of those that the ones there are make one expect."""

    done: int
    expected: int


def facts(results: RunResults, sections: Sequence[Section]) -> str:
    """The run in a few numbers."""
    there = [section for section in sections if section.everything]
    numbers = [
        (len(results.lines), "result"),
        (len(results.failures), "failed cell"),
        (len({section.setting.data for section in there}), "data set"),
        (len({section.backbone for section in there}), "network"),
        (len({seed for section in there for seed in section.seeds}), "seed"),
        (len({label for section in there for label in section.labels()}), "method"),
    ]
    items = [f"<div><dt>{_plural(number, noun)}</dt><dd>{number:,}</dd></div>" for number, noun in numbers]
    return f'<dl class="facts">{"".join(items)}</dl>'


def overview(sections: Sequence[Section]) -> str:
    """A row for each network on each data set."""
    heads = (
        "data set, network",
        "results",
        "domains",
        "seeds",
        "methods",
        "images in a stream",
        "setting",
        "t",
    )
    rows = [
        (
            f"{paper_name(section.setting.data)}, {paper_name(section.backbone)}",
            _progress_words(progress(section), lacking(section)),
            _domains(section),
            ", ".join(map(str, section.seeds)),
            str(len(section.labels())),
            _range(line["images"] for lines in section.lines.values() for line in lines),
            setting_words(section.setting),
            "; ".join(sorted({f"{line['t_min']:g} to {line['t_max']:g}" for line in section.streams})),
        )
        for section in sections
    ]
    return plain_table("What there are results of", heads, rows)


def progress(section: Section) -> Progress:
    """The number of results, and the number expected: every variant for all shifts and seeds."""
    done = sum(len(group.places) for group in section.everything)
    cells = [line["cell"] for line in section.failures]
    variants = {(protocol, *variant) for protocol, groups in section.groups.items() for variant in groups}
    variants |= {(cell["protocol"], cell["label"], cell["tempering"]) for cell in cells}
    shifts = {*section.shifts, *((cell["target"], cell["tier"]) for cell in cells)}
    seeds = {*section.seeds, *(cell["seed"] for cell in cells)}
    return Progress(done, len(variants) * len(shifts) * len(seeds))


def options(sections: Sequence[Section]) -> str:
    """What each label stands for, and where, as a table."""
    found: dict[tuple[str, str, int, str], dict[str, None]] = {}
    for section in sections:
        where = f"{paper_name(section.setting.data)}, {paper_name(section.backbone)}"
        for line in _one_of_each(section):
            cell = line["cell"]
            told = ", ".join(f"{name}={value}" for name, value in sorted(cell["options"].items()))
            key = cell["label"], cell["method"], cell["batch_size"], told or "defaults"
            found.setdefault(key, {})[where] = None
    everywhere = {where for places in found.values() for where in places}
    heads = ("label", "method", "batch", "options", "where")
    rows = [
        (label, method, str(batch), told, "everywhere" if set(places) == everywhere else "; ".join(places))
        for (label, method, batch, told), places in found.items()
    ]
    return plain_table("What each label stands for", heads, rows)


def made(results: RunResults) -> str:
    """Which versions and devices made the results, as a sentence."""
    lines = (*results.lines, *results.failures)
    if not lines:
        return ""
    versions, torches, devices = (
        listed(sorted({line["made"][name] for line in lines})) for name in ("equipoise", "torch", "device")
    )
    return f"Made by equipoise {versions} with torch {torches} on {devices}."


def failures(results: RunResults) -> str:
    """Every error once, with how often it came, a cell that it came in, and its traceback."""
    found: dict[str, list[CellResult]] = {}
    for line in results.failures:
        found.setdefault(line["error"] or "no error was written", []).append(line)
    if not found:
        return ""
    shown = sorted(found.items(), key=lambda item: -len(item[1]))[:MOST_ERRORS]
    parts = [_failure(error, lines) for error, lines in shown]
    left = len(found) - len(shown)
    more = f"<p class=note>And {left} more kinds of errors, in results.jsonl.</p>" if left else ""
    return f"<h3>What failed</h3>\n{''.join(parts)}{more}"


def _failure(error: str, lines: Sequence[CellResult]) -> str:
    cell = lines[0]["cell"]
    tier = "" if cell["tier"] is None else f", tier {cell['tier']}"
    where = (
        f"{paper_name(cell['data'])}, {paper_name(cell['backbone'])}, {cell['target']}{tier}, "
        f"seed {cell['seed']}, {cell['label']} ({cell['tempering']}), {cell['protocol']}"
    )
    trace = lines[0]["traceback"] or "no traceback was written"
    cut = "…" + trace[-LONGEST_TRACEBACK:] if len(trace) > LONGEST_TRACEBACK else trace
    short = error if len(error) <= 300 else f"{error[:300]}…"
    first = "first in " if len(lines) > 1 else ""
    often = counted(len(lines), "cell")
    return (
        f"<details><summary><strong>{often}</strong>: <code>{escape(short)}</code></summary>"
        f"<p class=note>{first}{escape(where)}</p><pre>{escape(cut)}</pre></details>\n"
    )


def _one_of_each(section: Section) -> list[CellResult]:
    """One line for each variant of each label, in the order in which they are shown."""
    seen: dict[tuple[str, str, int, str], CellResult] = {}
    for lines in (*section.lines.values(), section.failures):
        for line in lines:
            cell = line["cell"]
            seen.setdefault((cell["label"], cell["method"], cell["batch_size"], repr(cell["options"])), line)
    order = {label: place for place, label in enumerate(section.labels())}
    return sorted(seen.values(), key=lambda line: order.get(line["cell"]["label"], len(order)))


def _progress_words(state: Progress, lacks: str) -> str:
    """How many results there are; complete are only those of all that the paper ran."""
    if state.done < state.expected:
        return f"{state.done:,} of {state.expected:,}"
    return f"{state.done:,}, of {lacks}" if lacks else f"{state.done:,}, complete"


def _domains(section: Section) -> str:
    tiers = f" at {counted(len(section.tiers), 'tier')}" if section.tiers else ""
    if not section.targets:
        return "none yet"
    names = ", ".join(section.targets if len(section.targets) <= 5 else [*section.targets[:3], "…"])
    return f"{len(section.targets)}{tiers}: {names}"


def _range(values: Iterable[int]) -> str:
    known = sorted(set(values))
    if not known:
        return "none yet"
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"


def _plural(number: int, noun: str) -> str:
    return counted(number, noun).split(" ", 1)[1]
