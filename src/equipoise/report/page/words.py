"""Sentences about the results, each decided by comparing the numbers it quotes, as they are written.

A case is one method on one data set with one network. Two groups are compared on the shifts and seeds that
both have, so that a run that is not complete compares like with like.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from equipoise.bench.schema import RAW, Protocol
from equipoise.report.figures.sections import Section, VariantResults, pooled
from equipoise.report.numbers.paper import counted, experiments, paper_name
from equipoise.report.numbers.results import RunResults
from equipoise.report.numbers.runs import MethodVariant, Metric
from equipoise.report.numbers.summary import BETTER
from equipoise.report.tables.wording import NAMES, capital, listed, variant_name

DECIMALS = 3
"""How many decimals decide; what a reader sees as equal is called equal."""
ABOUT_EQUAL = 0.02
"""A confidence and an accuracy that differ by less than this are called about equal."""
FEW_DOMAINS = 3
DIVIDED = {
    "mean": "the mean of τ over the batch",
    "median": "the median of τ over the batch",
    "sample": "each image's own τ",
    "agreement": "what the source model's agreement suggests",
    "rehearsed": "what a rehearsal suggests",
    "fixed": "one fixed τ that is best on the source",
}


SHORT = {
    RAW: "raw",
    "mean": "mean of τ",
    "median": "median of τ",
    "sample": "each image's τ",
    "agreement": "agreement",
    "rehearsed": "rehearsed",
    "fixed": "fixed τ",
}
"""What answers are divided by, in a word or two."""


class Tally(NamedTuple):
    """In how many cases a value is lower than another, and in how many it is higher."""

    lower: int
    higher: int
    cases: int


def direction(first: VariantResults, second: VariantResults, metric: Metric) -> int | None:
    """-1 if the first is lower, 1 if higher, 0 if they are written alike; None if they share nothing."""
    values = first.against(second, metric)
    if values is None:
        return None
    mine, theirs = (round(value, DECIMALS) for value in values)
    return (mine > theirs) - (mine < theirs)


def findings(sections: Sequence[Section], protocol: Protocol) -> list[str]:
    """What all sections together show under one protocol."""
    there = [section for section in sections if section.groups.get(protocol)]
    told = [
        _over_certainty(there, protocol),
        _temperings(there, protocol),
        _dec(there, protocol),
    ]
    return [sentence for sentence in told if sentence]


def tempering_counts(sections: Sequence[Section], protocol: Protocol) -> list[tuple[str, ...]]:
    """Each tempering against raw, and some against others: in how many cases ECE and NLL move which way."""
    there = [section for section in sections if section.groups.get(protocol)]
    against = [(kind, RAW) for kind in DIVIDED]
    rows = []
    for one, other in [*against, ("median", "mean"), ("mean", "fixed"), ("median", "fixed")]:
        pairs = list(_pairs(there, protocol, one, other))
        ece, nll = _tally(pairs, "ece"), _tally(pairs, "nll")
        if ece.cases:
            numbers = (ece.cases, ece.lower, ece.higher, nll.lower, nll.higher)
            rows.append((f"{one} instead of {'raw' if other == RAW else other}", *map(str, numbers)))
    return rows


def section_findings(section: Section, protocol: Protocol) -> list[str]:
    """What one network on one data set shows under one protocol."""
    groups = section.groups[protocol]
    told = []
    baseline = groups.get(MethodVariant("source", RAW))
    if baseline is not None:
        told += [_certainty(baseline), _more_certain(list(groups.values()), baseline)]
    told.append(_best(list(groups.values())))
    return [sentence for sentence in told if sentence]


def cautions(section: Section) -> str:
    """Why the numbers of a section say little by themselves; empty if there is no such reason."""
    few = []
    if len(section.seeds) == 1:
        few.append("one seed")
    if section.targets and len(section.targets) < FEW_DOMAINS:
        few.append("one domain" if len(section.targets) == 1 else "two domains")
    if section.setting.limit is not None:
        few.append("few images")
    if not few:
        return ""
    return f"{capital(listed(few))}: small differences may be chance."


def run_cautions(results: RunResults, sections: Sequence[Section]) -> list[str]:
    """What a reader must know about the whole before reading on."""
    told = _trials(sections)
    single = [section for section in sections if section.everything and len(section.seeds) == 1]
    if single:
        where = (
            "All results are"
            if len(single) == len(sections)
            else f"{len(single)} of {len(sections)} parts are"
        )
        told.append(f"{where} of a single seed: nothing here says how much another would differ.")
    if results.failures:
        told.append(f"{counted(len(results.failures), 'cell')} failed; numbers that lack them are marked ‡.")
    if results.damaged:
        told.append(f"Left out: {counted(results.damaged, 'line')} of the files that could not be read.")
    if results.superseded:
        told.append(
            f"Left out: {counted(results.superseded, 'older result')}, of models or streams that have "
            "changed since."
        )
    return told


def lacking(section: Section) -> str:
    """What the results of a paper's data set lack of what the paper ran: "2 of 4 domains, 1 of 3 seeds"."""
    experiment = experiments().get(section.setting.data)
    places = {place for group in section.everything for place in group.places}
    if experiment is None or not places:
        return ""
    shifts = {shift for shift, _ in places}
    tiers = {shift.tier for shift in shifts if shift.tier is not None}
    targets = {shift.target for shift in shifts}
    return experiment.lacking(len(targets), len(tiers), {seed for _, seed in places})


def _trials(sections: Sequence[Section]) -> list[str]:
    """Which of the paper's data sets were run otherwise or in part; networks alike are told together."""
    found: dict[str, dict[str, list[str]]] = {}
    networks: dict[str, int] = {}
    for section in sections:
        experiment = experiments().get(section.setting.data)
        if experiment is not None and section.everything:
            differences = "; ".join(experiment.differences(section.setting))
            parts = [part for part in (differences, lacking(section)) if part]
            what = f"is {'a trial' if differences else 'not complete'}: {'; '.join(parts)}." if parts else ""
            data = paper_name(section.setting.data)
            networks[data] = networks.get(data, 0) + 1
            found.setdefault(data, {}).setdefault(what, []).append(paper_name(section.backbone))
    return [
        f"{data} {what}"
        if len(names) == networks[data]
        else f"{data} with {listed(dict.fromkeys(names))} {what}"
        for data, several in found.items()
        for what, names in several.items()
        if what
    ]


def certainty_caption(group: VariantResults) -> str:
    """Confidence and accuracy on average in a few words, for below a diagram."""
    confidence, right = _confidence_and_accuracy(group)
    return f"{confidence:.0%} sure, {right:.0%} right"


def _certainty(group: VariantResults) -> str:
    if not group.bins:
        return ""
    confidence, right = _confidence_and_accuracy(group)
    start = (
        f"Without adaptation, {right:.1%} of the answers are right, at an average confidence of "
        f"{confidence:.1%}"
    )
    if abs(confidence - right) < ABOUT_EQUAL:
        return f"{start}: about equal, as they should be."
    return f"{start}: {'over-certain' if confidence > right else 'less certain than it could be'}."


def _confidence_and_accuracy(group: VariantResults) -> tuple[float, float]:
    bins = pooled(group.bins)
    return sum(bins["confidence"]), sum(bins["correct"])


def _more_certain(groups: Sequence[VariantResults], baseline: VariantResults) -> str:
    adapting = _adapting(groups)
    if not adapting:
        return ""
    both = [group for group in adapting if _is_over_certain(group, baseline)]
    start = (
        f"Raw, against no adaptation (entropy {baseline.mean('entropy'):.2f} bits, ECE "
        f"{baseline.mean('ece'):.3f}), more certain and worse calibrated"
    )
    if not both:
        return f"{start}: none of {counted(len(adapting), 'method')}."
    named = (f"{group.label} ({group.mean('entropy'):.2f} bits, {group.mean('ece'):.3f})" for group in both)
    return f"{start}: {listed(named)}; that is {len(both)} of {counted(len(adapting), 'method')}."


def _best(groups: Sequence[VariantResults]) -> str:
    """The best by each metric, of those that have every shift and seed."""
    everything = frozenset[object]().union(*(group.places for group in groups))
    whole = [group for group in groups if group.places == everything]
    if len(whole) < 2:
        return ""
    told = []
    metrics: tuple[tuple[Metric, str], ...] = (
        ("ece", "Lowest ECE"),
        ("nll", "lowest NLL"),
        ("accuracy", "highest accuracy"),
    )
    for metric, words in metrics:
        values = {group.variant: round(group.mean(metric), DECIMALS) for group in whole}
        best = (max if BETTER[metric] > 0 else min)(values.values())
        winners = [variant for variant, value in values.items() if value == best]
        # Dividing the logits leaves the accuracy as it was: a method is named once.
        named = dict.fromkeys(
            variant.label if metric == "accuracy" else variant_name(variant) for variant in winners
        )
        told.append(f"{words}: {listed(named)}, {best:.{DECIMALS}f}")
    left_out = len(groups) - len(whole)
    care = f" {counted(left_out, 'row')} with less than all shifts and seeds left out." if left_out else ""
    return f"{'; '.join(told)}.{care}"


def _adapting(groups: Iterable[VariantResults]) -> list[VariantResults]:
    return [group for group in groups if group.variant.tempering == RAW and group.method != "source"]


def _is_over_certain(group: VariantResults, baseline: VariantResults) -> bool:
    return direction(group, baseline, "entropy") == -1 and direction(group, baseline, "ece") == 1


def _over_certainty(sections: Sequence[Section], protocol: Protocol) -> str:
    cases = certain = worse = 0
    for section in sections:
        groups = section.groups[protocol]
        baseline = groups.get(MethodVariant("source", RAW))
        if baseline is not None:
            for group in _adapting(groups.values()):
                moved = direction(group, baseline, "entropy")
                cases += moved is not None
                certain += moved == -1
                worse += _is_over_certain(group, baseline)
    if not cases:
        return ""
    start = (
        f"Before any tempering, adapting makes the answers more certain than no adaptation in {certain} of "
        f"{counted(cases, 'case')}"
    )
    return f"{start}; in {worse} of these they are also worse calibrated by ECE." if certain else f"{start}."


def _pairs(
    sections: Iterable[Section], protocol: Protocol, one: str, other: str
) -> Iterator[tuple[VariantResults, VariantResults]]:
    """A method with one tempering and with another, for every case that has both."""
    for section in sections:
        groups = section.groups[protocol]
        for variant, group in groups.items():
            rival = groups.get(MethodVariant(variant.label, other))
            if variant.tempering == one and rival is not None:
                yield group, rival


def _tally(pairs: Iterable[tuple[VariantResults, VariantResults]], metric: Metric) -> Tally:
    moves = [move for first, second in pairs if (move := direction(first, second, metric)) is not None]
    return Tally(moves.count(-1), moves.count(1), len(moves))


def _temperings(sections: Sequence[Section], protocol: Protocol) -> str:
    """What the paper's tempering and the median do to answers as they are."""
    told = []
    for kind in ("mean", "median"):
        pairs = list(_pairs(sections, protocol, kind, RAW))
        ece, nll = _tally(pairs, "ece"), _tally(pairs, "nll")
        if ece.cases:
            cases = counted(ece.cases, "case")
            told.append(f"{DIVIDED[kind]} lowers ECE in {ece.lower} and NLL in {nll.lower} of {cases}")
    return f"Dividing the logits by {'; by '.join(told)}." if told else ""


def _dec(sections: Sequence[Section], protocol: Protocol) -> str:
    """DEC as the paper has it against every other method as it is, by the metrics of the paper's claims."""
    told = []
    metrics: tuple[Metric, ...] = ("ece", "nll", "accuracy")
    for metric in metrics:
        wins = settings = 0
        for section in sections:
            groups = section.groups[protocol]
            dec = groups.get(MethodVariant("dec", "mean"))
            rivals = [
                group for group in groups.values() if group.variant.tempering == RAW and group.method != "dec"
            ]
            moves = [direction(dec, rival, metric) for rival in rivals] if dec is not None else []
            known = [move for move in moves if move is not None]
            settings += bool(known)
            wins += bool(known) and all(move == BETTER[metric] for move in known)
        if settings:
            told.append(f"by {NAMES[metric]} in {wins} of {settings}")
    if not told:
        return ""
    return (
        "Each network on each data set counted once, DEC as in the paper, divided by the mean of τ, is "
        f"better than every other method raw {listed(told)}."
    )
