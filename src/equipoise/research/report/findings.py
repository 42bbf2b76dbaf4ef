"""Findings: a short list of sentences, each decided by comparing the numbers that it quotes, as written.

A case is one method on one data set with one network. Two methods are compared on the shifts and seeds that
both have, so that a run that is not complete compares like with like.
"""

from collections.abc import Sequence

from equipoise.research.report.paper import counted, experiments, paper_name
from equipoise.research.report.part import Part, Place, pooled
from equipoise.research.report.results import BETTER, Results, Variant
from equipoise.research.report.table import Entry, Table, listed
from equipoise.research.report.tables import NAMES, short

DECIMALS = 3
"""The decimals that decide; numbers that a reader sees as equal are called equal."""


def direction(part: Part, first: Variant, second: Variant, metric: str) -> int | None:
    """-1 if the first is lower, 1 if higher, 0 if they are written alike; None if they share no run."""
    one, other = part.at.get(Place(*first)), part.at.get(Place(*second))
    if one is None or other is None or not one.coverage & other.coverage:
        return None
    means = [one.mean[metric], other.mean[metric]]
    if one.coverage != other.coverage:
        both = part.of(first).merge(part.of(second), on=["shift", "seed"])
        means = both.groupby("shift")[[f"{metric}_x", f"{metric}_y"]].mean().mean().tolist()
    mine, theirs = (round(mean, DECIMALS) for mean in means)
    return (mine > theirs) - (mine < theirs)


def overall_findings(parts: Sequence[Part]) -> list[str]:
    """The findings of several parts of one protocol together: over-certainty, and DEC as in the paper."""
    cases = [(part, each, base) for part in parts if (base := source_of(part)) for each in _adapting(part)]
    told = []
    if cases:
        surer = sum(direction(*case, "entropy") == -1 for case in cases)
        told.append(
            "Before any tempering, adapting makes the answers more certain than no adaptation in "
            f"{surer} of {counted(len(cases), 'case')}; in {sum(map(_is_over_certain, cases))} also worse "
            "calibrated by ECE."
        )
    wins = [f"by {NAMES[metric]} in {_dec_wins(parts, metric)}" for metric in ("ece", "nll", "accuracy")]
    if any("DEC" in part.papers for part in parts):
        told.append(
            "Each network on each data set counted once, DEC as in the paper, divided by the mean of τ, is "
            f"better than every other method raw {listed(wins)}."
        )
    return told


def part_findings(part: Part) -> list[str]:
    """The findings of one part: no adaptation, the methods that are over-certain, and the best."""
    told, base = [], source_of(part)
    if base is not None and (claim := sureness(part, base)):
        worse = [each.name for each in _adapting(part) if _is_over_certain((part, each, base))]
        told = [
            f"Without adaptation, {claim[1]:.1%} of answers are right, at a confidence of {claim[0]:.1%}.",
            f"Raw, more certain and worse calibrated than that: {listed(worse) if worse else 'none'} "
            f"({len(worse)} of {counted(len(_adapting(part)), 'method')}).",
        ]
    best = [f"{metric} {value:.3f}, {who}" for metric, (who, value) in best_of(part).items()]
    return [*told, f"Best: {'; '.join(best)}."] if best else told


def best_of(part: Part) -> dict[str, tuple[str, float]]:
    """The best by ECE, NLL and accuracy, of the methods and temperings that have every shift and seed."""
    whole, found = [variant for variant in part.variants if part.whole(variant)], {}
    for metric in ("ece", "nll", "accuracy") if len(whole) > 1 else ():
        values = {each: round(part.at[Place(*each)].mean[metric], DECIMALS) for each in whole}
        best = max(values.values(), key=lambda value: BETTER[metric] * value)
        winners = [each for each, value in values.items() if value == best]
        # Dividing the logits leaves the accuracy as it was: a method is named once.
        names = dict.fromkeys(each.name if metric == "accuracy" else str(each) for each in winners)
        found[NAMES[metric]] = (listed(names), best)
    return found


def sureness(part: Part, variant: Variant) -> tuple[float, float] | None:
    """Confidence and accuracy on average."""
    sums = pooled(part.of(variant))
    return None if sums is None else (sum(sums["confidence"]), sum(sums["correct"]))


def source_of(part: Part) -> Variant | None:
    """The raw answers without adaptation."""
    return next((each for each in _raw(part) if part.methods[each.name] == "source"), None)


def tempering_counts(parts: Sequence[Part], protocol: str) -> list[Table]:
    """Each tempering against raw, and some against others: the cases in which ECE and NLL move which way."""
    kinds = dict.fromkeys(kind for part in parts for kind in part.temperings if kind != "none")
    pairs = [*((kind, "none") for kind in kinds), ("median", "mean"), ("mean", "fixed"), ("median", "fixed")]
    rows: dict[str, list[Entry]] = {}
    for kind, other in pairs:
        ways = [(part, Variant(name, kind), Variant(name, other)) for part in parts for name in part.names]
        moves = {metric: [direction(*way, metric) for way in ways] for metric in ("ece", "nll")}
        numbers = [moves[metric].count(to) for metric in moves for to in (-1, 1)]
        cases = len(ways) - moves["ece"].count(None)
        if cases:
            entries = [Entry(number, spec=".0f") for number in (cases, *numbers)]
            rows[f"{short(kind)} instead of {short(other)}"] = entries
    heads = [("Cases", ""), ("ECE", "lower"), ("ECE", "higher"), ("NLL", "lower"), ("NLL", "higher")]
    columns = {head: [row[at] for row in rows.values()] for at, head in enumerate(heads)}
    title = f"What dividing the logits changes, counted over cases, {protocol}"
    return [Table(title, columns, list(rows))] if rows else []


def cautions(results: Results, parts: Sequence[Part]) -> list[str]:
    """Warnings about the results as a whole: missing, failed and left-aside cells."""
    single = sum(len(part.seeds) == 1 for part in parts)
    failed, damaged = len(results.failures), results.damaged
    files = int(results.frame["left_out"].max() if len(results.frame) else 0)
    old = int((results.frame["code"] == "").sum())
    told = {
        **{trial: 1 for trial in map(_trial, parts) if trial},
        f"Of a single seed: {single} of {len(parts)} parts; another may differ by an unknown amount.": single,
        f"{counted(failed, 'cell')} failed; numbers that lack them are marked ‡.": failed,
        f"Left out: {counted(damaged, 'line')} that could not be read.": damaged,
        **{f"Left out: {counted(n, 'result')} {reason}.": n for reason, n in results.left_aside.items()},
        f"Up to {counted(files, 'image file')} of a stream and its training set could not be read.": files,
        f"Not known: the code that made {counted(old, 'result')}, written by an older equipoise.": old,
    }
    return [words for words, number in told.items() if number]


def _trial(part: Part) -> str:
    """Whether a data set of the paper was run otherwise or in part."""
    papers = experiments().get(part.scope.data)
    if papers is None:
        return ""
    differences = papers.differences(part.scope)
    lacks = papers.lacking(len(part.targets), len(part.tiers), part.seeds)
    told = "; ".join(filter(None, (*differences, lacks)))
    name = f"{paper_name(part.scope.data)} with {paper_name(part.scope.backbone)}"
    return f"{name} is {'a trial' if differences else 'not complete'}: {told}." if told else ""


def _raw(part: Part) -> list[Variant]:
    return [each for each in part.variants if each.tempering == "none"]


def _adapting(part: Part) -> list[Variant]:
    return [each for each in _raw(part) if part.methods[each.name] != "source"]


def _is_over_certain(case: tuple[Part, Variant, Variant]) -> bool:
    return direction(*case, "entropy") == -1 and direction(*case, "ece") == 1


def _dec_wins(parts: Sequence[Part], metric: str) -> str:
    wins = settings = 0
    for part in parts:
        if dec := part.papers.get("DEC"):
            others = [each for each in _raw(part) if part.methods[each.name] != "dec"]
            moves = {direction(part, dec, other, metric) for other in others} - {None}
            settings += bool(moves)
            wins += moves == {BETTER[metric]}
    return f"{wins} of {settings}"
