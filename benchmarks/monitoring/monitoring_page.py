"""Writes docs/monitoring.md, its full tables and its picture from the files beside this one and the results.

python -m benchmarks.monitoring.monitoring_page
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import chi2

from benchmarks.monitoring.alarms import RULES, WORDS, alarms
from benchmarks.pages import DOCS, fill, percent, plain, signed, table, told, write
from benchmarks.results.figures import MARKS, WIDTH, against_truth, points, standalone
from benchmarks.results.measured import NAMES, NETWORKS, estimated, read
from equipoise.research.report.style import ACCENT, INK, MUTED, SERIES, panels, themed

HERE = Path(__file__).parent
MILLION = 1_000_000
STREAM = ["target", "to", "repeat"]
"""What tells streams that jump apart."""
Regions: TypeAlias = dict[str, str]
COLOURS = {"mnist": SERIES[1], "usps": SERIES[3], "svhn": SERIES[0]}


def records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dicts by column."""
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


def stream_table(streams: pd.DataFrame) -> str:
    """The errors of the estimates, for each data set and network."""
    body = []
    for (data, backbone), rows in streams.groupby(["data", "backbone"], sort=False):
        off = rows["error"].abs()
        body.append(
            [
                f"{NAMES[str(data)]}, {NETWORKS[str(backbone)]}",
                str(len(rows)),
                told(off.mean()),
                signed(rows["error"].mean()),
                told(off.max()),
                told((rows["high"] - rows["low"]).mean()),
                percent(rows["covered"].mean()),
            ]
        )
    head = ["", "streams", "off by", "too high by", "off by at most", "interval's width", "in the interval"]
    return table(head, body)


def every_stream(streams: pd.DataFrame) -> str:
    """A row for each stream."""
    body = [
        [
            f"{NAMES[row['data']]}, {NETWORKS[row['backbone']]}",
            plain(row["target"]) + (f", tier {row['tier']}" if row["tier"] else ""),
            str(row["seed"]),
            told(row["value"]),
            f"{told(row['low'])} to {told(row['high'])}",
            told(row["accuracy"]),
            percent(row["covered"]),
        ]
        for row in records(streams)
    ]
    head = ["", "stream", "seed", "estimate", "interval", "accuracy", "in the interval"]
    return table(head, body)


def covered(rows: pd.DataFrame) -> pd.Series:
    """Whether each interval holds the true accuracy of its window."""
    return (rows["accuracy_low"] <= rows["true_accuracy"]) & (rows["true_accuracy"] <= rows["accuracy_high"])


def window_table(windows: pd.DataFrame) -> str:
    """Coverage of the intervals for each model and stream."""
    body = []
    for (target, stream), rows in windows.groupby(["target", "stream"], sort=False):
        error = rows["accuracy"] - rows["true_accuracy"]
        gap = (rows["calibration_gap"] - (rows["confidence"] - rows["true_accuracy"])).abs()
        body.append(
            [
                f"without {target}",
                str(stream),
                str(len(rows)),
                told(rows["true_accuracy"].mean()),
                told(rows["accuracy"].mean()),
                told(error.abs().mean()),
                told((rows["accuracy_high"] - rows["accuracy_low"]).mean()),
                percent(covered(rows).mean()),
                percent(rows["accuracy_inside"].mean()),
                told(gap.mean()),
            ]
        )
    head = ["model", "stream", "windows", "true accuracy", "estimate", "off by", "width", "in the interval"]
    return table([*head, "inside", "calibration gap off by"], body)


def with_alarms(jumps: pd.DataFrame) -> pd.DataFrame:
    """The batches of streams that jump, with a column for each alarm that is true where it is on."""
    on = pd.DataFrame([alarms(row, row["floor"]) for row in records(jumps)], index=jumps.index)
    return jumps[["target", "to", "repeat", "after", "true_accuracy"]].join(on.add_prefix("on "))


def delay_table(jumps: pd.DataFrame) -> str:
    """The delays of each alarm, for each model."""
    body = []
    for (target, to), rows in with_alarms(jumps).groupby(["target", "to"], sort=False):
        before, end = (rows.loc[rows["after"] == at, "true_accuracy"] for at in (0, rows["after"].max()))
        place = str(target) if to == "target" else str(to)
        fall = f"{told(before.mean())} → {told(end.mean())}"
        row = [f"without {target}", place, str(rows["repeat"].nunique()), fall]
        places = rows[["repeat", "after"]]
        body.append([*row, *(_delays(places.assign(on=rows[f"on {rule}"])) for rule in RULES)])
    return table(["model", "jump to", "streams", "accuracy", *(f"`{rule}`" for rule in RULES)], body)


def _delays(rows: pd.DataFrame) -> str:
    """The median delay, the longest, and the streams without an alarm and with an early one."""
    streams = rows["repeat"].nunique()
    early = rows[rows["on"] & (rows["after"] <= 0)]["repeat"].nunique()
    delays = rows[rows["on"] & (rows["after"] > 0)].groupby("repeat")["after"].min()
    if delays.empty:
        words = "never"
    else:
        words = f"{delays.median():.0f} (at most {delays.max():.0f})"
        words += f", in {len(delays)} of {streams}" if len(delays) < streams else ""
    return words + (f"; early in {early}" if early else "")


def alarm_table(jumps: pd.DataFrame, false_alarms: pd.DataFrame) -> str:
    """For each alarm, in how many streams that jump it comes, how late, and how often without a jump."""
    rows = with_alarms(jumps)
    streams = len(rows[STREAM].drop_duplicates())
    images = int(false_alarms.loc[false_alarms["kind"] == "replayed", "images"].sum())
    body = []
    for rule, words in WORDS.items():
        delays = first_alarms(rows, rule)
        begun = _begun(false_alarms[false_alarms["kind"] == "replayed"], rule)[0]
        body.append([f"`{rule}`", words, f"{len(delays)} of {streams}", f"{delays.median():.0f}", begun])
    head = ["alarm", "on when", "comes in streams", "after images, median", f"false in {images:,} images"]
    return table(head, body)


def first_alarms(rows: pd.DataFrame, rule: str) -> pd.Series:
    """The images after the jump at which an alarm is first on, of the streams in which it comes."""
    return rows[(rows["after"] > 0) & rows[f"on {rule}"]].groupby(STREAM)["after"].min()


def false_alarm_table(false_alarms: pd.DataFrame) -> str:
    """The alarms without a jump, live and replayed."""
    kinds = {kind: false_alarms[false_alarms["kind"] == kind] for kind in ("live", "replayed")}
    body = [
        [f"`{rule}`", *(cell for rows in kinds.values() for cell in _begun(rows, rule))] for rule in RULES
    ]
    head = ["alarm"]
    for kind, rows in kinds.items():
        head += [f"{kind}: in {rows['images'].sum():,} images", "per million", "batches in alarm"]
    return table(head, body)


def _begun(rows: pd.DataFrame, rule: str) -> list[str]:
    """The alarms, their rate with the upper end of a one-sided 95 % interval, and the share of batches."""
    if rows[f"{rule} alarms"].isna().any():
        return ["-"] * 3
    begun, images = int(rows[f"{rule} alarms"].sum()), int(rows["images"].sum())
    rate, most = (count * MILLION / images for count in (begun, chi2.ppf(0.95, 2 * (begun + 1)) / 2))
    share = rows[f"{rule} batches"].sum() / (images / 50)
    return [str(begun), f"{rate:.0f} (at most {most:.0f})", f"{100 * share:.2f} %"]


@themed
def monitoring_figure(streams: pd.DataFrame, windows: pd.DataFrame, jumps: pd.DataFrame) -> Figure:
    """Three panels: streams of the paper's data, windows of Digits, and streams that jump."""
    figure, axes = panels(WIDTH, 3.1, columns=3)
    for backbone, rows in streams.groupby("backbone"):
        reach = rows[["value", "low", "high"]]
        points(axes[0], rows["accuracy"], reach, *MARKS[str(backbone)], NETWORKS[str(backbone)], small=True)
    for (target, stream), rows in windows.groupby(["target", "stream"], sort=False):
        marker = "o" if stream == "target" else "x"
        label = f"{target}" if stream == "target" else f"sources of {target}"
        reach = rows[["accuracy", "accuracy_low", "accuracy_high"]]
        points(axes[1], rows["true_accuracy"], reach, marker, COLOURS[str(target)], label, small=True)
    for axis, title in zip(axes, ("All streams", "Windows of 500, Digits"), strict=False):
        axis.plot([0, 1], [0, 1], "--", color=INK.light, linewidth=0.9)
        against_truth(axis, title, fontsize=7)
    axes[0].set_ylabel("estimated, without labels")
    _jump(axes[2], jumps)
    return figure


def _jump(axis: Axes, jumps: pd.DataFrame) -> None:
    """The mean over the streams of the first model that jump to noise, where accuracy falls most."""
    target = jumps["target"].iloc[0]
    means = (
        jumps[(jumps["target"] == target) & (jumps["to"] == "noise")].groupby("after").mean(numeric_only=True)
    )
    axis.fill_between(
        means.index, means["accuracy_low"], means["accuracy_high"], color=ACCENT.light, alpha=0.2
    )
    axis.plot(means.index, means["accuracy"], color=ACCENT.light, label="estimate, interval")
    axis.plot(means.index, means["true_accuracy"], color=INK.light, linewidth=1, label="truth, last 500")
    axis.axvline(0, color=MUTED.light, linewidth=0.8, linestyle=":")
    axis.set(ylim=(0, 1), xlabel="images after the jump", title="Jump to noise")
    axis.set_yticks([0, 0.5, 1], ["0", ".5", "1"])
    axis.legend(loc="lower left", fontsize=7)


def parts(page: str) -> dict[str, str]:
    """The regions of a page."""
    return PAGES[page](*read_all())


def _answer(streams: pd.DataFrame, _: object, jumps: pd.DataFrame, false_alarms: pd.DataFrame) -> Regions:
    return {"streams": stream_table(streams), "alarms": alarm_table(jumps, false_alarms)}


def _streams(streams: pd.DataFrame, *_: object) -> Regions:
    return {"every_stream": every_stream(streams)}


def _alarms(_: object, windows: pd.DataFrame, jumps: pd.DataFrame, false_alarms: pd.DataFrame) -> Regions:
    return {
        "windows": window_table(windows),
        "delays": delay_table(jumps),
        "false_alarms": false_alarm_table(false_alarms),
    }


PAGES: Mapping[str, Callable[..., Regions]] = {
    "monitoring.md": _answer,
    "tables/monitoring-streams.md": _streams,
    "tables/monitoring-alarms.md": _alarms,
}
"""What each page has in its regions."""


def read_all() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The estimates of the committed results, and the windows, jumps and false alarms of the validation."""
    windows, jumps, false_alarms = (
        pd.read_csv(HERE / f"{name}.csv") for name in ("windows", "jumps", "false_alarms")
    )
    return estimated(read().cells), windows, jumps, false_alarms


def main() -> None:
    """Write the pages and their picture."""
    for page in PAGES:
        fill(page, parts(page))
    drawing = standalone(monitoring_figure(*read_all()[:3]), "Estimated and true accuracy")
    write(DOCS / "monitoring.svg", drawing)


if __name__ == "__main__":
    main()
