"""Writes docs/rehearsal.md and its full tables from the rows that poise_streams.py wrote.

python -m benchmarks.rehearsal.rehearsal_page
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from benchmarks.pages import fill, percent, plain, table, told

HERE = Path(__file__).parent
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

ECE_ABOVE, LOSS, MILD = 0.02, 0.01, 0.01
"""Harm that is counted: ECE above no adaptation's and accuracy lost by a corruption, ECE by a mild change."""


def group_of(model: str) -> str:
    """The group of a model."""
    return max((group for group in GROUPS if model.startswith(group)), key=len)


def picked(rows: pd.DataFrame, group: str, kind: str, order: str = "shuffled") -> pd.DataFrame:
    """The streams of a group of models."""
    own = rows[(rows["kind"] == kind) & (rows["order"] == order)]
    return own[own["model"].map(group_of) == group]


def means(rows: pd.DataFrame, *columns: str) -> list[str]:
    """The means of some columns."""
    return [told(float(rows[column].mean())) for column in columns]


def known(rows: pd.DataFrame) -> list[str]:
    """The error of the estimate, and the share of last intervals that hold the accuracy of the last 500."""
    error = (rows["estimate"] - rows["poise.accuracy"]).abs().mean()
    held = (rows["end.low"] <= rows["end.accuracy"]) & (rows["end.accuracy"] <= rows["end.high"])
    return [told(float(error)), percent(held.mean())]


def harmed(values: pd.Series, limit: float) -> list[str]:
    """How many values are above a limit, and the largest."""
    return [str((values > limit).sum()), f"{values.max():+.3f}"]


def bar(rows: pd.DataFrame) -> str:
    """Targets in random order: calibration, likelihood, and the estimate of accuracy."""
    columns = [f"{who}.ece" for who in ("source", "untempered", "poise", "oracle")]
    columns += [f"{who}.nll" for who in ("untempered", "poise", "oracle")]
    body = [
        [name, str(len(found)), *means(found, *columns), *known(found)]
        for group, name in GROUPS.items()
        if len(found := picked(rows, group, "target"))
    ]
    head = ["", "streams", "ECE no adaptation", "ECE untempered", "**ECE poise**", "ECE best temperature"]
    head += ["NLL untempered", "**NLL poise**", "NLL best temperature"]
    return table([*head, "accuracy known within", "in its interval"], body)


def calibration(rows: pd.DataFrame) -> str:
    """Targets in random order: ECE of no adaptation, poise and the best temperature, and the estimate."""
    columns = [f"{who}.ece" for who in ("source", "poise", "oracle")]
    body = [
        [name, str(len(found)), *means(found, *columns), *known(found)]
        for group, name in GROUPS.items()
        if len(found := picked(rows, group, "target"))
    ]
    head = ["", "streams", "ECE, no adaptation", "ECE, `poise`", "ECE, best temperature"]
    return table([*head, "accuracy known within", "in its interval"], body)


def tiers(rows: pd.DataFrame) -> str:
    """Targets that are corruptions, by tier."""
    head = ["", "tier", "streams", "accuracy: no adaptation → poise", "ECE: no adaptation → poise"]
    head += ["accuracy known within", "in its interval"]
    head += [f"ECE above no adaptation's by more than {str(ECE_ABOVE)[1:]}", "at most"]
    head += [f"accuracy lower by more than {str(LOSS)[1:]}", "at most"]
    body = []
    for group, name in GROUPS.items():
        met = picked(rows, group, "target")
        for tier, found in met.groupby(met["stream"].str.extract(r"/(\d)$", expand=False)):
            pairs = [
                " → ".join(means(found, f"source.{score}", f"poise.{score}")) for score in ("accuracy", "ece")
            ]
            above = harmed(found["poise.ece"] - found["source.ece"], ECE_ABOVE)
            lost = harmed(found["source.accuracy"] - found["poise.accuracy"], LOSS)
            body.append([name, str(tier), str(len(found)), *pairs, *known(found), *above, *lost])
    return table(head, body)


def harm(rows: pd.DataFrame) -> str:
    """Unseen source images, as they are and mildly changed."""
    head = ["", "ECE untempered → poise, no drift", "NLL", "accuracy: source → poise", "mild changes"]
    head += ["ECE no adaptation → poise", "above it by more than .01", "at most"]
    body = []
    for group, name in GROUPS.items():
        found, mild = (picked(rows, group, kind) for kind in ("unseen", "mild"))
        if not len(found):
            continue
        pairs = [("untempered.ece", "poise.ece"), ("untempered.nll", "poise.nll")]
        row = [" → ".join(means(found, *pair)) for pair in (*pairs, ("source.accuracy", "poise.accuracy"))]
        row.append(str(len(mild)))
        if len(mild):
            row.append(" → ".join(means(mild, "source.ece", "poise.ece")))
            row += harmed(mild["poise.ece"] - mild["source.ece"], MILD)
        body.append([name, *row, *["not run"] * (len(head) - 1 - len(row))])
    return table(head, body)


def ordered(rows: pd.DataFrame) -> str:
    """Targets in random order, sorted by class and correlated."""
    columns = [f"{who}.accuracy" for who in ("source", "untempered", "poise")]
    columns += ["untempered.ece", "poise.ece"]
    body = [
        [name, order, *means(found, *columns), percent(found["by_source"].mean())]
        for group, name in GROUPS.items()
        if len(picked(rows, group, "target", "sorted"))
        for order in ("shuffled", "sorted", "dirichlet")
        if len(found := picked(rows, group, "target", order))
    ]
    head = ["", "order", "accuracy: source", "untempered", "**poise**", "ECE untempered", "**ECE poise**"]
    return table([*head, "answered by the source model"], body)


def jumps(rows: pd.DataFrame) -> str:
    """Accuracy after a jump, against batch statistics."""
    met = rows[rows["kind"] == "jump"].dropna(subset=["norm at the start.accuracy"])
    body = []
    for stream in ("contrast/5", "gaussian_noise/5", "invert"):
        found = met[met["stream"] == stream]
        row = [plain(stream), str(len(found))]
        for when in ("at the start", "in mid-stream"):
            ahead = found[f"poise {when}.accuracy"] - found[f"norm {when}.accuracy"]
            row += [f"{ahead.mean():+.3f}", f"{ahead.min():+.3f}"]
        body.append(row)
    head = [
        "jump to",
        "models",
        "poise less norm at the start: mean",
        "worst",
        "in mid-stream: mean",
        "worst",
    ]
    return table(head, body)


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
    body = []
    for (model, method), own in rows.groupby(["model", "method"], sort=False):
        name = GROUPS[str(model)].removeprefix("SVHN-C, ")
        for third in range(3):
            part = own.iloc[third * len(own) // 3 : (third + 1) * len(own) // 3]
            images = f"{int(part['images'].iloc[0]) - 999:,} to {int(part['images'].iloc[-1]):,}"
            held = ((part["low"] <= part["accuracy"]) & (part["accuracy"] <= part["high"])).sum()
            went = part["guard_actions"].iloc[-1]
            row = [name, f"`{method}`", images, *means(part, "accuracy", "estimate", "ece")]
            row += [f"{held} of {len(part)}", percent(part["inside"].mean())]
            body.append([*row, "" if pd.isna(went) else str(int(went))])
    head = ["", "method", "images", "accuracy", "estimate", "ECE", "interval holds", "`inside`"]
    return table([*head, "guard went back"], body)


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


def streams() -> pd.DataFrame:
    """The rows of all streams."""
    return pd.read_csv(HERE / "streams.csv", keep_default_na=False, na_values=[""])


def _everything() -> dict[str, str]:
    rows = streams()
    of_streams = {"bar": bar, "tiers": tiers, "harm": harm, "ordered": ordered, "jumps": jumps}
    made = {name: table_of(rows) for name, table_of in of_streams.items()}
    return made | {"batches": batches(), "novelty": novelty(), "long": long_streams()}


PAGES: Mapping[str, Callable[[], dict[str, str]]] = {
    "rehearsal.md": lambda: {"calibration": calibration(streams())},
    "tables/rehearsal.md": _everything,
}
"""What each page has in its regions."""


def parts(page: str) -> dict[str, str]:
    """The regions of a page."""
    return PAGES[page]()


if __name__ == "__main__":
    for page in PAGES:
        fill(page, parts(page))
