"""Measure label-free estimates of accuracy, those of the literature and of rehearsals, on the same windows.

    python -m benchmarks.estimators.measure_estimates OUT --tables FOLDER --digits DATA --pacs DATA

FOLDER has tables as .npz files (`subjects.tables`); DATA has digits and PACS as `equipoise data` says. Rows
go to OUT/estimates.csv (one for each estimator and stream) and OUT/streams.csv (one for each stream); what
is there already is not measured again, so an interrupted command goes on where it stopped, and one command
for tables and one for pictures may run at a time. Commands with a folder each may run side by side, each for
the cases after --only ("digits svhn 2": kind, data, seed); --merge adds what they left to OUT. --quick trains
and rehearses one seed, with few shifts of few samples, to see that it runs.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import equipoise as eq
from benchmarks.estimators.field import (
    BATCH,
    Ask,
    Estimates,
    HeldOut,
    Spans,
    answers,
    answers_under_shifts,
    from_forwards,
    from_logits,
    means,
    of_batches,
)
from benchmarks.estimators.subjects import Case, Subject, digits, doubtful_digits, pacs, tables
from equipoise.calibration import window
from equipoise.calibration.rehearsal import Estimate
from equipoise.errors import RehearsalWarning
from equipoise.metrics import expected_calibration_error

SEEDS, DIGITS_SEEDS = (0, 1), (0, 1, 2)
"""Of the training; tables are rehearsed with each of theirs, pictures with the first."""

KEY = ["kind", "data", "network", "seed", "rehearsal", "stream"]
REHEARSED = "rehearsed"

Row = dict[str, Any]


@dataclass(frozen=True)
class Met:
    """What a rehearsed adapter answered to a stream.

    Attributes:
        logits: as they were returned.
        raw: before they were divided by the temperature.
        estimates: of the accuracy, after each batch.
        by_source: the share of batches that the source model answered.
    """

    logits: Tensor
    raw: Tensor
    estimates: list[Estimate]
    by_source: float


def meet(adapter: eq.Adapter, batches: Iterable[Tensor]) -> Met:
    """Answer a stream after a reset."""
    adapter.reset()
    logits, raw, estimates, by_source = [], [], [], []
    for batch in batches:
        logits.append(adapter(batch).detach().cpu())
        step, estimate = adapter.last, adapter.accuracy
        if step is None or step.temperature is None or estimate is None:
            raise RuntimeError(f"expected a rehearsed adapter, got {adapter.name} without an estimate")
        raw.append(logits[-1] * step.temperature)
        estimates.append(estimate)
        by_source.append(step.answered_by == "source")
    return Met(torch.cat(logits), torch.cat(raw), estimates, sum(by_source) / len(by_source))


def tempered(logits: Tensor, estimated: Tensor, spans: Spans) -> Tensor:
    """Logits divided, batch by batch, by the temperature at which the window before has that confidence.

    Batches before the first window are left as they are.
    """
    good = torch.ones(len(logits), dtype=torch.bool)
    temperatures = torch.ones(len(spans.batches))
    for place, (span, value) in enumerate(zip(spans.moments, estimated, strict=True)):
        after = place + len(spans.batches) - len(spans.moments) + 1
        if after < len(temperatures):
            sums = window.sums(logits[None, span], good[span])[0]
            temperatures[after] = window.temperature_for(sums, value.float())
    return logits / temperatures.repeat_interleave(BATCH)[:, None]


def ece(logits: Tensor, labels: Tensor) -> float:
    """The expected calibration error of a stream."""
    return float(expected_calibration_error(logits=logits, target=labels))


def scored(
    name: str, answered_by: str, logits: Tensor, labels: Tensor, spans: Spans, estimates: Estimates
) -> Row:
    """How far estimates are off, and the calibration that they give."""
    hits = logits.argmax(1) == labels
    off, off_chunks = (
        own - means(hits, at) for own, at in zip(estimates, (spans.moments, spans.chunks), strict=True)
    )
    return {
        "answers": answered_by,
        "estimator": name,
        "moments": len(off),
        "error_moments": float(off.abs().mean()),
        "chunks": len(off_chunks),
        "error_chunks": float(off_chunks.abs().mean()),
        "bias_chunks": float(off_chunks.mean()),
        "ece": ece(tempered(logits, estimates.moments, spans), labels),
    }


def intervals(estimates: Sequence[Estimate], true: Tensor) -> Row:
    """Coverage and width of the intervals at the moments with these accuracies, and what `inside` knew."""
    own = list(zip(estimates[-len(true) :], true.tolist(), strict=True))
    off = [each for each, right in own if abs(each.value - right) > (each.high - each.low) / 2]
    return {
        "coverage": sum(each.low <= right <= each.high for each, right in own) / len(own),
        "width": sum(each.high - each.low for each, _ in own) / len(own),
        "inside": sum(each.inside for each, _ in own) / len(own),
        "off": len(off),
        "off_outside": sum(not each.inside for each in off),
    }


def stream_rows(
    subject: Subject, adapters: dict[str, eq.Adapter], held_out: dict[str, HeldOut], name: str, seed: int
) -> tuple[list[Row], Row]:
    """The rows of all estimators on a stream, and of the stream."""
    inputs, labels = (part[: len(part) // BATCH * BATCH] for part in subject.streams[name])
    spans = Spans.of(len(labels))
    met = {who: meet(adapter, inputs.split(BATCH)) for who, adapter in adapters.items()}
    plain = answers(subject.model, inputs.split(BATCH))
    right = {"none": plain.argmax(1) == labels}
    rows, facts = [], {"rows": len(labels), "chunks": len(spans.chunks), "ece_none": ece(plain, labels)}
    for who, own in met.items():
        logits = plain if who == "source" else own.raw
        right[who] = own.logits.argmax(1) == labels
        found = from_logits(held_out[who], spans, logits)
        if who == "source":
            found |= from_forwards(subject.model, inputs, logits, spans, seed)
        rows += [scored(at, who, logits, labels, spans, each) for at, each in found.items()]
        ours = of_batches([estimate.value for estimate in own.estimates], spans)
        held = intervals(own.estimates, means(right[who], spans.moments))
        rows.append(scored(REHEARSED, who, logits, labels, spans, ours) | held)
        facts |= {f"ece_{who}": ece(own.logits, labels)}
    gained = means(right["poise"], spans.chunks) - means(right["none"], spans.chunks)
    facts |= {
        "accuracy_none": float(right["none"].double().mean()),
        "accuracy_poise": float(right["poise"].double().mean()),
        "worst_chunk": float(gained.min()),
        "by_source": met["poise"].by_source,
    }
    return rows, facts


def measured(subject: Subject, seed: int) -> Iterator[tuple[str, list[Row], Row]]:
    """Rehearse both methods by a seed, and measure each stream: its name and rows."""
    x, y = (part[: subject.samples] for part in subject.held_out)
    own: dict[str, Any] = {"samples": subject.samples, "shifts": subject.shifts, "seed": seed}
    adapters: dict[str, eq.Adapter] = {}
    for method in ("source", "poise"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RehearsalWarning)  # --quick has few samples
            source = eq.rehearse(subject.model, (x, y), method=method, progress=False, **own)
        adapters[method] = eq.create(method, subject.model, source, tempering="rehearsed")
    untempered = eq.create("poise", subject.model, adapters["poise"].source, tempering="none")
    asked: dict[str, Ask] = {"source": subject.model, "poise": untempered}
    held_out = {}
    for who, ask in asked.items():
        shifted = answers_under_shifts(ask, untempered.reset, x, subject.shifts, seed)
        untempered.reset()
        plain = answers(ask, x.split(BATCH))
        held_out[who] = HeldOut(plain, y, shifted, y[: len(shifted[0])])
    for name in subject.streams:
        yield name, *stream_rows(subject, adapters, held_out, name, seed)


def measure(cases: Sequence[Case], rehearsals: Sequence[int], out: Path, quick: bool) -> None:
    """Measure what the files in the folder do not have yet: all cases by one rehearsal, then by the next."""
    out.mkdir(parents=True, exist_ok=True)
    made: dict[Case, Subject] = {}
    for seed, case in product(rehearsals, cases):
        own = (case.kind, case.data, case.network, case.seed, seed)
        if _done(own, out):
            continue
        _tell(f"{', '.join(map(str, own[:4]))}, rehearsal {seed}")
        started = time.perf_counter()
        if case not in made:
            made[case] = quickened(case.make()) if quick else case.make()
            _tell(f"  trained in {time.perf_counter() - started:.0f} s")
        rows: list[Row] = []
        facts: list[Row] = []
        for stream, found, fact in measured(made[case], seed):
            key = dict(zip(KEY, (*own, stream), strict=True))
            rows += [key | row for row in found]
            facts.append(key | fact)
        # The streams last: they say what is done.
        add(out / "estimates.csv", pd.DataFrame(rows))
        add(out / "streams.csv", pd.DataFrame(facts))
        _tell(f"  {len(rows)} rows in {time.perf_counter() - started:.0f} s")


def quickened(subject: Subject) -> Subject:
    """The subject with 8 shifts of 200 samples and streams of 600 rows."""
    streams = {name: (x[:600], y[:600]) for name, (x, y) in subject.streams.items()}
    return replace(subject, samples=200, shifts=8, streams=streams)


def read(path: Path) -> pd.DataFrame:
    """The rows of a file, each once: an interrupted command may have left some twice."""
    rows = pd.read_csv(path)
    names = [name for name in (*KEY, "answers", "estimator") if name in rows]
    return rows.drop_duplicates(names, keep="last")


def add(path: Path, rows: pd.DataFrame) -> None:
    """Add rows to a CSV file, in one piece."""
    text = rows.to_csv(index=False, header=not path.exists(), float_format="%.5f")
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def merge(folders: Sequence[Path], out: Path) -> None:
    """Add the rows of other folders."""
    out.mkdir(parents=True, exist_ok=True)
    for folder, name in product(folders, ("estimates.csv", "streams.csv")):
        add(out / name, read(folder / name))


def _done(own: tuple[Any, ...], out: Path) -> bool:
    path = out / "streams.csv"
    return path.exists() and own in set(read(path)[KEY[:5]].itertuples(index=False, name=None))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the CSV files")
    parser.add_argument("--tables", type=Path, help="folder of .npz files")
    parser.add_argument("--digits", type=Path, help="folder with digits/")
    parser.add_argument("--pacs", type=Path, help="folder with pacs/ and weights/")
    parser.add_argument("--only", nargs="+", metavar="CASE", help='"digits svhn 2", "pacs photo 0", …')
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FOLDER", help="of other commands")
    parser.add_argument("--quick", action="store_true", help="one seed, few shifts of few samples")
    given = parser.parse_args()
    merge(given.merge or (), given.out)
    seeds, digits_seeds = (each[:1] if given.quick else each for each in (SEEDS, DIGITS_SEEDS))
    in_order = [*(tables(given.tables, seeds) if given.tables else ())]
    pictures = [*(digits(given.digits, digits_seeds) if given.digits else ())]
    pictures += doubtful_digits(given.digits, digits_seeds) if given.digits else ()
    pictures += pacs(given.pacs, seeds[:1]) if given.pacs else ()
    named = {case: f"{case.kind} {case.data} {case.seed}" for case in (*in_order, *pictures)}
    asked = set(given.only or named.values())
    if unknown := asked - set(named.values()):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(named.values())}")
    try:
        for cases, rehearsals in ((in_order, seeds), (pictures, seeds[:1])):
            measure([case for case in cases if named[case] in asked], rehearsals, given.out, given.quick)
    except KeyboardInterrupt:
        _tell("stopped: what was measured is kept, the same command goes on")
        sys.exit(130)


if __name__ == "__main__":
    main()
