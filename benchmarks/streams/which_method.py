"""Writes the table of docs/concepts/choosing.md from cells.csv beside this file.

python -m benchmarks.streams.which_method
"""

from pathlib import Path

from benchmarks.pages import fill, signed, table
from benchmarks.streams.stream_cells import STREAMS, by_mean, complete, gains, mean_of, read

HERE = Path(__file__).parent
SHOWN = (
    "cotta",
    "poise",
    "bn_alpha",
    "roid",
    "tent",
    "norm",
    "bn_ema",
    "shot_im",
    "sotta",
    "rotta",
    "t3a",
    "lame",
)
"""Methods that differ; the others are like one of these within .005 on average."""


def parts() -> dict[str, str]:
    """The region of the page: the mean gain of each method in each kind of stream, and its worst setting."""
    gain = gains(read(HERE))
    rows = [
        [
            f"`{name}`",
            *(signed(mean_of(gain, name, stream)) for stream in STREAMS),
            signed(min(by_name[name] for by_name in gain.values())),
        ]
        for name in by_mean(gain)
        if name in SHOWN and name in complete(gain)
    ]
    return {"gains": table(["", *(f"`{stream}`" for stream in STREAMS), "worst"], rows)}


if __name__ == "__main__":
    fill("concepts/choosing.md", parts())
