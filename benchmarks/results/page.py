"""Writes docs/results.md from the results beside this file.

python benchmarks/results/page.py > docs/results.md
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
from pack import METRICS
from scipy import stats

from equipoise.data.corruptions import CORRUPTIONS
from equipoise.report.paper import ROWS, printed_tables

HERE = Path(__file__).parent
ACCURACY, ECE, ENTROPY, NLL, CONFIDENCE = 0, 1, 2, 3, 5
NAMES = {"digits": "Digits", "pacs": "PACS", "tiny-imagenet-c": "TinyImageNet-C"}
NETWORKS = {"smallcnn": "SmallCNN", "efficientnet_b0": "EfficientNet-B0", "mobilenet_v1": "MobileNet v1"}
LABELS = ("source", "norm", "tent", "eta", "eata", "t3a", "sotta", "dec", "dec-released", "poise")
RIVALS = ("tent", "eta", "t3a", "sotta")
TEMPERINGS = ("none", "mean", "median", "agreement")
PRINTED = ("accuracy", "ece", "nll", "entropy")
OURS = ("poise", "agreement")
SIZES = {"digits": 9, "pacs": 4, "tiny-imagenet-c": 15}
CHOSEN_ON = {
    "digits": ("mnist", "usps"),
    "pacs": ("art_painting", "cartoon"),
    "tiny-imagenet-c": tuple(CORRUPTIONS)[:7],  # noise and blur
}
Row = Sequence[str]


class Results:
    """The committed results, by data set, network, tier, label and way of answering."""

    def __init__(self, lines: Iterable[dict[str, Any]]) -> None:
        self.cells: dict[tuple[str, str, Any], dict[str, dict[tuple[str, int], dict[str, Any]]]] = {}
        for line in lines:
            place = line["data"], line["backbone"], line["tier"]
            by_label = self.cells.setdefault(place, {})
            by_label.setdefault(line["label"], {})[line["target"], line["seed"]] = _scores(line)

    def places(self) -> list[tuple[str, str, Any]]:
        """Data sets, networks and tiers that there are results of."""
        order = list(NAMES)
        return sorted(self.cells, key=lambda place: (order.index(place[0]), place[1], place[2] or 0))

    def runs(self, place: tuple[str, str, Any], label: str, way: str) -> dict[tuple[str, int], list[float]]:
        """The scores of a method by stream and seed; empty unless every stream is there."""
        runs = self.cells[place].get(label, {})
        found = {stream: scores[way] for stream, scores in runs.items() if way in scores}
        return found if len(found) >= SIZES[place[0]] else {}

    def mean(
        self, place: tuple[str, str, Any], label: str, way: str, metric: int, only: Sequence[str] = ()
    ) -> float | None:
        """A metric's mean over streams and seeds, all of them or those of some targets."""
        runs = self.runs(place, label, way)
        values = [scores[metric] for (target, _), scores in runs.items() if not only or target in only]
        return fmean(values) if values else None


def _scores(line: dict[str, Any]) -> dict[str, list[float]]:
    """The scores of a run in the order of METRICS, by protocol and tempering: "online/none"."""
    ways = [name.removesuffix(f"/{METRICS[0]}") for name in line if name.endswith(f"/{METRICS[0]}")]
    found = {way: [line[f"{way}/{metric}"] for metric in METRICS] for way in ways}
    return {way: scores for way, scores in found.items() if None not in scores}


def number(value: float | None, digits: int = 3) -> str:
    """A number as tables have it."""
    return "-" if value is None else f"{value:.{digits}f}"


def table(head: Row, rows: Iterable[Row]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def title(place: tuple[str, str, Any]) -> str:
    """A place in words."""
    tier = "" if place[2] is None else f", tier {place[2]}"
    return f"{NAMES[place[0]]} on {NETWORKS[place[1]]}{tier}"


def printed(place: tuple[str, str, Any], label: str, metric: str) -> float | None:
    """The paper's number for a method."""
    column = "average" if place[2] is None else f"Tier {place[2]}"
    for each in printed_tables():
        for name, method in ROWS.items():
            cell = each.cells.get((metric, name, column))
            if (each.data, each.backbone, method) == (place[0], place[1], label) and cell is not None:
                return float(cell.value)
    return None


def main_table(results: Results, place: tuple[str, str, Any], protocol: str) -> str:
    """Every method at one place, raw and tempered, beside the paper."""
    rows = []
    for label in LABELS:
        if results.mean(place, label, f"{protocol}/none", ACCURACY) is None:
            continue
        row = [f"`{label}`", number(results.mean(place, label, f"{protocol}/none", ACCURACY))]
        for metric in (ECE, NLL):
            row += [number(results.mean(place, label, f"{protocol}/{kind}", metric)) for kind in TEMPERINGS]
        row += [number(results.mean(place, label, f"{protocol}/none", ENTROPY), 2)]
        row += [number(printed(place, label, name)) for name in PRINTED]
        rows.append(row)
    head = [
        "",
        "acc",
        *(f"ECE {kind}" for kind in TEMPERINGS),
        *(f"NLL {kind}" for kind in TEMPERINGS),
        "H raw",
    ]
    return table([*head, "paper: acc", "ECE", "NLL", "H"], rows)


def best(
    results: Results, place: tuple[str, str, Any], metric: int, kinds: Sequence[str]
) -> tuple[float, str]:
    """The best rival by a metric, and how its logits were divided."""
    found = [
        (value if metric != ACCURACY else -value, f"{label} ({kind})")
        for label in RIVALS
        for kind in kinds
        if (value := results.mean(place, label, f"online/{kind}", metric)) is not None
    ]
    value, who = min(found) if found else (float("nan"), "not run")
    return abs(value), who


def bar(results: Results) -> str:
    """The goals, and how far each was reached."""
    rows = []
    for place in results.places():
        way = f"online/{OURS[1]}"
        ours = results.runs(place, OURS[0], way)
        if not ours:
            continue
        accuracy, ece, nll = (results.mean(place, OURS[0], way, m) or 0.0 for m in (ACCURACY, ECE, NLL))
        raw, raw_who = best(results, place, ECE, ("none",))
        lowest, lowest_who = best(results, place, NLL, TEMPERINGS)
        highest, highest_who = best(results, place, ACCURACY, ("none",))
        source = results.runs(place, "source", "online/none")
        targets = sorted({target for target, _ in ours})
        lost = {
            target: fmean(source[s][ACCURACY] - ours[s][ACCURACY] for s in ours if s[0] == target)
            for target in targets
        }
        worst = max(lost, key=lambda target: lost[target])
        known = raw_who != "not run"
        rows.append(
            [
                title(place),
                told(ece, ece <= 0.05),
                told(ece / raw, ece <= raw / 3) + f" of {raw_who}" if known else "rivals not run",
                f"{told(nll, nll < lowest)} against {number(lowest)}, {lowest_who}" if known else number(nll),
                f"{told(accuracy, accuracy >= highest - 0.005)} against {number(highest)}, {highest_who}"
                if known
                else number(accuracy),
                f"{told(-lost[worst], lost[worst] <= 0.02)} ({worst})",
            ]
        )
    head = ["", "ECE ≤ .05", "ECE ≤ ⅓ of the best raw rival's", "NLL below every rival, raw or tempered"]
    return table(
        [
            *head,
            "accuracy at least the best rival's less .005",
            "worst domain against no adaptation, at least -.02",
        ],
        rows,
    )


def told(value: float, reached: bool) -> str:
    """A number and whether it reaches its goal."""
    return f"{number(value)} {'✓' if reached else '✗'}"


def halves(results: Results) -> str:
    """Poise on the shifts that it was chosen on, and on the others."""
    rows = []
    for place in results.places():
        runs = results.runs(place, *_ours())
        if not runs:
            continue
        chosen = CHOSEN_ON[place[0]]
        others = sorted({target for target, _ in runs} - set(chosen))
        rows.append(
            [
                title(place),
                *(number(results.mean(place, *_ours(), metric, chosen)) for metric in (ACCURACY, ECE, NLL)),
                *(number(results.mean(place, *_ours(), metric, others)) for metric in (ACCURACY, ECE, NLL)),
            ]
        )
    return table(["", "chosen on: acc", "ECE", "NLL", "the other half: acc", "ECE", "NLL"], rows)


def _ours() -> tuple[str, str]:
    return OURS[0], f"online/{OURS[1]}"


def domains(results: Results) -> str:
    """Poise and no adaptation by domain."""
    rows = []
    for place in results.places():
        runs = results.runs(place, *_ours())
        if place[2] is not None or not runs:
            continue
        for target in sorted({target for target, _ in runs}):
            row = [title(place), target]
            for label, way in (("source", "online/none"), _ours()):
                row += [number(results.mean(place, label, way, m, (target,))) for m in (ACCURACY, ECE, NLL)]
            ours = fmean(
                scores[CONFIDENCE] - scores[ACCURACY] for s, scores in runs.items() if s[0] == target
            )
            rows.append([*row, f"{ours:+.3f}"])
    head = ["", "target", "no adaptation: acc", "ECE", "NLL", "poise: acc", "ECE", "NLL"]
    return table([*head, "confidence less accuracy"], rows)


def significance(results: Results, focal: tuple[str, str], kinds: Sequence[str]) -> str:
    """Paired tests over shifts against the best rival, each shift a pair with the mean over its seeds."""
    rows = []
    for data, backbone in dict.fromkeys(place[:2] for place in results.places()):
        for metric, name in ((ECE, "ECE"), (NLL, "NLL")):
            pairs: dict[str, list[tuple[float, float]]] = {}
            for place in (p for p in results.places() if p[:2] == (data, backbone)):
                ours = results.runs(place, focal[0], f"online/{focal[1]}")
                for label in RIVALS:
                    for kind in kinds:
                        theirs = results.runs(place, label, f"online/{kind}")
                        if ours and theirs:
                            pairs.setdefault(f"{label} ({kind})", []).extend(paired(ours, theirs, metric))
            if not pairs:
                continue
            most = max(len(each) for each in pairs.values())
            whole = {who: each for who, each in pairs.items() if len(each) == most}
            who = min(whole, key=lambda rival: fmean(theirs for _, theirs in whole[rival]))
            first, second = zip(*whole[who], strict=True)
            p = float(stats.ttest_rel(first, second).pvalue)
            small = "< .001" if p < 0.001 else f"{p:.3f}"
            rows.append(
                [
                    f"{NAMES[data]} on {NETWORKS[backbone]}",
                    name,
                    number(fmean(first)),
                    f"{number(fmean(second))}, {who}",
                    f"{fmean(first) - fmean(second):+.3f}",
                    str(most),
                    small,
                ]
            )
    return table(
        ["", "metric", f"{focal[0]} ({focal[1]})", "best rival", "difference", "pairs", "p (t-test)"], rows
    )


def paired(
    ours: dict[tuple[str, int], list[float]], theirs: dict[tuple[str, int], list[float]], metric: int
) -> list[tuple[float, float]]:
    """A metric's means over the seeds, by target."""

    def mean(runs: dict[tuple[str, int], list[float]], target: str) -> float:
        return fmean(scores[metric] for stream, scores in runs.items() if stream[0] == target)

    return [(mean(ours, target), mean(theirs, target)) for target in sorted({target for target, _ in ours})]


def norms(lines: Sequence[dict[str, Any]]) -> str:
    """Quantiles of the logit norm over kappa, and the spread of tau, by tier."""
    rows = []
    groups: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    for line in lines:
        if line["data"] == "tiny-imagenet-c":
            groups.setdefault((line["backbone"], line["tier"]), []).append(line)
    for (backbone, tier), found in sorted(groups.items()):
        if len(found) == SIZES["tiny-imagenet-c"]:
            low, middle, high = (
                fmean(f[f"norm_{level}"] / f["kappa"] for f in found) for level in (0.05, 0.5, 0.95)
            )
            tau, spread = fmean(f["tau_0.5"] for f in found), fmean(f["tau_std"] ** 2 for f in found)
            row = [number(each, 2) for each in (low, middle, high, tau, spread)]
            rows.append([NETWORKS[backbone], str(tier), *row])
    return table(["network", "tier", "‖z‖/κ 5 %", "50 %", "95 %", "median of τ", "variance of τ"], rows)


def search(lines: Sequence[dict[str, Any]]) -> str:
    """What was tried on the half that poise was chosen on."""
    groups = list(dict.fromkeys(line["group"] for line in lines))
    parts = []
    for about, wanted in SEARCHES.items():
        rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for line in lines:
            if wanted(line["variant"], line["rule"]):
                rows.setdefault((line["variant"], line["rule"]), {})[line["group"]] = line
        body = [
            [variant, rule, *(score(found.get(group)) for group in groups)]
            for (variant, rule), found in rows.items()
        ]
        parts += [about, table(["adaptation", "divided by", *groups], body)]
    return "\n\n".join(parts)


def score(line: dict[str, Any] | None) -> str:
    """Accuracy, ECE and NLL in a cell."""
    return "-" if line is None else f"{line['accuracy']:.3f} {line['ece']:.3f} {line['nll']:.2f}"


SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "*How to adapt*: statistics, losses, parameters and prototypes, all divided by the median of tau.": (
        lambda variant, rule: (
            rule == "median"
            and ("following" in variant or variant.startswith(("none", "stat", "batch", "the same")))
        )
    ),
    "*What to divide by*: no adaptation, and statistics that follow (*start*: the median of √(t · tau)).": (
        lambda variant, _rule: variant in ("none: the source model", "statistics: following .1")
    ),
    "*Prototypes and agreement together*: fewer images, on two CPU cores; tin-eff was not run.": (
        lambda variant, _rule: variant.startswith("head") or variant == "poise"
    ),
    "*Robustness to t_min and t_max*: poise, and the same divided by the mean or median of tau.": (
        lambda variant, _rule: variant == "poise, range of t"
    ),
}


def fill(text: str, parts: dict[str, str]) -> str:
    """The page, with what is between braces replaced."""
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def main() -> None:
    """Print the page."""
    results = Results(read("cells.csv"))
    tables = []
    for place in results.places():
        for protocol in ("online", "after-pass"):
            tables += [f"### {title(place)}, {protocol}", main_table(results, place, protocol)]
    parts = {
        "bar": bar(results),
        "halves": halves(results),
        "domains": domains(results),
        "significance-poise": significance(results, OURS, TEMPERINGS),
        "significance-paper": significance(results, ("dec", "mean"), ("none",)),
        "norms": norms(read("streams.csv")),
        "search": search(read("search.csv")),
        "robust": robustness(read("robust.csv")),
        "tables": "\n\n".join(tables),
    }
    sys.stdout.write(fill((HERE / "results.template.md").read_text(), parts))


def robustness(lines: Sequence[dict[str, Any]]) -> str:
    """Poise under streams that break other methods."""
    rows = [
        [
            line["model"],
            line["stream"],
            *(number(line[k]) for k in ("source", "accuracy", "ece", "nll", "after")),
        ]
        for line in lines
    ]
    head = ["model → target", "stream", "no adaptation: acc", "poise: acc", "ECE", "NLL"]
    return table([*head, "acc afterwards, shuffled"], rows)


def read(name: str) -> list[dict[str, Any]]:
    """The rows of a CSV file beside this one; None where a cell is empty."""
    frame = pd.read_csv(HERE / name, dtype={"tier": "Int64"}).astype(object)
    return [
        {str(key): value for key, value in row.items()}
        for row in frame.where(frame.notna(), None).to_dict("records")
    ]


if __name__ == "__main__":
    main()
