"""Sentences about the results, each decided by comparing the numbers it quotes."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from equipoise.bench.schema import RAW, REHEARSED
from equipoise.demo.results import (
    DemoResults,
    DemoScores,
    MethodResult,
    Pair,
    Score,
    best_shown,
    mean_accuracy,
    mean_confidence,
    pairs,
    pooled_reliability,
    rehearsed_accuracy,
    shown,
)
from equipoise.report.page.words import ABOUT_EQUAL

COMMON = "median"
"""The tempering that every method is shown with."""
OWN = REHEARSED
"""The tempering that poise has by default."""
DIVISORS = {
    COMMON: "the median of tau over the batch",
    OWN: "the temperature of its rehearsal",
    "mean": "the mean of tau over the batch",
}


class Change(NamedTuple):
    """A score before and after, as written, so that no sentence tells more than its numbers."""

    who: str
    before: str
    after: str

    @property
    def direction(self) -> int:
        """1 if it rises, -1 if it falls, 0 if a reader sees no difference."""
        before, after = float(self.before), float(self.after)
        return (after > before) - (after < before)


def demo_findings(results: DemoResults) -> list[str]:
    """Sentences on no adaptation, the changes by adapting and by tempering, poise, and the best methods."""
    baseline, *others = results["methods"]
    raw = [row for row in others if row["tempering"] == RAW]
    common = [pair for pair in pairs(results) if pair.tempered["tempering"] == COMMON]
    sentences = [certainty(baseline)]
    if raw:
        sentences += [adapting(raw, baseline, "accuracy"), calibration(raw, baseline)]
    if common:
        sentences.append(tempering(common))
    sentences += poise(others, baseline)
    return [*sentences, best_methods(results)] if others else sentences


def certainty(row: MethodResult) -> str:
    """How the average confidence of a method compares with how often it is right."""
    confidence, right = _confidence_and_accuracy(row)
    start = f"{row['label']}: {right:.1%} right at an average confidence of {confidence:.1%}"
    if abs(confidence - right) < ABOUT_EQUAL:
        return f"{start}. The two are about equal, as they should be."
    return f"{start}. It is {'over-certain' if confidence > right else 'less certain than it could be'}."


def adapting(raw: Iterable[MethodResult], baseline: MethodResult, score: Literal["accuracy", "ece"]) -> str:
    """For which methods a score is above that of no adaptation, and for which it is below."""
    changes = [_change(row["name"], baseline["mean"], row["mean"], score) for row in raw]
    groups = [
        f"{word} {_grouped(chosen)}"
        for direction, word in ((1, "higher with"), (-1, "lower with"), (0, "the same with"))
        if (chosen := [change for change in changes if change.direction == direction])
    ]
    # Tempering does not change the accuracy, so there it goes without saying.
    name = "Accuracy" if score == "accuracy" else "ECE before any tempering"
    return f"{name}, {changes[0].before} with {baseline['label']}: {'; '.join(groups)}."


def calibration(raw: Sequence[MethodResult], baseline: MethodResult) -> str:
    """Which methods are worse calibrated than no adaptation, and which of them more certain as well."""
    told = adapting(raw, baseline, "ece")
    certain = [
        change
        for row in raw
        if (change := _change(row["name"], baseline["mean"], row["mean"], "entropy")).direction < 0
        and _change("", baseline["mean"], row["mean"], "ece").direction > 0
    ]
    if certain:
        who = _listed(f"{change.who} ({change.after} bits)" for change in certain)
        told += (
            f" Worse calibrated and yet more certain, with an entropy below {certain[0].before} bits: {who}."
        )
    return told


def tempering(rows: Sequence[Pair]) -> str:
    """What dividing the logits by the same kind of temperature did to every method."""
    ece, nll = (_tempered(rows, score) for score in ("ece", "nll"))
    before, after = _range(change.before for change in ece), _range(change.after for change in ece)
    sentence = (
        f"Dividing the logits by the {rows[0].tempered['tempering']} of tau lowers ECE for {_fallen(ece)} "
        f"and NLL for {_fallen(nll)} of {len(rows)} methods. ECE was {before} and becomes {after}."
    )
    for name, changes in (("ECE", ece), ("NLL", nll)):
        if raised := [change for change in changes if change.direction > 0]:
            who = _listed(f"{change.who} ({change.before} → {change.after})" for change in raised)
            sentence += f" It raises {name} for {who}."
    by_domain = {name: _tempered(rows, "ece", name) for name in rows[0].raw["domains"]}
    raised_on = [
        f"on {name} for {_listed(change.who for change in changes if change.direction > 0)}"
        for name, changes in by_domain.items()
        if any(change.direction > 0 for change in changes)
    ]
    return f"{sentence} By domain, it raises ECE {'; '.join(raised_on)}." if raised_on else sentence


def poise(rows: Sequence[MethodResult], baseline: MethodResult) -> list[str]:
    """Poise as it is by default against no adaptation, and its other tempering against that."""
    own = {row["tempering"]: row for row in rows if row["method"] == "poise" and row["tempering"] != RAW}
    if OWN not in own:
        return []
    sentence = comparison(own[OWN], baseline)
    if COMMON in own:
        ece, nll = (_change("", own[OWN]["mean"], own[COMMON]["mean"], score) for score in ("ece", "nll"))
        told = f"ECE {_told(ece)}, NLL {_told(nll)}"
        sentence += f" {own[COMMON]['label']}, compared with {own[OWN]['label']}: {told}."
    return [sentence]


def comparison(row: MethodResult, baseline: MethodResult) -> str:
    """What a method changed, score by score, and whether that is better."""
    accuracy, ece, nll = (
        _change("", baseline["mean"], row["mean"], score) for score in ("accuracy", "ece", "nll")
    )
    sentence = (
        f"{row['label']}, compared with {baseline['label']}: accuracy {_told(accuracy)}, ECE {_told(ece)}, "
        f"NLL {_told(nll)}."
    )
    if ece.direction < 0 and nll.direction < 0:
        sentence += " It is better calibrated by both ECE and NLL."
    elif ece.direction < 0 or nll.direction < 0:
        sentence += " ECE and NLL do not both say that it is better calibrated."
    else:
        sentence += " It is not better calibrated, neither by ECE nor by NLL."
    worse = [
        name
        for name, scores in row["domains"].items()
        if _change("", baseline["domains"][name], scores, "ece").direction > 0
    ]
    return f"{sentence} By domain, its ECE is up on {_listed(worse)}." if worse else sentence


def best_methods(results: DemoResults) -> str:
    """Which methods have the best mean scores, raw or tempered."""
    rows = results["methods"]
    # Tempering does not change the accuracy: a method is named once.
    accurate = _listed(dict.fromkeys(row["name"] for row in _winners(rows, "accuracy")))
    calibrated, likely = (_listed(row["label"] for row in _winners(rows, score)) for score in ("ece", "nll"))
    told = f"Highest accuracy in this run: {accurate}. Lowest ECE: {calibrated}. Lowest NLL: {likely}."
    if common := [row for row in rows if row["tempering"] == COMMON]:
        ece, nll = (_listed(row["name"] for row in _winners(common, score)) for score in ("ece", "nll"))
        told += f" With the same tempering for all, the {COMMON}: lowest ECE {ece}, lowest NLL {nll}."
    return told


def tempering_note(results: DemoResults) -> str:
    """What the logits of the tempered rows were divided by."""
    kinds: dict[str, list[str]] = {}
    for pair in pairs(results):
        kinds.setdefault(pair.tempered["tempering"], []).append(pair.label)
    common = max(kinds, key=lambda kind: len(kinds[kind]))
    others = [f"; {_listed(labels)} by {DIVISORS[kind]}" for kind, labels in kinds.items() if kind != common]
    return f"Tempered: divided by {DIVISORS[common]}{''.join(others)}."


def rehearsal_note(results: DemoResults) -> str:
    """What the rehearsal was made of."""
    rehearsal = results["rehearsal"]
    return (
        f"{rehearsal['method']} was rehearsed before the stream: on {rehearsal['images']} labelled source "
        f"images that the model was not trained on, in {rehearsal['streams']} made-up streams of them, it "
        "learned how accurate its answers are from how they look."
    )


def estimate_note(results: DemoResults) -> str:
    """How the estimates came about, and how often their intervals contain the true accuracy."""
    estimates = results["rehearsal"]["estimates"]
    right = [e["low"] <= rehearsed_accuracy(results, domain) <= e["high"] for domain, e in estimates.items()]
    note = (
        "Estimated without labels, after the last batch; the interval contains the true accuracy on "
        f"{sum(right)} of {len(right)} domains."
    )
    if outside := [domain for domain, estimate in estimates.items() if not estimate["inside"]]:
        note += f" On {_listed(outside)} the answers were unlike those of the rehearsal: a wider interval."
    return note


def options_note(results: DemoResults) -> str:
    """The options that are not a method's defaults."""
    chosen = {row["method"]: row["options"] for row in results["methods"] if row["options"]}
    if not chosen:
        return "Every method has its default options."
    listed = [
        f"{method} has {_listed(f'{name}={value:g}' for name, value in options.items())}"
        for method, options in chosen.items()
    ]
    values = "; ".join(listed)
    return f"Options are the defaults, except for published values for small images and digits: {values}."


def confidence_caption(row: MethodResult) -> str:
    """Confidence and accuracy in a few words, for below a diagram."""
    confidence, right = _confidence_and_accuracy(row)
    return f"confidence {confidence:.1%}, right {right:.1%}"


def _confidence_and_accuracy(row: MethodResult) -> tuple[float, float]:
    bins = pooled_reliability(scores["reliability"] for scores in row["domains"].values())
    return mean_confidence(bins), mean_accuracy(bins)


def _winners(rows: Sequence[MethodResult], score: Score) -> list[MethodResult]:
    best = best_shown((row["mean"] for row in rows), score)
    return [row for row in rows if shown(row["mean"][score], score) == best]


def _change(who: str, before: DemoScores, after: DemoScores, score: Score) -> Change:
    return Change(who, shown(before[score], score), shown(after[score], score))


def _tempered(rows: Iterable[Pair], score: Score, domain: str | None = None) -> list[Change]:
    """What tempering changed for each method, on average or on one domain."""
    return [_change(pair.raw["name"], *pair.scores(domain), score) for pair in rows]


def _fallen(changes: Iterable[Change]) -> int:
    return sum(change.direction < 0 for change in changes)


def _range(values: Iterable[str]) -> str:
    ordered = sorted(set(values), key=float)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def _grouped(changes: Iterable[Change]) -> str:
    """Names with the score they have now, those of the same score together."""
    by_score: dict[str, list[str]] = {}
    for change in changes:
        by_score.setdefault(change.after, []).append(change.who)
    return ", ".join(f"{_listed(names)} ({score})" for score, names in by_score.items())


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _told(change: Change) -> str:
    if change.direction == 0:
        return f"unchanged at {change.after}"
    return f"{'down' if change.direction < 0 else 'up'} from {change.before} to {change.after}"
