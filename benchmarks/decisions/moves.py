"""Measure how far accuracies move where their estimates do: what `labels.MOVED` is chosen by.

    python -m benchmarks.decisions.moves RECORDS OUT.csv

RECORDS has what `record_streams` wrote. From 1,000 rows of a stream on, every 500 rows: the estimate less the
mean of the estimates before it, and the accuracy of the rows around less that of the rows before, both means
with the weights that labels of that time would have. A row for each kind of stream: the slope of the second
over the first, and the mean distance between the second and none, a half, and all of the first.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from benchmarks.decisions.baselines import spans
from benchmarks.decisions.replay import Recorded, Replay, named_cases, read
from equipoise.calibration.labels import kept
from equipoise.calibration.temper import STREAM_CHANGED

FROM, EVERY = 1000, 500
BEFORE, BEHIND = 300, 100
"""The rows around a moment whose accuracy is compared: so many before it, and behind it."""

BELIEVED = (0.0, 0.5, 1.0)


def moves(replay: Replay, stream: Recorded) -> Iterator[tuple[float, float]]:
    """How far estimate and accuracy have moved, at each moment of a stream."""
    replay.reset()
    hits = torch.cat([_hits(replay, stream, span) for span in spans(len(stream.labels))])
    replay.reset()
    sums = torch.zeros(3, dtype=torch.float64)  # of weights, estimates and hits
    for span in spans(len(stream.labels)):
        replay.answer(stream, span)
        estimates = replay.rehearsed.now(replay.observed).estimates.double().sigmoid()
        estimate, rows = float(estimates[int(replay.by_source)]), span.stop - span.start
        sums *= kept(torch.tensor(float(rows)), replay.observed[STREAM_CHANGED])
        sums += torch.tensor([rows, rows * estimate, float(hits[span].sum())])
        if span.stop >= FROM and span.stop % EVERY == 0:
            around = hits[span.stop - BEFORE : span.stop + BEHIND].mean()
            yield float(estimate - sums[1] / sums[0]), float(around - sums[2] / sums[0])


def _hits(replay: Replay, stream: Recorded, span: slice) -> Tensor:
    return (replay.answer(stream, span).argmax(1) == stream.labels[span]).double()


def main() -> None:
    """Write the table of all kinds of streams."""
    folder, out = Path(sys.argv[1]), sys.argv[2]
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    streams: dict[str, int] = defaultdict(int)
    for case in named_cases(folder):
        records = read(folder, case)
        replay = Replay(records)
        for stream in records.streams:
            if own := list(moves(replay, stream)):
                found[stream.kind] += own
                streams[stream.kind] += 1
        print(case, flush=True)
    rows = []
    for kind, pairs in found.items():
        estimate, accuracy = torch.tensor(pairs, dtype=torch.float64).T
        row = {"kind": kind, "streams": streams[kind], "moments": len(pairs)}
        row |= {"slope": float((estimate * accuracy).sum() / estimate.square().sum())}
        row |= {f"believed {part}": float((accuracy - part * estimate).abs().mean()) for part in BELIEVED}
        rows.append(row)
    pd.DataFrame(rows).to_csv(out, index=False, float_format="%.4f")
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
