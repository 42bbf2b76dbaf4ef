"""Writes docs/estimates.md and its full tables from the rows that measure_estimates.py wrote.

python -m benchmarks.estimators.estimates_page
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmarks.estimators.measure_estimates import REHEARSED, read
from benchmarks.pages import fill, mark, percent, signed, table, told

HERE = Path(__file__).parent
TABLES = {"elec": "Elec", "weather": "weather", "car_loan": "car loan"}
PICTURES = {"digits": "Digits", "under-confident digits": "Digits, too doubtful", "pacs": "PACS"}
STREAMS = {
    "random order": "random order",
    "sorted by class": "sorted by class",
    "unseen source images": "source images",
}
ALL_TABLES = "mean of the tables"
ANSWERED = {"source": "no adaptation", "poise": "poise"}
SHOWN = (
    "Elec",
    "mean of the tables",
    "Digits, random order",
    "Digits, sorted by class",
    "PACS, random order",
    "PACS, sorted by class",
)
"""The data of the page, of all that were measured."""
SCORES = ("error_moments", "error_chunks", "ece")

ERROR = {"source": 0.04, "poise": 0.05}
ECE_ABOVE = {"source": 0.015, "poise": 0.02}
LOSS, CHUNK_LOSS = 0.01, 0.05
HELD = (0.85, 0.95)
DIGITS_ECE, DOUBTFUL_ECE, PICTURES_ERROR = 0.05, 0.045, 0.06
GAINS = {"elec": 0.06, "weather": 0.009, "car_loan": 0.0066}
"""Three quarters of what untempered poise gained in the trial that the goals are from."""


class Goal(NamedTuple):
    """What was aimed at, and what came."""

    text: str
    measured: str
    reached: bool


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the data of the page: the name of a table, or pictures and the kind of their stream."""
    pictures = rows["kind"].map(PICTURES) + ", " + rows["stream"].map(STREAMS)
    return rows.assign(place=pictures.where(rows["kind"] != "table", rows["data"].replace(TABLES)))


def of_pictures() -> list[str]:
    """All streams of pictures that there may be."""
    return [f"{pictures}, {stream}" for pictures in PICTURES.values() for stream in STREAMS.values()]


def places(rows: pd.DataFrame) -> list[str]:
    """The data that there are rows of, tables first."""
    found = set(rows["place"])
    known = [*TABLES.values(), *of_pictures()]
    return [name for name in known if name in found] + sorted(found - set(known))


def per_place(rows: pd.DataFrame, column: str) -> dict[str, float]:
    """The mean of a column over the runs on each of the tables, over the tables alike, and on pictures."""
    means = {name: float(rows.loc[rows["place"] == name, column].mean()) for name in places(rows)}
    pictures = {name: means.pop(name) for name in of_pictures() if name in means}
    tables = {ALL_TABLES: sum(means.values()) / len(means)} if means else {}
    return means | tables | pictures


def estimators(rows: pd.DataFrame, who: str) -> str:
    """Every estimator on all data: errors at single moments and in chunks, and ECE."""
    rows = rows[rows["answers"] == who]
    columns = list(per_place(rows, "ece"))
    body = []
    for name in sorted(rows["estimator"].unique(), key=lambda each: each == REHEARSED):
        own = rows[rows["estimator"] == name]
        scores = [per_place(own, score) for score in SCORES]
        cells = [
            " / ".join(told(score[at]) for score in scores) if at in scores[0] else "-" for at in columns
        ]
        shown = f"**rehearsed, `{who}`**" if name == REHEARSED else str(name)
        body.append([shown, *cells])
    return table(["", *columns], body)


def intervals(rows: pd.DataFrame) -> str:
    """Coverage and width of the intervals at single moments, and what `inside` says."""
    head = ["", "data", "holds", "width", "`inside`", "off by more than half the width"]
    body = []
    for who in ANSWERED:
        ours = rows[(rows["answers"] == who) & (rows["estimator"] == REHEARSED)]
        for name in places(ours):
            own = ours[ours["place"] == name]
            off, moments = int(own["off"].sum()), int(own["moments"].sum())
            cells = [told(float(own[column].mean())) for column in ("coverage", "width", "inside")]
            cells.append(f"{off} of {moments}")
            body.append([f"`{who}`", name, *cells, f"{int(own['off_outside'].sum())} of {off}"])
    return table([*head, "of these, `inside` is false"], body)


def methods(streams: pd.DataFrame) -> str:
    """Accuracy and ECE of what answers."""
    head = ["", "accuracy: no adaptation", "poise", "worst chunk of a run", "ECE: no adaptation"]
    head += ["`source`, rehearsed", "`poise`, rehearsed", "answered by the source model"]
    body = []
    for name in places(streams):
        own = streams[streams["place"] == name]
        columns = ("accuracy_none", "accuracy_poise", "worst_chunk", "ece_none", "ece_source", "ece_poise")
        values = {column: float(own[column].mean()) for column in columns}
        values["worst_chunk"] = float(own["worst_chunk"].min())
        cells = [signed(v) if column == "worst_chunk" else told(v) for column, v in values.items()]
        body.append([name, *cells, percent(own["by_source"].mean())])
    return table(head, body)


def goals(estimates: pd.DataFrame, streams: pd.DataFrame) -> Iterator[Goal]:
    """The goals with what was measured."""
    on_tables = streams[streams["kind"] == "table"]
    ours = estimates[(estimates["estimator"] == REHEARSED) & (estimates["kind"] == "table")]
    rival = estimates[(estimates["estimator"] == "CBPE") & (estimates["kind"] == "table")]
    for who, most in ERROR.items():
        error, cbpe = (
            per_place(rows[rows["answers"] == who], "error_chunks")[ALL_TABLES] for rows in (ours, rival)
        )
        text = f"tables, `{who}`: error of the accuracy in chunks ≤ {told(most)}, mean of the three"
        yield Goal(text, told(error), error <= most)
        yield Goal(f"tables, `{who}`: less than the error of CBPE, {told(cbpe)}", told(error), error < cbpe)
    for who, most in ECE_ABOVE.items():
        above = on_tables[f"ece_{who}"] - on_tables["ece_none"]
        text = f"tables, `{who}`: ECE above no adaptation by at most {signed(most)} in every run"
        told_runs = f"{signed(float(above.max()))} in the worst, {signed(float(above.mean()))} on average"
        yield Goal(text, told_runs, bool(above.max() <= most))
    gain = streams["accuracy_poise"] - streams["accuracy_none"]
    text = f"accuracy of `poise` on no stream below no adaptation by more than {told(LOSS, 2)}"
    yield Goal(text, f"{signed(float(gain.min()))} on the worst", bool(gain.min() >= -LOSS))
    worst = float(streams["worst_chunk"].min())
    text = f"in no chunk by more than {told(CHUNK_LOSS, 2)}"
    yield Goal(text, f"{signed(worst)} in the worst", worst >= -CHUNK_LOSS)
    low, high = HELD
    for who in ERROR:
        held = per_place(ours[ours["answers"] == who], "coverage")
        del held[ALL_TABLES]
        text = f"tables, `{who}`: intervals hold {100 * low:.0f} to {100 * high:.0f} % at single moments"
        shown = ", ".join(f"{name} {percent(value)}" for name, value in held.items())
        yield Goal(text, shown, all(low <= value <= high for value in held.values()))
    for name, most in {"digits": DIGITS_ECE, "under-confident digits": DOUBTFUL_ECE}.items():
        own = streams.loc[(streams["kind"] == name) & (streams["stream"] == "random order"), "ece_poise"]
        if len(own):
            text = f"{PICTURES[name]}, the domain left out, `poise`: ECE ≤ {told(most)}"
            shown = f"{told(float(own.mean()))} on average, {told(float(own.max()))} in the worst"
            yield Goal(text, shown, bool(own.mean() <= most))
    doubtful = streams[streams["kind"] == "under-confident digits"]
    if len(doubtful):
        most_above = float((doubtful["ece_poise"] - doubtful["ece_none"]).max())
        text = "Digits, too doubtful: ECE of `poise` in no stream above no adaptation by more than .02"
        yield Goal(text, f"{signed(most_above)} in the worst", most_above <= 0.02)
    ours = estimates[(estimates["estimator"] == REHEARSED) & (estimates["stream"] == "random order")]
    for kind, name in PICTURES.items():
        errors = ours.loc[(ours["kind"] == kind) & (ours["answers"] == "poise"), "error_moments"]
        if len(errors):
            text = f"{name}, the domain left out: error of the accuracy of `poise` ≤ {told(PICTURES_ERROR)}"
            shown = f"{told(float(errors.mean()))} on average, {told(float(errors.max()))} in the worst"
            yield Goal(text, shown, bool(errors.mean() <= PICTURES_ERROR))
    gained = on_tables.assign(gain=on_tables["accuracy_poise"] - on_tables["accuracy_none"])
    for data, aim in GAINS.items():
        own = gained.loc[(gained["data"] == data) & (gained["network"] == "MLP, batch norm"), "gain"]
        if len(own):
            text = f"{TABLES[data]}, batch norm: gain of accuracy ≥ {told(aim)}, three quarters of untempered"
            yield Goal(text, signed(float(own.mean())), bool(own.mean() >= aim))


def moments_table(estimates: pd.DataFrame) -> str:
    """The error of each estimator of poise's answers at single moments."""
    rows = estimates[estimates["answers"] == "poise"]
    columns = [name for name in SHOWN if name in per_place(rows, "error_moments")]
    body = []
    for name in sorted(rows["estimator"].unique(), key=lambda each: each == REHEARSED):
        errors = per_place(rows[rows["estimator"] == name], "error_moments")
        body.append(
            [f"**{name}**" if name == REHEARSED else str(name), *(told(errors.get(at)) for at in columns)]
        )
    return table(["", *columns], body)


def held_table(estimates: pd.DataFrame) -> str:
    """What the interval of the rehearsed estimate of poise's answers holds."""
    rows = estimates[(estimates["answers"] == "poise") & (estimates["estimator"] == REHEARSED)]
    scores = {name: per_place(rows, name) for name in ("coverage", "width", "inside")}
    body = [
        [
            name,
            percent(scores["coverage"][name]),
            told(scores["width"][name]),
            percent(scores["inside"][name]),
        ]
        for name in places(rows)
    ]
    return table(["", "holds", "width", "`inside`"], body)


def _answer(estimates: pd.DataFrame, _: pd.DataFrame) -> dict[str, str]:
    return {"moments": moments_table(estimates), "held": held_table(estimates)}


def _everything(estimates: pd.DataFrame, streams: pd.DataFrame) -> dict[str, str]:
    found = [[goal.text, goal.measured, mark(goal.reached)] for goal in goals(estimates, streams)]
    return {
        "source_estimates": estimators(estimates, "source"),
        "poise_estimates": estimators(estimates, "poise"),
        "intervals": intervals(estimates),
        "methods": methods(streams),
        "goals": table(["goal", "measured", ""], found),
    }


PAGES: Mapping[str, Callable[[pd.DataFrame, pd.DataFrame], dict[str, str]]] = {
    "estimates.md": _answer,
    "tables/estimates.md": _everything,
}
"""What each page has in its regions."""


def parts(page: str, folder: Path = HERE) -> dict[str, str]:
    """The regions of a page, from the files of a folder."""
    estimates, streams = (named(read(folder / f"{name}.csv")) for name in ("estimates", "streams"))
    return PAGES[page](estimates, streams)


if __name__ == "__main__":
    for page in PAGES:
        fill(page, parts(page))
