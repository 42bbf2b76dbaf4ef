"""Made-up results for the programs behind docs/results.md."""

from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.results import pack
from benchmarks.results.measured import LABELS
from benchmarks.results.robustness import STREAMS

CORRUPTIONS = tuple(f"corruption_{number}" for number in range(15))
PLACES = (
    ("digits", "smallcnn", ("mnist", "usps", "svhn"), (None,), (0, 1)),
    ("tiny-imagenet-c", "mobilenet_v1", CORRUPTIONS, (1, 5), (0,)),
)

DIVIDED = {"none": 1.0, "mean": 0.5, "median": 0.6, "rehearsed": 0.2}
"""The share of the ECE that each tempering leaves."""


def made_up_cells(poise_ece: float = 0.03) -> pd.DataFrame:
    """Results in which poise reaches every goal if its ECE does."""
    rows = []
    for data, backbone, targets, tiers, seeds in PLACES:
        for (at_target, target), tier, seed, (at_label, label) in product(
            enumerate(targets), tiers, seeds, enumerate(LABELS)
        ):
            ours = label == "poise"
            accuracy = 0.6 + 0.01 * (at_target % 3) + (0.05 if ours else 0.001 * at_label) + 0.002 * seed
            ece, nll = 0.3 - 0.01 * at_label, 2.0 + 0.1 * (at_target % 3) - 0.02 * at_label
            row: dict[str, Any] = {
                **dict(zip(pack.CELL, (data, backbone, target, tier, seed, label), strict=True)),
                "batch_size": 50,
                "epochs": 5,
                "input_size": None,
                "images": 100 + at_target % 3,
                "device": "GPU",
                "torch": "2",
                "rehearsal_images": 1000,
                "rehearsal_shifts": 16,
            }
            for protocol, divided in product(("online", "after-pass"), DIVIDED):
                shrunk = DIVIDED[divided]
                scores = {"accuracy": accuracy, "ece": ece * shrunk, "nll": nll * (0.8 + 0.2 * shrunk)}
                if ours and divided == "rehearsed":
                    scores |= {"ece": poise_ece + 0.001 * (at_target % 3), "nll": 1.1}
                scores |= {"confidence": accuracy + scores["ece"], "entropy": 1.0 - 0.01 * at_label}
                row |= {f"{protocol}/{divided}/{name}": value for name, value in scores.items()}
                row |= {f"{protocol}/oracle/ece": 0.02, f"{protocol}/oracle/nll": 1.0}
            guess = {"value": accuracy + 0.02, "low": accuracy - 0.05, "high": accuracy + 0.1, "covered": 0.9}
            row |= {f"online/estimate/{name}": value for name, value in guess.items()}
            rows.append(row)
    return pd.DataFrame(rows)


def made_up_robust(lost: float = 0.0, lost_after: float = 0.0, source: float = 0.8) -> pd.DataFrame:
    """Every stream of Digits; on one, sorted by class, poise is so much less accurate than on the others."""
    rows = []
    for target, stream, method in product(("mnist", "svhn", "usps"), STREAMS, ("source", "poise")):
        hit = (target, stream, method) == ("usps", "sorted by class", "poise")
        about = {"data": "digits", "backbone": "smallcnn", "target": target, "seed": 0}
        accuracy = source if method == "source" else 0.8
        scores = {"accuracy": accuracy - hit * lost, "after": accuracy - hit * lost_after}
        scores |= {"ece": 0.03, "nll": 0.5, "estimate": 0.8, "answered_by_source": 0.0}
        rows.append({**about, "stream": stream, "method": method, "images": 300, **scores})
    return pd.DataFrame(rows)


def made_up(folder: Path, poise_ece: float = 0.03) -> Path:
    """A folder with all files that the page is made of."""
    pack.write(made_up_cells(poise_ece), folder / "cells.csv")
    streams = [
        {"data": "tiny-imagenet-c", "backbone": "mobilenet_v1", "target": "fog", "tier": tier, "kappa": 10.0}
        | {"norm_0.05": 9.0 - tier, "norm_0.5": 9.0, "norm_0.95": 12.0, "tau_0.5": 2.0, "tau_std": 1 / tier}
        for tier in (1, 5)
    ]
    pd.DataFrame(streams).to_csv(folder / "streams.csv", index=False)
    made_up_robust().to_csv(folder / "robust.csv", index=False)
    training = [
        {"data": "digits", "backbone": "smallcnn", "target": "usps", "seed": 0, "way": way, "epoch": epoch}
        | {"held_out": 0.9 + 0.01 * epoch * better, "target_accuracy": 0.7, "seconds": epoch}
        for (way, better), epoch in product((("recipe", 0), ("batches of 32", 1)), range(1, 8))
    ]
    pd.DataFrame(training).to_csv(folder / "training.csv", index=False)
    return folder
