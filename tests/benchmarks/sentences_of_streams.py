"""The sentences with numbers of docs/streams.md and its full tables, by the committed comparison."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    by_mean,
    by_pass,
    complete,
    gains,
    matrix,
    mean_of,
    places,
    read,
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


def answer(cells: pd.DataFrame) -> Iterator[str]:
    for part in (of_gains, of_runs, of_calibration, of_streams):
        yield from part(cells)


def of_gains(cells: pd.DataFrame) -> Iterator[str]:
    gain = gains(cells)
    order = ranked(gain)
    yield f"of no class, {with_gains(gain, order[:2])} and {with_gains(gain, order[2:3])} gain the most"
    yield f"that differ, of {cells['name'].nunique()} methods and variants."
    yield f"a tier and a kind of stream, {len(gain)} in all."
    here = [by_name for setting, by_name in gain.items() if setting.place.backbone == "mobilenet_v1"]
    off = [
        max(abs(by_name[name] - by_name["norm"]) for by_name in here)
        for name in complete(gain)
        if name != "norm"
    ]
    alike = [most for most in off if most <= ALIKE]
    yield f"{len(alike)} methods that learn by gradients gain what batch statistics alone gain,"
    yield (
        f"With {NETWORKS['mobilenet_v1']}, in {len(here)} settings, {len(alike)} methods that learn by "
        f"gradients differ from `norm`, which does not learn, by at most {told(max(alike))}:"
    )
    harmless = [name for name in order if all(by_name[name] >= HARM for by_name in gain.values())]
    yield f"As means over targets, all but {code(harmless)} lose more than .01 in some setting;"
    runs = run_gains(cells, RAW)
    assert all((runs[name] < 0).any() for name in order)
    bursts = sorted(order, key=lambda name: -mean_of(gain, name, "correlated"))
    yield f"The highest gains there on average: {with_gains(gain, bursts[:5], 'correlated')}."
    norm = {s.place.short: by_name["norm"] for s, by_name in gain.items() if s.stream == "correlated"}
    worst = min(norm, key=norm.__getitem__)
    yield f"`norm` loses {told(-norm[worst])} on {worst}."
    without = gains(cells[(cells["data"] == "digits-c") & (cells["target"] != "svhn")])
    yield f"Without SVHN the largest gains on Digits are {with_gains(without, ranked(without)[:4])}."


def of_runs(cells: pd.DataFrame) -> Iterator[str]:
    raw, rehearsed = run_gains(cells, RAW), run_gains(cells, REHEARSED)
    yield f"and the largest loss: of {len(raw)} runs raw, of {len(rehearsed)} rehearsed; a run is"
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
    means = (told(fmean(values)) for values in zip(*pairs, strict=True))
    yield f"A rehearsal lowers the ECE of every method, from {next(means)} to {next(means)} on average."
    yield (
        f"lowers the ECE in {percent(fmean(late < early for early, late in pairs))} of {len(pairs)} pairs of "
        f"a method and a setting,"
    )
    errors = both.pivot_table(index=[*RUN, "name"], columns="tempering", values="ece").reset_index()
    higher = errors[errors[REHEARSED] >= errors[RAW]]
    yield f"and in {percent(1 - len(higher) / len(errors))} of {len(errors):,} runs."
    (most, count), *_ = Counter(zip(higher["data"], higher["target"], strict=True)).most_common()
    yield f"{count} of the {len(higher)} runs whose ECE rises are of {DATA[most[0]]} {plain(most[1])},"
    mnist = both[(both["data"] == "digits-c") & (both["target"] == "mnist") & (both["name"] == "poise")]
    eces = mnist.groupby("tempering")["ece"].mean()
    yield f"where the ECE of `poise` is {told(eces[RAW])} raw and {told(eces[REHEARSED])} rehearsed."


def of_streams(cells: pd.DataFrame) -> Iterator[str]:
    few = cells.groupby("data", sort=False)["classes_in_a_row"].mean()
    yield f"of a few classes ({', '.join(f'{DATA[str(data)]} {value:.0f}' for data, value in few.items())}):"
    lost = {}
    for place in places(cells):
        for name, values in by_pass(cells, place).items():
            lost[place, name] = fmean(values[:AT_EACH_END]) - fmean(values[-AT_EACH_END:])
    (first, one), (second, two) = sorted(lost, key=lambda key: -lost[key])[:2]
    yield f"to the last two `{one}` loses {told(lost[first, one])} on {first.short},"
    yield f"and `{two}` {told(lost[second, two])} on {second.short}."
    machines = dict.fromkeys(zip(cells["device"], cells["torch"], strict=True))
    yield f"On {'; '.join(f'{device} with torch {torch}' for device, torch in machines)}, all of it within"


def of_methods(cells: pd.DataFrame) -> Iterator[str]:
    runs = [run_gains(cells, kind) for kind in (RAW, REHEARSED)]
    yield f"and the largest loss: of {len(runs[0])} runs raw, of {len(runs[1])} rehearsed."


def of_regret(cells: pd.DataFrame) -> Iterator[str]:
    regrets = Regrets(cells)
    accuracies, seen = regrets.accuracies, regrets.seen
    results = regrets.results.loc[accuracies.index]
    best = results.max(axis=1)
    lost = best - accuracies["recommend()"]
    yield (
        f"Over {len(accuracies)} runs of … its choice is {told(lost[seen].mean())} (Digits) and "
        f"{told(lost[~seen].mean())} (PACS and TinyImageNet-C) less accurate than the best of "
        f"{len(regrets.everywhere)} methods and variants in hindsight:"
    )
    yield f"## Digits, {seen.sum()} runs,"
    yield f"## PACS, seed 0, and TinyImageNet-C, {(~seen).sum()} runs"
    more = accuracies["recommend()"] - accuracies[ALWAYS["poise"]]
    error = told(more.std() / len(more) ** 0.5)
    yield (
        f"The recommendation is `poise` in {(regrets.chosen['recommend()'] == 'poise').sum()} of "
        f"{len(regrets.chosen)} runs, and over always taking `poise` it gains {signed(more.mean())} ± {error}"
    )
    names = results.idxmax(axis=1).astype(str)
    streams = names.index.get_level_values("stream")
    tried = [name in short_list(stream) for stream, name in zip(streams, names, strict=True)]
    others = names[[not each for each in tried]].value_counts().index[:3]
    yield (
        f"In {percent(1 - fmean(tried))} of the runs the best method is one that `recommend` does not try, "
        f"mostly {code(others)}."
    )
    before = best - accuracies[ANY_LOSS]
    yield f"a mean regret of {told(before[seen].mean())} and {told(before[~seen].mean())} on the two groups."


SENTENCES: Mapping[str, Callable[[pd.DataFrame], Iterator[str]]] = {
    "streams.md": answer,
    "tables/streams-methods.md": of_methods,
    "tables/streams-recommendation.md": of_regret,
}


def sentences(page: str) -> Iterator[str]:
    """The sentences of a page."""
    return SENTENCES[page](read(HERE))
