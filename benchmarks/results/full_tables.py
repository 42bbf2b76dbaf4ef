"""Every method at every place by both protocols, raw and tempered, beside the paper's numbers."""

import pandas as pd

from benchmarks.results.measured import LABELS, Place, at, means, places, printed
from benchmarks.results.wording import folded, table, told, told_paper
from equipoise.research.report.paper import printed_tables
from equipoise.research.report.table import DOUBTFUL, INCOMPLETE
from equipoise.research.report.tables import NAMES

KINDS = {
    "none": "raw",
    "fixed": "fixed",
    "mean": "mean",
    "median": "median",
    "rehearsed": "rehearsed",
    "oracle": "floor",
}
PROTOCOLS = {"online": "Online: each batch is answered as it comes", "after-pass": "After one pass"}
METRICS = ["accuracy", "ece", "nll", "entropy"]


def full_tables(cells: pd.DataFrame) -> str:
    """A folded part for each place."""
    parts = []
    for place in places(cells):
        found = [
            f"**{words}**\n\n{_tables(rows, place)}"
            for protocol, words in PROTOCOLS.items()
            if len(rows := at(cells, place, protocol))
        ]
        parts.append(folded(str(place), "\n\n".join(found)))
    return "\n\n".join(parts)


def _tables(rows: pd.DataFrame, place: Place) -> str:
    """Accuracy and entropy, ECE, NLL."""
    shown = _written(rows)
    labels = [label for label in LABELS if (label, "none") in shown.index]
    kinds = [kind for kind in KINDS if kind in shown.index.get_level_values("tempering")]
    parts = [_accuracies(shown, place, labels)]
    for metric in ("ece", "nll"):
        body = [
            [
                LABELS[label],
                *(_cell(shown, label, kind, metric) for kind in kinds),
                told_paper(printed(place, label, metric)),
            ]
            for label in labels
        ]
        parts.append(table([metric.upper(), *(KINDS[kind] for kind in kinds), "paper"], body))
    return "\n\n".join(parts)


def _written(rows: pd.DataFrame) -> pd.DataFrame:
    """The means of each method and tempering as they are written, marked where they lack a run."""
    values, runs = means(rows, METRICS), rows.groupby(["name", "tempering"]).size()
    whole = len(rows[["shift", "seed"]].drop_duplicates())
    mark = runs.reindex(values.index).lt(whole).map({True: INCOMPLETE, False: ""})
    return values.map(told).where(values.isna(), values.map(told).add(mark, axis="index"))


def _accuracies(shown: pd.DataFrame, place: Place, labels: list[str]) -> str:
    """Accuracy and entropy, each beside the paper's; rehearsed answers may be the source model's."""
    body = []
    for label in labels:
        accuracies = [_cell(shown, label, kind, "accuracy") for kind in ("none", "rehearsed")]
        entropy = _cell(shown, label, "mean" if label == "dec" else "none", "entropy")
        body.append(
            [
                LABELS[label],
                *accuracies,
                told_paper(printed(place, label, "accuracy")),
                entropy,
                told_paper(printed(place, label, "entropy")),
            ]
        )
    return table(["accuracy and entropy", "raw", "rehearsed", "paper", "entropy, bits", "paper"], body)


def _cell(shown: pd.DataFrame, label: str, kind: str, metric: str) -> str:
    return str(shown.loc[(label, kind), metric]) if (label, kind) in shown.index else "-"


def doubts(cells: pd.DataFrame) -> str:
    """The reasons why some of the printed numbers are doubtful, as a folded list."""
    met = {place[:2] for place in places(cells)}
    reasons = dict.fromkeys(
        (Place(each.data, each.backbone), metric, cell.doubt)
        for each in printed_tables()
        if (each.data, each.backbone) in met
        for (metric, _, _), cell in each.cells.items()
        if cell.doubt
    )
    lines = [f"- {place}, {NAMES.get(metric, metric)}: {doubt}." for place, metric, doubt in reasons]
    return folded(f"{DOUBTFUL} Why some printed numbers are doubtful", "\n".join(lines))
