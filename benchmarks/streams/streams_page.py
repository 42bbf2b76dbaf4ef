"""Writes docs/streams.md and its two pictures from cells.csv beside this file.

PYTHONPATH=benchmarks/results:benchmarks/recommending python benchmarks/streams/streams_page.py docs
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
from figures import standalone
from regret_table import ALWAYS, accuracies_of, chosen_labels, deployed
from regret_table import table as regret_table
from stream_cells import (
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
from stream_findings import HARM, best_table, collapsed, extent_table, source_by_target, summary_table
from stream_pictures import gains_figure, passes_figure
from stream_tables import comparison_tables
from wording import filled, folded, signed, told

from equipoise.files import whole_file

HERE = Path(__file__).parent
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
        "norm_correlated": signed(mean_of(gain, "norm", "correlated")),
        "collapsed": lost(collapsed(cells)),
        "lower_share": f"{100 * fmean(after < before for before, after in pairs):.0f} %",
        "ece_raw": told(fmean(before for before, _ in pairs)),
        "ece_rehearsed": told(fmean(after for _, after in pairs)),
        "source_ece": told(mean_of(raw, SOURCE)),
        "rehearsed_pairs": len(pairs),
        "rehearsed_settings": len(raw),
        "source_by_target": source_by_target(cells),
        "extent": folded("The extent of each run", extent_table(cells)),
        "summary": summaries(cells),
        "best": best_table(cells),
        "tables": comparison_tables(cells),
        **regret(cells, recommendations),
        "made_on": "; ".join(
            f"{device} with torch {version}"
            for device, version in dict.fromkeys(zip(cells["device"], cells["torch"], strict=True))
        ),
    }


def regret(cells: pd.DataFrame, recommendations: pd.DataFrame) -> dict[str, Any]:
    """The regret of the recommendation, and of always taking one method."""
    results = deployed(cells.rename(columns={"name": "label"}))
    accuracies = accuracies_of(chosen_labels(recommendations, results, short=True), results)
    shown = accuracies[["recommend()", *ALWAYS.values()]]
    return {
        "regret": regret_table(shown, results, results.columns.tolist()),
        "regret_runs": len(accuracies),
        "regret_data": ", ".join(
            DATA[str(data)] for data in dict.fromkeys(accuracies.index.get_level_values("data"))
        ),
    }


def summaries(cells: pd.DataFrame) -> str:
    """The summary of each place, under its name."""
    return "\n\n".join(f"**{place}**\n\n{summary_table(cells, place)}" for place in places(cells))


def with_gains(gain: Matrix, names: Sequence[str], stream: str | None = None) -> str:
    """Methods with their mean gains."""
    return ", ".join(f"`{name}` ({signed(mean_of(gain, name, stream))})" for name in names)


def lost(by_place: dict[str, list[str]]) -> str:
    """The methods that lose accuracy over the passes, place by place."""
    return "; ".join(f"{place}: {listed(names) if names else 'none'}" for place, names in by_place.items())


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
    parser.add_argument("--recommendations", type=Path, default=HERE.parent / "recommending")
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
