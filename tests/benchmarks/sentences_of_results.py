"""The sentences with numbers of docs/results.md and its full tables, by the committed results."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from statistics import fmean

import pandas as pd

from benchmarks.pages import ends, percent, plain, signed, told
from benchmarks.results import page
from benchmarks.results.goals import GOALS, MOST_ECE, RAW_OR_TAU, Decision, decisions, named, rival_of
from benchmarks.results.measured import (
    DEC,
    LABELS,
    MINIMISERS,
    NAMES,
    NETWORKS,
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
    estimated,
    hardest,
    mean,
    networks,
    of,
    printed,
    raw,
    read,
)
from benchmarks.results.robustness import LOST, ONE, STREAMS, collapsed, paired
from equipoise.calibration.temper import ENTER
from equipoise.research.report.paper import experiments
from equipoise.research.report.results import Variant
from equipoise.research.report.table import listed

HARDLY, SAME = 0.003, 0.001
"""Differences of accuracy and of ECE that are called none."""
ORACLE = Variant(POISE.name, "oracle")
DIGITS = Place("digits", "smallcnn")
MISSED_ECES = ("ece", "third", "paper-ece")


def score(rows: pd.DataFrame, variant: Variant, metric: str) -> float:
    value = mean(rows, variant, metric)
    assert value is not None
    return value


def by_place(cells: pd.DataFrame) -> dict[Place, pd.DataFrame]:
    return {place: at(cells, place) for place in networks(cells)}


def answer(measured: Measured) -> Iterator[str]:
    cells, here = measured.cells, by_place(measured.cells)
    online = cells[cells["protocol"] == "online"]
    own, source = of(online, POISE), of(online, SOURCE)
    moved = (own.set_index(STREAM)["accuracy"] - source.set_index(STREAM)["accuracy"]).dropna()
    (right, sure), (ours, says) = (
        [
            percent(fmean(score(rows, each, metric) for rows in here.values()))
            for metric in ("accuracy", "confidence")
        ]
        for each in (SOURCE, POISE)
    )
    yield (
        f"On {len(moved)} streams of unseen domains and corruptions a classifier without adaptation is right "
        f"{right} of the time and *says* {sure}; with `poise` it is right {ours} and says {says}."
    )
    eces, rivals = [score(rows, POISE, "ece") for rows in here.values()], []
    for rows, ece in zip(here.values(), eces, strict=True):
        rival = best_raw_rival(rows)
        assert rival is not None
        rivals.append(score(rows, rival, "ece") / ece)
    yield f"The ECE of `poise` is {ends(eces)},"
    yield f"and that of the best method of the paper {ends(rivals, 1)} times as high."
    yield f"{(moved < 0).sum()} of the {len(moved)} streams, at worst by {told(-moved.min())};"
    off = 100 * (own["confidence"] - own["accuracy"]).abs()
    on_average = off.groupby([own["data"], own["backbone"]]).mean().mean()
    worst = own.iloc[int(off.to_numpy().argmax())]
    yield (
        f"share of right answers by {on_average:.0f} points on average, and by {off.max():.0f} at most "
        f"({NAMES[worst['data']]}, {plain(worst['target'])})."
    )
    frame = page.cases(cells)["ece"]
    before, after = frame["none"], frame["rehearsed"]
    yield (
        f"lowers the ECE of {(after < before).sum()} of {len(frame)} pairs of a method and a model, from "
        f"{told(before.mean())} to {told(after.mean())} on average."
    )
    alike = [names for place, names in like_norm(here).items() if place.data != "digits"]
    assert all({"tent", "eta"} <= names for names in alike)
    yield f"batch and no gradient steps, within {told(HARDLY)} on every stream."
    means = spans(cells).groupby(["data", "backbone"])[["off", "covered"]].mean()
    held = (100 * means["covered"]).tolist()
    yield f"It is off by {ends(means['off'].tolist())} on average, and its interval held"
    yield f"images at {ends(held, 0)} % of the batches."
    yield from failures(measured)
    yield from extent(cells)
    training = measured.training
    yield f"[{training['way'].nunique()} ways to train]"
    yield f"✓: at most {told(page.NEAR, 2)} below the paper's."


def like_norm(here: dict[Place, pd.DataFrame]) -> dict[Place, set[str]]:
    """The rivals that lower entropy and are as accurate as norm on every stream of a place."""
    found: dict[Place, set[str]] = {}
    for place, rows in here.items():
        base = of(rows, NORM).set_index(["shift", "seed"])["accuracy"]
        moved = {
            label: (of(rows, raw(label)).set_index(["shift", "seed"])["accuracy"] - base).abs().max()
            for label in MINIMISERS
        }
        found[place] = {label for label, most in moved.items() if most < HARDLY}
    return found


def spans(cells: pd.DataFrame) -> pd.DataFrame:
    """The estimates of every stream, with how far they are off and how wide their intervals are."""
    streams = estimated(cells)
    return streams.assign(off=streams["error"].abs(), width=streams["high"] - streams["low"])


def failures(measured: Measured) -> Iterator[str]:
    cells = measured.cells
    mnist, guess = (
        frame[frame["target"] == "mnist"] for frame in (by_place(cells)[DIGITS], estimated(cells))
    )
    estimate, truth = (told(guess[name].mean(), 2) for name in ("value", "accuracy"))
    ece, untempered = (told(score(mnist, each, "ece")) for each in (POISE, raw(POISE.name)))
    yield (
        f"On MNIST the ECE of raw answers of `poise` is {untempered}, and of rehearsed ones {ece}: the "
        f"rehearsal estimates {estimate} of them to be right, and {truth} are"
    )
    (worst,) = [each.place for each in decisions(measured) if each.goal == "domain" and not each.reached]
    target, source, ours = worst_domain(at(cells, worst))
    assert target == "photo"
    network = NETWORKS[worst.backbone]
    yield f"of {NAMES[worst.data]}, {network} is right on {source} without adaptation and on {ours} with"
    robust = measured.robust
    both, lost, tent = paired(robust), collapsed(robust), paired(robust, "tent")
    yield f"On {len(lost)} of {len(both)} [hard streams]"
    yield f"lost more than {told(LOST, 2)} of accuracy, on {below_source(lost)} of them against no"
    yield f"TENT lost as much on {len(collapsed(robust, 'tent'))} of {len(tent)}."
    errors = both["estimate"] - both["accuracy"]
    alone = errors[both["stream"] == ONE].mean()
    yield f"too high by {told(errors.mean())} on average, in batches of 1 by {told(alone)}."
    yield f"that were set before the runs, {counts(measured)}: [which, and why]"


def worst_domain(rows: pd.DataFrame) -> tuple[str, str, str]:
    """The domain on which poise loses most against no adaptation, and the accuracy of both there."""
    source, ours = (of(rows, each).groupby("shift")["accuracy"].mean() for each in (SOURCE, POISE))
    target = str((ours - source).idxmin())
    return target, told(source[target]), told(ours[target])


def below_source(lost: pd.DataFrame) -> int:
    """The number of collapsed streams on which poise is clearly below no adaptation."""
    on_it, after = (lost[name] < lost[f"{name}_source"] - LOST for name in ("accuracy", "after"))
    return int((on_it | after).sum())


def extent(cells: pd.DataFrame) -> Iterator[str]:
    machines = cells[["device", "torch"]].drop_duplicates().to_numpy().tolist()
    yield f"Made on {listed(f'{device} (torch {version})' for device, version in machines)}:"
    sizes = cells[["rehearsal_images", "rehearsal_shifts"]].dropna().drop_duplicates().to_numpy().tolist()
    ((images, shifts),) = sizes
    yield f"here on at most {int(images):,} images and {int(shifts)} made-up shifts"
    assert set(experiments()) - set(cells["data"]) == {"office-home"}
    for place, rows in by_place(cells).items():
        runs = len(rows[["shift", "seed"]].drop_duplicates())
        # Every method was run on every stream, raw and with each temperature that any stream has.
        assert (rows[rows["tempering"].isin(WAYS)].groupby(["name", "tempering"]).size() == runs).all()
        assert len(of(rows, POISE)) == len(of(rows, Variant("dec", "fixed"))) == runs
        tiers = rows.loc[rows["tier"] > 0, "tier"].nunique()
        lacking = experiments()[place.data].lacking(rows["target"].nunique(), tiers, set(rows["seed"]))
        assert lacking == ("3 of 5 tiers, 1 of 3 seeds" if tiers else "")
        assert not tiers or rows["images"].max() == 2500


def counts(measured: Measured) -> str:
    """The numbers of goals that are reached, missed, not run, and that do not apply."""
    made = decisions(measured)
    reached, missed, not_apply = (sum(each.reached is way for each in made) for way in (True, False, None))
    left = sum(len(named(goal)) for goal in GOALS) - len(made)
    return f"{reached} are reached, {missed} missed, {left} not run and {not_apply} do not apply"


def of_goals(measured: Measured) -> Iterator[str]:
    yield f"a tier. **{counts(measured)}.**"
    lost, others = [], [label for label in LABELS if label not in (*RIVALS, SOURCE.name, POISE.name)]
    for place, rows in by_place(measured.cells).items():
        best = hardest(against_each(rows, "nll", POISE, RAW_OR_TAU, others))
        if best is not None and best.focal_mean >= best.rival_mean:
            lost.append(f"{place} ({told(best.focal_mean)} against {rival_of(best)})")
    names = listed(LABELS[label] for label in others)
    yield f"With {names} counted as rivals too, the goal of NLL is missed on {listed(lost)}."
    missed = [each for each in decisions(measured) if each.reached is False]
    yield from missed_eces(measured.cells, [each for each in missed if each.goal in MISSED_ECES])
    for each in missed:
        rows = at(measured.cells, each.place)
        if each.goal == "nll-rehearsed":
            norm, base = (score(rows, variant, "accuracy") for variant in (NORM, SOURCE))
            assert norm < base
            yield f"rivals, {each.place}.** … (norm is right on {told(norm)}, no adaptation on {told(base)}),"
        if each.goal == "domain":
            _, source, ours = worst_domain(rows)
            yield f"domain, {each.place}.** The source model is right on {source} of the photographs,"
            yield f"photographs, `poise` on {ours}."
            yield f"where it is estimated to be {told(ENTER, 2)} better,"
    kinds = [f"{count} {words}" for words, count in collapses(measured.robust).items()]
    yield f"it lost](results-robustness.md): {'; '.join(kinds)}."


def missed_eces(cells: pd.DataFrame, missed: list[Decision]) -> Iterator[str]:
    """How many missed goals of ECE no single temperature reaches, and how far estimates are off at others."""
    guesses, out_of_reach, errors = estimated(cells), 0, []
    for goal, place, _, _ in missed:
        rows = at(cells, place)
        there = guesses[(guesses["data"] == place.data) & (guesses["backbone"] == place.backbone)]
        there = there[there["tier"] == place.tier] if place.tier else there
        if score(rows, ORACLE, "ece") > most_ece(goal, rows, place):
            out_of_reach += 1
        else:
            errors.append(there["error"].abs().mean())
    yield f"Of {len(missed)} missed goals {out_of_reach} are out of reach of any single temperature:"
    yield f"is off by {ends(errors)} on average."


def most_ece(goal: str, rows: pd.DataFrame, place: Place) -> float:
    """The ECE that a goal allows."""
    rival = hardest(against_each(rows, "ece", POISE, ("none",)))
    paper = printed(place, "dec", "ece")
    assert rival is not None
    assert paper is not None
    return {"ece": MOST_ECE[place.data], "third": rival.rival_mean / 3, "paper-ece": paper.value}[goal]


def collapses(robust: pd.DataFrame) -> dict[str, int]:
    """The number of streams that collapsed, by kind, fewest first."""
    lost = collapsed(robust)
    changes = lost["stream"].map(lambda name: STREAMS[name].changes)
    by_source = ~changes & (lost["answered_by_source"] > 0.5)
    kinds = {
        "where the statistics follow one class after the other, and the source model does not answer": (
            ~by_source & ~changes
        ),
        "where the source model answers a sorted stream": by_source,
        "after abrupt changes": changes,
    }
    return {words: int(each.sum()) for words, each in kinds.items() if each.any()}


def of_estimates(measured: Measured) -> Iterator[str]:
    widths = spans(measured.cells).groupby(["data", "backbone"])["width"].mean()
    yield f"The intervals are {ends(widths.tolist())} wide."


def of_robustness(measured: Measured) -> Iterator[str]:
    robust = measured.robust
    both, lost, tent = paired(robust), collapsed(robust), paired(robust, "tent")
    yield f"meet streams of {robust['images'].min():,} to {robust['images'].max():,} images:"
    yield f"where `poise` is more than {told(LOST, 2)} less accurate,"
    yield (
        f"**{len(lost)} of {len(both)} streams collapsed**, {below_source(lost)} of them to more than "
        f"{told(LOST, 2)} below no adaptation."
    )
    kinds = f"{tent['stream'].nunique()} of the {robust['stream'].nunique()} kinds of stream"
    yield f"TENT, which met {kinds}, collapsed on {len(collapsed(robust, 'tent'))} of {len(tent)}."
    above = (both["ece"] > both["ece_source"]).sum()
    yield f"above that of no adaptation on {above} of {len(both)} streams."
    worst = both.iloc[int((both["estimate"] - both["accuracy"]).abs().to_numpy().argmax())]
    yield (
        f"is off most on {plain(worst['target'])}, {worst['stream']} ({told(worst['estimate'], 2)} for "
        f"{told(worst['accuracy'], 2)})."
    )


def share(cases: list[bool]) -> str:
    return f"{sum(cases)} of {len(cases)}"


def significant(cells: pd.DataFrame, family: str) -> str:
    """The share of comparisons in which a method is significantly better than the best rival."""
    found = page.tested(cells, *page.FAMILIES[family])
    return share([best.test.difference < 0 and p is not None and p < 0.05 for _, best, p in found])


def of_significance(measured: Measured) -> Iterator[str]:
    cells = measured.cells
    sure = {family: significant(cells, family) for family in ("raw", "tempered", "rehearsed")}
    yield f"better in {sure['raw']} comparisons with raw answers,"
    yield f"in {sure['tempered']} with answers divided by tau and in {sure['rehearsed']} with rehearsed ones,"
    for family in sure:
        found = page.tested(cells, *page.FAMILIES[family])
        assert all(place.data == "tiny-imagenet-c" for place, _, p in found if p is not None and p < 0.05)
    eces = page.cases(cells)["ece"]
    assert not eces[["mean", "median", "rehearsed"]].isna().to_numpy().any()
    lower, others = eces["rehearsed"] < eces["median"], eces.index.get_level_values("method") != POISE.name
    yield (
        f"has a lower ECE than the median of tau in {share(lower.tolist())} cases, without `poise` in "
        f"{share(lower[others].tolist())}."
    )


def of_claims(measured: Measured) -> Iterator[str]:
    cells, here = measured.cells, by_place(measured.cells)

    def changes(base: Variant, labels: tuple[str, ...], metric: str) -> list[float]:
        found = [change(rows, raw(label), base, metric) for rows, label in product(here.values(), labels)]
        return [value for value in found if value is not None]

    certain = {}
    for reference, labels in ((SOURCE, RIVALS), (NORM, MINIMISERS)):
        entropies, errors = (changes(reference, labels, metric) for metric in ("entropy", "ece"))
        worse = [ece > SAME for entropy, ece in zip(entropies, errors, strict=True) if entropy < 0]
        certain[reference] = f"{len(worse)} of {len(errors)} cases, and of these", share(worse)
    yield f"in part: entropy is lower in {certain[SOURCE][0]} the ECE is higher in {certain[SOURCE][1]} |"
    cases, worse_ones = certain[NORM]
    yield f"is lower in {cases} the ECE is higher, by more than {told(SAME)}, in {worse_ones}."
    norms = [rows for _, rows in page.norms(measured.streams).groupby(level="backbone")]
    falls = [bool(rows["5 %"].is_monotonic_decreasing) for rows in norms]
    grows = [bool(rows["variance"].is_monotonic_increasing) for rows in norms]
    yield f"quantiles of the logit norm fall with the tier | with {share(falls)} networks |"
    yield f"The variance of tau grows with the tier | with {share(grows)} networks |"
    yield f"DEC's gain is significant | in {significant(cells, 'dec')} comparisons with the best raw rival |"
    gains = {
        (label, base): changes(base, (label,), "accuracy")
        for label, base in product(("dec", "dec-released"), (SOURCE, NORM))
    }
    more = {key: share([gain > 0 for gain in values]) for key, values in gains.items()}
    yield (
        f"DEC augments accuracy | in {more['dec', SOURCE]} cases against no adaptation, in "
        f"{more['dec', NORM]} against `norm` |"
    )
    released = [
        f"{more['dec-released', base]}{words} ({signed(fmean(gains['dec-released', base]))} on average)"
        for base, words in ((SOURCE, " cases"), (NORM, ""))
    ]
    yield f"than no adaptation in {released[0]}, and than `norm` in {released[1]}."
    less = [score(rows, DEC, "ece") < score(rows, Variant("dec", "fixed"), "ece") for rows in here.values()]
    assert all(less)
    yield f"is worse than tau | yes, in {share(less)} cases |"


def of_training(measured: Measured) -> Iterator[str]:
    training = measured.training
    models = training.groupby(["data", "backbone", "target", "seed", "way"]).ngroups
    yield f"{training['way'].nunique()} ways to train were tried, with {models} models in all,"
    assert set(training["backbone"]) == {"mobilenet_v1", "smallcnn"}
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


SENTENCES: Mapping[str, Callable[[Measured], Iterator[str]]] = {
    "results.md": answer,
    "tables/results-goals.md": of_goals,
    "tables/results-estimates.md": of_estimates,
    "tables/results-robustness.md": of_robustness,
    "tables/results-significance.md": of_significance,
    "tables/results-claims.md": of_claims,
    "tables/results-training.md": of_training,
}


def sentences(page_name: str) -> Iterator[str]:
    """The sentences of a page."""
    return SENTENCES[page_name](read())
