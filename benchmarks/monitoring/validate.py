"""Measures a monitor on the Digits streams: estimates and truth by window, delays of alarms, false alarms.

    python -m benchmarks.monitoring.validate OUT RECIPE DATA benchmarks/monitoring

on the source models that `equipoise run RECIPE --data DATA --out OUT` trained, with poise and the rehearsal
that the run left; a target whose model or rehearsal is not there is passed over.
Writes windows.csv, jumps.csv and false_alarms.csv into the last folder; the rows of the same targets are
measured again, others stay.

- Windows: the target's test images, and unseen test images of the source domains in the proportions of their
  training sets; a row for each 500 images, all of which are labelled.
- Jumps: unseen source images, then target images, or source images in strong noise; a row for each batch.
- False alarms: several passes over the unseen source images, live; and, for many more images, batches drawn
  with replacement from the answers of both models to these go through the estimate of the rehearsal and the
  monitor. There is no jump in either.
"""

import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import equipoise as eq
from benchmarks.monitoring.alarms import RULES, alarms, floor_of
from benchmarks.results.models import SEED, arguments, plans, trained_model
from equipoise.calibration.temper import TRUSTS, RehearsedTemperature
from equipoise.research.data import Cache, Reader, open_data_set
from equipoise.research.data.cache import read_stored
from equipoise.research.data.images import Images
from equipoise.research.experiment.plan import RunPlan
from equipoise.research.experiment.schema import RAW, REHEARSED
from equipoise.research.experiment.store import CACHE, MODELS
from equipoise.streams import make_stream

BATCH, WINDOW = 50, 500
BEFORE, AFTER = 750, 750
"""The images before and after a jump."""
NOISE = 80
KEPT = (
    *("accuracy", "accuracy_low", "accuracy_high", "accuracy_inside", "source_accuracy", "calibration_gap"),
    *("confidence", "entropy", "temperature", "agreement", "class_shift", "statistics_shift"),
    *("labels", "true_accuracy", "true_accuracy_low", "true_accuracy_high", "ece", "nll", "estimate_error"),
)
"""The gauges that the files have."""


def shuffled(images: Images, seed: int) -> Images:
    """Images in random order."""
    return images.select(make_stream([images.labels], "shuffled", seed).rows)


def unseen_source(given: Namespace, run: RunPlan, count: int) -> Images:
    """Test images of the source domains, in the proportions of the images that were trained on."""
    data_set = open_data_set(run.any_cell["data"], given.data.resolve())
    cache = Cache(given.out.resolve() / CACHE)
    shift = next(shift for shift in data_set.shifts if shift.stream == f"{run.any_cell['target']}/test")
    parts = [
        [
            read_stored(cache.store(data_set, part, given.limit, Reader()).path)
            for part in (trained, trained.replace("/train", "/test"))
        ]
        for trained in shift.sources
    ]
    total = sum(len(trained) for trained, _ in parts)
    scale = min(count / total, *(len(test) / len(trained) for trained, test in parts))
    chosen = [shuffled(test, SEED).select(torch.arange(int(scale * len(train)))) for train, test in parts]
    joined = Images(torch.cat([i.pixels for i in chosen]), torch.cat([i.labels for i in chosen]))
    return shuffled(joined, SEED)


def watched(adapter: eq.Adapter, images: Images) -> Iterator[tuple[dict[str, float], Tensor]]:
    """The gauges after each batch, of which every sample is labelled at once, and the answers."""
    adapter.reset()
    monitor = eq.Monitor(adapter, window=WINDOW)
    pairs = zip(images.pixels.split(BATCH), images.labels.split(BATCH), strict=True)
    for number, (pixels, labels) in enumerate(pairs):
        logits = monitor(pixels.float(), request=str(number))
        monitor.label(str(number), labels)
        yield monitor.gauges(), logits


class Answers:
    """Untempered answers of the adapted model and of the source model, batch by batch."""

    def __init__(self) -> None:
        self._own: list[Tensor] = []
        self._theirs: list[Tensor] = []

    def add(self, logits: Tensor, step: eq.Step | None) -> None:
        """Add a batch, unless the source model answered it alone."""
        if step is None or step.source_logits is None or step.temperature is None:
            raise SystemExit("expected a method that asks the source model, and is tempered")
        if step.answered_by == "student":
            self._own.append(logits * step.temperature)
            self._theirs.append(step.source_logits)

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """All of them, row by row."""
        return torch.cat(self._own), torch.cat(self._theirs)


def windows(adapter: eq.Adapter, images: Images, floor: float, answers: Answers) -> Iterator[dict[str, Any]]:
    """A row for each window of a stream that does not share a sample with another."""
    on = dict.fromkeys(RULES, 0)
    for number, (gauges, logits) in enumerate(watched(adapter, images), 1):
        answers.add(logits, adapter.last)
        for rule, holds in alarms(gauges, floor).items():
            on[rule] += holds
        if number * BATCH % WINDOW == 0:
            counts = {f"{rule} batches": count for rule, count in on.items()}
            yield {"samples": number * BATCH, **{name: gauges.get(name) for name in KEPT}, **counts}
            on = dict.fromkeys(RULES, 0)


def noisy(images: Images) -> Images:
    """Images with normal noise on each pixel, of a deviation of 80 of 255."""
    draw = torch.Generator().manual_seed(SEED)
    pixels = images.pixels + NOISE * torch.randn(images.pixels.shape, generator=draw)
    return Images(pixels.round().clamp(0, 255).byte(), images.labels)


def jumps(adapter: eq.Adapter, source: Images, target: Images, repeats: int) -> Iterator[dict[str, Any]]:
    """A row for each batch of streams that jump from source to target images."""
    for repeat in range(repeats):
        before, after = shuffled(source, 10 + repeat), shuffled(target, 10 + repeat)
        parts = [before.select(torch.arange(BEFORE)), after.select(torch.arange(AFTER))]
        stream = Images(torch.cat([i.pixels for i in parts]), torch.cat([i.labels for i in parts]))
        for number, (gauges, _) in enumerate(watched(adapter, stream), 1):
            yield {
                "repeat": repeat,
                "after": number * BATCH - BEFORE,
                **{name: gauges.get(name) for name in KEPT},
            }


class Onsets:
    """The alarms along a stream: how many begin, and the batches that they are on in."""

    def __init__(self, rules: Sequence[str], floor: float) -> None:
        self._floor, self._on = floor, dict.fromkeys(rules, False)
        self._begun, self._batches = dict.fromkeys(rules, 0), dict.fromkeys(rules, 0)

    def add(self, gauges: Mapping[str, float]) -> None:
        """Add a batch."""
        now = alarms(gauges, self._floor)
        for rule, before in self._on.items():
            self._begun[rule] += now[rule] and not before
            self._batches[rule] += now[rule]
        self._on = {rule: now[rule] for rule in self._on}

    def counts(self) -> dict[str, int]:
        """The counts so far, by column."""
        begun = {f"{rule} alarms": count for rule, count in self._begun.items()}
        return begun | {f"{rule} batches": count for rule, count in self._batches.items()}


def live(adapter: eq.Adapter, source: Images, images: int, floor: float) -> dict[str, Any]:
    """The alarms in a stream of source images: pass after pass, each in an order of its own."""
    adapter.reset()
    monitor, onsets, seen = eq.Monitor(adapter, window=WINDOW, keep=WINDOW), Onsets(RULES, floor), 0
    while seen < images:
        for pixels in shuffled(source, 100 + seen).pixels.split(BATCH):
            monitor(pixels.float())
            onsets.add(monitor.gauges())
            seen += len(pixels)
    return {"kind": "live", "answers": len(source), "images": seen, **onsets.counts()}


def replayed(
    rehearsal: eq.Rehearsal, answers: tuple[Tensor, Tensor], images: int, floor: float
) -> dict[str, Any]:
    """The alarms in a stream of so many images whose answers are drawn from recorded ones."""
    estimator, draw = RehearsedTemperature(rehearsal, compares=True), torch.Generator().manual_seed(SEED)
    monitor = eq.Monitor(window=WINDOW, keep=WINDOW)
    observed: Mapping[str, Tensor] = estimator.initial()
    onsets = Onsets([rule for rule in RULES if rule != "statistics"], floor)
    good = torch.ones(BATCH, dtype=torch.bool)
    for _ in range(images // BATCH):
        rows = torch.randint(len(answers[0]), (BATCH,), generator=draw)
        own, theirs = answers[0][rows], answers[1][rows]
        observed = estimator.answer(observed, own, theirs, good).observed
        estimates, trusts = estimator.estimates(observed), bool(observed[TRUSTS])
        temperature = estimator.level(observed)
        step = eq.Step(
            samples=BATCH,
            used=BATCH,
            set_aside=0,
            updated=True,
            reason="",
            loss=None,
            entropy=None,
            temperature=float(temperature),
            tau_quantiles=None,
            accuracy=estimates[int(trusts)],
            source_accuracy=estimates[1],
            source_logits=theirs,
        )
        monitor.observe((theirs if trusts else own) / temperature, step)
        onsets.add(monitor.gauges())
    return {"kind": "replayed", "answers": len(answers[0]), "images": images, **onsets.counts()}


def write(path: Path, target: str, rows: list[dict[str, Any]]) -> None:
    """Write the rows of a target, in the place of those that were there."""
    frame = pd.DataFrame([{"target": target, **row} for row in rows])
    if path.exists():
        old = pd.read_csv(path)
        frame = pd.concat([old[old["target"] != target], frame])
    frame.round(5).to_csv(path, index=False)


def main() -> None:
    """Measure each target."""
    parser = arguments(__doc__ or "", images=4000)
    parser.add_argument("folder", type=Path, help="of the files")
    parser.add_argument("--repeats", type=int, default=5, help="jumps on each target")
    parser.add_argument(
        "--replayed", type=int, default=340_000, help="images for false alarms on each target"
    )
    parser.add_argument("--live", type=int, default=12_000, help="images for them without recorded answers")
    given = parser.parse_args()
    models = given.out.resolve() / MODELS
    torch.set_num_threads(1)
    for run in plans(given, ["poise"], [RAW, REHEARSED]):
        started, target = time.perf_counter(), run.any_cell["target"]
        rehearsal_file = next(models.glob(f"{run.model.key}.rehearsal-*.safetensors"), None)
        if rehearsal_file is None:
            print(f"{target}: no rehearsal in {models}", flush=True)
            continue
        statistics = eq.SourceStatistics.load(rehearsal_file)
        adapter = eq.Poise(trained_model(run, models).model, statistics)
        rehearsal = statistics.rehearsal_of("poise")
        floor = floor_of(rehearsal)
        source = unseen_source(given, run, given.images)
        stream = shuffled(read_stored(run.streams[0]), SEED)
        some = stream.select(torch.arange(min(given.images, len(stream))))
        answers = {"target": Answers(), "source": Answers()}
        rows = [
            {"stream": name, "floor": floor, **row}
            for name, images in (("target", some), ("source", source))
            for row in windows(adapter, images, floor, answers[name])
        ]
        write(given.folder / "windows.csv", target, rows)
        jumped = [
            {"to": name, "floor": floor, **row}
            for name, images in (("target", stream), ("noise", noisy(source)))
            for row in jumps(adapter, source, images, given.repeats)
        ]
        write(given.folder / "jumps.csv", target, jumped)
        watched_live = live(adapter, source, given.live, floor)
        drawn = replayed(rehearsal, answers["source"].both, given.replayed, floor)
        write(given.folder / "false_alarms.csv", target, [watched_live, drawn])
        print(f"{target}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
