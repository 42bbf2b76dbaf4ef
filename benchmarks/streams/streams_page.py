"""Writes docs/streams.md and its two pictures from cells.csv beside this file.

PYTHONPATH=benchmarks/results:benchmarks/recommending python benchmarks/streams/streams_page.py docs
"""

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
from figures import standalone
from stream_cells import RAW, REHEARSED, SOURCE, gains, matrix, read
from stream_findings import HARM, best_table, collapsed, extent_table, summary_table
from stream_pictures import gains_figure, passes_figure
from stream_tables import comparison_tables
from wording import filled, folded, signed, told

from equipoise.files import whole_file

HERE = Path(__file__).parent
PICTURES = {
    "streams-gains": "The gain of each method over no adaptation in every setting",
    "streams-passes": "The accuracy of each method in each pass of the recurring streams",
}


def content(cells: pd.DataFrame) -> dict[str, Any]:
    """The names that the template asks for."""
    accuracy, gain = matrix(cells, "accuracy", RAW), gains(cells)
    whole = gain.dropna()
    by_mean = whole.mean(axis=1).sort_values(ascending=False)
    harmless = [str(name) for name in whole.index if (whole.loc[name] >= HARM).all()]
    best = accuracy.idxmax()
    raw, tempered = (matrix(cells, "ece", kind).loc[by_mean.index] for kind in (RAW, REHEARSED))
    both = raw.notna() & tempered.notna()
    return {
        "settings": len(gain.columns),
        "methods": cells["name"].nunique(),
        "winners": listed(best.value_counts().index),
        "winner_count": best.nunique(),
        "leaders": listed(f"{name}` ({signed(value)})" for name, value in by_mean.head(5).items()),
        "last": listed(f"{name}` ({signed(value)})" for name, value in by_mean.tail(3).items()),
        "poise_gain": signed(by_mean["poise"]),
        "poise_place": list(by_mean.index).index("poise") + 1,
        "compared": len(by_mean),
        "worst_of_poise": signed(whole.loc["poise"].min()),
        "harmless": listed(harmless) if harmless else "none",
        "harmed_count": len(whole) - len(harmless),
        "correlated": listed(top(whole, "correlated", 5)),
        "norm_correlated": signed(float(whole.xs("correlated", level="stream", axis=1).loc["norm"].mean())),
        "collapsed": lost(collapsed(cells)),
        "lower_share": f"{100 * float((tempered < raw)[both].sum().sum() / both.sum().sum()):.0f} %",
        "ece_raw": told(float(raw[both].mean().mean())),
        "ece_rehearsed": told(float(tempered[both].mean().mean())),
        "source_ece": told(float(matrix(cells, "ece", RAW).loc[SOURCE].mean())),
        "extent": folded("The extent of each run", extent_table(cells)),
        "summary": summary_table(cells),
        "best": best_table(cells),
        "tables": comparison_tables(cells),
        "device": cells["device"].iloc[0],
        "torch": cells["torch"].iloc[0],
    }


def top(whole: pd.DataFrame, stream: str, count: int) -> list[str]:
    """The methods with the highest mean gain in a kind of stream, with that gain."""
    mean = whole.xs(stream, level="stream", axis=1).mean(axis=1).sort_values(ascending=False)
    return [f"{name}` ({signed(value)})" for name, value in mean.head(count).items()]


def lost(by_place: dict[str, list[str]]) -> str:
    """The methods that lose accuracy over the passes, place by place."""
    return "; ".join(f"{place}: {listed(names) if names else 'none'}" for place, names in by_place.items())


def listed(names: Any) -> str:
    """Names as code, with commas; a text that ends its own code, as "tent` (+.01)", keeps its rest."""
    return ", ".join(f"`{name}" if "`" in str(name) else f"`{name}`" for name in names)


def main() -> None:
    """Write the page and its pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", type=Path, default=HERE)
    given = parser.parse_args()
    cells = read(given.folder)
    drawn = dict(zip(PICTURES, (gains_figure(cells), passes_figure(cells)), strict=True))
    texts = {f"{name}.svg": standalone(figure, PICTURES[name]) for name, figure in drawn.items()}
    template = (HERE / "streams.template.md").read_text(encoding="utf-8")
    texts["streams.md"] = filled(template, content(cells))
    for name, text in texts.items():
        with whole_file(given.out / name) as partial:
            partial.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
