"""Writes docs/streams.md and its two pictures from cells.csv beside this file.

python -m benchmarks.streams.streams_page docs
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from benchmarks.recommendation.regret_table import ALWAYS, accuracies_of, chosen_labels, deployed, short_list
from benchmarks.recommendation.regret_table import table as regret_table
from benchmarks.recommendation.rules import ANY_LOSS
from benchmarks.results.figures import standalone
from benchmarks.results.wording import filled, folded, signed, told
from benchmarks.streams.stream_cells import (
    DATA,
    RAW,
    REHEARSED,
    SOURCE,
    Matrix,
    by_mean,
    complete,
    gains,
    matrix,
    mean_of,
    places,
    read,
    with_rehearsal,
)
from benchmarks.streams.stream_findings import (
    HARM,
    best_table,
    extent_table,
    over_passes,
    source_by_target,
    summary_table,
)
from benchmarks.streams.stream_pictures import gains_figure, passes_figure
from benchmarks.streams.stream_runs import (
    alike_norm,
    at_target,
    overview_table,
    rehearsed_by_run,
    run_gains,
    without_target,
    worst_run,
)
from benchmarks.streams.stream_tables import comparison_tables
from equipoise.files import whole_file

HERE = Path(__file__).parent
RULE_CHOSEN_ON = "digits-c"
"""The data set on whose runs the rule of `recommend` was preferred to others."""
PICTURES = {
    "streams-gains": "The gain of each method over no adaptation in every setting",
    "streams-passes": "The accuracy of each method in each pass of the recurring streams",
}


def content(cells: pd.DataFrame, recommendations: pd.DataFrame) -> dict[str, Any]:
    """The names that the template asks for."""
    gain = gains(cells)
    order = [name for name in by_mean(gain) if name in complete(gain) and name != SOURCE]
    harmless = [name for name in order if all(by_name[name] >= HARM for by_name in gain.values())]
    best = Counter(max(by_name, key=by_name.__getitem__) for by_name in gain.values())
    both = with_rehearsal(cells)
    raw, tempered = (matrix(both, "ece", kind) for kind in (RAW, REHEARSED))
    pairs = [
        (by_name[name], tempered[setting][name])
        for setting, by_name in raw.items()
        for name in by_name
        if name in tempered[setting]
    ]
    bursts = sorted(order, key=lambda name: -mean_of(gain, name, "correlated"))
    return {
        "settings": len(gain),
        "methods": cells["name"].nunique(),
        "winners": listed(name for name, _ in best.most_common()),
        "winner_count": len(best),
        "leaders": with_gains(gain, order[:5]),
        "last": with_gains(gain, order[-3:]),
        "poise_gain": signed(mean_of(gain, "poise")),
        "poise_place": order.index("poise") + 1,
        "compared": len(order),
        "worst_of_poise": signed(min(by_name["poise"] for by_name in gain.values())),
        "harmless": listed(harmless) if harmless else "none",
        "harmed_count": len(order) - len(harmless),
        "correlated": with_gains(gain, bursts[:5], "correlated"),
        "classes_in_a_row": in_a_row(cells),
        "norm_correlated": by_setting(gain, "norm", "correlated"),
        "lost_over_passes": ends_of(over_passes(cells), min),
        "gained_over_passes": ends_of(over_passes(cells), max),
        "lower_share": f"{100 * fmean(after < before for before, after in pairs):.0f} %",
        "ece_raw": told(fmean(before for before, _ in pairs)),
        "ece_rehearsed": told(fmean(after for _, after in pairs)),
        "source_ece": told(mean_of(raw, SOURCE)),
        "rehearsed_pairs": len(pairs),
        "rehearsed_settings": len(raw),
        "source_by_target": source_by_target(cells),
        "extent": folded("The extent of each run", extent_table(cells)),
        "overview": overview_table(cells),
        "summary": summaries(cells),
        "runs": len(run_gains(cells, RAW)),
        "runs_rehearsed": len(run_gains(cells, REHEARSED)),
        "mnist_ece": at_target(cells, "ece", "poise", "digits-c", "mnist"),
        "without_svhn": without_target(cells, "digits-c", "svhn"),
        **worst_run(cells, "poise"),
        **rehearsed_by_run(cells),
        **alike_norm(gain, "mobilenet_v1"),
        "best": best_table(cells),
        "tables": comparison_tables(cells),
        **regret(cells, recommendations),
        "made_on": "; ".join(
            f"{device} with torch {version}"
            for device, version in dict.fromkeys(zip(cells["device"], cells["torch"], strict=True))
        ),
    }


def regret(cells: pd.DataFrame, recommendations: pd.DataFrame) -> dict[str, Any]:
    """The regret of the recommendation, and of always taking one method.

    The best in hindsight is one of the methods that were run in all streams.
    """
    everywhere = complete(matrix(cells, "accuracy", RAW))
    results = deployed(cells.rename(columns={"name": "label"}))[everywhere]
    chosen = chosen_labels(recommendations, results, short=True)
    with_others = accuracies_of(chosen, results)
    accuracies = with_others[["recommend()", *(name for name in ALWAYS.values() if name in with_others)]]
    seen = accuracies.index.get_level_values("data") == RULE_CHOSEN_ON
    best = results.loc[accuracies.index].idxmax(axis=1).astype(str)
    more = (accuracies["recommend()"] - accuracies[ALWAYS["poise"]]).to_numpy(float)
    before = results.loc[accuracies.index].max(axis=1) - with_others[ANY_LOSS]
    streams = best.index.get_level_values("stream")
    listed_best = [str(name) in short_list(stream) for stream, name in zip(streams, best, strict=True)]
    return {
        "regret_seen": regret_table(accuracies[seen], results, everywhere),
        "regret_seen_runs": int(seen.sum()),
        "regret_unseen": regret_table(accuracies[~seen], results, everywhere) if not seen.all() else "",
        "regret_unseen_runs": int((~seen).sum()),
        "regret_before": " and ".join(told(before[part].mean()) for part in (seen, ~seen) if part.any()),
        "recommended_poise": int((chosen["recommend()"] == "poise").sum()),
        "recommended_runs": len(chosen),
        "over_poise": f"{signed(more.mean())} ± {told(more.std(ddof=1) / len(more) ** 0.5)}",
        "regret_methods": len(everywhere),
        "best_not_listed": f"{100 - 100 * fmean(listed_best):.0f} %",
        "best_not_listed_names": listed(best[[not each for each in listed_best]].value_counts().index[:3]),
    }


def summaries(cells: pd.DataFrame) -> str:
    """The summary of each place, folded under its name."""
    return "\n\n".join(folded(str(place), summary_table(cells, place)) for place in places(cells))


def in_a_row(cells: pd.DataFrame) -> str:
    """The classes of 64 images in a row of correlated streams, data set by data set."""
    means = cells.groupby("data", sort=False)["classes_in_a_row"].mean()
    return ", ".join(f"{DATA[str(data)]} {value:.0f}" for data, value in means.items())


def with_gains(gain: Matrix, names: Sequence[str], stream: str | None = None) -> str:
    """Methods with their mean gains."""
    return ", ".join(f"`{name}` ({signed(mean_of(gain, name, stream))})" for name in names)


def by_setting(gain: Matrix, name: str, stream: str) -> str:
    """The gain of a method in a kind of stream, data set by data set."""
    met = {
        setting.place.short: by_name[name] for setting, by_name in gain.items() if setting.stream == stream
    }
    return ", ".join(f"{place} {signed(value)}" for place, value in met.items())


def ends_of(by_place: Mapping[str, Mapping[str, float]], end: Callable[..., str]) -> str:
    """The method with the largest or the smallest number of each place."""
    found = {place: (end(values, key=values.__getitem__), values) for place, values in by_place.items()}
    return ", ".join(f"{place} `{name}` ({signed(values[name])})" for place, (name, values) in found.items())


def listed(names: Iterable[str]) -> str:
    """Names as code, with commas."""
    return ", ".join(f"`{name}`" for name in names)


def main() -> None:
    """Write the page and its pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", type=Path, default=HERE)
    parser.add_argument("--recommendations", type=Path, default=HERE.parent / "recommendation")
    given = parser.parse_args()
    cells = read(given.folder)
    drawn = dict(zip(PICTURES, (gains_figure(cells), passes_figure(cells)), strict=True))
    texts = {f"{name}.svg": standalone(figure, PICTURES[name]) for name, figure in drawn.items()}
    template = (HERE / "streams.template.md").read_text(encoding="utf-8")
    recommendations = pd.concat([pd.read_csv(path) for path in sorted(given.recommendations.glob("*.csv"))])
    texts["streams.md"] = filled(template, content(cells, recommendations))
    for name, text in texts.items():
        with whole_file(given.out / name) as partial:
            partial.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
