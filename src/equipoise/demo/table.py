"""The results as a table for the terminal."""

from rich.table import Table
from rich.text import Text

from equipoise.demo.results import HEADINGS, SCORES, MethodResult, Results, Score, best_shown, shown


def mean_table(results: Results) -> Table:
    """One row a method, the mean over the held-out domains, with a star at the best of each column."""
    table = Table(
        title=f"Mean over the held-out domains (protocol: {results['protocol']})",
        caption="★ best of the column; entropy has no best",
        title_style="bold",
    )
    table.add_column("method")
    for score in SCORES:
        table.add_column(HEADINGS[score], justify="right")
    means = [row["mean"] for row in results["methods"]]
    best = {score: best_shown(means, score) for score in SCORES}
    for row in results["methods"]:
        table.add_row(Text(row["label"]), *(_cell(row, score, best[score]) for score in SCORES))
    return table


def domain_table(results: Results) -> Table:
    """Accuracy and ECE of each method on each held-out domain."""
    table = Table(
        title=f"Accuracy / ECE on each held-out domain (protocol: {results['protocol']})", title_style="bold"
    )
    table.add_column("method")
    for domain in results["domains"]:
        table.add_column(domain, justify="right")
    for row in results["methods"]:
        scores = [row["domains"][domain] for domain in results["domains"]]
        table.add_row(
            Text(row["label"]),
            *(f"{shown(s['accuracy'], 'accuracy')} / {shown(s['ece'], 'ece')}" for s in scores),
        )
    return table


def _cell(row: MethodResult, score: Score, best: str | None) -> Text:
    number = shown(row["mean"][score], score)
    # The blank keeps the digits of starred and plain numbers below each other.
    return Text(f"{number} ★", style="bold") if number == best else Text(f"{number}  ")
