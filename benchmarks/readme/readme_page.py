"""Writes the tables of README.md, from results that other pages are made from.

python -m benchmarks.readme.readme_page
"""

import pandas as pd

from benchmarks.estimators import estimates_page
from benchmarks.estimators.measure_estimates import REHEARSED, read
from benchmarks.pages import DOCS, filled, table, told, write
from benchmarks.rehearsal import rehearsal_page
from benchmarks.speed import performance
from benchmarks.speed.cases import BACKBONES
from benchmarks.speed.deployed import DEFAULT
from benchmarks.speed.performance import Lines, over

README = DOCS.parent / "README.md"
STREAMS = (
    ("SmallCNN, batch norm: digits of another data set", "places", "Digits, random order"),
    ("EfficientNet-B0, batch norm: TinyImageNet-C", "groups", "tin efficientnet_b0"),
    ("ResNet, batch norm, under-confident: SVHN-C", "groups", "svhn bn doubtful"),
    ("small ViT, layer norm: SVHN-C", "groups", "svhn vit"),
    ("MLPs, a table in the order of time: Elec", "places", "Elec"),
    ("MLPs, a table: car loans (pre-calibrated)", "places", "car loan"),
    ("SmallCNN: digits like those trained on", "places", "Digits, source images"),
    ("MobileNet: PACS, sorted by class", "places", "PACS, sorted by class"),
)
"""What README.md calls a stream, and its name among the places of docs/estimates.md or the groups of
models of docs/rehearsal.md.
"""

COSTS = ("smallcnn", "efficientnet_b0", "vit_base_patch16_224")
"""The networks of the table of costs, small to large."""


def measured() -> str:
    """Accuracy and ECE without and with equipoise, and the error of the estimate, one number in a cell."""
    scores = {"places": of_places(), "groups": of_groups()}
    body = [[title, *map(told, scores[kind][name])] for title, kind, name in STREAMS]
    head = ["mean over streams of", "accuracy, plain", "equipoise", "ECE, plain", "equipoise"]
    return table([*head, "estimate off by"], body, narrow=True)


def of_places() -> dict[str, list[float]]:
    """The scores on the data of docs/estimates.md."""
    streams, estimates = (
        estimates_page.named(read(estimates_page.HERE / f"{name}.csv")) for name in ("streams", "estimates")
    )
    own = estimates[(estimates["answers"] == "poise") & (estimates["estimator"] == REHEARSED)]
    columns = ["accuracy_none", "accuracy_poise", "ece_none", "ece_poise"]
    scores, errors = streams.groupby("place")[columns].mean(), own.groupby("place")["error_chunks"].mean()
    return {str(place): [*map(float, row), float(errors[place])] for place, *row in scores.itertuples()}


def of_groups() -> dict[str, list[float]]:
    """The scores of the groups of models of docs/rehearsal.md."""
    rows = pd.read_csv(rehearsal_page.HERE / "streams.csv", keep_default_na=False, na_values=[""])
    found = {}
    for group in rehearsal_page.GROUPS:
        own = rehearsal_page.picked(rows, group, "target")
        columns = ("source.accuracy", "poise.accuracy", "source.ece", "poise.ece")
        error = (own["estimate"] - own["poise.accuracy"]).abs().mean()
        found[group] = [*(float(own[column].mean()) for column in columns), float(error)]
    return found


def costs(gpu: Lines, cpu: Lines) -> str:
    """The time of a step of poise, as it is deployed, over that of the model's own forward."""
    body = []
    for name in COSTS:
        backbone = BACKBONES[name]
        cells = [
            over(lines.one("deployed", backbone=name, batch=batch), DEFAULT, "plain")
            for lines in (gpu, cpu)
            for batch in (50, 1)
        ]
        body.append([backbone.title, *(told(each, 1) for each in cells)])
    head = [
        "step ÷ `model(x)`",
        "H200, 50 images",
        "H200, 1 image",
        "2 CPU cores, 50 images",
        "2 CPU cores, 1 image",
    ]
    return table(head, body, narrow=True)


def parts() -> dict[str, str]:
    """The regions of the page."""
    gpu, cpu = (Lines(performance.HERE / name) for name in (performance.GPU, performance.CPU))
    return {"measured": measured(), "costs": costs(gpu, cpu)}


if __name__ == "__main__":
    write(README, filled(README.read_text(encoding="utf-8"), parts()))
