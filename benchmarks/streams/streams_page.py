"""Writes the tables and pictures of docs/streams.md and its full tables from cells.csv and recommendations.

python -m benchmarks.streams.streams_page
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.pages import DOCS, fill, percent, signed, table, told, write
from benchmarks.recommendation.regret_table import ALWAYS, accuracies_of, chosen_labels, deployed
from benchmarks.recommendation.regret_table import table as regret_table
from benchmarks.results.figures import standalone
from benchmarks.streams.stream_cells import (
    DATA,
    RAW,
    REHEARSED,
    SOURCE,
    Place,
    Setting,
    at,
    by_mean,
    by_pass,
    complete,
    gains,
    marked,
    matrix,
    mean_of,
    names,
    of_place,
    places,
    read,
    settings,
    with_rehearsal,
)
from benchmarks.streams.which_method import SHOWN
from equipoise.research.report.style import ACCENT, INK, MUTED, SERIES, panels, themed

HERE = Path(__file__).parent
RECOMMENDATIONS = HERE.parent / "recommendation"
RULE_CHOSEN_ON = "digits-c"
"""The data set on whose runs the rule of `recommend` was preferred to others."""
RUN = ["data", "backbone", "tier", "stream", "target", "seed"]
HARM = -0.01
"""A mean loss of more accuracy counts as harm."""
SCORES = (("ece", RAW), ("ece", REHEARSED), ("nll", RAW), ("nll", REHEARSED), ("off", REHEARSED))
"""The metrics and temperings of a summary."""
TITLES = {
    ("accuracy", RAW): "Accuracy, higher is better",
    ("accuracy", REHEARSED): "Accuracy of rehearsed answers, where the source model may answer as well",
    ("ece", RAW): "ECE of raw answers, lower is better",
    ("ece", REHEARSED): "ECE of rehearsed answers",
    ("nll", RAW): "NLL of raw answers, lower is better",
    ("nll", REHEARSED): "NLL of rehearsed answers",
    ("off", REHEARSED): "Error of the accuracy that is estimated without labels",
}
WIDTH = 10.0
"""Inches."""
LARGEST = 0.12
"""A gain or loss of accuracy with the darkest colour; the number is in the cell."""
DARK = 0.65
"""Cells beyond so much of `LARGEST` have light numbers."""


def parts(page: str, folder: Path = HERE, recommendations: Path = RECOMMENDATIONS) -> dict[str, str]:
    """The regions of a page, from the files of two folders."""
    return PAGES[page](read(folder), recommendations)


def _answer(cells: pd.DataFrame, _: Path) -> dict[str, str]:
    return {"short": overview_table(cells, [*SHOWN, SOURCE], ["ece"])}


def _methods(cells: pd.DataFrame, _: Path) -> dict[str, str]:
    return {
        "overview": overview_table(cells, names(cells), ["ece", "nll"]),
        "best": best_table(cells),
        "extent": extent_table(cells),
    }


def _of_data(data: str, cells: pd.DataFrame, _: Path) -> dict[str, str]:
    own = cells[cells["data"] == data]
    by_place = [(str(place), summary_table(own, place)) for place in places(own)]
    summaries = "\n\n".join(f"### {place}\n\n{summary}" for place, summary in by_place)
    return {"summary": summaries, "tables": comparison_tables(own)}


def _recommendation(cells: pd.DataFrame, recommendations: Path) -> dict[str, str]:
    regrets = Regrets(cells, recommendations)
    return {"regret_seen": regrets.table(seen=True), "regret_unseen": regrets.table(seen=False)}


PAGES: Mapping[str, Callable[[pd.DataFrame, Path], dict[str, str]]] = {
    "streams.md": _answer,
    "tables/streams-methods.md": _methods,
    **{f"tables/streams-{data}.md": partial(_of_data, data) for data in DATA},
    "tables/streams-recommendation.md": _recommendation,
}
"""The pages and their regions, from the cells and the folder of the recommendations."""


class Regrets:
    """The recommendations of a folder beside the comparison.

    Attributes:
        everywhere: the methods that were run in all streams, one of which is the best in hindsight.
        results: their accuracies, a row for each run.
        chosen: the label that each rule chooses, for the runs that have a recommendation.
        accuracies: those of each rule, and of the methods that are always taken.
        seen: whether a run is of the data set that the rule was chosen on.
    """

    def __init__(self, cells: pd.DataFrame, folder: Path = RECOMMENDATIONS) -> None:
        recommendations = pd.concat([pd.read_csv(path) for path in sorted(folder.glob("*.csv"))])
        self.everywhere = complete(matrix(cells, "accuracy", RAW))
        self.results = deployed(cells.rename(columns={"name": "label"}))[self.everywhere]
        self.chosen = chosen_labels(recommendations, self.results, short=True)
        self.accuracies = accuracies_of(self.chosen, self.results)
        self.seen = self.accuracies.index.get_level_values("data") == RULE_CHOSEN_ON

    def table(self, *, seen: bool) -> str:
        """The regret of the recommendation and of always taking one method, in the runs of one kind."""
        rules = ["recommend()", *(name for name in ALWAYS.values() if name in self.accuracies)]
        rows = self.accuracies.loc[self.seen == seen, rules]
        return regret_table(rows, self.results, self.everywhere) if len(rows) else ""


def run_gains(cells: pd.DataFrame, tempering: str) -> pd.DataFrame:
    """The accuracy less that of the source model's raw answers: a row for each run, a column a method."""
    accuracies, source = _by_run(cells, "accuracy", tempering), _by_run(cells, "accuracy", RAW)[SOURCE]
    return accuracies.sub(source.loc[accuracies.index], axis=0)


def _by_run(cells: pd.DataFrame, metric: str, tempering: str) -> pd.DataFrame:
    return cells[cells["tempering"] == tempering].pivot_table(index=RUN, columns="name", values=metric)


def overview_table(cells: pd.DataFrame, shown: Sequence[str], metrics: Sequence[str]) -> str:
    """For some methods, of those that have all settings: the mean gain, harm in single runs, and metrics."""
    gain, both = gains(cells), with_rehearsal(cells)
    runs = {kind: run_gains(cells, kind) for kind in (RAW, REHEARSED)}
    scores = [matrix(both, metric, kind) for metric in metrics for kind in (RAW, REHEARSED)]
    body = [
        [
            f"`{name}`",
            gained(mean_of(gain, name)),
            *(text for kind in (RAW, REHEARSED) for text in harm(runs[kind], name)),
            *(told(mean_of(each, name)) for each in scores),
        ]
        for name in by_mean(gain)
        if name in complete(gain) and name in shown
    ]
    head = ["", "gain", "runs that lose", "worst run", "rehearsed: runs that lose", "worst run"]
    tempered = [text for metric in metrics for text in (f"{metric.upper()} raw", "rehearsed")]
    return table([*head, *tempered], body)


def harm(runs: pd.DataFrame, name: str) -> list[str]:
    """The share of runs in which a method loses more than .01, and its worst run."""
    return [percent((runs[name] < HARM).mean()), signed(float(runs[name].min()))]


def extent_table(cells: pd.DataFrame) -> str:
    """The models, domains and images of each place and stream, as they were run."""
    body = []
    for setting in settings(cells):
        rows = at(cells, setting)
        first = rows.iloc[0]
        body.append(
            [
                str(setting.place),
                setting.stream,
                str(len(rows[["target", "seed"]].drop_duplicates())),
                str(len(first["accuracy_by_domain"].split())),
                str(first["domain_images"]),
                f"{round(rows['images'].mean()):,}",
                str(first["batch_size"]),
                str(rows["name"].nunique()),
            ]
        )
    head = ["", "stream", "models", "domains", "images of each, at most", "images a stream", "batch"]
    return table([*head, "methods"], body)


def summary_table(cells: pd.DataFrame, place: Place) -> str:
    """For each method: the gain in each kind of stream, and calibration before and after a rehearsal."""
    gain = of_place(gains(cells), place)
    both = with_rehearsal(cells)
    matched = both if len(of_place(matrix(both, "ece", RAW), place)) else cells
    scores = [of_place(matrix(matched, metric, kind), place) for metric, kind in SCORES]
    streams = [setting.stream for setting in gain]
    over_seeds = seed_spread(cells, place)
    some = fewer_seeds(cells, place)
    several = len(streams) > 1
    body = [
        [
            f"`{name}`",
            *([gained(mean_of(gain, name)) + over_seeds.get(name, "")] if several else []),
            *(gained(mean_of(gain, name, stream)) for stream in streams),
            *(told(mean_of(each, name)) for each in scores),
        ]
        for name in by_mean(gain)
    ]
    head = ["", *(["all streams"] if several else []), *streams]
    columns = ("ECE raw", "rehearsed", "NLL raw", "rehearsed", "estimate off by")
    return table([*head, *(f"{column}{some}" for column in columns)], body)


def seed_spread(cells: pd.DataFrame, place: Place) -> dict[str, str]:
    """The standard deviation over seeds of each method's mean gain; nothing where there is one seed."""
    here = (cells["data"] == place.data) & (cells["backbone"] == place.backbone)
    rows = cells[here & (cells["tier"] == place.tier) & (cells["tempering"] == RAW)]
    wide = rows.pivot_table(index=["seed", "target", "stream"], columns="name", values="accuracy")
    by_seed = wide.sub(wide[SOURCE], axis=0).groupby("seed").mean()
    return {str(name): f" ± {told(by_seed[name].std())}" for name in by_seed} if len(by_seed) > 1 else {}


def fewer_seeds(cells: pd.DataFrame, place: Place) -> str:
    """A remark for columns of rehearsed runs, where only some of the seeds are rehearsed."""
    rows = cells[(cells["data"] == place.data) & (cells["backbone"] == place.backbone)]
    every, some = (rows.loc[rows["tempering"] == kind, "seed"].unique() for kind in (RAW, REHEARSED))
    return "" if len(some) in (0, len(every)) else f", seed {', '.join(map(str, some))}"


def gained(value: float) -> str:
    """A gain with its sign; a dash where there is none."""
    return "-" if math.isnan(value) else signed(value)


def best_table(cells: pd.DataFrame) -> str:
    """For each setting the most accurate method and the one of lowest NLL, `poise` and no adaptation."""
    honest, body = matrix(cells, "nll", REHEARSED), []
    for setting, accuracy in matrix(cells, "accuracy", RAW).items():
        best, likely = max(accuracy, key=accuracy.__getitem__), honest[setting]
        lowest = min(likely, key=likely.__getitem__, default=None)
        body.append(
            [
                setting.place.short,
                setting.stream,
                f"`{best}` {told(accuracy[best])}",
                told(accuracy["poise"]),
                told(accuracy[SOURCE]),
                f"`{lowest}` {told(likely[lowest])}" if lowest else "-",
                told(likely.get("poise")),
            ]
        )
    head = ["", "stream", "most accurate", "`poise`", "no adaptation", "lowest NLL, rehearsed", "`poise`"]
    return table(head, body)


def comparison_tables(cells: pd.DataFrame) -> str:
    """A table of each metric, raw or rehearsed."""
    return "\n\n".join(f"### {title}\n\n{metric_table(cells, *each)}" for each, title in TITLES.items())


def metric_table(cells: pd.DataFrame, metric: str, tempering: str) -> str:
    """A row for each method, a column for each setting; the best in bold, those alike in italics."""
    values = matrix(cells, metric, tempering)
    columns = [
        written(by_name, marked(cells, setting, metric, tempering)) for setting, by_name in values.items()
    ]
    shown = [name for name in names(cells) if any(name in column for column in columns)]
    body = [[f"`{name}`", *(column.get(name, "-") for column in columns)] for name in shown]
    several = len(places(cells)) > 1
    head = [f"tier {place.tier}: {stream}" if several else stream for place, stream in values]
    return table(["", *head], body)


def written(by_name: Mapping[str, float], best: Sequence[str]) -> dict[str, str]:
    """The numbers of a setting with their marks; all that are written as the best is are the best."""
    found = {}
    for name, value in by_name.items():
        text = told(value)
        if best and text == told(by_name[best[0]]):
            text = f"**{text}**"
        elif name in best:
            text = f"*{text}*"
        found[name] = text
    return found


@themed
def gains_figure(cells: pd.DataFrame) -> Figure:
    """A cell for some methods that differ and each setting: the gain over no adaptation, in points."""
    table = gains(cells)
    methods = [name for name in by_mean(table) if name in SHOWN]
    figure, (axes,) = panels(WIDTH, 0.27 * len(methods) + 1.4)
    values = np.array([[by_name.get(name, np.nan) for by_name in table.values()] for name in methods])
    axes.imshow(values, cmap=mpl.colormaps["RdBu"], norm=TwoSlopeNorm(0, -LARGEST, LARGEST), aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            continue
        colour = "white" if abs(value) > DARK * LARGEST else "black"
        axes.text(column, row, points(value), ha="center", va="center", fontsize=8, color=colour)
    axes.set_yticks(range(len(methods)), methods)
    axes.get_yticklabels()[methods.index("poise")].set(color=ACCENT.light, fontweight="bold")
    axes.set_xticks(range(len(table)), [setting.stream for setting in table], rotation=45, ha="right")
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    _group(axes, [setting.place for setting in table])
    return figure


def points(gain: float) -> str:
    """A gain of accuracy in points, with its sign."""
    whole = round(100 * gain)
    return f"{whole:+d}" if whole else "0"


def _group(axes: Axes, columns: list[Place]) -> None:
    """The name of each place above its columns, and lines between places."""
    for place in dict.fromkeys(columns):
        first, count = columns.index(place), columns.count(place)
        middle = first + (count - 1) / 2
        axes.text(middle, -0.9, place.short, ha="center", fontsize=9.5, color=INK.light)
        if first:
            axes.axvline(first - 0.5, color=INK.light, linewidth=1.2)


@themed
def passes_figure(cells: pd.DataFrame) -> Figure:
    """A panel for each place: the accuracy of raw answers in each pass of the recurring stream."""
    met = [place for place in places(cells) if len(at(cells, Setting(place, "recurring")))]
    figure, axes = panels(WIDTH, 3.3, columns=len(met))
    for axis, place in zip(axes, met, strict=True):
        _passes(axis, by_pass(cells, place))
        axis.set_title(place.short)
        axis.set_xlabel("pass")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("accuracy")
    return figure


def _passes(axis: Axes, accuracies: dict[str, list[float]]) -> None:
    """Grey lines, and in colour no adaptation, poise and the methods that end highest and lowest."""
    last = {name: values[-1] for name, values in accuracies.items() if name not in (SOURCE, "poise")}
    ends = max(last, key=last.__getitem__), min(last, key=last.__getitem__)
    chosen = {SOURCE: SERIES[6], "poise": ACCENT, ends[0]: SERIES[1], ends[1]: SERIES[0]}
    for name, values in accuracies.items():
        if name not in chosen:
            axis.plot(range(1, len(values) + 1), values, color=MUTED.light, alpha=0.3, linewidth=0.8)
    for name, colour in chosen.items():
        values, words = accuracies[name], "no adaptation" if name == SOURCE else name
        axis.plot(range(1, len(values) + 1), values, color=colour.light, linewidth=1.8, label=words)
    axis.legend(fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, handlelength=1.2)


PICTURES = {
    "streams-gains": (gains_figure, "The gain of methods that differ over no adaptation in every setting"),
    "streams-passes": (passes_figure, "The accuracy of each method in each pass of the recurring streams"),
}


def main() -> None:
    """Write the pages and their pictures."""
    cells = read(HERE)
    for page, regions in PAGES.items():
        fill(page, regions(cells, RECOMMENDATIONS))
    for name, (figure, description) in PICTURES.items():
        write(DOCS / f"{name}.svg", standalone(figure(cells), description))


if __name__ == "__main__":
    main()
