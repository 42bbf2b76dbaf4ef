"""A traced run typed in: three methods on a stream of 160 images in two segments."""

from typing import Any

from .writer import line

SIZE = 20


def traced(
    label: str, tempering: str, hits: list[int], sure: list[float], **estimate: float
) -> dict[str, Any]:
    """A line of 8 batches in two segments of 4."""
    told = line(label, tempering, data="drift", order="recorded", images=SIZE * len(hits))
    batches = [
        {"images": SIZE, "correct": right, "confidence": confidence, "estimate": estimate or None}
        for right, confidence in zip(hits, sure, strict=True)
    ]
    halves = ((hits[:4], sure[:4], "calm"), (hits[4:], sure[4:], "storm"))
    told["trace"] = {"batches": batches, "segments": [segment(*half) for half in halves]}
    told["reliability"]["confidence"] = [0.0] * 14 + [SIZE * sum(sure)]
    told["scores"]["accuracy"] = sum(hits) / SIZE / 8
    return told


def segment(hits: list[int], sure: list[float], name: str) -> dict[str, Any]:
    images = SIZE * len(hits)
    sums: dict[str, list[Any]] = {"count": [images], "confidence": [SIZE * sum(sure)], "correct": [sum(hits)]}
    metrics = {
        "accuracy": sum(hits) / images,
        "ece": 0.1 if name == "calm" else 0.3,
        "nll": 0.5,
        "entropy": 0.3,
        "brier": 0.2,
    }
    return {
        "name": name,
        "images": images,
        "scores": metrics,
        "reliability": {kind: [0] * 14 + values for kind, values in sums.items()},
    }


PLAIN = [19, 20, 19, 18, 10, 9, 8, 9], [0.95, 0.96, 0.95, 0.94, 0.9, 0.92, 0.91, 0.9]
TENT = [19, 19, 19, 19, 12, 11, 10, 11], [0.96] * 8
POISE = [19, 19, 20, 19, 13, 12, 12, 13], [0.95, 0.95, 0.96, 0.95, 0.64, 0.62, 0.63, 0.61]


def traced_lines() -> list[dict[str, Any]]:
    """The lines of the run; only the rehearsed poise has estimates."""
    return [
        traced("poise", "none", *POISE),
        traced("poise", "rehearsed", *POISE, value=0.7, low=0.55, high=0.97),
        traced("tent", "none", *TENT),
        traced("source", "none", *PLAIN),
    ]
