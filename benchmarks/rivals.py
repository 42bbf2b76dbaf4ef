"""Every method on real shifts, raw and tempered: Digits × SmallCNN and PACS × EfficientNet-B0.

    python benchmarks/rivals.py OUT.jsonl --digits FOLDER
    python benchmarks/rivals.py OUT.jsonl --pacs FOLDER --weights WEIGHTS.safetensors
    python benchmarks/rivals.py OUT.jsonl

`shifts.py` tells the folders' layouts. For each held-out domain a model is trained on the others for 5 epochs
(the paper's optimisers); then every method makes one online pass over the held-out domain in batches of 50.
The options are the methods' defaults, but for those that the paper sets for each data set. A line of JSON for
each run; runs that OUT already has are not made again. Without a data set it prints what OUT has, in
Markdown.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from shifts import METRICS, Shift, Store, arguments, scores, shifts

import equipoise as eq

METHODS = ("source", "norm", "tent", "eta", "eata", "t3a", "sotta", "dec")
TEMPERINGS = ("none", "mean", "median")
EPSILON = {"digits": 0.4, "pacs": 0.6}  # the paper's, for ETA; its C0 for SoTTA is .33 on both


def options_of(method: str, data: str) -> dict[str, Any]:
    """What differs from a method's defaults."""
    if method in ("eta", "eata"):
        return {"epsilon": EPSILON[data]}
    return {"confidence": 0.33} if method == "sotta" else {}


def with_fisher(shift: Shift, source: eq.SourceStatistics) -> eq.SourceStatistics:
    """The statistics with EATA's Fisher diagonal, from 2,000 images in batches of 64."""
    images = shift.source_images
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:2000].to(images.device)
    loader = (images[rows].float() for rows in order.split(64))
    measured = eq.SourceStatistics.measure(shift.model, loader, fisher=True, progress=False)
    return replace(source, fisher=measured.fisher)


def answer(shift: Shift, source: eq.SourceStatistics, method: str, **options: Any) -> dict[str, float]:
    """The scores of one online pass."""
    adapter = eq.create(method, shift.model, source, **options)
    batches, labels = shift.stream()
    return scores(torch.cat([adapter(x) for x in batches]), labels)


def show(lines: list[dict[str, Any]]) -> None:
    """A table for each data set: the means over domains and models, each tempering beside the others."""
    for data in dict.fromkeys(line["data"] for line in lines):
        ours = [line for line in lines if line["data"] == data]
        models = len({(line["seed"], line["target"]) for line in ours})
        print(f"\n{data}, online, batches of 50; mean of {models} models\n")
        heads = [
            "method",
            "accuracy",
            *(f"{m} {t}" for m in ("ECE", "NLL") for t in ("raw", *TEMPERINGS[1:])),
        ]
        print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
        for method in METHODS:
            runs = {t: [r for r in ours if (r["method"], r["tempering"]) == (method, t)] for t in TEMPERINGS}
            mean = {(t, m): np.mean([run[m] for run in runs[t]]) for t in TEMPERINGS for m in METRICS}
            cells = [mean["none", "accuracy"], *(mean[t, m] for m in ("ece", "nll") for t in TEMPERINGS)]
            print(f"| `{method}` | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")


def main() -> None:
    """Train, adapt and write a line a run."""
    args = arguments(__doc__ or "")
    store = Store(args.out)
    for data, shift in shifts(args):
        place = {"data": data, "seed": shift.seed, "target": shift.target}
        runs: list[dict[str, Any]] = [
            {**place, "method": m, "tempering": t} for m in METHODS for t in TEMPERINGS
        ]
        wanted = [run for run in runs if not store.has(run)]
        if not wanted:
            continue
        source = with_fisher(shift, shift.measured())
        for run in wanted:
            options = {"tempering": run["tempering"], **options_of(run["method"], data)}
            store.add({**run, "options": options, **answer(shift, source, run["method"], **options)})
    if not (args.digits or args.pacs):
        show(store.lines)


if __name__ == "__main__":
    main()
