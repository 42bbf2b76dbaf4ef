"""Results that look like those of a sweep, made up from a few formulas; for pages and pictures of them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from equipoise.research.experiment.schema import CellResult, StreamSummary
from equipoise.research.report.results import Results, collect
from tests.research.report.writer import line, pseudo, stream_line

LABELS = ("source", "norm", "tent", "eta", "eata", "t3a", "sotta", "dec", "dec-released", "poise")
TEMPERINGS = ("none", "mean", "median", "sample", "agreement", "rehearsed", "fixed")
PROTOCOLS = ("online", "after-pass")
LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]
EDGES = [0.5 * 1.1**step for step in range(41)]
CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
CLASSES = {"digits": 10, "pacs": 7, "office-home": 65, "tiny-imagenet-c": 200}

_GAIN = {
    "norm": 0.02,
    "tent": 0.03,
    "eta": -0.01,
    "eata": 0.01,
    "t3a": 0.02,
    "sotta": 0.04,
    "dec": 0.035,
    "poise": 0.04,
}
_SURE = {
    "norm": -0.02,
    "tent": 0.05,
    "eta": 0.07,
    "eata": 0.05,
    "t3a": 0.1,
    "sotta": 0.03,
    "dec": -0.03,
    "poise": -0.02,
}
_LESS_SURE = {
    "none": 0.0,
    "mean": 0.3,
    "median": 0.22,
    "sample": 0.26,
    "agreement": 0.2,
    "rehearsed": 0.24,
    "fixed": 0.12,
}


def sweep(
    data: str = "pacs",
    backbone: str = "efficientnet_b0",
    targets: Sequence[str] = ("art_painting", "cartoon", "photo", "sketch"),
    tiers: Sequence[int | None] = (None,),
    seeds: Sequence[int] = (0, 1, 2),
    labels: Iterable[str] = LABELS,
    temperings: Iterable[str] = TEMPERINGS,
    protocols: Iterable[str] = PROTOCOLS,
    accuracy: float = 0.75,
    **others: Any,
) -> tuple[list[CellResult], list[StreamSummary]]:
    """The lines and the streams of every combination."""
    classes = CLASSES.get(data, 10)
    lines, streams = [], []
    for target in targets:
        for tier in tiers:
            for seed in seeds:
                worse = 0.06 * (tier or 2) + 0.12 * pseudo("domain", target) + 0.03 * pseudo(target, seed)
                where: dict[str, Any] = {
                    "data": data,
                    "backbone": backbone,
                    "target": target,
                    "tier": tier,
                    "seed": seed,
                }
                streams.append(_stream(worse, where | others))
                for label in labels:
                    for protocol in protocols:
                        for tempering in temperings:
                            if tempering == "rehearsed" and label != "poise":
                                continue
                            scores, bins = _answers(
                                accuracy - worse, label, tempering, protocol, classes, worse
                            )
                            made = line(label, tempering, protocol=protocol, **where, **scores, **others)
                            made["cell"]["method"] = label.split("-")[0]
                            made["cell"]["options"] = (
                                {"reading": "released"} if label == "dec-released" else {}
                            )
                            lines.append(made | {"reliability": bins, "images": sum(bins["count"])})
    return cast("list[CellResult]", lines), cast("list[StreamSummary]", streams)


def results(*sweeps: tuple[list[CellResult], list[StreamSummary]], **others: Any) -> Results:
    """Several sweeps together; `others` are fields of the results."""
    made = collect([each for lines, _ in sweeps for each in lines])
    return replace(made, streams=tuple(each for _, streams in sweeps for each in streams), **others)


def made(lines: Iterable[dict[str, Any]], **others: Any) -> Results:
    """Results of lines written by hand."""
    return replace(collect(cast("Sequence[CellResult]", list(lines))), **others)


def whole(seeds: Sequence[int] = (0, 1, 2), **others: Any) -> Results:
    """All that the paper has: four data sets with their networks."""
    office = ("Art", "Clipart", "Product", "Real World")
    sweeps = [
        sweep("digits", "smallcnn", ("mnist", "svhn", "usps"), seeds=seeds, accuracy=0.8, epochs=5, **others),
        sweep("pacs", "efficientnet_b0", seeds=seeds, accuracy=0.95, **others),
        sweep("pacs", "mobilenet_v1", seeds=seeds, accuracy=0.9, **others),
        sweep("office-home", "efficientnet_b0", office, seeds=seeds, accuracy=0.85, **others),
        sweep("office-home", "mobilenet_v1", office, seeds=seeds, accuracy=0.75, **others),
    ]
    tiny = {"tiers": (1, 2, 3, 4, 5), "seeds": seeds, "epochs": 25, "input_size": 256, **others}
    sweeps += [
        sweep("tiny-imagenet-c", "efficientnet_b0", CORRUPTIONS, accuracy=0.55, **tiny),
        sweep("tiny-imagenet-c", "mobilenet_v1", CORRUPTIONS, accuracy=0.47, **tiny),
    ]
    return results(*sweeps)


def _answers(
    base: float, label: str, tempering: str, protocol: str, classes: int, worse: float
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Scores and bins: the surer the answers, the more of them are in the upper bins."""
    method = label.split("-")[0]
    later = 0.01 if protocol == "after-pass" else 0.0
    accuracy = min(max(base + _GAIN.get(method, 0.0) + later, 2 / classes), 0.99)
    noise = 0.02 * pseudo(label, tempering, protocol, worse)
    sure = (
        accuracy + 0.12 + 0.3 * worse + _SURE.get(method, 0.0) - _LESS_SURE[tempering] * (0.5 + worse) + noise
    )
    sure = min(max(sure, 1.5 / classes), 0.985)
    centres = [(index + 0.5) / 15 for index in range(15)]
    steep = 12 * (sure - 0.5)
    weights = [math.exp(steep * centre) if centre > 1 / classes else 0.0 for centre in centres]
    total = sum(weights)
    shares = [weight / total for weight in weights]
    mean = sum(share * centre for share, centre in zip(shares, centres, strict=True))
    images = 2000
    count = [round(images * share) for share in shares]
    right = [min(0.995, centre * accuracy / mean) for centre in centres]
    correct = [round(n * hit) for n, hit in zip(count, right, strict=True)]
    confidence = [n * centre for n, centre in zip(count, centres, strict=True)]
    answers = sum(count)
    ece = sum(abs(sums - hits) for sums, hits in zip(confidence, correct, strict=True)) / answers
    scores = {
        "accuracy": accuracy,
        "ece": ece,
        "entropy": (1 - mean) * math.log2(classes) * 0.9,
        "nll": 0.2 + 2.2 * (1 - accuracy) + 5 * ece,
        "brier": min(2.0, 1.3 * (1 - accuracy) + ece),
    }
    return scores, {"count": count, "confidence": confidence, "correct": correct}


def _stream(worse: float, where: dict[str, Any]) -> dict[str, Any]:
    kappa = 18.0
    spread = 0.25 + 0.3 * worse
    z = (-1.645, -0.674, 0.0, 0.674, 1.645)
    middle = 1 - 0.9 * worse
    norms = [kappa * middle * math.exp(spread * score) for score in z]
    taus = [1.8 / middle * math.exp(1.3 * spread * score) for score in z]
    centres = [math.sqrt(low * high) for low, high in pairwise(EDGES)]
    heights = [math.exp(-0.5 * (math.log(centre * middle / 1.8) / (1.3 * spread)) ** 2) for centre in centres]
    counts = [round(2000 * height / sum(heights)) for height in heights]
    return stream_line(
        **{name: value for name, value in where.items() if name in stream_line()},
        kappa=kappa,
        fixed_tau=1.35 + 0.1 * pseudo("fixed", *where.values()),
        images=2000,
        levels=LEVELS,
        norms=norms,
        norm_mean=norms[2],
        norm_std=kappa * spread,
        taus=taus,
        tau_mean=taus[2] * math.exp((1.3 * spread) ** 2 / 2) * 1.1,
        tau_std=spread * 2,
        tau_edges=EDGES,
        tau_counts=counts,
    )
