"""The sentences of docs/streams.md that have numbers, with the numbers of the committed comparison."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from statistics import fmean
from typing import Any

import pandas as pd

from benchmarks.pages import percent, plain, signed, told
from benchmarks.recommendation.regret_table import ALWAYS, short_list
from benchmarks.recommendation.rules import ANY_LOSS
from benchmarks.streams.stream_cells import (
    DATA,
    NETWORKS,
    RAW,
    REHEARSED,
    SOURCE,
    Matrix,
    Setting,
    at,
    by_mean,
    by_pass,
    complete,
    gains,
    matrix,
    mean_of,
    places,
    read,
    whole,
    with_rehearsal,
)
from benchmarks.streams.streams_page import HARM, HERE, RUN, Regrets, run_gains

ALIKE, AT_EACH_END = 0.005, 2
"""A difference of accuracies that is called none; the passes at each end of a stream that are compared: where
two passes are a whole number of batches and one is not, accuracies differ in turns."""


def code(names: Iterable[object]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def with_gains(gain: Matrix, names: Iterable[str], stream: str | None = None) -> str:
    return ", ".join(f"`{name}` ({signed(mean_of(gain, name, stream))})" for name in names)


def ranked(gain: Matrix) -> list[str]:
    """The methods that have all settings, by their mean gain."""
    return [name for name in by_mean(gain) if name in complete(gain) and name != SOURCE]


def sentences() -> Iterator[str]:
    cells = read(HERE)
    for part in (of_gains, of_runs, of_calibration, of_streams, of_regret):
        yield from part(cells)


def of_gains(cells: pd.DataFrame) -> Iterator[str]:
    gain = gains(cells)
    order, count = ranked(gain), len(run_gains(cells, RAW))
    yield f"## {cells['name'].nunique()} methods and variants in four streams"
    yield f"{len(gain)} in all; a *run* is one model in one stream, {count} in all."
    here = [by_name for setting, by_name in gain.items() if setting.place.backbone == "mobilenet_v1"]
    off = {
        name: max(abs(by_name[name] - by_name["norm"]) for by_name in here)
        for name in complete(gain)
        if name != "norm"
    }
    alike = {name: most for name, most in off.items() if most <= ALIKE}
    yield f"With {NETWORKS['mobilenet_v1']}, in {len(here)} settings, {len(alike)} methods that learn by"
    yield f"by at most {told(max(alike.values()))} in every setting: {code(alike)}."
    best = Counter(max(by_name, key=by_name.__getitem__) for by_name in gain.values())
    yield (
        f"On average over all settings {with_gains(gain, order[:5])} gain most, and "
        f"{with_gains(gain, order[-3:])} least. The most accurate method of a setting is "
        f"{code(name for name, _ in best.most_common())}."
    )
    harmless = [name for name in order if all(by_name[name] >= HARM for by_name in gain.values())]
    yield f"As means over targets, all but {code(harmless) or 'none'} lose more than .01 in some setting."
    bursts = sorted(order, key=lambda name: -mean_of(gain, name, "correlated"))
    yield f"The highest gains there on average: {with_gains(gain, bursts[:5], 'correlated')}."
    norm = {s.place.short: by_name["norm"] for s, by_name in gain.items() if s.stream == "correlated"}
    yield f"with `norm`, {', '.join(f'{place} {signed(value)}' for place, value in norm.items())}."
    without = gains(cells[(cells["data"] == "digits-c") & (cells["target"] != "svhn")])
    yield f"Without SVHN the largest gains on Digits are {with_gains(without, ranked(without)[:4])}."


def of_runs(cells: pd.DataFrame) -> Iterator[str]:
    raw, rehearsed = run_gains(cells, RAW), run_gains(cells, REHEARSED)
    yield f"and the largest loss: of {len(raw)} runs raw, of {len(rehearsed)} rehearsed."
    place: Any = raw.loc[rehearsed.index, "poise"].idxmin()
    data, _, _, stream, target, seed = place
    losses = (signed(float(frame.loc[place, "poise"])) for frame in (raw, rehearsed))
    yield (
        f"The worst run of `poise` is {DATA[data]} {plain(target)}, `{stream}`, seed {seed}: {next(losses)} "
        f"raw, and {next(losses)} rehearsed,"
    )


def of_calibration(cells: pd.DataFrame) -> Iterator[str]:
    both = with_rehearsal(cells)
    before, after = (matrix(both, "ece", kind) for kind in (RAW, REHEARSED))
    pairs = [
        (by_name[name], after[setting][name])
        for setting, by_name in before.items()
        for name in by_name
        if name in after[setting]
    ]
    yield (
        f"lowers its ECE in {percent(fmean(late < early for early, late in pairs))} of {len(pairs)} pairs of "
        f"a method and a setting, from {told(fmean(early for early, _ in pairs))} to "
        f"{told(fmean(late for _, late in pairs))} on average (the source model as it is: "
        f"{told(mean_of(before, SOURCE))}),"
    )
    errors = both.pivot_table(index=[*RUN, "name"], columns="tempering", values="ece").reset_index()
    higher = errors[errors[REHEARSED] >= errors[RAW]]
    where = Counter(f"{DATA[d]} {plain(t)}" for d, t in zip(higher["data"], higher["target"], strict=True))
    yield f"and in {percent(1 - len(higher) / len(errors))} of {len(errors):,} runs."
    exceptions = ", ".join(f"{count} of {target}" for target, count in where.most_common(3))
    yield f"mostly models that were honest before: {exceptions}."
    mnist = both[(both["data"] == "digits-c") & (both["target"] == "mnist") & (both["name"] == "poise")]
    eces = mnist.groupby("tempering")["ece"].mean()
    yield f"On MNIST the ECE of `poise` is {told(eces[RAW])} raw, {told(eces[REHEARSED])} rehearsed."


def of_streams(cells: pd.DataFrame) -> Iterator[str]:
    few = cells.groupby("data", sort=False)["classes_in_a_row"].mean()
    yield f"of a few classes ({', '.join(f'{DATA[str(data)]} {value:.0f}' for data, value in few.items())}),"
    moved = {
        place.short: {
            name: fmean(values[-AT_EACH_END:]) - fmean(values[:AT_EACH_END])
            for name, values in by_pass(cells, place).items()
        }
        for place in places(cells)
    }

    def ends_of(end: Callable[..., str]) -> str:
        found = [(place, end(values, key=values.__getitem__)) for place, values in moved.items()]
        return ", ".join(f"{place} `{name}` ({signed(moved[place][name])})" for place, name in found)

    yield (
        f"From the first two passes to the last two these lose most: {ends_of(min)}. These gain most: "
        f"{ends_of(max)}."
    )
    by_place = []
    for place in places(cells):
        rows = whole(at(cells, Setting(place, "continual")), RAW)
        means = rows[rows["name"] == SOURCE].groupby("target")["accuracy"].mean()
        if len(means) > 1:
            listed = ", ".join(f"{plain(target)} {told(value)}" for target, value in means.items())
            by_place.append(f"{place.short}: {listed}")
    yield f"Without adaptation, in `continual` streams: {'; '.join(by_place)}."
    machines = dict.fromkeys(zip(cells["device"], cells["torch"], strict=True))
    yield f"On {'; '.join(f'{device} with torch {torch}' for device, torch in machines)}, all of it within"


def of_regret(cells: pd.DataFrame) -> Iterator[str]:
    regrets = Regrets(cells)
    accuracies, seen = regrets.accuracies, regrets.seen
    results = regrets.results.loc[accuracies.index]
    yield f"the best of {len(regrets.everywhere)} methods in a stream, found in hindsight,"
    yield f"**Digits**, {seen.sum()} runs;"
    yield f"**PACS**, seed 0, **and TinyImageNet-C**, {(~seen).sum()} runs:"
    more = accuracies["recommend()"] - accuracies[ALWAYS["poise"]]
    error = told(more.std() / len(more) ** 0.5)
    yield (
        f"The recommendation is `poise` in {(regrets.chosen['recommend()'] == 'poise').sum()} of "
        f"{len(regrets.chosen)} runs, and over always taking `poise` it gains {signed(more.mean())} ± {error}"
    )
    best = results.idxmax(axis=1).astype(str)
    streams = best.index.get_level_values("stream")
    tried = [name in short_list(stream) for stream, name in zip(streams, best, strict=True)]
    others = best[[not each for each in tried]].value_counts().index[:3]
    yield (
        f"In {percent(1 - fmean(tried))} of the runs the best method is one that `recommend` does not try, "
        f"mostly {code(others)}."
    )
    before = results.max(axis=1) - accuracies[ANY_LOSS]
    yield f"a mean regret of {told(before[seen].mean())} and {told(before[~seen].mean())} on the two groups."
