"""The paper's claims, each with the numbers that decide it; all of answers given online."""

from collections.abc import Iterable, Sequence

import pandas as pd

from benchmarks.results.measured import LABELS, NAMES, NETWORKS, RIVALS, SOURCE, at, common, mean, networks
from benchmarks.results.summary import DEC, MINIMISERS, NORM
from benchmarks.results.wording import signed, table, told
from equipoise.research.report.results import Variant
from equipoise.research.report.table import listed

SAME = 0.001
"""A difference of ECE that is called none."""
ACCURATE = ("source", "norm", "dec", "dec-released")
"""The methods whose accuracy the claim about accuracy compares."""
FIXED = Variant(DEC.name, "fixed")
"""DEC divided by the one temperature that is best on the source."""


def _raw(label: str) -> Variant:
    return Variant(label, "none")


def _change(rows: pd.DataFrame, variant: Variant, base: Variant, metric: str) -> float | None:
    both = common(rows, variant, base)
    ours, theirs = mean(both, variant, metric), mean(both, base, metric)
    return None if ours is None or theirs is None else ours - theirs


def certainty_table(cells: pd.DataFrame) -> str:
    """The changes of entropy and of ECE from no adaptation to each raw rival."""
    body = []
    for place in networks(cells):
        rows, line = at(cells, place), []
        for label in RIVALS:
            entropy, ece = (_change(rows, _raw(label), SOURCE, metric) for metric in ("entropy", "ece"))
            line.append("-" if entropy is None or ece is None else f"{entropy:+.2f}, {signed(ece)}")
        body.append([str(place), *line])
    return table(["", *(LABELS[label] for label in RIVALS)], body)


def certainty_verdict(cells: pd.DataFrame) -> str:
    """Counts of lower entropy and of higher ECE with it, against no adaptation and against norm."""
    parts = []
    for base, labels, words in (
        (SOURCE, RIVALS, "no adaptation"),
        (NORM, MINIMISERS, "`norm`, the statistics of each batch without gradient steps"),
    ):
        cases = [
            (entropy, ece)
            for place in networks(cells)
            for label in labels
            if (entropy := _change(at(cells, place), _raw(label), base, "entropy")) is not None
            and (ece := _change(at(cells, place), _raw(label), base, "ece")) is not None
        ]
        if not cases:
            continue
        worse = [ece > SAME for entropy, ece in cases if entropy < 0]
        parts.append(
            f"{confirmed(worse)} against {words}: a rival's entropy is lower in {len(worse)} of {len(cases)} "
            f"cases, and of these its ECE is higher, by more than {told(SAME)}, in {_share(worse)}."
        )
    return " ".join(parts) or "Not run."


def confirmed(cases: Sequence[bool]) -> str:
    """The verdict on a claim from the cases in which it holds."""
    if not any(cases):
        return "Not confirmed"
    return "Confirmed" if all(cases) else "Confirmed in part"


def _share(found: Sequence[bool]) -> str:
    return f"{sum(found)} of {len(found)}" if found else "none"


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
    head = ["network", "tier", "norm: 5 %", "50 %", "95 %", "tau: median", "variance"]
    return table(head, body)


def norm_verdict(streams: pd.DataFrame) -> str:
    """Counts of networks whose low quantile falls, and whose variance of tau grows, from tier to tier."""
    by_network = [rows for _, rows in norms(streams).groupby(level="backbone")]
    if not by_network:
        return "Not run."
    falls = sum(rows["5 %"].is_monotonic_decreasing for rows in by_network)
    grows = sum(rows["variance"].is_monotonic_increasing for rows in by_network)
    holds = [True] * (falls + grows) + [False] * (2 * len(by_network) - falls - grows)
    return (
        f"{confirmed(holds)}: the 5 % quantile falls from tier to tier with {falls} of {len(by_network)} "
        f"networks, and the variance of tau grows with {grows} of {len(by_network)}."
    )


def accuracy_table(cells: pd.DataFrame) -> str:
    """The accuracy of both readings of DEC beside that of no adaptation, norm and the best rival."""
    body = []
    for place in networks(cells):
        rows = at(cells, place)
        rivals = _known(mean(rows, _raw(label), "accuracy") for label in RIVALS)
        line = [told(mean(rows, _raw(label), "accuracy")) for label in ACCURATE]
        body.append([str(place), *line, told(max(rivals, default=None))])
    return table(["", *(LABELS[label] for label in ACCURATE), "best rival"], body)


def accuracy_verdict(cells: pd.DataFrame) -> str:
    """Counts of cases in which DEC is more accurate than no adaptation, and than norm."""
    parts = []
    for base, words in ((SOURCE, "no adaptation"), (NORM, "`norm`")):
        for label in ("dec", "dec-released"):
            changes = _known(_change(at(cells, p), _raw(label), base, "accuracy") for p in networks(cells))
            gains = [change > 0 for change in changes]
            if not changes:
                continue
            average = f" ({signed(sum(changes) / len(changes))} on average)"
            parts.append(
                f"{confirmed(gains)} for {LABELS[label]} against {words}: more accurate in {_share(gains)} "
                f"cases{average}"
            )
    return ". ".join(parts) + "." if parts else "Not run."


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def fixed_verdict(cells: pd.DataFrame) -> str:
    """Whether DEC by the mean of tau has a lower ECE than by one temperature that is best on the source."""
    told_cases, lower, left = [], [], set(NAMES)
    for place in networks(cells):
        both = common(at(cells, place), DEC, FIXED)
        tau, fixed = mean(both, DEC, "ece"), mean(both, FIXED, "ece")
        if tau is not None and fixed is not None:
            told_cases.append(f"{place}: {told(tau)} against {told(fixed)}")
            lower.append(tau < fixed)
            left.discard(place.data)
    not_run = f"Not run on {listed(NAMES[data] for data in NAMES if data in left)}." if left else ""
    if not lower:
        return "Not run."
    verdict = f"{confirmed(lower)}: DEC divided by the mean of tau has the lower ECE in {_share(lower)} cases"
    return f"{verdict} ({'; '.join(told_cases)}). {not_run}".strip()


def over_certain_source(cells: pd.DataFrame) -> str:
    """The least and the largest ECE of no adaptation over data sets and networks."""
    values = _known(mean(at(cells, place), SOURCE, "ece") for place in networks(cells))
    return " to ".join(dict.fromkeys([told(min(values)), told(max(values))])) if values else "-"
