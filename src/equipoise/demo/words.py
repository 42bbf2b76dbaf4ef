"""Sentences about the results, each decided by comparing the numbers it quotes."""

from equipoise.demo.results import (
    MethodResult,
    Results,
    Score,
    best_shown,
    mean_accuracy,
    mean_confidence,
    pooled_reliability,
    shown,
)

ABOUT_EQUAL = 0.02
"""A confidence and an accuracy that differ by less than this are called about equal."""


def findings(results: Results) -> list[str]:
    """What this run shows: how certain the baseline is, each method against it, and which is best."""
    baseline, *others = results["methods"]
    sentences = [certainty(baseline), *(comparison(row, baseline) for row in others)]
    return [*sentences, best_methods(results)] if others else sentences


def certainty(row: MethodResult) -> str:
    """How the average confidence of a method compares with how often it is right."""
    confidence, right = _confidence_and_accuracy(row)
    start = f"{row['label']}: {right:.1%} right at an average confidence of {confidence:.1%}"
    if abs(confidence - right) < ABOUT_EQUAL:
        return f"{start}. The two are about equal, as they should be."
    return f"{start}. It is {'over-certain' if confidence > right else 'less certain than it could be'}."


def comparison(row: MethodResult, baseline: MethodResult) -> str:
    """What a method changed, score by score, and whether that is better."""
    accuracy, ece, nll, entropy = (
        _change(row, baseline, score) for score in ("accuracy", "ece", "nll", "entropy")
    )
    sentence = (
        f"{row['label']}, compared with {baseline['label']}: accuracy {_told(accuracy)}, ECE {_told(ece)}, "
        f"NLL {_told(nll)}."
    )
    if _falls(ece) and _falls(nll):
        sentence += " It is better calibrated by both ECE and NLL."
    elif _falls(ece) or _falls(nll):
        sentence += " ECE and NLL do not both say that it is better calibrated."
    else:
        sentence += " It is not better calibrated, neither by ECE nor by NLL."
    if worse := _domains_with_more_error(row, baseline):
        sentence += f" By domain, its ECE is up on {' and '.join(worse)}."
    if _falls(entropy) and _rises(ece):
        sentence += f" Its entropy is {_told(entropy)} bits while its ECE is up: it has become over-certain."
    return sentence


def best_methods(results: Results) -> str:
    """Which methods have the best mean scores."""
    accurate, calibrated, likely = (_winners(results, score) for score in ("accuracy", "ece", "nll"))
    return f"Highest accuracy in this run: {accurate}. Lowest ECE: {calibrated}. Lowest NLL: {likely}."


def certainty_caption(row: MethodResult) -> str:
    """Confidence and accuracy in a few words, for below a diagram."""
    confidence, right = _confidence_and_accuracy(row)
    return f"average confidence {confidence:.1%}, right {right:.1%}"


def _confidence_and_accuracy(row: MethodResult) -> tuple[float, float]:
    bins = pooled_reliability(scores["reliability"] for scores in row["domains"].values())
    return mean_confidence(bins), mean_accuracy(bins)


def _winners(results: Results, score: Score) -> str:
    best = best_shown((row["mean"] for row in results["methods"]), score)
    return " and ".join(
        row["label"] for row in results["methods"] if shown(row["mean"][score], score) == best
    )


def _change(row: MethodResult, baseline: MethodResult, score: Score) -> tuple[str, str]:
    """A mean score before and after, as written, so that no sentence tells more than its numbers."""
    return shown(baseline["mean"][score], score), shown(row["mean"][score], score)


def _domains_with_more_error(row: MethodResult, baseline: MethodResult) -> list[str]:
    return [
        name
        for name, scores in row["domains"].items()
        if _rises((shown(baseline["domains"][name]["ece"], "ece"), shown(scores["ece"], "ece")))
    ]


def _falls(change: tuple[str, str]) -> bool:
    return float(change[1]) < float(change[0])


def _rises(change: tuple[str, str]) -> bool:
    return float(change[1]) > float(change[0])


def _told(change: tuple[str, str]) -> str:
    before, after = change
    if not _falls(change) and not _rises(change):
        return f"unchanged at {after}"
    return f"{'down' if _falls(change) else 'up'} from {before} to {after}"
