"""Findings: a short list of sentences, each decided by comparing the numbers that it quotes, as written.

A case is one method on one data set with one network. Two methods are compared on the shifts and seeds that
both have, so that a run that is not complete compares like with like.
"""

from collections.abc import Iterator, Sequence

from equipoise.report.figures.reliability import pooled
from equipoise.report.names import NAMES, short
from equipoise.report.paper import counted, experiments, paper_name, paper_variants
from equipoise.report.results import BETTER, Results, Variant
from equipoise.report.summary import Part, Place
from equipoise.report.table import Entry, Table, listed, table_of

DECIMALS = 3
"""The decimals that decide; numbers that a reader sees as equal are called equal."""


def direction(part: Part, first: Variant, second: Variant, metric: str) -> int | None:
    """-1 if the first is lower, 1 if higher, 0 if they are written alike; None if they share no run."""
    one, other = part.at[Place(*first)], part.at[Place(*second)]
    mine, theirs = one.mean[metric], other.mean[metric]
    if one.coverage != other.coverage:
        rows = [
            part.runs[(part.runs["name"] == each.name) & (part.runs["tempering"] == each.tempering)]
            for each in (first, second)
        ]
        both = rows[0].merge(rows[1], on=["shift", "seed"])
        if both.empty:
            return None
        means = both.groupby("shift")[[f"{metric}_x", f"{metric}_y"]].mean().mean()
        mine, theirs = float(means.iloc[0]), float(means.iloc[1])
    mine, theirs = round(mine, DECIMALS), round(theirs, DECIMALS)
    return (mine > theirs) - (mine < theirs)


def findings(parts: Sequence[Part]) -> list[str]:
    """The findings of several parts of one protocol together."""
    return [told for told in (_over_certainty(parts), _dec(parts)) if told]


def part_findings(part: Part) -> list[str]:
    """The findings of one part: no adaptation, the methods that are over-certain, and the best."""
    told = []
    base = source_of(part)
    if base is not None:
        sure, right = certainty(part, base) or (0.0, 0.0)
        told.append(
            f"Without adaptation, {right:.1%} of the answers are right, at an average confidence of {sure:.1%}."
        )
        adapting = _adapting(part)
        worse = [each for each in adapting if _is_over_certain(part, each, base)]
        numbers = part.at[Place(*base)].mean
        named = listed(each.name for each in worse) if worse else "none"
        told.append(
            f"Raw, more certain and worse calibrated than no adaptation (entropy {numbers['entropy']:.2f} bits, "
            f"ECE {numbers['ece']:.3f}): {named}; that is {len(worse)} of {counted(len(adapting), 'method')}."
        )
    best = [f"{words} {who}, {value:.3f}" for words, (who, value) in best_of(part).items()]
    return [*told, f"Best: {'; '.join(best)}."] if best else told


def best_of(part: Part) -> dict[str, tuple[str, float]]:
    """The best by ECE, NLL and accuracy, of the methods and temperings that have every shift and seed."""
    whole = [variant for variant in part.variants if part.whole(variant)]
    found = {}
    for metric in ("ece", "nll", "accuracy") if len(whole) > 1 else ():
        values = {each: round(part.at[Place(*each)].mean[metric], DECIMALS) for each in whole}
        best = (max if BETTER[metric] > 0 else min)(values.values())
        # Dividing the logits leaves the accuracy as it was: a method is named once.
        winners = dict.fromkeys(
            each.name if metric == "accuracy" else str(each) for each, value in values.items() if value == best
        )
        found[NAMES[metric]] = (listed(winners), best)
    return found


def certainty(part: Part, variant: Variant) -> tuple[float, float] | None:
    """Confidence and accuracy on average."""
    runs = part.runs[(part.runs["name"] == variant.name) & (part.runs["tempering"] == variant.tempering)]
    sums = pooled(runs)
    return None if sums is None else (sum(sums["confidence"]), sum(sums["correct"]))


def tempering_counts(parts: Sequence[Part], protocol: str) -> Table | None:
    """Each tempering against raw, and adaptive ones against the fixed: the cases in which ECE and NLL move which way."""
    kinds = [kind for kind in dict.fromkeys(each for part in parts for each in part.temperings) if kind != "none"]
    pairs = [(kind, "none") for kind in kinds]
    pairs += [(one, other) for one, other in (("median", "mean"), ("mean", "fixed"), ("median", "fixed"))]
    rows: dict[str, list[Entry]] = {}
    for one, other in pairs:
        moves = {metric: list(_moves(parts, one, other, metric)) for metric in ("ece", "nll")}
        if moves["ece"]:
            numbers = [len(moves["ece"]), *(moves[m].count(way) for m in ("ece", "nll") for way in (-1, 1))]
            rows[f"{short(one)} instead of {short(other)}"] = [Entry(number, spec=".0f") for number in numbers]
    if not rows:
        return None
    heads = [("Cases", ""), ("ECE", "lower"), ("ECE", "higher"), ("NLL", "lower"), ("NLL", "higher")]
    columns: dict[tuple[str, str], list[Entry | str]] = {
        head: [row[at] for row in rows.values()] for at, head in enumerate(heads)
    }
    title = f"What dividing the logits changes, counted over cases, {protocol}"
    return table_of(f"temperings-{protocol}", title, columns, list(rows), (), "averages")


def cautions(results: Results, parts: Sequence[Part]) -> list[str]:
    """What a reader must know about the whole before reading on."""
    told = list(dict.fromkeys(filter(None, map(_trial, parts))))
    single = [part for part in parts if len(part.seeds) == 1]
    if single:
        where = "All results are" if len(single) == len(parts) else f"{len(single)} of {len(parts)} parts are"
        told.append(f"{where} of a single seed: nothing there says how much another would differ.")
    if results.failures:
        told.append(f"{counted(len(results.failures), 'cell')} failed; numbers that lack them are marked ‡.")
    if results.damaged:
        told.append(f"Left out: {counted(results.damaged, 'line')} that could not be read.")
    told += [f"Left out: {counted(number, 'result')} {reason}." for reason, number in results.left_aside.items()]
    files = max((int(part.runs["left_out"].max()) for part in parts), default=0)
    if files:
        told.append(f"Up to {counted(files, 'image file')} of a stream and its training set could not be read.")
    old = sum(int((part.runs["code"] == "").sum()) for part in parts)
    if old:
        told.append(f"{counted(old, 'result')} do not say which code made them: they are of an older equipoise.")
    return told


def source_of(part: Part) -> Variant | None:
    """The raw answers without adaptation."""
    found = (each for each in part.variants if part.methods[each.name] == "source" and each.tempering == "none")
    return next(found, None)


def _trial(part: Part) -> str:
    """Whether a data set of the paper was run otherwise or in part."""
    experiment = experiments().get(part.scope.setting.data)
    if experiment is None:
        return ""
    differences = "; ".join(experiment.differences(part.scope.setting))
    lacks = experiment.lacking(len(part.targets), len(part.tiers), part.seeds)
    told = "; ".join(filter(None, (differences, lacks)))
    name = f"{paper_name(part.scope.setting.data)} with {paper_name(part.scope.backbone)}"
    return f"{name} is {'a trial' if differences else 'not complete'}: {told}." if told else ""


def _adapting(part: Part) -> list[Variant]:
    return [each for each in part.variants if each.tempering == "none" and part.methods[each.name] != "source"]


def _is_over_certain(part: Part, variant: Variant, base: Variant) -> bool:
    return direction(part, variant, base, "entropy") == -1 and direction(part, variant, base, "ece") == 1


def _over_certainty(parts: Sequence[Part]) -> str:
    cases = certain = worse = 0
    for part in parts:
        base = source_of(part)
        for variant in _adapting(part) if base is not None else ():
            moved = direction(part, variant, base, "entropy") if base else None
            cases += moved is not None
            certain += moved == -1
            worse += base is not None and _is_over_certain(part, variant, base)
    if not cases:
        return ""
    return (
        f"Before any tempering, adapting makes the answers more certain than no adaptation in {certain} of "
        f"{counted(cases, 'case')}; in {worse} of these they are also worse calibrated by ECE."
    )


def _dec(parts: Sequence[Part]) -> str:
    """DEC as the paper has it against every other method raw."""
    told = []
    for metric in ("ece", "nll", "accuracy"):
        wins = settings = 0
        for part in parts:
            dec = paper_variants(part.runs)[0].get("DEC")
            others = [each for each in part.variants if each.tempering == "none" and part.methods[each.name] != "dec"]
            moves = [direction(part, dec, other, metric) for other in others] if dec else []
            known = [move for move in moves if move is not None]
            settings += bool(known)
            wins += bool(known) and all(move == BETTER[metric] for move in known)
        if settings:
            told.append(f"by {NAMES[metric]} in {wins} of {settings}")
    if not told:
        return ""
    return (
        "Each network on each data set counted once, DEC as in the paper, divided by the mean of τ, is better "
        f"than every other method raw {listed(told)}."
    )


def _moves(parts: Sequence[Part], one: str, other: str, metric: str) -> Iterator[int]:
    for part in parts:
        for name in part.names:
            pair = Variant(name, one), Variant(name, other)
            if all(variant in part.variants for variant in pair):
                moved = direction(part, *pair, metric)
                if moved is not None:
                    yield moved
