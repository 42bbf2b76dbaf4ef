"""The sentences of docs/results.md that have numbers, with the numbers of the committed results."""

from collections.abc import Iterator
from itertools import product
from statistics import fmean

import pandas as pd

from benchmarks.pages import ends, percent, plain, signed, told
from benchmarks.results import page
from benchmarks.results.goals import GOALS, MOST_ECE, RAW_OR_TAU, Decision, decisions, named, rival_of
from benchmarks.results.measured import (
    DEC,
    LABELS,
    LEAVE_ONE_OUT,
    MINIMISERS,
    NAMES,
    NETWORKS,
    NETWORKS_OF,
    NORM,
    POISE,
    RIVALS,
    SOURCE,
    STREAM,
    WAYS,
    Measured,
    Place,
    against_each,
    at,
    best_raw_rival,
    change,
    common,
    estimated,
    hardest,
    mean,
    networks,
    of,
    printed,
    raw,
    read,
)
from benchmarks.results.robustness import LOST, ONE, STREAMS, collapsed, is_complete, paired
from equipoise.calibration.temper import ENTER
from equipoise.research.report.paper import experiments
from equipoise.research.report.results import Variant
from equipoise.research.report.table import listed

HARDLY, SAME = 0.003, 0.001
"""Differences of accuracy and of ECE that are called none."""
ORACLE = Variant(POISE.name, "oracle")


def sentences() -> Iterator[str]:
    measured = read()
    for part in (in_short, extent, of_goals, of_robustness, of_claims, of_training):
        yield from part(measured)


def score(rows: pd.DataFrame, variant: Variant, metric: str) -> float:
    value = mean(rows, variant, metric)
    assert value is not None
    return value


def by_place(cells: pd.DataFrame) -> dict[Place, pd.DataFrame]:
    return {place: at(cells, place) for place in networks(cells)}


def in_short(measured: Measured) -> Iterator[str]:
    cells, here = measured.cells, by_place(measured.cells)
    for words, variant, says in (
        ("Without adaptation it is", SOURCE, "*says*"),
        ("recommends, it is", POISE, "says"),
    ):
        right, sure = (
            percent(fmean(score(rows, variant, metric) for rows in here.values()))
            for metric in ("accuracy", "confidence")
        )
        yield f"{words} right {right} of the time and {says} {sure}"
    online = cells[cells["protocol"] == "online"]
    own, source = of(online, POISE), of(online, SOURCE)
    off = (own["confidence"] - own["accuracy"]).abs()
    worst, on_average = (
        own.iloc[int(off.to_numpy().argmax())],
        off.groupby([own["data"], own["backbone"]]).mean().mean(),
    )
    yield (
        f"they differ by {100 * on_average:.0f} points on average, and by {100 * off.max():.0f} at most "
        f"({NAMES[worst['data']]}, {plain(worst['target'])})"
    )
    lower = [
        f"on {place} (`poise` {told(score(rows, POISE, 'ece'))}) {text}"
        for place, rows in here.items()
        if (text := lower_eces(rows))
    ]
    yield f"lower ECE than `poise`: {'; '.join(lower)}. Other methods were rehearsed as well on all of these."
    rivals, decs = [], []
    for rows in here.values():
        rival, shared = best_raw_rival(rows), common(rows, DEC, POISE)
        assert rival is not None
        rivals.append(score(rows, rival, "ece") / score(rows, POISE, "ece"))
        decs.append(score(shared, DEC, "ece") / score(shared, POISE, "ece"))
    yield f"is {ends(rivals, 1)} times that of `poise`; that of DEC in the paper's form {ends(decs, 1)}"
    moved = (own.set_index(STREAM)["accuracy"] - source.set_index(STREAM)["accuracy"]).dropna()
    yield (
        f"On {(moved < 0).sum()} of the {len(moved)} streams, each with one model, `poise` is less accurate "
        f"than no adaptation, at worst by {told(-moved.min())}."
    )
    streams = estimated(cells)
    spans = streams.assign(off=streams["error"].abs(), width=streams["high"] - streams["low"])
    means = spans.groupby(["data", "backbone"])[["off", "width", "covered"]].mean()
    held = (100 * means["covered"]).tolist()
    yield f"over {len(streams)} streams, the estimate is off by {ends(means['off'].tolist())} on average"
    yield f"the interval, {ends(means['width'].tolist())} wide, held the accuracy"
    yield f"500 images at {ends(held, 0)} % of the batches."


def lower_eces(rows: pd.DataFrame) -> str:
    """The methods with a lower ECE than poise at three decimals, by temperature."""
    found = []
    for way in WAYS:
        eces = {}
        for other in (Variant(label, way) for label in LABELS if label != POISE.name):
            shared = common(rows, other, POISE)
            theirs, ours = mean(shared, other, "ece"), mean(shared, POISE, "ece")
            if theirs is not None and ours is not None and round(theirs, 3) < round(ours, 3):
                eces[LABELS[other.name]] = theirs
        found += [f"{listed(eces)}, {WAYS[way]} ({ends(list(eces.values()))})"] if eces else []
    return "; ".join(found)


def extent(measured: Measured) -> Iterator[str]:
    cells = measured.cells
    machines = cells[["device", "torch"]].drop_duplicates().to_numpy().tolist()
    yield f"Made on {listed(f'{device} (torch {version})' for device, version in machines)}. Not run:"
    sizes = cells[["rehearsal_images", "rehearsal_shifts"]].dropna().drop_duplicates().to_numpy().tolist()
    ((images, shifts),) = sizes
    yield f"here with at most {int(images):,} images and {int(shifts)} made-up shifts;"
    assert set(experiments()) - set(cells["data"]) == {"office-home"}
    gaps, alike = ["Office-Home: its data could not be had."], []
    for place, rows in by_place(cells).items():
        runs = len(rows[["shift", "seed"]].drop_duplicates())
        # Every method was run on every stream, raw and with each temperature that any stream has.
        assert (rows[rows["tempering"].isin(WAYS)].groupby(["name", "tempering"]).size() == runs).all()
        assert len(of(rows, POISE)) == len(of(rows, Variant("dec", "fixed"))) == runs
        tiers = rows.loc[rows["tier"] > 0, "tier"].nunique()
        lacking = experiments()[place.data].lacking(rows["target"].nunique(), tiers, set(rows["seed"]))
        gap = [f"only {lacking}"] if lacking else []
        gap += [f"{rows['images'].max():,} of 5,000 images a stream"] if tiers else []
        gap += [] if len(at(cells, place, "after-pass")) else ["no second pass after adapting"]
        gaps += [f"{place}: {'; '.join(gap)}."] if gap else []
        base = of(rows, NORM).set_index(["shift", "seed"])["accuracy"]
        for label in MINIMISERS:
            moved = (of(rows, raw(label)).set_index(["shift", "seed"])["accuracy"] - base).abs()
            alike += [(LABELS[label], str(place))] if moved.max() < HARDLY else []
    for data, backbone in [(each, network) for each in LEAVE_ONE_OUT for network in NETWORKS_OF[each]]:
        robust, tried = (
            frame[(frame["data"] == data) & (frame["backbone"] == backbone)]
            for frame in (measured.robust, measured.training)
        )
        assert is_complete(paired(robust))
        gaps += [f"Ways to train, {Place(data, backbone)}: none but the recipe's."] if tried.empty else []
    yield f"Not run: {' '.join(f'- {gap}' for gap in gaps)} The commands:"
    methods, at_places = (listed(dict.fromkeys(each)) for each in zip(*alike, strict=True))
    yield f"In streams this short {methods} hardly learn at these rates: on {at_places} their accuracy"
    yield f"that of norm within {told(HARDLY)} on every stream."


def of_goals(measured: Measured) -> Iterator[str]:
    made = decisions(measured)
    reached, missed, not_apply = (sum(each.reached is way for each in made) for way in (True, False, None))
    left = sum(len(named(goal)) for goal in GOALS) - len(made)
    counts = f"{reached} are reached, {missed} missed, {left} not run and {not_apply} do not apply"
    yield f"that were set before the runs, {counts}."
    yield f"a tier: **{counts}**."
    lost, others = [], [label for label in LABELS if label not in (*RIVALS, SOURCE.name, POISE.name)]
    for place, rows in by_place(measured.cells).items():
        best = hardest(against_each(rows, "nll", POISE, RAW_OR_TAU, others))
        if best is not None and best.focal_mean >= best.rival_mean:
            lost.append(f"{place} ({told(best.focal_mean)} against {rival_of(best)})")
    names = listed(LABELS[label] for label in others)
    yield f"With {names} counted as rivals too, the goal of NLL is missed on {listed(lost)}."
    causes = [f"- *{each.place}*, …: {cause(measured, each)}" for each in made if each.reached is False]
    yield f"Why goals were missed: {' '.join(causes)} The numbers behind the marks"


def cause(measured: Measured, missed: Decision) -> str:
    """The line of a missed goal."""
    place, rows, guesses = missed.place, at(measured.cells, missed.place), estimated(measured.cells)
    if missed.goal == "collapse":
        return collapses(measured.robust, place)
    if missed.goal == "domain":
        by_shift = [of(rows, each).groupby("shift")["accuracy"].mean() for each in (SOURCE, POISE)]
        worst = str((by_shift[1] - by_shift[0]).idxmin())
        source, ours = (told(each[worst]) for each in by_shift)
        return f"the source model is right on {source}, `poise` on {ours}. … {told(ENTER, 2)} better, ….…"
    if missed.goal == "nll-rehearsed":
        norm, base = (score(rows, each, "accuracy") for each in (NORM, SOURCE))
        t3a, best = (told(score(rows, each, "nll")) for each in (Variant("t3a", "oracle"), ORACLE))
        assert norm < base
        return (
            f"…(norm is right on {told(norm)}, no adaptation on {told(base)}), and T3A leaves … the NLL of "
            f"T3A is {t3a}, that of the answers of `poise` … {best}."
        )
    if place.data == "digits":
        there, guess = rows[rows["target"] == "mnist"], guesses[guesses["target"] == "mnist"]
        estimate, truth = (told(guess[name].mean(), 2) for name in ("value", "accuracy"))
        ece, untempered = (told(score(there, each, "ece")) for each in (POISE, raw(POISE.name)))
        return (
            f"on MNIST the rehearsal estimates {estimate} … to be right, and {truth} are. … The ECE there is "
            f"{ece}; that of the raw answers is {untempered}."
        )
    floor, limit = score(rows, ORACLE, "ece"), most_ece(missed.goal, rows, place)
    if floor > limit:
        return f"at most {told(limit)} was wanted, and even … leaves {told(floor)}."
    there = guesses[(guesses["data"] == place.data) & (guesses["backbone"] == place.backbone)]
    off = (there[there["tier"] == place.tier] if place.tier else there)["error"].abs().mean()
    return f"at most {told(limit)} was wanted; … leaves {told(floor)}, … is off by {told(off)} on average."


def most_ece(goal: str, rows: pd.DataFrame, place: Place) -> float:
    """The ECE that a goal allows."""
    rival = hardest(against_each(rows, "ece", POISE, ("none",)))
    paper = printed(place, "dec", "ece")
    assert rival is not None
    assert paper is not None
    return {"ece": MOST_ECE[place.data], "third": rival.rival_mean / 3, "paper-ece": paper.value}[goal]


def collapses(robust: pd.DataFrame, place: Place) -> str:
    """The streams of a place that collapsed, by kind."""
    lost = collapsed(robust[(robust["data"] == place.data) & (robust["backbone"] == place.backbone)])
    changes = lost["stream"].map(lambda name: STREAMS[name].changes)
    by_source = ~changes & (lost["answered_by_source"] > 0.5)
    kinds = {
        "where the source model answers a sorted stream": by_source,
        "after abrupt changes": changes,
        "where the statistics follow one class after the other": ~by_source & ~changes,
    }
    return "; ".join(f"{each.sum()} {words}…" for words, each in kinds.items() if each.any()) + "."


def of_robustness(measured: Measured) -> Iterator[str]:
    robust = measured.robust
    both, lost, tent = paired(robust), collapsed(robust), paired(robust, "tent")
    yield f"meet streams of {robust['images'].min():,} to {robust['images'].max():,} images:"
    on_it, after = (lost[name] < lost[f"{name}_source"] - LOST for name in ("accuracy", "after"))
    yield (
        f"**{len(lost)} of {len(both)} streams collapsed**, {(on_it | after).sum()} of them to more than "
        f"{told(LOST, 2)} below no adaptation."
    )
    kinds = f"{tent['stream'].nunique()} of the {robust['stream'].nunique()} kinds of stream"
    yield f"TENT, which met {kinds}, collapsed on {len(collapsed(robust, 'tent'))} of {len(tent)}."
    errors = both["estimate"] - both["accuracy"]
    worst, alone = both.iloc[int(errors.abs().to_numpy().argmax())], errors[both["stream"] == ONE].mean()
    yield f"the estimate is too high by {told(errors.mean())} on average, in batches of 1 by {told(alone)};"
    yield (
        f"it is off most on {plain(worst['target'])}, {worst['stream']} ({told(worst['estimate'], 2)} for "
        f"{told(worst['accuracy'], 2)})."
    )
    above = (both["ece"] > both["ece_source"]).sum()
    yield f"The ECE is above that of no adaptation on {above} of {len(both)} streams."


def confirmed(cases: list[bool]) -> str:
    """The verdict on a claim from the cases in which it holds."""
    return "Confirmed" if all(cases) else "Confirmed in part" if any(cases) else "Not confirmed"


def share(cases: list[bool]) -> str:
    return f"{sum(cases)} of {len(cases)}"


def of_claims(measured: Measured) -> Iterator[str]:
    cells, here = measured.cells, by_place(measured.cells)
    for family, words in {
        "raw": "- `poise` against the best rival *raw*",
        "tempered": "- `poise` against the best rival *divided by the mean or median of tau*",
        "rehearsed": "- `poise` against the best *rehearsed* rival",
        "dec": "DEC (paper, divided by the mean of tau) against the best *raw* rival",
    }.items():
        found = page.tested(cells, *page.FAMILIES[family][1:])
        better = [best.test.difference < 0 for _, best, _ in found]
        sure = [best.test.difference < 0 and p is not None and p < 0.05 for _, best, p in found]
        yield f"{words}: better in {share(better)} comparisons, significantly in {sum(sure)}."
    eces = page.cases(cells)["ece"]
    lower = eces["median"] < eces["mean"]
    counts = [
        f"{share(lower.xs(name, level='backbone').tolist())} cases with {NETWORKS[name]}" for name in NETWORKS
    ]
    yield f"The median of tau has a lower ECE than its mean in {listed(counts)}."
    lower, others = eces["rehearsed"] < eces["median"], eces.index.get_level_values("method") != POISE.name
    rehearsed, median = (told(eces[kind].mean()) for kind in ("rehearsed", "median"))
    yield (
        f"has a lower ECE than the median of tau in {share(lower.tolist())} cases ({rehearsed} against "
        f"{median} on average), without `poise` in {share(lower[others].tolist())}."
    )
    assert not eces[["mean", "median", "rehearsed"]].isna().to_numpy().any()

    def changes(base: Variant, labels: tuple[str, ...], metric: str) -> list[float]:
        found = [change(rows, raw(label), base, metric) for rows, label in product(here.values(), labels)]
        return [value for value in found if value is not None]

    for reference, labels, words in (
        (SOURCE, RIVALS, "no adaptation"),
        (NORM, MINIMISERS, "`norm`, the statistics of each batch without gradient steps"),
    ):
        entropies, errors = (changes(reference, labels, metric) for metric in ("entropy", "ece"))
        count = len(errors)
        worse = [ece > SAME for entropy, ece in zip(entropies, errors, strict=True) if entropy < 0]
        yield f"{confirmed(worse)} against {words}: a rival's entropy is lower in {len(worse)} of {count}"
        yield f"of these its ECE is higher, by more than {told(SAME)}, in {share(worse)}."
    yield f"under shift, with an ECE of {ends([score(rows, SOURCE, 'ece') for rows in here.values()])}."
    norms = [rows for _, rows in page.norms(measured.streams).groupby(level="backbone")]
    falls = [bool(rows["5 %"].is_monotonic_decreasing) for rows in norms]
    grows = [bool(rows["variance"].is_monotonic_increasing) for rows in norms]
    yield f"{confirmed(falls + grows)}: the 5 % quantile falls from tier to tier with {share(falls)} networks"
    yield f"the variance of tau grows with {share(grows)}."
    for (base, words), label in product(
        ((SOURCE, "no adaptation"), (NORM, "`norm`")), ("dec", "dec-released")
    ):
        gains = changes(base, (label,), "accuracy")
        more = [gain > 0 for gain in gains]
        yield (
            f"{confirmed(more)} for {LABELS[label]} against {words}: more accurate in {share(more)} cases "
            f"({signed(fmean(gains))} on average)"
        )
    fixed = {
        place: [score(rows, Variant("dec", way), "ece") for way in ("mean", "fixed")]
        for place, rows in here.items()
    }
    less = [tau < other for tau, other in fixed.values()]
    numbers = "; ".join(
        f"{place}: {told(tau)} against {told(other)}" for place, (tau, other) in fixed.items()
    )
    yield f"{confirmed(less)}: DEC divided by the mean of tau has the lower ECE in {share(less)} cases"
    yield f"cases ({numbers})."


def of_training(measured: Measured) -> Iterator[str]:
    near = page.source_table(measured.cells).count("✓")
    yield f"{near} of {len(networks(measured.cells))} come within {told(page.NEAR, 2)} of the paper's"
    training = measured.training
    models = training.groupby(["data", "backbone", "target", "seed", "way"]).ngroups
    yield f"{training['way'].nunique()} ways to train were tried, with {models} models in all,"
    pacs, digits = (
        {str(way): page.steady(tried) for way, tried in rows.groupby("way")}
        for _, rows in training.groupby("data", sort=False)
    )
    recipe = pacs.pop("recipe")
    ahead = told(recipe.mean() - max(each.mean() for each in pacs.values()))
    yield f"the recipe leads the best of {len(pacs)} other ways by {ahead} (models: {len(recipe)}), and"
    best = max(digits, key=lambda way: float(digits[way].mean()))
    lead = digits[best] - digits["recipe"]
    assert lead.std() > lead.mean()
    average, spread = told(lead.mean()), told(lead.std())
    yield f"*{best}* leads the recipe by {average}, with a standard deviation over the models of {spread}:"
    paper = printed(Place("digits", "smallcnn"), "source", "accuracy")
    assert paper is not None
    own = training[training["data"] == "digits"].sort_values("epoch")
    targets = own.groupby(["way", "target", "seed"])["target_accuracy"].last().groupby("way").mean()
    some = [
        f"*{way}* ({told(value)}; held out {told(digits[str(way)].mean())})"
        for way, value in targets.items()
        if value >= paper.value - page.NEAR
    ]
    yield f"Within {told(page.NEAR, 2)} of the paper's {paper} on the targets: {listed(some)}."
