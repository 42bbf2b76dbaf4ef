"""Measure prediction sets, decisions and late labels of rehearsed `poise`; a row of CSV for each pass.

    python -m benchmarks.decisions.measure_decisions DATA MODELS OUT.csv [CASE …]

DATA has tables/ (.npz files, `benchmarks.estimators.subjects.tables`) and digits, PACS, TinyImageNet and
weights as `equipoise data` says; models are trained once and left in MODELS. Without the names of cases, all.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch
from torch import Tensor, nn

import equipoise as eq
from benchmarks.decisions import baselines
from benchmarks.decisions.baselines import ACCURACY, BATCH, COVERAGE, Share, Tally, shared, tally
from benchmarks.decisions.subjects import Case, Stream, Subject, cases
from equipoise.calibration.rehearsal import Estimate
from equipoise.calibration.sets import SCORES
from equipoise.metrics import expected_calibration_error, risk_coverage

LATE = 4
"""The batches after which labels arrive."""

LAST = 500
"""The rows at the end of a stream that the last estimates are held against."""

Row = dict[str, Any]
_Known = TypeVar("_Known")


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


def known(value: _Known | None) -> _Known:
    """A value that a rehearsed adapter has after each batch."""
    if value is None:
        raise RuntimeError("expected a value of a rehearsed adapter after a batch, got none")
    return value


def spans(rows: int) -> list[slice]:
    """The batches of so many rows."""
    return [slice(at, min(at + BATCH, rows)) for at in range(0, rows, BATCH)]


def labelled_rows(rows: int, count: int) -> Tensor:
    """Which rows get their labels, (N): so many, drawn with equal chances."""
    mask = torch.zeros(rows, dtype=torch.bool)
    mask[torch.randperm(rows, generator=torch.Generator().manual_seed(count))[:count]] = True
    return mask


def meet(adapter: eq.Adapter, stream: Stream, count: int) -> Met:
    """Answer a stream after a reset; so many of its labels arrive, each four batches late."""
    adapter.reset()
    met, chosen = Met(), labelled_rows(len(stream.labels), count)
    ids: list[Tensor] = []
    batches = spans(len(stream.labels))
    for at, span in enumerate(batches):
        answer = adapter(stream.inputs[span].float().to(adapter.device)).detach()
        step = known(adapter.last)
        ids.append(torch.tensor(step.ids))
        if at >= LATE:
            arrive(adapter, stream, chosen, batches[at - LATE], ids[at - LATE])
        for score in SCORES:
            met.sets[score].append(adapter.sets(logits=answer, coverage=COVERAGE, score=score).cpu())
        met.acted.append(adapter.decide(logits=answer, accuracy=ACCURACY).mask.cpu())
        met.logits.append(answer.float().cpu())
        met.by_source.append(step.answered_by == "source")
    return met


def arrive(adapter: eq.Adapter, stream: Stream, chosen: Tensor, span: slice, ids: Tensor) -> None:
    """Give the adapter the labels of a batch that are chosen."""
    own = chosen[span]
    if bool(own.any()):
        adapter.label(stream.labels[span][own], ids=ids[own])


def answers(model: nn.Module, inputs: Tensor, device: torch.device) -> Tensor:
    """The logits of rows, batch by batch, on the CPU."""
    with torch.no_grad():
        return torch.cat([model(inputs[at].float().to(device)).float().cpu() for at in spans(len(inputs))])


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
    """A rehearsed adapter, and the answers that its rivals are fitted on."""

    def __init__(self, subject: Subject) -> None:
        x, y = subject.held_out
        started = time.perf_counter()
        self.model = subject.model
        self.source = eq.rehearse(self.model, (x, y), progress=False, **subject.options)
        self.seconds = time.perf_counter() - started
        self.adapter = eq.Poise(self.model, self.source)
        self.untempered = eq.Poise(self.model, self.source, tempering="none")
        rows = slice(known(self.source.rehearsal).samples)
        adapted, plain = (answers(ask, x[rows], self.adapter.device) for ask in (self.untempered, self.model))
        labels = y[rows].cpu()
        self.scores = baselines.right_scores(adapted, labels)
        self.entropies = baselines.entropies(adapted)
        self.bar = risk_coverage(logits=plain, target=labels).at_risk(1 - ACCURACY).confidence

    def row(self, stream: Stream, count: int) -> Row:
        """Ours on a stream, with so many labels."""
        adapter, labels = self.adapter, stream.labels
        met = meet(adapter, stream, count)
        logits = torch.cat(met.logits)
        hits, sets = logits.argmax(1) == labels, {score: torch.cat(own) for score, own in met.sets.items()}
        found: Row = {"rows": len(labels), "labels": count}
        found["by_source"] = sum(met.by_source) / len(met.by_source)
        found["ece"] = float(expected_calibration_error(logits=logits, target=labels))
        for score, own in sets.items():
            found |= named(f"sets.{score}", tally(own, labels))
        right = sets["lac"].gather(1, labels.unsqueeze(1)).squeeze(1).double()
        acted = torch.cat(met.acted)
        found |= named("decide.ours", shared(acted, hits))
        estimate, covered = known(adapter.accuracy), adapter.coverage(COVERAGE)
        found |= held(estimate, float(hits.double().mean()), "accuracy")
        found |= held(estimate, float(hits[-LAST:].double().mean()), "last_accuracy")
        found |= held(covered, float(right[-LAST:].mean()), "last_coverage")
        return found | {"inside": estimate.inside} | self.oracles(logits, labels)

    @staticmethod
    def oracles(logits: Tensor, labels: Tensor) -> Row:
        """What the labels of the whole stream allow, for the same answers."""
        best = baselines.oracle_sets(logits, labels, COVERAGE)
        point = risk_coverage(logits=logits, target=labels).at_risk(1 - ACCURACY)
        acted = Share(point.share, 1 - point.risk)
        return named("sets.oracle", tally(best, labels)) | named("decide.oracle", acted)

    def rivals(self, stream: Stream) -> Row:
        """The field's methods on the untempered answers to a stream, and the plain model at a fixed bar."""
        self.untempered.reset()
        device, labels, scores = self.adapter.device, stream.labels, self.scores
        raw = answers(self.untempered, stream.inputs, device)
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
        plain = answers(self.model, stream.inputs, device)
        acted = plain.softmax(1).amax(1) >= self.bar
        found = named("decide.plain", shared(acted, plain.argmax(1) == labels))
        for name, sets in made.items():
            found |= named(f"sets.{name}", tally(sets, labels))
        return found


def measured(case: Case) -> Iterator[Row]:
    """Every row of a case."""
    subject = case.make()
    bench = Bench(subject)
    for name, stream in subject.streams.items():
        own = {"data": case.data, "model": case.name, "stream": name, "kind": stream.kind}
        for count in stream.counts:
            yield own | bench.row(stream, count) | (bench.rivals(stream) if count == 0 else {})


def main() -> None:
    """Measure the named cases, and add their rows to the file."""
    data, models, out, *names = sys.argv[1:]
    Path(models).mkdir(parents=True, exist_ok=True)
    path = Path(out)
    for case in cases(Path(data), Path(models), workers=6):
        if names and case.name not in names:
            continue
        started = time.perf_counter()
        rows = pd.DataFrame(measured(case))
        before = [pd.read_csv(path)] if path.exists() else []
        pd.concat([*before, rows], ignore_index=True).to_csv(path, index=False, float_format="%.5f")
        print(f"{case.name}: {len(rows)} rows in {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
