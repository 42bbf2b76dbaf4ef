"""The sentences of smaller pages that have numbers, with the numbers of their results."""

import json
from collections.abc import Iterator
from statistics import fmean

import pandas as pd

from benchmarks.estimators import estimates_page
from benchmarks.estimators.measure_estimates import REHEARSED, read
from benchmarks.guard import guard_page
from benchmarks.monitoring import monitoring_page
from benchmarks.monitoring.alarms import RULES
from benchmarks.pages import percent, told
from benchmarks.readme.keep_demo import KEPT
from benchmarks.rehearsal import rehearsal_page
from benchmarks.results.measured import NAMES, NETWORKS
from benchmarks.serving import load_table
from benchmarks.streams.stream_cells import RAW, SOURCE, by_mean, gains, matrix, mean_of, with_rehearsal
from benchmarks.streams.stream_cells import REHEARSED as REHEARSED_TEMPERING
from benchmarks.streams.stream_cells import read as read_cells
from benchmarks.streams.streams_page import HARM, run_gains
from benchmarks.streams.streams_page import HERE as STREAMS

PROMISED, FALL = 0.9, 0.05
"""The level of the intervals of an estimate; the fall below no adaptation that a guard must act before."""


def readme() -> Iterator[str]:
    run = json.loads(KEPT.read_text(encoding="utf-8"))
    told_of = {name: run["methods"][name] for name in ("source", "tent", "poise")}
    worst = {name: scores["segments"]["shaking"] for name, scores in told_of.items()}
    says, right = ({name: percent(each[of]) for name, each in worst.items()} for of in ("says", "right"))
    yield f"the plain model says {says['source']} and is right {right['source']} of the time"
    yield f"TENT says {says['tent']} and is right {right['tent']}"
    yield f"equipoise says {says['poise']} and is right {right['poise']}"
    yield f"ECE over the stream is {told(told_of['poise']['ece'])}, TENT's {told(told_of['tent']['ece'])}"
    held = told_of["poise"]["estimated"]["held"]
    yield f"the true accuracy was in its 90 % band {percent(held)} of the time"
    fall, count = worst_fall()
    yield f"it fell by {fall} on the worst of {count}"
    machine = run["machine"]
    yield f"{machine['kind']}, {machine['threads']} cores, torch {machine['torch']}"


def monitoring() -> Iterator[str]:
    streams, windows, jumps, false_alarms = monitoring_page.read_all()
    by_place = streams.groupby(["data", "backbone"])["covered"].mean()
    yield (
        f"Over {len(streams)} streams of Digits, PACS and TinyImageNet-C the estimate is off by "
        f"{told(streams['error'].abs().mean())} on average."
    )
    yield f"images at {percent(by_place.min())} to {percent(by_place.max())} of the batches, where 90 % were"
    yield f"it held it in {percent(monitoring_page.covered(windows).mean())} of {len(windows)} windows."
    begun, images = (int(false_alarms[name].sum()) for name in ("accuracy alarms", "images"))
    yield f"Without a jump, {images:,} images, most of them replayed, raised {begun} alarms of an accuracy"
    rows = monitoring_page.with_alarms(jumps)
    one = ["target", "to", "repeat"]
    later, came = rows[rows["after"] > 0], []
    for rule in ("accuracy", "estimate", "statistics"):
        delays = later[later[f"on {rule}"]].groupby(one)["after"].min()
        came.append(f"`{rule}` in {len(delays)} (median {delays.median():.0f} images)")
    yield f"After a jump, in {len(rows[one].drop_duplicates())} streams, the alarms came: {', '.join(came)}."
    yield f'note "All {len(streams)} streams"'
    targets = ", without ".join(dict.fromkeys(windows["target"]))
    yield f"Models: SmallCNN trained without {targets}; seed 0."
    yield (
        f"Streams of {50 - jumps['after'].min()} unseen source images and then {jumps['after'].max()} target "
        "images"
    )
    recorded = int(false_alarms.loc[false_alarms["kind"] == "replayed", "answers"].sum())
    yield f"{recorded:,} answers were recorded."
    source = windows[windows["stream"] == "source"]
    seen = {rule: int(source[f"{rule} batches"].sum()) for rule in RULES}
    on = ", ".join(f"`{rule}` was on in {count}" for rule, count in seen.items() if count)
    yield f"In the {10 * len(source)} batches of the source windows above, {on}."
    low = [
        f"{NAMES[data]} with {NETWORKS[network]} ({percent(share)})"
        for data, network in by_place.index
        if (share := by_place[data, network]) < PROMISED - 0.02
    ]
    yield f"the intervals promise 90 % and held less on {', '.join(low)}."
    off = (source["accuracy"] - source["true_accuracy"]).abs().mean()
    width = (source["accuracy_high"] - source["accuracy_low"]).mean()
    yield f"Without drift the estimate was off by {told(off)} on average, in intervals {told(width)} wide."


def guard() -> Iterator[str]:
    usual, fast = (guard_page.rows_of(quick=quick) for quick in (False, True))
    collapsed = [row for row in fast if row["adapted"] < row["source"] - FALL]
    in_time = [row for row in collapsed if row["acted"] and row["drop"] < FALL]
    yield f"Targets measured: {', '.join(sorted({row['target'] for row in usual + fast}))}."
    yield f"It acted on {sum(bool(row['acted']) for row in usual)} of {len(usual)} streams."
    worst = [told(max(row[f"largest_{name}"] for row in usual)) for name in guard_page.DISTANCES]
    yield (
        f"Weights went by at most {worst[0]} of their norm in all (limit 1), {worst[1]} in one batch (limit "
        f".05), statistics by {worst[2]} of theirs"
    )
    yield (
        f"Of {len(collapsed)} streams on which tent alone ends more than .05 below no adaptation, the guard "
        f"acted in time on {len(in_time)}."
    )


def estimates() -> Iterator[str]:
    rows, streams = (
        estimates_page.named(read(estimates_page.HERE / f"{name}.csv")) for name in ("estimates", "streams")
    )
    found = []
    for name in estimates_page.places(streams):
        own = streams[streams["place"] == name]
        pictures = name in estimates_page.of_pictures()
        first = f"{(own['rehearsal'] == 0).sum()} by the first rehearsal"
        found.append(
            f"{name} {len(own)} ({'without ' + ', '.join(own['data'].unique()) if pictures else first})"
        )
    yield f"that each number is the mean of: {', '.join(found)}. Missing ones"
    for who in estimates_page.ANSWERED:
        least = [
            best(rows[(rows["answers"] == who) & (rows["place"] == name)])
            for name in estimates_page.places(rows)
        ]
        yield f"Least error at single moments: {'; '.join(least)}."


def choosing() -> Iterator[str]:
    cells = read_cells(STREAMS)
    gain, rehearsed = gains(cells), run_gains(cells, REHEARSED_TEMPERING)["poise"]
    first, second, *_ = by_mean(gain)
    yield (
        f"`{second}` … gains {told(mean_of(gain, second))} of accuracy on average; only `{first}` gains more "
        f"({told(mean_of(gain, first))})"
    )
    yield (
        f"loses more than .01 against the plain model in {percent((rehearsed < HARM).mean())} of the runs, "
        f"{told(-rehearsed.min())} at most."
    )
    on_pacs = min(by_name["norm"] for setting, by_name in gain.items() if setting.place.data == "pacs-c")
    yield f"`norm` and methods that learn from batch statistics lose up to {told(-on_pacs, 2)} on PACS"
    both = with_rehearsal(cells)
    raw, honest = (of_methods(both, kind) for kind in (RAW, REHEARSED_TEMPERING))
    yield f"the ECE of every method, from {told(raw, 2)} to {told(honest, 2)} on average."
    rows = pd.read_csv(rehearsal_page.HERE / "streams.csv", keep_default_na=False, na_values=[""])
    digits = rehearsal_page.picked(rows, "digits", "target", "sorted")
    streams = estimates_page.named(read(estimates_page.HERE / "streams.csv"))
    pacs = streams[streams["place"] == "PACS, sorted by class"]
    yield (
        f"On Digits … ({told(digits['source.accuracy'].mean())} → {told(digits['poise.accuracy'].mean())}), "
        f"on PACS it loses a little ({told(pacs['accuracy_none'].mean())} → "
        f"{told(pacs['accuracy_poise'].mean())});"
    )


def of_methods(cells: pd.DataFrame, tempering: str) -> float:
    """The mean ECE over settings and methods, without the source model's."""
    found = matrix(cells, "ece", tempering)
    return fmean(value for by_name in found.values() for name, value in by_name.items() if name != SOURCE)


def corrupted_and_mild() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of docs/rehearsal.md of corrupted and of mildly changed pictures, in random order."""
    rows = pd.read_csv(rehearsal_page.HERE / "streams.csv", keep_default_na=False, na_values=[""])
    shuffled = rows[rows["order"] == "shuffled"]
    corrupted = shuffled[(shuffled["kind"] == "target") & shuffled["stream"].str.contains("/")]
    return corrupted, shuffled[shuffled["kind"] == "mild"]


def worst_fall() -> tuple[str, int]:
    """The most that the accuracy fell over a stream of pictures, and of how many streams."""
    corrupted, _ = corrupted_and_mild()
    streams = estimates_page.named(read(estimates_page.HERE / "streams.csv"))
    pictures = streams[streams["place"].isin(estimates_page.of_pictures())]
    fall = max(
        (corrupted["source.accuracy"] - corrupted["poise.accuracy"]).max(),
        (pictures["accuracy_none"] - pictures["accuracy_poise"]).max(),
    )
    return told(fall), len(corrupted) + len(pictures)


def limits() -> Iterator[str]:
    corrupted, mild = corrupted_and_mild()
    fall, count = worst_fall()
    yield f"over {count} streams of pictures that we measured, accuracy fell by {fall}."
    above, of_mild = (each["poise.ece"] - each["source.ece"] for each in (corrupted, mild))
    worse = (above > rehearsal_page.ECE_ABOVE).sum(), (of_mild > rehearsal_page.MILD).sum()
    yield f"Over {len(corrupted)} corrupted ones, ECE rose above the plain model's by more than .02 in"
    yield f"by more than .02 in {worse[0]}, by {told(above.max())} at most;"
    yield f"over {len(mild)} mildly changed ones by more than .01 in {worse[1]}, by {told(of_mild.max())} at"
    estimates = estimates_page.named(read(estimates_page.HERE / "estimates.csv"))
    ours = estimates[(estimates["answers"] == "poise") & (estimates["estimator"] == REHEARSED)]
    yield f"On Elec the 90 % intervals hold {percent(ours.loc[ours['place'] == 'Elec', 'coverage'].mean())}"


def best(rows: pd.DataFrame) -> str:
    """The estimator with the least error on some data: "Elec: COT (.056, rehearsed .104)"."""
    errors = rows.groupby("estimator")["error_moments"].mean()
    winner, ours = errors.idxmin(), errors[REHEARSED]
    more = "" if winner == REHEARSED else f", rehearsed {told(ours)}"
    return f"{rows['place'].iloc[0]}: {winner} ({told(errors.min())}{more})"


def serving() -> Iterator[str]:
    table = load_table.parts()["load"]
    met, missed = (table.count(f"| {word} |") for word in ("met", "missed"))
    yield f"Met in {met} of {met + missed} cases;"
