"""Measure long continual streams, corruption after corruption; a row of CSV for each 1,000 images.

    python -m benchmarks.rehearsal.long_streams DATA MODELS OUT.csv "svhn bn" "svhn vit" …

TENT, TENT under guard and poise, all rehearsed, meet 15 corruptions of tier 5 without a reset. Without names,
all of `NAMES`; DATA and MODELS are those of poise_streams.py. --quick rehearses 8 shifts of 200 images and
meets 100 of each corruption, to see that it runs.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import equipoise as eq
from benchmarks.rehearsal.families import CORRUPTIONS, DEVICE, Family, load
from benchmarks.rehearsal.poise_streams import BATCH, add, known, scores
from equipoise.research.data.images import Images

NAMES = ("svhn bn", "svhn bn doubtful", "svhn vit")
TIER = 5
QUICK = {"samples": 200, "shifts": 8}
QUICK_IMAGES = 100

Watched = eq.Adapter | eq.Guarded


def adapters(family: Family, options: Mapping[str, Any]) -> Iterator[tuple[str, Watched]]:
    """Adapters that meet the stream, by name."""
    held = (family.rehearsal.pixels.float().to(DEVICE), family.rehearsal.labels)
    for method in ("tent", "poise"):
        source = eq.rehearse(family.model, held, method=method, progress=False, **options)
        yield method, eq.create(method, family.model, source, tempering="rehearsed")
        if method == "tent":
            guarded = eq.Guarded(eq.create(method, family.model, source, tempering="rehearsed"))
            yield f"{method}, guarded", guarded


def met(adapter: Watched, images: Images) -> dict[str, Any]:
    """Scores of the answers to images, and means of what is known without labels after each batch."""
    answers, estimates, by_source = [], [], []
    for pixels in images.pixels.split(BATCH):
        answers.append(adapter(pixels.float().to(DEVICE)).detach().cpu())
        estimates.append(known(adapter.accuracy))
        by_source.append(known(adapter.last).answered_by == "source")
    told = {
        name: sum(getattr(estimate, name) for estimate in estimates) / len(estimates)
        for name in ("value", "low", "high", "inside")
    }
    own = scores(torch.cat(answers), images.labels)
    return {
        "accuracy": own["accuracy"],
        "ece": own["ece"],
        "estimate": told.pop("value"),
        **told,
        "by_source": sum(by_source) / len(by_source),
    }


def actions(adapter: Watched) -> int | None:
    """The number of times that a guard went back so far; None without one."""
    if isinstance(adapter, eq.Adapter):
        return None
    return sum(event.action in ("rollback", "reset") for event in adapter.events)


def measured(name: str, family: Family, quick: bool) -> Iterator[dict[str, Any]]:
    """The rows of a model."""
    for method, adapter in adapters(family, QUICK if quick else {}):
        seen = 0
        for corruption in CORRUPTIONS:
            images = family.streams[f"{corruption}/{TIER}"]
            images = images.select(torch.arange(QUICK_IMAGES)) if quick else images
            seen += len(images)
            row = {"model": name, "method": method, "images": seen, "corruption": corruption}
            yield {**row, **met(adapter, images), "guard_actions": actions(adapter)}


def main() -> None:
    """Measure the named models; the file is added to after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with digits/")
    parser.add_argument("models", type=Path, help="folder of trained models")
    parser.add_argument("out", type=Path, help="CSV file")
    parser.add_argument("names", nargs="*", default=NAMES, help='of models: "svhn bn", …')
    parser.add_argument("--quick", action="store_true", help="few shifts of few images")
    given = parser.parse_args()
    given.models.mkdir(parents=True, exist_ok=True)
    for name in given.names:
        rows = list(measured(name, load(name, given.data, given.models, workers=6), given.quick))
        add(given.out, rows)
        print(f"{name}: {len(rows)} rows", flush=True)


if __name__ == "__main__":
    main()
