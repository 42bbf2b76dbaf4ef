"""Writes the tables of README.md, from results that other pages are made from.

python -m benchmarks.readme.readme_page
"""

import pandas as pd

from benchmarks.estimators import estimates_page
from benchmarks.estimators.measure_estimates import read
from benchmarks.pages import DOCS, filled, table, told, write
from benchmarks.rehearsal import rehearsal_page
from benchmarks.speed import performance
from benchmarks.speed.cases import BACKBONES
from benchmarks.speed.deployed import DEFAULT
from benchmarks.speed.performance import Lines, over

README = DOCS.parent / "README.md"
STREAMS = (
    ("batch norm: digits of another origin", "places", "Digits, random order"),
    ("batch norm: EfficientNet-B0, TinyImageNet-C", "groups", "tin efficientnet_b0"),
    ("batch norm, under-confident: ResNet, SVHN-C", "groups", "svhn bn doubtful"),
    ("layer norm: small ViT, SVHN-C", "groups", "svhn vit"),
    ("a table in the order of time: Elec", "places", "Elec"),
    ("no drift: digits like those trained on", "places", "Digits, source images"),
    ("a table, honest before: car loans", "places", "car loan"),
    ("sorted by class: PACS, MobileNet", "places", "PACS, sorted by class"),
)
"""What README.md calls a stream, and its name among the places of docs/estimates.md or the groups of
models of docs/rehearsal.md.
"""
COLUMNS = {
    "places": ["accuracy_none", "accuracy_poise", "ece_none", "ece_poise"],
    "groups": ["source.accuracy", "poise.accuracy", "source.ece", "poise.ece"],
}
"""Accuracy and ECE without and with equipoise, in the files of the two."""


def measured() -> str:
    """Accuracy and ECE without and with equipoise, one number in a cell."""
    places = estimates_page.named(read(estimates_page.HERE / "streams.csv"))
    groups = pd.read_csv(rehearsal_page.HERE / "streams.csv")
    body = []
    for title, kind, name in STREAMS:
        in_place = kind == "places"
        rows = places[places["place"] == name] if in_place else rehearsal_page.picked(groups, name, "target")
        body.append([title, *(told(float(rows[column].mean())) for column in COLUMNS[kind])])
    return table(["model: stream", "accuracy, plain", "equipoise", "ECE, plain", "equipoise"], body)


def costs(gpu: Lines, cpu: Lines) -> str:
    """The time of a step of poise, as it is deployed, over that of the model's own forward."""
    body = []
    for backbone in BACKBONES.values():
        cells = [
            over(lines.one("deployed", backbone=backbone.name, batch=batch), DEFAULT, "plain")
            for lines in (gpu, cpu)
            for batch in (50, 1)
        ]
        body.append([backbone.title, *(told(each, 1) for each in cells)])
    head = ["step over forward", "H200, 50 images", "H200, 1 image", "2 CPU cores, 50", "2 CPU cores, 1"]
    return table(head, body)


def parts() -> dict[str, str]:
    """The regions of the page."""
    gpu, cpu = (Lines(performance.HERE / name) for name in (performance.GPU, performance.CPU))
    return {"measured": measured(), "costs": costs(gpu, cpu)}


if __name__ == "__main__":
    write(README, filled(README.read_text(encoding="utf-8"), parts()))
