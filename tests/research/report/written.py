"""Results written by hand for tests: lines of JSON with the fields typed in, in memory or in a folder."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np

from equipoise.research.experiment.schema import CellResult, StreamSummary
from equipoise.research.report.part import Part, parts
from equipoise.research.report.results import Results, collect
from equipoise.research.report.table import Entry, Table

Line = dict[str, Any]

PAPER_METHODS = ("source", "dec", "t3a", "eta", "tent", "sotta")
CELL: Line = {
    "data": "pacs", "backbone": "efficientnet_b0", "target": "photo", "tier": None, "seed": 0, "code": "c0de",
    "options": {}, "protocol": "online", "batch_size": 50, "order": "shuffled", "origin": "official",
    "limit": None, "epochs": 15, "input_size": None, "model": "m", "stream": "s",
}  # fmt: skip
SCORES = {"accuracy": 0.5, "ece": 0.2, "entropy": 1.0, "nll": 1.5, "brier": 0.6}
STREAM: Line = {
    "key": "k", "data": "pacs", "backbone": "efficientnet_b0", "target": "photo", "tier": None, "seed": 0,
    "limit": None, "epochs": 15, "input_size": None, "order": "shuffled", "origin": "official",
    "t_min": 1.0, "t_max": 3.0, "h0": 0.1, "kappa": 10.0, "fixed_tau": 1.4, "images": 10,
    "levels": [0.5], "norms": [9.0], "norm_mean": 9.0, "norm_std": 1.0,
    "taus": [2.0], "tau_mean": 2.1, "tau_std": 0.3, "tau_edges": [0, 1, 2], "tau_counts": [5, 5],
}  # fmt: skip


def line(label: str = "source", tempering: str = "none", *, error: str | None = None, **changes: Any) -> Line:
    """A result, or with `error` a failure; `changes` are of the cell, of the scores or of the line."""
    cell = {"label": label, "method": label, "tempering": tempering, **CELL}
    cell |= {name: changes.pop(name) for name in (*cell, "order_options", "domain_images") if name in changes}
    scores = {name: changes.pop(name, value) for name, value in SCORES.items()}
    return {
        "key": json.dumps(cell, sort_keys=True),
        "status": "failed" if error else "ok",
        "cell": cell,
        "images": 10,
        "classes": 7,
        "left_out": 0,
        "scores": None if error else scores,
        "reliability": None if error else last_bin(10, 9.9, 5),
        "error": error,
        "traceback": "Traceback: …" if error else None,
        "made": {"equipoise": "0.1.0", "torch": "2.10.0", "device": "cpu", "seconds": 1.5},
        **changes,
    }


def last_bin(count: float, confidence: float, correct: float) -> Line:
    """Reliability sums of answers that are all in the last of 15 bins."""
    sums = {"count": count, "confidence": confidence, "correct": correct}
    return {name: [type(value)(0)] * 14 + [value] for name, value in sums.items()}


def stream_line(**changes: Any) -> Line:
    return STREAM | changes


def old(line: Line) -> Line:
    """A line as it was before lines had provenance."""
    cell = {name: value for name, value in line["cell"].items() if name != "code"}
    kept = {name: value for name, value in line.items() if name not in ("classes", "left_out")}
    return {**kept, "cell": cell, "key": json.dumps(cell, sort_keys=True)}


def folder(path: Path, lines: Iterable[Line], *, tail: str = "", streams: str = "") -> Path:
    """A folder with results.jsonl: the lines, and `tail` as it is after them."""
    path.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(each) + "\n" for each in lines)
    (path / "results.jsonl").write_text(text + tail, encoding="utf-8")
    if streams:
        (path / "streams.jsonl").write_text(streams, encoding="utf-8")
    return path


def made(lines: Iterable[Line], **others: Any) -> Results:
    """Results of lines; `others` are fields of the results."""
    return replace(collect(cast("Sequence[CellResult]", list(lines))), **others)


def part(lines: Iterable[Line]) -> Part:
    """The only part of some lines."""
    (found,) = parts(made(lines))
    return found


def entry(table: Table, row: str, metric: str, column: str = "") -> Entry:
    """One cell of a table."""
    (found,) = [each for name, head, each in table.entries if (name, *head) == (row, metric, column)]
    return found


def pseudo(*parts: object) -> float:
    """A number between 0 and 1 that depends on the parts alone."""
    state = 7
    for sign in "/".join(map(str, parts)):
        state = (state * 31 + ord(sign)) % 1_000_003
    return (state * 7919 % 1_000_003) / 1_000_003


def grid(
    data: str,
    backbone: str,
    targets: Iterable[str],
    *,
    tiers: Iterable[int | None] = (None,),
    seeds: Iterable[int] = (0, 1, 2),
    labels: Iterable[str] = PAPER_METHODS,
    temperings: Iterable[str] = ("none", "mean", "median"),
    **others: Any,
) -> list[Line]:
    """Results of every method and tempering, with scores that `pseudo` makes up; accuracy is not tempered."""
    lines = []
    for label, tempering, target, tier, seed in product(labels, temperings, targets, tiers, seeds):
        places = target, tier, seed, backbone
        given: Line = {"accuracy": pseudo("accuracy", label, *places)}
        for metric, scale in (("ece", 0.5), ("nll", 4.0), ("entropy", 3.0), ("brier", 1.5)):
            given[metric] = scale * pseudo(metric, label, tempering, *places)
        given |= {"data": data, "backbone": backbone, "target": target, "tier": tier, "seed": seed}
        lines.append(line(label, tempering, **given, **others))
    return lines


def binned(
    label: str,
    errors: Sequence[float],
    tempering: str = "none",
    *,
    options: Mapping[str, Any] | None = None,
    segments: Sequence[tuple[str, int]] = (("fog", 2), ("snow", 2)),
    off: float | None = None,
    **others: Any,
) -> Line:
    """A result over time, with these errors in bins of 100 images."""
    accuracy = 1 - sum(errors) / len(errors)
    given = {"data": "digits-c", "backbone": "smallcnn", "accuracy": accuracy, "order": "continual", **others}
    if options:
        given["order_options"] = dict(options)
    if off is not None:
        given["estimate"] = {"value": accuracy, "low": 0.0, "high": 1.0, "covered": 1.0, "off": off}
    bins = {
        "images": [100] * len(errors),
        "correct": [round(100 * (1 - error)) for error in errors],
        "confidence": [0.9] * len(errors),
        "segments": [{"name": name, "bins": bins} for name, bins in segments],
    }
    described = f"400 images {given['order']} and so on (seed 0)."
    return line(label, tempering, described=described, bins=bins, **given)


SIZE = 20
"""Images of a batch of the traced run."""
PLAIN = [19, 20, 19, 18, 10, 9, 8, 9], [0.95, 0.96, 0.95, 0.94, 0.9, 0.92, 0.91, 0.9]
TENT = [19, 19, 19, 19, 12, 11, 10, 11], [0.96] * 8
POISE = [19, 19, 20, 19, 13, 12, 12, 13], [0.95, 0.95, 0.96, 0.95, 0.64, 0.62, 0.63, 0.61]


def traced_lines() -> list[Line]:
    """A traced run of three methods on 160 images in two segments; only the rehearsed poise has estimates."""
    return [
        traced("poise", "none", *POISE),
        traced("poise", "rehearsed", *POISE, value=0.7, low=0.55, high=0.97),
        traced("tent", "none", *TENT),
        traced("source", "none", *PLAIN),
    ]


def traced(label: str, tempering: str, hits: list[int], sure: list[float], **estimate: float) -> Line:
    """A line of 8 batches in two segments of 4."""
    batches = [
        {"images": SIZE, "correct": right, "confidence": confidence, "estimate": estimate or None}
        for right, confidence in zip(hits, sure, strict=True)
    ]
    segments = [segment(hits[:4], sure[:4], "calm", 0.1), segment(hits[4:], sure[4:], "storm", 0.3)]
    return line(
        label,
        tempering,
        data="drift",
        order="recorded",
        images=8 * SIZE,
        accuracy=sum(hits) / SIZE / 8,
        reliability=last_bin(10, SIZE * sum(sure), 5),
        trace={"batches": batches, "segments": segments},
    )


def segment(hits: list[int], sure: list[float], name: str, ece: float) -> Line:
    images = SIZE * len(hits)
    metrics = {"accuracy": sum(hits) / images, "ece": ece, "nll": 0.5, "entropy": 0.3, "brier": 0.2}
    sums = last_bin(images, SIZE * sum(sure), sum(hits))
    return {"name": name, "images": images, "scores": metrics, "reliability": sums}


# Results that look like those of a sweep, made up from a few formulas; for pages and pictures of them.

LABELS = ("source", "norm", "tent", "eta", "eata", "t3a", "sotta", "dec", "dec-released", "poise")
TEMPERINGS = ("none", "mean", "median", "sample", "agreement", "rehearsed", "fixed")
CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
CLASSES = {"digits": 10, "pacs": 7, "office-home": 65, "tiny-imagenet-c": 200}
GAIN_AND_SURENESS = {
    "norm": (0.02, -0.02), "tent": (0.03, 0.05), "eta": (-0.01, 0.07), "eata": (0.01, 0.05),
    "t3a": (0.02, 0.1), "sotta": (0.04, 0.03), "dec": (0.035, -0.03), "poise": (0.04, -0.02),
}  # fmt: skip
LESS_SURE = dict(zip(TEMPERINGS, (0.0, 0.3, 0.22, 0.26, 0.2, 0.24, 0.12), strict=True))


def sweep(
    data: str = "pacs",
    backbone: str = "efficientnet_b0",
    targets: Sequence[str] = ("art_painting", "cartoon", "photo", "sketch"),
    tiers: Sequence[int | None] = (None,),
    seeds: Sequence[int] = (0, 1, 2),
    labels: Sequence[str] = LABELS,
    temperings: Sequence[str] = TEMPERINGS,
    **others: Any,
) -> tuple[list[CellResult], list[StreamSummary]]:
    """The lines and the streams of every combination; only poise is rehearsed."""
    lines, streams = [], []
    for target, tier, seed in product(targets, tiers, seeds):
        worse = 0.06 * (tier or 2) + 0.12 * pseudo("domain", target) + 0.03 * pseudo(target, seed)
        where = {"data": data, "backbone": backbone, "target": target, "tier": tier, "seed": seed, **others}
        streams.append(_stream(worse, where))
        for label, tempering in product(labels, temperings):
            if tempering == "rehearsed" and label != "poise":
                continue
            given = _answers(label, tempering, CLASSES.get(data, 10), worse)
            options = {"reading": "released"} if label == "dec-released" else {}
            method: Line = {"method": label.split("-")[0], "options": options}
            lines.append(line(label, tempering, **method, **where, **given))
    return cast("list[CellResult]", lines), cast("list[StreamSummary]", streams)


def swept(*sweeps: tuple[list[CellResult], list[StreamSummary]], **others: Any) -> Results:
    """Several sweeps together; `others` are fields of the results."""
    streams = tuple(each for _, streams in sweeps for each in streams)
    return replace(collect([each for lines, _ in sweeps for each in lines]), streams=streams, **others)


def _answers(label: str, tempering: str, classes: int, worse: float) -> Line:
    """Scores and bins: the surer the answers, the more of them are in the upper bins."""
    gain, sureness = GAIN_AND_SURENESS.get(label.split("-")[0], (0.0, 0.0))
    accuracy = min(max(0.75 - worse + gain, 2 / classes), 0.99)
    noise = 0.02 * pseudo(label, tempering, "online", worse)
    sure = accuracy + 0.12 + 0.3 * worse + sureness - LESS_SURE[tempering] * (0.5 + worse) + noise
    sure = min(max(sure, 1.5 / classes), 0.985)
    centres = (np.arange(15) + 0.5) / 15
    weights = np.where(centres > 1 / classes, np.exp(12 * (sure - 0.5) * centres), 0.0)
    mean = float(np.average(centres, weights=weights))
    count = np.round(2000 * weights / weights.sum())
    confidence, correct = count * centres, np.round(count * np.minimum(0.995, centres * accuracy / mean))
    ece = float(np.abs(confidence - correct).sum() / count.sum())
    counts = {"count": count.astype(int).tolist(), "correct": correct.astype(int).tolist()}
    return {
        "accuracy": accuracy,
        "ece": ece,
        "entropy": (1 - mean) * math.log2(classes) * 0.9,
        "nll": 0.2 + 2.2 * (1 - accuracy) + 5 * ece,
        "brier": min(2.0, 1.3 * (1 - accuracy) + ece),
        "reliability": {**counts, "confidence": confidence.tolist()},
        "images": int(count.sum()),
    }


def _stream(worse: float, where: Line) -> Line:
    kappa, spread, middle = 18.0, 0.25 + 0.3 * worse, 1 - 0.9 * worse
    z = np.array([-1.645, -0.674, 0.0, 0.674, 1.645])
    norms = kappa * middle * np.exp(spread * z)
    taus = 1.8 / middle * np.exp(1.3 * spread * z)
    edges = 0.5 * 1.1 ** np.arange(41)
    heights = np.exp(-0.5 * (np.log(np.sqrt(edges[:-1] * edges[1:]) / taus[2]) / (1.3 * spread)) ** 2)
    return stream_line(
        **{name: value for name, value in where.items() if name in STREAM},
        kappa=kappa,
        fixed_tau=1.35 + 0.1 * pseudo("fixed", *where.values()),
        images=2000,
        levels=[0.05, 0.25, 0.5, 0.75, 0.95],
        norms=norms.tolist(),
        norm_mean=float(norms[2]),
        norm_std=kappa * spread,
        taus=taus.tolist(),
        tau_mean=float(taus[2] * np.exp((1.3 * spread) ** 2 / 2) * 1.1),
        tau_std=spread * 2,
        tau_edges=edges.tolist(),
        tau_counts=np.round(2000 * heights / heights.sum()).astype(int).tolist(),
    )
