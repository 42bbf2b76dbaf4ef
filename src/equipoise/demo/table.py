"""The results as a table for the terminal, in at most 80 columns."""

from rich.table import Table
from rich.text import Text

from equipoise.demo.results import (
    CHANGING,
    ESTIMATE_HEADINGS,
    SCORE_HEADINGS,
    DemoResults,
    best_shown,
    estimate_rows,
    pairs,
    shown,
)
from equipoise.demo.words import estimate_note, tempering_note


def mean_table(results: DemoResults) -> Table:
    """One row a method, the mean over the held-out domains, with a star at the best of each column."""
    table = Table(
        title=f"Mean over the held-out domains, raw → tempered (protocol: {results['protocol']})",
        caption=f"★ best of the column; entropy, in bits, has no best\n{tempering_note(results)}",
        title_style="bold",
    )
    table.add_column("method")
    table.add_column(SCORE_HEADINGS["accuracy"], justify="right")
    for score in CHANGING:
        table.add_column(SCORE_HEADINGS[score], justify="right")
    means = [row["mean"] for row in results["methods"]]
    for pair in pairs(results):
        raw, tempered = pair.scores()
        cells = [_number(shown(raw["accuracy"], "accuracy"), best_shown(means, "accuracy"))]
        for score in CHANGING:
            best = best_shown(means, score)
            before, after = (_number(shown(scores[score], score), best) for scores in (raw, tempered))
            cells.append(Text.assemble(before, "→ ", after))
        table.add_row(Text(pair.label), *cells)
    return table


def domain_table(results: DemoResults) -> Table:
    """Accuracy and ECE of each method on each held-out domain."""
    table = Table(
        title=f"Accuracy, ECE raw→tempered on each held-out domain (protocol: {results['protocol']})",
        title_style="bold",
    )
    table.add_column("method")
    for domain in results["domains"]:
        table.add_column(domain, justify="right")
    for pair in pairs(results):
        cells = []
        for domain in results["domains"]:
            raw, tempered = pair.scores(domain)
            change = "→".join(shown(scores["ece"], "ece") for scores in (raw, tempered))
            cells.append(f"{shown(raw['accuracy'], 'accuracy')} {change}")
        table.add_row(Text(pair.label), *cells)
    return table


def estimate_table(results: DemoResults) -> Table:
    """The accuracy of the rehearsed method on each held-out domain beside its own estimate."""
    table = Table(
        title=f"What {results['rehearsal']['method']} estimated its accuracy to be",
        caption=estimate_note(results),
        title_style="bold",
    )
    first, *others = ESTIMATE_HEADINGS
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    for row in estimate_rows(results):
        table.add_row(*row)
    return table


def _number(number: str, best: str | None) -> Text:
    # The blank keeps the digits of starred and plain numbers below each other.
    return Text(f"{number}★", style="bold") if number == best else Text(f"{number} ")
