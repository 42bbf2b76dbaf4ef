"""Writes the tables of docs/rehearsal.md from the rows that poise_streams.py wrote.

python -m benchmarks.rehearsal.rehearsal_page
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.pages import fill, percent, plain, table, told

HERE = Path(__file__).parent
Line = dict[str, Any]
GROUPS = {
    "digits": "Digits, SmallCNN",
    "pacs efficientnet_b0": "PACS, EfficientNet-B0",
    "pacs mobilenet_v1": "PACS, MobileNet",
    "tin efficientnet_b0": "TinyImageNet-C, EfficientNet-B0",
    "tin mobilenet_v1": "TinyImageNet-C, MobileNet",
    "tin mobilenet_v1 doubtful": "TinyImageNet-C, MobileNet, under-confident",
    "svhn bn": "SVHN-C, ResNet with batch norm",
    "svhn bn doubtful": "SVHN-C, ResNet with batch norm, under-confident",
    "svhn gn": "SVHN-C, ResNet with group norm",
    "svhn gn doubtful": "SVHN-C, ResNet with group norm, under-confident",
    "svhn vit": "SVHN-C, small ViT",
}
"""By what the names of models begin with; the longest is a model's group."""

ECE_ABOVE, LOSS = 0.02, 0.01
"""Harm by a corruption that is counted: ECE above no adaptation's, and accuracy lost."""


def mean(lines: Iterable[Line], of: Callable[[Line], float]) -> float:
    """The mean of a number over lines."""
    values = [of(line) for line in lines]
    return sum(values) / len(values)


def score_of(who: str, score: str, line: Line) -> float:
    """A score of one of those who answered."""
    return float(line[f"{who}.{score}"])


def picked(lines: list[Line], group: str, kind: str, order: str) -> list[Line]:
    """The streams of a group of models."""
    return [
        line
        for line in lines
        if group_of(line["model"]) == group and (line["kind"], line["order"]) == (kind, order)
    ]


def group_of(model: str) -> str:
    """The group of a model."""
    return max((group for group in GROUPS if model.startswith(group)), key=len)


def bar(lines: list[Line]) -> str:
    """Targets in random order: calibration, likelihood, and the estimate of accuracy."""
    head = ["", "streams", "ECE no adaptation", "ECE untempered", "**ECE poise**", "ECE best temperature"]
    head += [
        "NLL untempered",
        "**NLL poise**",
        "NLL best temperature",
        "accuracy known within",
        "in its interval",
    ]
    rows = []
    for group, name in GROUPS.items():
        if not (found := picked(lines, group, "target", "shuffled")):
            continue
        scores = [(who, "ece") for who in ("source", "untempered", "poise", "oracle")]
        scores += [(who, "nll") for who in ("untempered", "poise", "oracle")]
        cells = [told(mean(found, partial(score_of, *at))) for at in scores]
        error = mean(found, lambda line: abs(line["estimate"] - line["poise.accuracy"]))
        rows.append([name, str(len(found)), *cells, told(error), percent(mean(found, covered))])
    return table(head, rows)


def covered(line: Line) -> bool:
    """Whether the interval at the end holds the accuracy of the last 500 images."""
    return bool(line["end.low"] <= line["end.accuracy"] <= line["end.high"])


def tiers(lines: list[Line]) -> str:
    """Targets that are corruptions, by tier."""
    head = ["", "tier", "streams", "accuracy: no adaptation → poise", "ECE: no adaptation → poise"]
    head += ["accuracy known within", "in its interval"]
    head += [f"ECE above no adaptation's by more than {str(ECE_ABOVE)[1:]}", "at most"]
    head += [f"accuracy lower by more than {str(LOSS)[1:]}", "at most"]
    rows = []
    for group, name in GROUPS.items():
        met = [line for line in picked(lines, group, "target", "shuffled") if "/" in line["stream"]]
        for tier in sorted({line["stream"].partition("/")[2] for line in met}):
            found = [line for line in met if line["stream"].endswith(f"/{tier}")]
            row = [name, tier, str(len(found))]
            for score in ("accuracy", "ece"):
                sides = [told(mean(found, partial(score_of, who, score))) for who in ("source", "poise")]
                row.append(" → ".join(sides))
            error = mean(found, lambda line: abs(line["estimate"] - line["poise.accuracy"]))
            row += [told(error), percent(mean(found, covered))]
            above = [line["poise.ece"] - line["source.ece"] for line in found]
            lost = [line["source.accuracy"] - line["poise.accuracy"] for line in found]
            for values, limit in ((above, ECE_ABOVE), (lost, LOSS)):
                row += [str(sum(value > limit for value in values)), f"{max(values):+.3f}"]
            rows.append(row)
    return table(head, rows)


def harm(lines: list[Line]) -> str:
    """Unseen source images, as they are and mildly changed."""
    head = ["", "ECE untempered → poise, no drift", "NLL", "accuracy: source → poise", "mild changes"]
    head += ["ECE no adaptation → poise", "above it by more than .01", "at most"]
    rows = []
    for group, name in GROUPS.items():
        found, mild = picked(lines, group, "unseen", "shuffled"), picked(lines, group, "mild", "shuffled")
        if not found:
            continue
        pairs = [
            " → ".join(told(mean(found, partial(score_of, who, score))) for who in ("untempered", "poise"))
            for score in ("ece", "nll")
        ]
        sides = [told(mean(found, partial(score_of, who, "accuracy"))) for who in ("source", "poise")]
        row = [name, *pairs, " → ".join(sides), str(len(mild))]
        if mild:
            worse = [line["poise.ece"] - line["source.ece"] for line in mild]
            before, after = (told(mean(mild, partial(score_of, who, "ece"))) for who in ("source", "poise"))
            row += [f"{before} → {after}", str(sum(value > 0.01 for value in worse)), f"{max(worse):+.3f}"]
        rows.append([*row, *["not run"] * (len(head) - len(row))])
    return table(head, rows)


def ordered(lines: list[Line]) -> str:
    """Targets in random order, sorted by class and correlated."""
    head = ["", "order", "accuracy: source", "untempered", "**poise**", "ECE untempered", "**ECE poise**"]
    head += ["answered by the source model"]
    rows = []
    for group, name in GROUPS.items():
        for order in ("shuffled", "sorted", "dirichlet"):
            found = picked(lines, group, "target", order)
            if not found or not picked(lines, group, "target", "sorted"):
                continue
            names = ("source", "untempered", "poise")
            right = [told(mean(found, partial(score_of, who, "accuracy"))) for who in names]
            errors = [told(mean(found, partial(score_of, who, "ece"))) for who in names[1:]]
            share = percent(mean(found, lambda line: line["by_source"]))
            rows.append([name, order, *right, *errors, share])
    return table(head, rows)


def jumps(lines: list[Line]) -> str:
    """Accuracy after a jump, against batch statistics."""
    head = [
        "jump to",
        "models",
        "poise less norm at the start: mean",
        "worst",
        "in mid-stream: mean",
        "worst",
    ]
    rows = []
    for stream in ("contrast/5", "gaussian_noise/5", "invert"):
        found = [line for line in lines if line["kind"] == "jump" and line["stream"] == stream]
        found = [line for line in found if not pd.isna(line["norm at the start.accuracy"])]
        row = [plain(stream), str(len(found))]
        for when in ("at the start", "in mid-stream"):
            ahead = [line[f"poise {when}.accuracy"] - line[f"norm {when}.accuracy"] for line in found]
            row += [f"{sum(ahead) / len(ahead):+.3f}", f"{min(ahead):+.3f}"]
        rows.append(row)
    return table(head, rows)


def batches() -> str:
    """Accuracy and ECE for each batch size, from a file of its own."""
    rows = pd.read_csv(HERE / "batch_sizes.csv")
    names = ["source accuracy", "poise accuracy", "source ece", "poise ece", "estimate"]
    means = rows.groupby(["stream", "batch"], sort=False)[names].mean().reset_index()
    head = ["stream", "batch", "accuracy: source", "poise", "ECE source", "**ECE poise**", "estimate"]
    body = [[str(row[0]), str(row[1]), *map(told, row[2:])] for row in means.itertuples(index=False)]
    return table(head, body)


def long_streams() -> str:
    """Thirds of the long streams, from a file of their own."""
    rows = pd.read_csv(HERE / "long_streams.csv")
    head = [
        "",
        "method",
        "images",
        "accuracy",
        "estimate",
        "ECE",
        "interval holds",
        "`inside`",
        "guard went back",
    ]
    body = []
    for (model, method), own in rows.groupby(["model", "method"], sort=False):
        for third in range(3):
            part = own.iloc[third * len(own) // 3 : (third + 1) * len(own) // 3]
            held = ((part["low"] <= part["accuracy"]) & (part["accuracy"] <= part["high"])).sum()
            went = part["guard_actions"].iloc[-1]
            ends = f"{int(part['images'].iloc[0]) - 999:,} to {int(part['images'].iloc[-1]):,}"
            scores = [told(float(part[name].mean())) for name in ("accuracy", "estimate", "ece")]
            inside = percent(part["inside"].mean())
            back = "" if pd.isna(went) else str(int(went))
            name = GROUPS[str(model)].removeprefix("SVHN-C, ")
            body.append([name, f"`{method}`", ends, *scores, f"{held} of {len(part)}", inside, back])
    return table(head, body)


def novelty() -> str:
    """Accuracy on tables in each order, from a file of its own."""
    rows = pd.read_csv(HERE / "novelty.csv")
    names = {"elec": "Elec", "car_loan": "car loans", "land_cover": "land cover"}
    orders = list(rows["order"].unique())
    body = []
    for data, own in rows.groupby("data", sort=False):
        found = own.set_index("order")
        cells = [" / ".join(told(found.loc[o, kind]) for kind in ("none", "without", "with")) for o in orders]
        body.append([names.get(str(data), str(data)), *cells])
    return table(["", *orders], body)


def parts() -> dict[str, str]:
    """The regions of the page."""
    rows = pd.read_csv(HERE / "streams.csv", keep_default_na=False, na_values=[""])
    lines = [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]
    of_streams = {"bar": bar, "tiers": tiers, "harm": harm, "ordered": ordered, "jumps": jumps}
    made = {name: table_of(lines) for name, table_of in of_streams.items()}
    return made | {"batches": batches(), "novelty": novelty(), "long": long_streams()}


if __name__ == "__main__":
    fill("rehearsal.md", parts())
