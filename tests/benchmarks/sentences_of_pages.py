"""The sentences of smaller pages that have numbers, with the numbers of their results."""

import json
from collections.abc import Iterator
from statistics import fmean

import pandas as pd

from benchmarks.decisions import decisions_page
from benchmarks.estimators import estimates_page
from benchmarks.estimators.measure_estimates import REHEARSED, read
from benchmarks.guard import guard_page
from benchmarks.monitoring import monitoring_page
from benchmarks.monitoring.alarms import RULES
from benchmarks.pages import ends, percent, signed, told
from benchmarks.readme.keep_demo import KEPT
from benchmarks.rehearsal import rehearsal_page
from benchmarks.results import choosing as choosing_page
from benchmarks.results.measured import NAMES, NETWORKS
from benchmarks.serving import load_table
from benchmarks.speed import performance as speed
from benchmarks.speed.cases import BACKBONES, PLAIN
from benchmarks.speed.deployed import DEFAULT, WATCHED
from benchmarks.streams.stream_cells import RAW, SOURCE, by_mean, gains, matrix, mean_of, with_rehearsal
from benchmarks.streams.stream_cells import REHEARSED as REHEARSED_TEMPERING
from benchmarks.streams.stream_cells import read as read_cells
from benchmarks.streams.streams_page import HARM, run_gains
from benchmarks.streams.streams_page import HERE as STREAMS
from benchmarks.tables import tables_page

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
    yield f"the 90 % band of the estimate held the true accuracy {percent(held)} of the time"
    more = watched_more(speed.Lines(speed.HERE / speed.GPU))
    yield f"guard and monitor add {ends(more[True] + more[False], 0)} ms"
    fall, count = worst_fall()
    yield f"it fell by {fall} on the worst of {count}"
    machine = run["machine"]
    yield f"{machine['kind']}, {machine['threads']} cores, torch {machine['torch']}"


def monitoring() -> Iterator[str]:
    streams, windows, jumps, false_alarms = monitoring_page.read_all()
    by_place = streams.groupby(["data", "backbone"])["covered"].mean()
    yield f"Over {len(streams)} streams of Digits, PACS and TinyImageNet-C the estimated accuracy is off by"
    yield f"is off by {told(streams['error'].abs().mean())} on average"
    yield f"images at {percent(by_place.min())} to {percent(by_place.max())} of the batches, by"
    yield f"it held it in {percent(monitoring_page.covered(windows).mean())} of {len(windows)} windows."
    rows = monitoring_page.with_alarms(jumps)
    count = len(rows[monitoring_page.STREAM].drop_duplicates())
    (many, after), (more, sooner) = (
        (len(delays), f"{delays.median():.0f}")
        for delays in (monitoring_page.first_alarms(rows, rule) for rule in ("accuracy", "estimate"))
    )
    yield f"in {count} streams, the alarm … came in {many}, after {after} images (median), and …"
    yield f"probably worse in {more}, after {sooner}."
    begun = int(false_alarms[["accuracy alarms", "estimate alarms"]].sum().sum())
    yield f"{false_alarms['images'].sum():,} images, most of them replayed, raised {begun} alarms of either."
    ends = {end: rows[rows["after"] == at] for end, at in (("before", 0), ("after", rows["after"].max()))}
    falls = [
        told(before - after, 2)
        for target in ("mnist", "usps")
        for before, after in [[mean_truth(ends[end], target) for end in ("before", "after")]]
    ]
    yield f"on MNIST and USPS by {' and '.join(falls)}, `accuracy` never came."
    first = 50 - jumps["after"].min()
    yield f"Five conditions on the gauges, in {count} streams of SmallCNN that jump after {first} images"
    low = [
        f"{NAMES[data]} with {NETWORKS[network]} ({percent(share)})"
        for data, network in by_place.index
        if (share := by_place[data, network]) < PROMISED - 0.02
    ]
    yield f"the intervals promise 90 % and held less on {', '.join(low)}."
    source = windows[windows["stream"] == "source"]
    off = (source["accuracy"] - source["true_accuracy"]).abs().mean()
    width = (source["accuracy_high"] - source["accuracy_low"]).mean()
    yield f"Without drift** the estimate was off by {told(off)} on average, in intervals {told(width)} wide."
    hard = windows[(windows["target"] == "svhn") & (windows["stream"] == "target")]
    right, believed = (told(hard[name].mean()) for name in ("true_accuracy", "accuracy"))
    yield f"where {right} of the answers … are right, the estimates of windows are {believed} on average"


def mean_truth(rows: pd.DataFrame, target: str) -> float:
    """The mean true accuracy in the streams that jump to a target."""
    return float(rows.loc[(rows["target"] == target) & (rows["to"] == "target"), "true_accuracy"].mean())


def alarms() -> Iterator[str]:
    _, windows, jumps, false_alarms = monitoring_page.read_all()
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


def guard() -> Iterator[str]:
    usual, fast = (guard_page.rows_of(quick=quick) for quick in (False, True))
    collapsed = [row for row in fast if row["adapted"] < row["source"] - FALL]
    in_time = [row for row in collapsed if row["acted"] and row["drop"] < FALL]
    yield f"acted on {sum(bool(row['acted']) for row in usual)} of {len(usual)};"
    yield (
        f"of {len(collapsed)} streams on which TENT alone ends more than .05 below no adaptation, it acted "
        f"in time on {len(in_time)}**"
    )
    yield f"targets ({', '.join(sorted({row['target'] for row in usual + fast}))}):"
    worst = [told(max(row[f"largest_{name}"] for row in usual)) for name in guard_page.DISTANCES]
    yield f"On the {len(usual)} streams weights went by at most {worst[0]} of their norm in all (limit 1),"
    yield f"{worst[1]} in one batch (limit .05), statistics by {worst[2]} of theirs (limit"
    slow = next(row for row in fast if (row["target"], row["rate"]) == ("mnist", 0.02))
    lost = told(slow["source"] - slow["adapted"], 2)
    yield f"At a rate of .02 TENT loses {lost} on mnist, and the guard waits."


def tables() -> Iterator[str]:
    frame = tables_page.read()
    rows = {data: frame[frame["data"] == data] for data in tables_page.DATA}
    loans, elec = (
        [tables_page.error(rows[data], column) for column in ("equipoise", "CBPE")]
        for data in ("nannyml loans", "elec")
    )
    yield f"they are off by {told(loans[0], 4)} on average, where CBPE is off by {told(loans[1], 4)},"
    yield f"on Elec by {told(elec[0])} instead of {told(elec[1])}."
    least = min(tables_page.held(own, "low", "high") for own in rows.values())
    yield f"Its 90 % intervals hold in {percent(least)} of the chunks or more."
    off = {
        data: [tables_page.error(own, column) for column in ("equipoise", "CBPE")]
        for data, own in rows.items()
    }
    assert all(ours <= theirs for ours, theirs in off.values())
    yield ".25 is at or below CBPE on all of the table above."


def estimates() -> Iterator[str]:
    rows, streams = (
        estimates_page.named(read(estimates_page.HERE / f"{name}.csv")) for name in ("estimates", "streams")
    )
    of_poise = rows[rows["answers"] == "poise"]
    errors = {
        name: estimates_page.per_place(found, "error_moments")
        for name, found in of_poise.groupby("estimator")
    }
    ours, cot = errors[REHEARSED], errors["COT"]
    pacs, digits, known, trained = (
        told(ours[place])
        for place in (
            "PACS, random order",
            "Digits, random order",
            "Digits, source images",
            "PACS, source images",
        )
    )
    yield f"off by {pacs} on PACS and {digits} on Digits where a domain was left out,"
    yield f"by {known} and {trained} on images like those"
    tables = told(ours[estimates_page.ALL_TABLES])
    yield f"it is off by {tables} on average, most on Elec ({told(ours['Elec'])}),"
    yield f"there COT is better ({told(cot['Elec'])})."
    held = estimates_page.per_place(of_poise[of_poise["estimator"] == REHEARSED], "coverage")
    shares = {
        order: [100 * share for name, share in held.items() if name.endswith(order)]
        for order in ("random order", "sorted by class")
    }
    mixed, ordered = (ends(shares[order], 0) for order in shares)
    yield f"holds {mixed} % on pictures in random order, {ordered} % where they come sorted by class, and"
    yield f"and {percent(held['Elec'])} on Elec."
    places = [place for place in estimates_page.of_pictures() if place in ours]
    behind = max(
        ours[place] - min(found[place] for found in errors.values() if place in found) for place in places
    )
    yield f"within {told(behind)} of the best"
    assert len(places) == 9
    fitted = [errors[name]["Digits, random order"] for name in ("mean confidence", "ATC", "CBPE")]
    yield f"left out: {ends(fitted, 2)} on Digits."
    runs = [told(errors[name]["Digits, sorted by class"], 2) for name in ("COT", "nuclear norm")]
    yield f"{' and '.join(runs)} on Digits sorted by class."
    gain = streams.assign(gain=streams["accuracy_poise"] - streams["accuracy_none"])
    left_out = gain[gain["stream"] == "random order"].groupby("kind")["gain"].mean()
    yield f"`poise` gains {told(left_out['digits'], 2)} on Digits and {told(left_out['pacs'], 2)} on PACS"
    yield f"loses {told(-gain['gain'].min())} at worst"
    ece = streams.loc[streams["place"] == "Digits, random order", "ece_poise"].mean()
    yield f"ECE ≤ .050 on Digits ({told(ece)} on average)"
    goals = [goal.reached for goal in estimates_page.goals(rows, streams)]
    yield f"{goals.count(False)} of {len(goals)} goals are missed"
    ordered_pacs = of_poise[
        (of_poise["estimator"] == REHEARSED) & (of_poise["place"] == "PACS, sorted by class")
    ]
    warned, off = (int(ordered_pacs[name].sum()) for name in ("off_outside", "off"))
    yield f"false in {warned} of the {off} moments on PACS"


def decisions() -> Iterator[str]:
    rows, _ = decisions_page.read()
    whole = decisions_page.unlabelled(rows)
    shifted = whole[whole["kind"] != "no drift"]
    still = told(whole.loc[whole["kind"] == "no drift", "sets.lac.coverage"].mean())
    covered, size = shifted["sets.lac.coverage"], told(decisions_page.ratio(shifted, "lac").mean(), 2)
    yield f"right class in {still} of the rows of source data and in {told(covered.mean())} over"
    yield f"over {len(shifted)} shifted streams, {told(decisions_page.most(covered))} or more in nine of ten"
    split = told(shifted["sets.split.coverage"].mean())
    yield f"sets {size} times as large as an oracle's; split conformal prediction falls to {split}."
    yield f"The worst stream has {told(covered.min())}, and"
    right = percent((shifted["decide.ours.accuracy"].fillna(1) >= 0.93).mean())
    share = shifted["decide.ours.share"].mean() / shifted["decide.oracle.share"].mean()
    yield f"or more in {right} of the shifted streams, and answer {told(share, 2)} times as much as an oracle"
    natural = decisions_page.with_labels(rows)["natural shifts"]
    off = {count: told(decisions_page.error(own).mean()) for count, own in natural.groupby("labels")}
    yield f"error of the estimated accuracy on natural shifts, from {off[0]} to {off[200]}."


def all_estimates() -> Iterator[str]:
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
    listed = ("tent", "eta", "eata", "deyo", "pseudo_label")
    mobile = [by_name for setting, by_name in gain.items() if setting.place.backbone == "mobilenet_v1"]
    apart = max(abs(by_name[name] - by_name["norm"]) for by_name in mobile for name in listed)
    yield f"all but `shot_im` within {told(apart)} of `norm` in our streams with MobileNet"
    both = with_rehearsal(cells)
    raw, honest = (of_methods(both, kind) for kind in (RAW, REHEARSED_TEMPERING))
    yield f"the ECE of every method, from {told(raw, 2)} to {told(honest, 2)} on average."
    rows = rehearsal_page.streams()
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
    rows = rehearsal_page.streams()
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


def rehearsal() -> Iterator[str]:
    rows = rehearsal_page.streams()
    groups = [group for group in rehearsal_page.GROUPS if group.startswith(("tin", "svhn"))]
    found = [rehearsal_page.picked(rows, group, "target") for group in groups]
    ours, plain = (ends([each[f"{who}.ece"].mean() for each in found]) for who in ("poise", "source"))
    yield f"On {sum(map(len, found))} corrupted streams … is {ours} off (ECE), where the plain model's is"
    yield f"the plain model's is {plain} off"
    within, holds = zip(*map(rehearsal_page.known, found), strict=True)
    yield f"known within {min(within)} to {max(within)} without labels;"
    least, most = (end(int(share.removesuffix(" %")) for share in holds) for end in (min, max))
    yield f"the 90 % interval holds it in {least} to {most} % of the streams."
    digits = rehearsal_page.picked(rows, "digits", "target")
    before, after = (told(digits[f"{who}.ece"].mean()) for who in ("source", "poise"))
    yield f"halves the error ({before} → {after}), and the estimate is {rehearsal_page.known(digits)[0]} off:"
    doubtful = rehearsal_page.picked(rows, "svhn bn doubtful", "target")
    before, after = (told(doubtful[f"{who}.ece"].mean()) for who in ("source", "poise"))
    yield f"a ResNet on SVHN-C from {before} to {after}."
    unseen = [rehearsal_page.picked(rows, group, "unseen") for group in rehearsal_page.GROUPS]
    means = [each.mean(numeric_only=True) for each in unseen if len(each)]
    fall = max(each["source.accuracy"] - each["poise.accuracy"] for each in means)
    above = max(each["poise.ece"] - each["untempered.ece"] for each in means)
    yield f"accuracy is at most {told(fall)} below the plain model's,"
    yield f"and the ECE of `poise` at most {told(above)} above that of its untempered answers"
    small = pd.read_csv(rehearsal_page.HERE / "batch_sizes.csv")
    eces = small[small["stream"] == "target"].groupby("batch")["poise ece"].mean()
    yield f"on Digits the ECE with single images is {told(eces[1])}, with 50 it is {told(eces[50])}"
    tables = pd.read_csv(rehearsal_page.HERE / "novelty.csv")
    rows = tables[(tables["data"] == "weather") & (tables["order"] == "sorted by class")]
    kept, lost = (told(rows[name].mean()) for name in ("with", "without"))
    yield f"keeps its accuracy ({kept}; without this {lost})"
    long = pd.read_csv(rehearsal_page.HERE / "long_streams.csv")
    long = long[long["method"] == "poise"]
    held = ((long["low"] <= long["accuracy"]) & (long["accuracy"] <= long["high"])).sum()
    yield f"the interval of `poise` holds in {held} of {len(long)} stretches of a thousand images."


def choosing_poise() -> Iterator[str]:
    search = pd.read_csv(choosing_page.HERE / "search.csv")
    by_median = search[search["rule"] == "median"].set_index(["variant", "group"])["accuracy"]
    plain, followed, entropy, paper, notebook = (by_median[choosing_page.WAYS[at]] for at in (0, 2, 3, 4, 5))
    gain = followed - plain
    yield f"accuracy rises by {ends(gain[['tin-eff', 'tin-mob']], 2)} on TinyImageNet-C and by"
    yield f"{ends(gain[['pac-eff', 'pac-mob']], 2)} on PACS;"
    yield f"but entropy on PACS with EfficientNet-B0 ({signed((entropy - followed)['pac-eff'])})."
    yield f"The paper's loss costs {told((followed - paper)['pac-eff'])} on PACS with EfficientNet-B0,"
    yield f"collapses MobileNet there ({told(notebook['pac-mob'])})."


def performance() -> Iterator[str]:
    gpu, cpu = (speed.Lines(speed.HERE / name) for name in (speed.GPU, speed.CPU))
    for words, lines in (("On an H200", gpu), ("On two CPU cores", cpu)):
        reach = [ends_of(lines, batch) for batch in (speed.MAIN, 1)]
        if all(reach):
            yield f"{words} … takes {reach[0]} times … for batches of 50, and {reach[1]} times for single"
    more = watched_more(gpu)
    yield f"{ends(more[True], 0)} ms more for networks with batch norm, {ends(more[False], 0)} ms without"
    vit = gpu.one("deployed", backbone="vit_base_patch16_224", batch=speed.MAIN)
    default, watched = (told(speed.over(vit, form, PLAIN), 1) for form in (DEFAULT, WATCHED))
    yield f"ViT-B/16 costs {default} plain forwards on the GPU, with guard and monitor {watched}."
    dec = gpu.one("step", backbone="efficientnet_b0", batch=speed.MAIN, method="dec")
    faster = 1 / (speed.over(dec, gpu.engine) or 0)
    yield f"`dec` on EfficientNet-B0 is {faster:.1f} times as fast as its authors' way, not 2.5;"
    goals = speed.bars(gpu, cpu)
    missed, met = goals.count("**missed**"), goals.count("| met |")
    yield f"{missed} goals are missed, of {missed + met} that were measured:"


def watched_more(lines: speed.Lines) -> dict[bool, list[float]]:
    """Milliseconds that guard and monitor add to a step, of networks with batch norm and without."""
    more: dict[bool, list[float]] = {True: [], False: []}
    for line in lines.of("deployed"):
        watched, default = (line["variants"][form]["ms"][0] for form in (WATCHED, DEFAULT))
        more[BACKBONES[line["cell"]["backbone"]].pooled].append(watched - default)
    return more


def ends_of(lines: speed.Lines, batch: int) -> str:
    """The least and the largest cost of poise by default, in plain forwards: "1.1 to 2.5"."""
    found = [speed.over(line, DEFAULT, PLAIN) for line in lines.of("deployed", batch=batch)]
    ratios = [ratio for ratio in found if ratio is not None]
    return " to ".join(speed.times(end) for end in (min(ratios), max(ratios))) if ratios else ""


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
