"""Measure prediction sets, decisions and late labels of rehearsed `poise`; a row of CSV for each pass.

    python -m benchmarks.decisions.measure_decisions RECORDS OUT.csv [CASE …]

RECORDS has what `record_streams` wrote. Without the names of cases, all; on all cores.
"""

import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from benchmarks.decisions import baselines
from benchmarks.decisions.baselines import ACCURACY, COVERAGE, Share, Tally, shared, spans, tally
from benchmarks.decisions.replay import Recorded, Records, Replay, named_cases, read
from equipoise.calibration.rehearsal import Estimate
from equipoise.calibration.sets import SCORES, sets
from equipoise.metrics import expected_calibration_error, risk_coverage

LATE = 4
"""The batches after which labels arrive."""

LAST = 500
"""The rows at the end of a stream that the last estimates are held against."""

DRAWS = 4
"""How often the rows that get their labels are drawn."""

Row = dict[str, Any]


@dataclass
class Met:
    """What a rehearsed adapter answered to a stream, a part for each batch.

    Attributes:
        logits: as they were returned.
        sets: by score.
        acted: the answers that it decided to act upon.
        by_source: whether the source model answered.
    """

    logits: list[Tensor] = field(default_factory=list)
    sets: dict[str, list[Tensor]] = field(default_factory=lambda: {score: [] for score in SCORES})
    acted: list[Tensor] = field(default_factory=list)
    by_source: list[bool] = field(default_factory=list)


def labelled_rows(rows: int, count: int, draw: int) -> Tensor:
    """Which rows get their labels, (N): so many, drawn with equal chances."""
    mask = torch.zeros(rows, dtype=torch.bool)
    mask[torch.randperm(rows, generator=torch.Generator().manual_seed(1000 * draw + count))[:count]] = True
    return mask


def meet(adapter: Replay, stream: Recorded, count: int, draw: int) -> Met:
    """Answer a stream after a reset; so many of its labels arrive, each four batches late."""
    adapter.reset()
    met, chosen = Met(), labelled_rows(len(stream.labels), count, draw)
    batches = spans(len(stream.labels))
    for at, span in enumerate(batches):
        answer = adapter.answer(stream, span)
        if at >= LATE:
            late = batches[at - LATE]
            ids = torch.arange(late.start, late.stop)[chosen[late]]
            if len(ids):
                adapter.label(stream.labels[ids], ids)
        found = adapter.expectations()
        for score in SCORES:
            threshold = found.set_threshold(score, COVERAGE)
            met.sets[score].append(sets(answer, threshold, score=score))
        met.acted.append(answer.softmax(1).amax(1) >= found.selected(ACCURACY).confidence)
        met.logits.append(answer)
        met.by_source.append(adapter.by_source)
    return met


def held(estimate: Estimate, true: float, name: str) -> Row:
    """An estimate beside what is true."""
    inside = estimate.low <= true <= estimate.high
    return {
        f"{name}.true": true,
        f"{name}.estimate": estimate.value,
        f"{name}.held": inside,
        f"{name}.width": estimate.high - estimate.low,
    }


def named(name: str, found: Tally | Share) -> Row:
    """The numbers of sets or decisions, in columns of a name."""
    return {f"{name}.{own}": value for own, value in found._asdict().items()}


class Bench:
    """A replayed adapter, and the answers that its rivals are fitted on."""

    def __init__(self, records: Records) -> None:
        self.adapter, own = Replay(records), records.held_out
        self.scores = baselines.right_scores(own.adapted, own.labels)
        self.entropies = baselines.entropies(own.adapted)
        self.bar = risk_coverage(logits=own.plain, target=own.labels).at_risk(1 - ACCURACY).confidence

    def row(self, stream: Recorded, count: int, draw: int) -> Row:
        """Ours on a stream, with so many labels."""
        adapter, labels = self.adapter, stream.labels
        met = meet(adapter, stream, count, draw)
        logits = torch.cat(met.logits)
        hits, made = logits.argmax(1) == labels, {score: torch.cat(own) for score, own in met.sets.items()}
        found: Row = {"rows": len(labels), "labels": count, "draw": draw}
        found["by_source"] = sum(met.by_source) / len(met.by_source)
        found["ece"] = float(expected_calibration_error(logits=logits, target=labels))
        for score, own in made.items():
            found |= named(f"sets.{score}", tally(own, labels))
        right = made["lac"].gather(1, labels.unsqueeze(1)).squeeze(1).double()
        acted = torch.cat(met.acted)
        found |= named("decide.ours", shared(acted, hits))
        estimate, covered = (
            adapter.accuracy,
            Estimate(*adapter.expectations().coverage("lac", COVERAGE), True),
        )
        found |= held(estimate, float(hits.double().mean()), "accuracy")
        found |= held(estimate, float(hits[-LAST:].double().mean()), "last_accuracy")
        found |= held(covered, float(right[-LAST:].mean()), "last_coverage")
        found["fall"] = adapter.expectations().fall
        return found | {"inside": estimate.inside} | self.oracles(logits, labels)

    @staticmethod
    def oracles(logits: Tensor, labels: Tensor) -> Row:
        """What the labels of the whole stream allow, for the same answers."""
        best = baselines.oracle_sets(logits, labels, COVERAGE)
        point = risk_coverage(logits=logits, target=labels).at_risk(1 - ACCURACY)
        acted = Share(point.share, 1 - point.risk)
        return named("sets.oracle", tally(best, labels)) | named("decide.oracle", acted)

    def rivals(self, stream: Recorded) -> Row:
        """The field's methods on the untempered answers to a stream, and the plain model at a fixed bar."""
        raw, labels, scores = stream.adapted, stream.labels, self.scores
        batches = [(raw[at], labels[at]) for at in spans(len(labels))]
        published, ratio = (
            torch.cat([baselines.entropy_sets(own, scores, factor, COVERAGE) for own, factor in pairs])
            for pairs in (
                [(own, baselines.published_factor(own)) for own, _ in batches],
                [(own, baselines.ratio_factor(own, self.entropies)) for own, _ in batches],
            )
        )
        made = {
            "split": baselines.split_sets(raw, scores, COVERAGE),
            "aci": torch.cat(list(baselines.aci_sets(batches, scores, COVERAGE))),
            "eacp": published,
            "entropy_ratio": ratio,
        }
        plain = stream.plain
        acted = plain.softmax(1).amax(1) >= self.bar
        found = named("decide.plain", shared(acted, plain.argmax(1) == labels))
        for name, own in made.items():
            found |= named(f"sets.{name}", tally(own, labels))
        return found


def measured(records: Records) -> Iterator[Row]:
    """Every row of a model."""
    bench = Bench(records)
    for stream in records.streams:
        own = {"data": records.data, "model": records.case, "stream": stream.name, "kind": stream.kind}
        for count in stream.counts:
            for draw in range(DRAWS if count else 1):
                row = bench.row(stream, count, draw)
                yield own | row | (bench.rivals(stream) if count == 0 else {})


def measure(folder: Path, case: str) -> list[Row]:
    """The rows of a model, on one core."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    rows = list(measured(read(folder, case)))
    print(f"{case}: {len(rows)} rows in {time.perf_counter() - started:.0f} s", flush=True)
    return rows


def main() -> None:
    """Measure the named cases, and write their rows in place of what the file had."""
    folder, out, *names = sys.argv[1:]
    tasks = [(Path(folder), case) for case in named_cases(Path(folder)) if not names or case in names]
    with multiprocessing.get_context("spawn").Pool() as pool:
        rows = [row for own in pool.starmap(measure, tasks, chunksize=1) for row in own]
    pd.DataFrame(rows).to_csv(out, index=False, float_format="%.5f")


if __name__ == "__main__":
    main()
