"""Writes folders of results by hand: lines of JSON with the fields typed in, nothing from the package."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAPER_METHODS = ("source", "dec", "t3a", "eta", "tent", "sotta")


def line(
    label: str = "source",
    tempering: str = "none",
    *,
    data: str = "pacs",
    backbone: str = "efficientnet_b0",
    target: str = "photo",
    tier: int | None = None,
    seed: int = 0,
    method: str | None = None,
    options: dict[str, Any] | None = None,
    protocol: str = "online",
    batch_size: int = 50,
    order: str = "shuffled",
    origin: str = "official",
    limit: int | None = None,
    epochs: int = 15,
    input_size: int | None = None,
    model: str = "m",
    stream: str = "s",
    code: str = "c0de",
    images: int = 10,
    classes: int = 7,
    left_out: int = 0,
    accuracy: float = 0.5,
    ece: float = 0.2,
    nll: float = 1.5,
    entropy: float = 1.0,
    brier: float = 0.6,
    error: str | None = None,
) -> dict[str, Any]:
    """A result, or with `error` a failure."""
    cell = {
        "data": data,
        "backbone": backbone,
        "target": target,
        "tier": tier,
        "seed": seed,
        "label": label,
        "method": method or label,
        "code": code,
        "options": options or {},
        "tempering": tempering,
        "protocol": protocol,
        "batch_size": batch_size,
        "order": order,
        "origin": origin,
        "limit": limit,
        "epochs": epochs,
        "input_size": input_size,
        "model": model,
        "stream": stream,
    }
    scores = {"accuracy": accuracy, "ece": ece, "entropy": entropy, "nll": nll, "brier": brier}
    bins = {"count": [0] * 14 + [10], "confidence": [0.0] * 14 + [9.9], "correct": [0] * 14 + [5]}
    return {
        "key": json.dumps(cell, sort_keys=True),
        "status": "failed" if error else "ok",
        "cell": cell,
        "images": images,
        "classes": classes,
        "left_out": left_out,
        "scores": None if error else scores,
        "reliability": None if error else bins,
        "error": error,
        "traceback": "Traceback: …" if error else None,
        "made": {"equipoise": "0.1.0", "torch": "2.10.0", "device": "cpu", "seconds": 1.5},
    }


def stream_line(**changes: Any) -> dict[str, Any]:
    return {
        "key": "k",
        "data": "pacs",
        "backbone": "efficientnet_b0",
        "target": "photo",
        "tier": None,
        "seed": 0,
        "limit": None,
        "epochs": 15,
        "input_size": None,
        "order": "shuffled",
        "origin": "official",
        "t_min": 1.0,
        "t_max": 3.0,
        "h0": 0.1,
        "kappa": 10.0,
        "fixed_tau": 1.4,
        "images": 10,
        "levels": [0.5],
        "norms": [9.0],
        "norm_mean": 9.0,
        "norm_std": 1.0,
        "taus": [2.0],
        "tau_mean": 2.1,
        "tau_std": 0.3,
        "tau_edges": [0, 1, 2],
        "tau_counts": [5, 5],
        **changes,
    }


def folder(path: Path, lines: Iterable[dict[str, Any]], *, tail: str = "", streams: str = "") -> Path:
    """A folder with results.jsonl: the lines, and `tail` as it is after them."""
    path.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(each) + "\n" for each in lines)
    (path / "results.jsonl").write_text(text + tail, encoding="utf-8")
    if streams:
        (path / "streams.jsonl").write_text(streams, encoding="utf-8")
    return path


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
) -> list[dict[str, Any]]:
    """Results of every method and tempering, with scores that `pseudo` makes up; accuracy is not tempered."""
    return [
        line(
            label,
            tempering,
            data=data,
            backbone=backbone,
            target=target,
            tier=tier,
            seed=seed,
            accuracy=pseudo("accuracy", label, target, tier, seed, backbone),
            ece=0.5 * pseudo("ece", label, tempering, target, tier, seed, backbone),
            nll=4.0 * pseudo("nll", label, tempering, target, tier, seed, backbone),
            entropy=3.0 * pseudo("entropy", label, tempering, target, tier, seed, backbone),
            brier=1.5 * pseudo("brier", label, tempering, target, tier, seed, backbone),
            **others,
        )
        for label in labels
        for tempering in temperings
        for target in targets
        for tier in tiers
        for seed in seeds
    ]


def old(line: dict[str, Any]) -> dict[str, Any]:
    """A line as it was before lines had provenance."""
    cell = {name: value for name, value in line["cell"].items() if name != "code"}
    kept = {name: value for name, value in line.items() if name not in ("classes", "left_out")}
    return {**kept, "cell": cell, "key": json.dumps(cell, sort_keys=True)}
