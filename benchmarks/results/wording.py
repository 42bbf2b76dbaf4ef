"""Numbers, names and tables as the page has them, in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined, select_autoescape

from benchmarks.results.measured import LABELS, WAYS, PaperNumber, mean, spread
from equipoise.research.report.results import Variant
from equipoise.research.report.table import DOUBTFUL


def told(value: float | None, digits: int = 3) -> str:
    """A number as tables have it, without the leading zero of a share; a dash for None."""
    if value is None or value != value:
        return "-"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def told_paper(number: PaperNumber | None) -> str:
    """A number of the paper with its own decimals, marked where it is doubtful."""
    return (
        "-" if number is None else told(number.value, number.decimals) + (DOUBTFUL if number.doubtful else "")
    )


def signed(value: float) -> str:
    """A difference with its sign: "+.014"."""
    text = told(abs(value))
    return f"{'-' if value < 0 and float(text) else '+'}{text}"


def plain(name: object) -> str:
    """The name of a domain or a shift in words: "gaussian noise, tier 3"."""
    return str(name).replace("_", " ").replace("/", ", tier ")


def mean_and_spread(rows: pd.DataFrame, variant: Variant, metric: str) -> str:
    """The mean over shifts and seeds, ± the standard deviation over seeds where there are several."""
    value, over_seeds = mean(rows, variant, metric), spread(rows, variant, metric)
    return told(value) if value is None or over_seeds is None else f"{told(value)} ± {told(over_seeds)}"


def who(variant: Variant) -> str:
    """A method and its tempering, in words: "TENT, median of tau"."""
    return f"{LABELS[variant.name]}, {WAYS[variant.tempering]}"


def mark(reached: bool) -> str:
    """The sign of a goal that is reached or missed."""
    return "✓" if reached else "✗"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; "not run" without rows."""
    if not rows:
        return "*Not run.*"
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def folded(summary: str, content: str) -> str:
    """A part of the page that opens on a click, on the site and in a browser of the repository."""
    return f'<details markdown="1">\n<summary>{summary}</summary>\n\n{content}\n\n</details>'


def filled(template: str, content: Mapping[str, Any]) -> str:
    """A template in Jinja with its names filled in; one that is not known is an error."""
    made = Environment(
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=select_autoescape(default_for_string=False),
    )
    return made.from_string(template).render(content)
