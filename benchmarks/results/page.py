"""Writes the tables and pictures of docs/results.md and its full tables from the results beside this file.

python -m benchmarks.results.page
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from benchmarks.pages import (
    DOCS,
    fill,
    mark,
    percent,
    plain,
    signed,
    table,
    told,
    write,
)
from benchmarks.results.figures import calibration_figure, estimate_figure, standalone
from benchmarks.results.goals import against_paper, decision_table, decisions, goal_table, rival_of
from benchmarks.results.measured import (
    DEC,
    FOLDER,
    LABELS,
    NAMES,
    NETWORKS,
    POISE,
    RIVALS,
    SOURCE,
    WAYS,
    Measured,
    Place,
    against_each,
    at,
    best_raw_rival,
    change,
    estimated,
    hardest,
    mean,
    means,
    networks,
    places,
    printed,
    raw,
    read,
    spread,
)
from benchmarks.results.robustness import collapsed, paired
from equipoise.research.report.paper import experiments, printed_tables
from equipoise.research.report.results import Variant
from equipoise.research.report.significance import Comparison, holm
from equipoise.research.report.table import INCOMPLETE
from equipoise.research.report.tables import NAMES as METRIC_NAMES

CHOSEN = "recipe"
"""The way to train that the runs of the page have."""
LAST = 5
"""The epochs before the end that a held-out accuracy is averaged over: single epochs differ by chance."""
NEAR = 0.02
"""A model within so much of the paper's accuracy is called as good."""
FAMILIES: dict[str, tuple[Variant, Sequence[str]]] = {
    "raw": (POISE, ["none"]),
    "tempered": (POISE, ["mean", "median"]),
    "rehearsed": (POISE, ["rehearsed"]),
    "dec": (DEC, ["none"]),
}
"""The families of tests: the method, and the temperings of its rivals."""
KINDS = {
    "none": "raw",
    "fixed": "fixed",
    "mean": "mean",
    "median": "median",
    "rehearsed": "rehearsed",
    "oracle": "floor",
}
PROTOCOLS = {"online": "each batch is answered as it comes", "after-pass": "after one pass"}
METRICS = ["accuracy", "ece", "nll", "entropy"]
GOAL_TABLES = {
    "bar_ece": {"ece": "ECE of `poise`", "third": "against the best raw rival"},
    "bar_nll": {
        "nll": "NLL of `poise` against the best rival, raw or by tau",
        "nll-rehearsed": "against the best rehearsed rival",
    },
    "bar_accuracy": {
        "accuracy": "accuracy of `poise` against the best rival",
        "domain": "worst domain, against no adaptation",
    },
}
PICTURES = {
    "results": (calibration_figure, "ECE of every method, for each data set and network"),
    "results-estimates": (estimate_figure, "Estimated against true accuracy, for each stream"),
}


def parts(page: str, folder: Path = FOLDER) -> dict[str, str]:
    """The regions of a page, from the files of a folder."""
    return PAGES[page](read(folder))


def _answer(measured: Measured) -> dict[str, str]:
    cells = measured.cells
    return {
        "summary": summary_table(cells),
        "source_accuracy": source_table(cells),
        "runs": run_table(cells),
    }


def _goals(measured: Measured) -> dict[str, str]:
    made = decisions(measured)
    return {
        "goals": goal_table(made),
        **{name: decision_table(made, heads) for name, heads in GOAL_TABLES.items()},
        "bar_paper": against_paper(measured.cells, made),
    }


def _estimates(measured: Measured) -> dict[str, str]:
    return {"estimates": estimate_table(measured.cells)}


def _robustness(measured: Measured) -> dict[str, str]:
    robust = measured.robust
    return {"collapses": collapse_table(robust), "robustness": robustness_tables(robust)}


def _significance(measured: Measured) -> dict[str, str]:
    cells = measured.cells
    families = ("raw", "tempered", "rehearsed")
    return {
        **{f"tests_{name}": test_table(tested(cells, *FAMILIES[name])) for name in families},
        "temperatures": temperature_table(cells),
    }


def _claims(measured: Measured) -> dict[str, str]:
    cells = measured.cells
    return {
        "certainty": certainty_table(cells),
        "norms": norm_table(measured.streams),
        "tests_dec": test_table(tested(cells, *FAMILIES["dec"])),
        "accuracy": dec_table(cells),
    }


def _training(measured: Measured) -> dict[str, str]:
    return {"training": training_tables(measured.training)}


def _of_data(data: str, measured: Measured) -> dict[str, str]:
    cells = measured.cells[measured.cells["data"] == data]
    return {"domains": domain_tables(cells), "methods": method_tables(cells), "doubts": doubts(cells)}


PAGES: Mapping[str, Callable[[Measured], dict[str, str]]] = {
    "results.md": _answer,
    "tables/results-goals.md": _goals,
    "tables/results-estimates.md": _estimates,
    "tables/results-robustness.md": _robustness,
    "tables/results-significance.md": _significance,
    "tables/results-claims.md": _claims,
    "tables/results-training.md": _training,
    **{f"tables/results-{data}.md": partial(_of_data, data) for data in NAMES},
}
"""The pages and their regions."""


def summary_table(cells: pd.DataFrame) -> str:
    """Accuracy and ECE of no adaptation, the raw rival with the least ECE and poise."""
    body = []
    for place in networks(cells):
        rows = at(cells, place)
        rival = best_raw_rival(rows)
        pairs = [_right_and_ece(rows, each) if each else ("-", "-") for each in (SOURCE, rival, POISE)]
        right, ece = (list(column) for column in zip(*pairs, strict=True))
        body.append([str(place), *right, *ece[:-1], f"**{ece[-1]}**", LABELS[rival.name] if rival else "-"])
    head = ["", "right: no adaptation", "rival", "`poise`", "ECE: no adaptation", "rival", "`poise`"]
    return table([*head, "the rival"], body)


def _right_and_ece(rows: pd.DataFrame, variant: Variant) -> tuple[str, str]:
    accuracy = mean(rows, variant, "accuracy")
    return "-" if accuracy is None else percent(accuracy), told(mean(rows, variant, "ece"))


def run_table(cells: pd.DataFrame) -> str:
    """Seeds, streams and images for each data set and network."""
    body = []
    for place in networks(cells):
        rows, experiment = at(cells, place), experiments()[place.data]
        tiers = [str(tier) for tier in sorted(rows["tier"].unique()) if tier]
        streams = str(rows["target"].nunique()) + (f", each at tiers {', '.join(tiers)}" if tiers else "")
        images = " to ".join(
            dict.fromkeys(f"{end:,}" for end in (rows["images"].min(), rows["images"].max()))
        )
        seeds = ", ".join(str(seed) for seed in sorted(rows["seed"].unique()))
        size = int(rows["input_size"].fillna(experiment.own_size).iloc[0])
        theirs = "" if size == experiment.input_size else f" (the paper: {experiment.input_size})"
        body.append([str(place), seeds, streams, images, f"{size}{theirs}"])
    return table(["", "seeds", "streams", "images a stream", "pixels"], body)


def domain_tables(cells: pd.DataFrame) -> str:
    """Every target by no adaptation, the best raw rival and poise."""
    found = []
    for place in networks(cells):
        rows = at(cells, place)
        shown = [each for each in (SOURCE, best_raw_rival(rows), POISE) if each]
        body = []
        for target in sorted(rows["target"].unique()):
            there = rows[rows["target"] == target]
            for variant in shown:
                scores = [mean_and_spread(there, variant, metric) for metric in ("accuracy", "ece", "nll")]
                floor = told(mean(there, Variant(variant.name, "oracle"), "ece"))
                name = plain(target) if variant is SOURCE else ""
                body.append([name, LABELS[variant.name], *scores, floor])
        content = table(["target", "", "accuracy", "ECE", "NLL", "floor of ECE"], body)
        found.append(f"### {place}\n\n{content}")
    return "\n\n".join(found)


def mean_and_spread(rows: pd.DataFrame, variant: Variant, metric: str) -> str:
    """The mean over shifts and seeds, ± the standard deviation over seeds where there are several."""
    value, over_seeds = mean(rows, variant, metric), spread(rows, variant, metric)
    return told(value) if value is None or over_seeds is None else f"{told(value)} ± {told(over_seeds)}"


def estimate_table(cells: pd.DataFrame) -> str:
    """The errors of the estimates, for each data set and network."""
    streams, body = estimated(cells), []
    for place in networks(cells):
        rows = streams[(streams["data"] == place.data) & (streams["backbone"] == place.backbone)]
        if len(rows):
            off = rows["error"].abs()
            numbers = [told(off.mean()), signed(rows["error"].mean()), told(off.max())]
            body.append([str(place), str(len(rows)), *numbers, percent(rows["covered"].mean())])
    head = ["", "streams", "off by, on average", "too high by, on average", "off by at most"]
    return table([*head, "interval right"], body)


def collapse_table(robust: pd.DataFrame) -> str:
    """A row for each stream that collapsed."""
    body = [
        [
            f"{Place(row['data'], row['backbone'])} → {plain(row['target'])}, {row['stream']}",
            *(told(row[name]) for name in ("accuracy", "accuracy_source", "accuracy_base")),
            *(told(row[name]) for name in ("after", "after_source", "after_base")),
            percent(row["answered_by_source"]),
        ]
        for _, row in collapsed(robust).iterrows()
    ]
    head = ["collapsed", "`poise`", "no adaptation", "`poise`, shuffled", "afterwards"]
    return table([*head, "no adaptation", "`poise`, shuffled", "the source model answered"], body)


def robustness_tables(robust: pd.DataFrame) -> str:
    """A table for each data set and network: the means over the targets, and the worst target."""
    found = []
    for (data, backbone), rows in paired(robust).groupby(["data", "backbone"], sort=False):
        body = []
        for stream, group in rows.groupby("stream", sort=False):
            names = ("accuracy_source", "accuracy", "estimate", "ece_source", "ece", "after")
            source, ours, estimate, *rest = (told(float(group[name].mean())) for name in names)
            worst = group.sort_values("change").iloc[0]
            least = f"{signed(worst['change'])} ({plain(worst['target'])})"
            body.append([str(stream), source, f"{ours} ({estimate})", *rest, least])
        head = ["stream", "no adaptation", "`poise` (estimate)", "its ECE", "ECE of `poise`", "afterwards"]
        found.append(f"### {Place(str(data), str(backbone))}\n\n{table([*head, 'worst target'], body)}")
    return "\n\n".join(found)


def tested(
    cells: pd.DataFrame, focal: Variant, temperings: Sequence[str]
) -> list[tuple[Place, Comparison, float | None]]:
    """A method against the best rival by ECE and NLL at each place, with p after Holm's correction.

    p is None for fewer than three pairs.
    """
    made = [
        (place, best)
        for place in networks(cells)
        for metric in ("ece", "nll")
        if (best := hardest(against_each(at(cells, place), metric, focal, temperings))) is not None
    ]
    corrected = iter(holm([best.test.t_p for _, best in made if best.test.t_p is not None]))
    return [(place, best, None if best.test.t_p is None else next(corrected)) for place, best in made]


def test_table(tests: Sequence[tuple[Place, Comparison, float | None]]) -> str:
    """A row for each comparison."""
    body = []
    for place, best, p in tests:
        shown = "too few pairs" if p is None else "< .001" if p < 0.001 else told(p)
        ours = [best.metric.upper(), told(best.focal_mean), rival_of(best)]
        body.append([str(place), *ours, str(best.test.pairs), shown])
    return table(["", "by", "method", "best rival", "pairs", "p"], body)


def cases(cells: pd.DataFrame) -> pd.DataFrame:
    """A row for each network and case; columns are a metric and a tempering."""
    found = {
        (str(place), place.backbone): means(at(cells, place), ["ece", "nll"]).unstack("tempering")
        for place in networks(cells)
    }
    return pd.concat(found, names=["place", "backbone", "method"])


def temperature_table(cells: pd.DataFrame) -> str:
    """Each tempering against raw answers: ECE before and after, and counts of ECE and NLL that fall."""
    frame, body = cases(cells), []
    for kind in (kind for kind in WAYS if kind != "none" and ("ece", kind) in frame.columns):
        both = frame.dropna(subset=[("ece", "none"), ("ece", kind)])
        moved = f"{told(both['ece', 'none'].mean())} → {told(both['ece', kind].mean())}"
        falls = [
            f"{(both[metric, kind] < both[metric, 'none']).sum()} of {len(both)}" for metric in ("ece", "nll")
        ]
        body.append([WAYS[kind], moved, *falls])
    return table(["divided by", "ECE: raw → divided", "ECE falls in", "NLL falls in"], body)


def certainty_table(cells: pd.DataFrame) -> str:
    """The changes of entropy and of ECE from no adaptation to each raw rival."""
    body = []
    for place in networks(cells):
        row = [str(place)]
        for rival in map(raw, RIVALS):
            entropy, ece = (change(at(cells, place), rival, SOURCE, metric) for metric in ("entropy", "ece"))
            row.append("-" if entropy is None or ece is None else f"{entropy:+.2f}, {signed(ece)}")
        body.append(row)
    return table(["", *(LABELS[label] for label in RIVALS)], body)


def norms(streams: pd.DataFrame) -> pd.DataFrame:
    """Means over the streams of each network and tier: quantiles of ‖z‖/κ, and median and variance of tau."""
    tiered = streams[streams["tier"] > 0]
    columns = {f"{level} %": tiered[f"norm_{level / 100:g}"] / tiered["kappa"] for level in (5, 50, 95)}
    columns |= {"median": tiered["tau_0.5"], "variance": tiered["tau_std"] ** 2}
    keys = [tiered["backbone"], tiered["tier"].astype(int)]
    return pd.DataFrame(columns).groupby(keys).mean().sort_index()


def norm_table(streams: pd.DataFrame) -> str:
    """The rows of `norms`."""
    found = norms(streams)
    body = [
        [NETWORKS[str(backbone)], str(tier), *(told(value, 2) for value in values)]
        for (backbone, tier), values in zip(found.index.tolist(), found.to_numpy().tolist(), strict=True)
    ]
    return table(["network", "tier", "norm: 5 %", "50 %", "95 %", "tau: median", "variance"], body)


def dec_table(cells: pd.DataFrame) -> str:
    """The accuracy of both readings of DEC beside that of no adaptation, norm and the best rival."""
    shown, body = ("source", "norm", "dec", "dec-released"), []
    for place in networks(cells):
        accuracy = {label: mean(at(cells, place), raw(label), "accuracy") for label in (*shown, *RIVALS)}
        best = max((value for label in RIVALS if (value := accuracy[label]) is not None), default=None)
        body.append([str(place), *(told(accuracy[label]) for label in shown), told(best)])
    return table(["", *(LABELS[label] for label in shown), "best rival"], body)


def source_table(cells: pd.DataFrame) -> str:
    """Our models' accuracy on the targets, without adaptation, beside the paper's."""
    body = []
    for place in networks(cells):
        rows = at(cells, place)
        tiers = sorted(int(tier) for tier in rows["tier"].unique() if tier)
        ours, theirs = mean(rows, SOURCE, "accuracy"), printed(place, "source", "accuracy", tiers)
        if ours is not None and theirs is not None:
            near = f"{signed(ours - theirs.value)} {mark(ours >= theirs.value - NEAR)}"
            by_seed = mean_and_spread(rows, SOURCE, "accuracy")
            body.append([str(place), str(rows["seed"].nunique()), by_seed, str(theirs), near])
    return table(["", "seeds", "ours", "the paper's", "difference"], body)


def training_tables(training: pd.DataFrame) -> str:
    """The ways that were tried for each data set and network, the best on held-out source images first."""
    found = []
    for (data, backbone), rows in training.groupby(["data", "backbone"], sort=False):
        tried = dict(iter(rows.groupby("way", sort=False)))
        body = []
        for way in sorted(tried, key=lambda way: -float(steady(tried[way]).mean())):
            last = _last(tried[way], 1)
            targets = ", ".join(plain(target) for target in sorted(last["target"].unique()))
            seeds = last["seed"].nunique()
            scores = (steady(tried[way]).mean(), last["held_out"].mean(), last["target_accuracy"].mean())
            body.append(
                [
                    f"**{way}** (chosen)" if way == CHOSEN else str(way),
                    f"{targets}; {seeds} seeds" if seeds > 1 else targets,
                    *(told(float(score)) for score in scores),
                ]
            )
        head = ["way", "models", f"held out, last {LAST} epochs", "held out, last epoch", "target"]
        found.append(f"## {Place(str(data), str(backbone))}\n\n{table(head, body)}")
    return "\n\n".join(found)


def _last(tried: pd.DataFrame, epochs: int) -> pd.DataFrame:
    """The rows of the last epochs of each model."""
    return tried.sort_values("epoch").groupby(["target", "seed"]).tail(epochs)


def steady(tried: pd.DataFrame) -> pd.Series:
    """The held-out accuracy of each model of a way, over the last epochs."""
    return _last(tried, LAST).groupby(["target", "seed"])["held_out"].mean()


def doubts(cells: pd.DataFrame) -> str:
    """The reasons why some of the printed numbers are doubtful."""
    met = {place[:2] for place in places(cells)}
    reasons = dict.fromkeys(
        (Place(each.data, each.backbone), metric, cell.doubt)
        for each in printed_tables()
        if (each.data, each.backbone) in met
        for (metric, _, _), cell in each.cells.items()
        if cell.doubt
    )
    lines = [f"- {place}, {METRIC_NAMES.get(metric, metric)}: {doubt}." for place, metric, doubt in reasons]
    return "\n".join(lines)


def method_tables(cells: pd.DataFrame) -> str:
    """Every method at every place by both protocols, raw and tempered, beside the paper's numbers."""
    return "\n\n".join(
        f"### {place}: {words}\n\n{_tables(rows, place)}"
        for place in places(cells)
        for protocol, words in PROTOCOLS.items()
        if len(rows := at(cells, place, protocol))
    )


def _tables(rows: pd.DataFrame, place: Place) -> str:
    """Accuracy and entropy, ECE, NLL: means as they are written, marked where they lack a run.

    Rehearsed answers have an accuracy of their own: the source model may answer.
    """
    values, runs = means(rows, METRICS), rows.groupby(["name", "tempering"]).size()
    whole = len(rows[["shift", "seed"]].drop_duplicates())
    lacking = runs.reindex(values.index).lt(whole).map({True: INCOMPLETE, False: ""})
    shown = values.map(told).where(values.isna(), values.map(told).add(lacking, axis="index"))
    labels = [label for label in LABELS if (label, "none") in shown.index]
    kinds = [kind for kind in KINDS if kind in shown.index.get_level_values("tempering")]

    def cell(label: str, kind: str, metric: str) -> str:
        return str(shown.loc[(label, kind), metric]) if (label, kind) in shown.index else "-"

    def papers(label: str, metric: str) -> str:
        return str(printed(place, label, metric) or "-")

    body = [
        [
            LABELS[label],
            *(cell(label, kind, "accuracy") for kind in ("none", "rehearsed")),
            papers(label, "accuracy"),
            cell(label, "mean" if label == DEC.name else "none", "entropy"),
            papers(label, "entropy"),
        ]
        for label in labels
    ]
    head = ["accuracy and entropy", "raw", "rehearsed", "paper", "entropy, bits", "paper"]
    found = [table(head, body)]
    for metric in ("ece", "nll"):
        body = [
            [LABELS[label], *(cell(label, kind, metric) for kind in kinds), papers(label, metric)]
            for label in labels
        ]
        found.append(table([metric.upper(), *(KINDS[kind] for kind in kinds), "paper"], body))
    return "\n\n".join(found)


def main() -> None:
    """Write the pages and their pictures."""
    measured = read()
    for page, regions in PAGES.items():
        fill(page, regions(measured))
    for name, (figure, description) in PICTURES.items():
        write(DOCS / f"{name}.svg", standalone(figure(measured.cells), description))


if __name__ == "__main__":
    main()
