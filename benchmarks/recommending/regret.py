"""Regret of `equipoise.recommend`: its method against the best in hindsight, on streams of an unseen domain.

    PYTHONPATH=benchmarks/results python benchmarks/recommending/regret.py OUT RECIPE DATA --csv FILE

on the source models that `equipoise run RECIPE --data DATA --out OUT` trained. The recommendation sees
held-out source images under made-up shifts alone. Then it, and every method of the short lists, meet images
of the target, as they are and under the 15 corruptions of tier 5, in the same kind of stream. A row is added
to the CSV file as soon as it is measured, and rows that are there are not measured again.
`regret_table.py FILE` makes the table.
"""

import argparse
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import torch
from models import arguments, plans, trained_model
from torch import Tensor

import equipoise as eq
from equipoise.bench.plan import RunPlan
from equipoise.bench.schema import RAW
from equipoise.bench.source_model import held_out_images
from equipoise.bench.sweep import MODELS
from equipoise.data import Images, Reader, make_stream, read_stored
from equipoise.data.corruptions import CORRUPTIONS
from equipoise.data.making import make_corrupted
from equipoise.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from equipoise.recommending.candidates import Candidate, StreamKind, candidates

STREAMS: Sequence[StreamKind] = ("continual", "correlated", "recurring", "noisy")
OPTIONS: dict[str, dict[str, Any]] = {"recurring": {"passes": 4}}
BATCH, TIER = 50, 5
RECOMMENDED, AS_IT_IS, CORRUPTED = "recommended", "as it is", "corrupted"
KEY = ["data", "backbone", "target", "seed", "stream", "domains", "method"]
COLUMNS = [*KEY, "choice", "accuracy", "ece", "nll", "images", "seconds"]


def target_domains(run: RunPlan, kind: str, count: int) -> list[Images]:
    """Images of the target, `count` in all: as it is, or a part so and a part under each corruption."""
    seed, images = run.any_cell["seed"], read_stored(run.streams[0])
    images = images.select(make_stream([images.labels], "shuffled", seed).rows[:count])
    if kind == AS_IT_IS:
        return [images]
    domains = []
    for place, rows in enumerate(torch.arange(len(images)).tensor_split(len(CORRUPTIONS) + 1)):
        part = images.select(rows)
        domains.append(corrupted(part, CORRUPTIONS[place - 1], rows.tolist()) if place else part)
    return domains


def corrupted(images: Images, corruption: str, seeds: Sequence[int]) -> Images:
    """The images under a corruption."""
    pixels = images.pixels.permute(0, 2, 3, 1).contiguous().numpy()
    made = make_corrupted(pixels, corruption, TIER, seeds, Reader(workers=1))
    return Images(torch.from_numpy(made).permute(0, 3, 1, 2).contiguous(), images.labels)


def every_candidate(classes: int) -> list[Candidate]:
    """The methods of all short lists."""
    listed = [one for kind in get_args(StreamKind) for one in candidates(None, kind, classes)]
    return list({str(one): one for one in listed}.values())


def answered(adapter: eq.Adapter, domains: Sequence[Images], kind: StreamKind, seed: int) -> dict[str, Any]:
    """The scores of an adapter's answers to a stream of domains."""
    options = OPTIONS.get(kind, {})
    passes = int(options.get("passes", 1))
    some = [images.select(torch.arange(len(images) // passes)) for images in domains]
    stream = make_stream([images.labels for images in some], kind, seed, **options)
    logits, labels, started = [], [], time.perf_counter()
    for x, y in stream.batches(some, BATCH):
        logits.append(adapter(x).detach())
        labels.append(y)
    seconds, target = time.perf_counter() - started, torch.cat(labels)
    known = target >= 0
    answers, target = torch.cat(logits)[known], target[known]
    return {
        "accuracy": float(accuracy(logits=answers, target=target)),
        "ece": float(expected_calibration_error(logits=answers, target=target)),
        "nll": float(negative_log_likelihood(logits=answers, target=target)),
        "images": int(known.sum()),
        "seconds": seconds,
    }


def held_out_loader(run: RunPlan, count: int) -> list[tuple[Tensor, Tensor]]:
    """A random choice of the source images that the model of a run was not trained on."""
    held = held_out_images(run.model)
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(run.any_cell["seed"]))[:count]
    return [(part.pixels.float(), part.labels) for part in map(held.select, order.split(BATCH))]


class Rows:
    """The CSV file: the keys that it has, and a way to add to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        there = path.exists()
        self._keys = set(self._keys_of(pd.read_csv(path))) if there else set()
        if not there:
            path.write_text(",".join(COLUMNS) + "\n")

    @staticmethod
    def _keys_of(rows: pd.DataFrame) -> list[tuple[str, ...]]:
        return [tuple(map(str, key)) for key in rows[KEY].itertuples(index=False)]

    def has(self, row: dict[str, Any]) -> bool:
        """Whether a row with the same key is there."""
        return tuple(str(row[name]) for name in KEY) in self._keys

    def add(self, row: dict[str, Any]) -> None:
        """Write a row at the end."""
        frame = pd.DataFrame([row])[COLUMNS].round(5)
        frame.to_csv(self._path, mode="a", header=False, index=False)
        self._keys.update(self._keys_of(frame))
        print(*(row[name] for name in (*KEY[2:], "choice", "accuracy")), flush=True)


class Subject:
    """A source model with labelled held-out samples and its target; statistics are made when needed."""

    def __init__(self, run: RunPlan, models: Path, given: argparse.Namespace) -> None:
        self.cell, self.given = run.any_cell, given
        self.trained = trained_model(run, models)
        self.loader = held_out_loader(run, given.samples)
        self.domains = {kind: target_domains(run, kind, given.images) for kind in given.domains}

    @cached_property
    def source(self) -> eq.SourceStatistics:
        """Statistics of the held-out samples, of the linear head's inputs too, with a rehearsal of poise."""
        model = self.trained.model
        measured = eq.SourceStatistics.measure(model, self.loader, features=True, progress=False)
        sized = {"samples": self.given.samples, "shifts": 16, "progress": False}
        return eq.rehearse(model, self.loader, source=measured, **sized)

    def recommended(self, kind: StreamKind) -> eq.Recommendation:
        """The recommendation for a kind of stream, with its defaults but for the length and the budget."""
        return eq.recommend(
            self.trained.model,
            self.loader,
            stream=(kind, OPTIONS.get(kind, {})),
            budget=None,
            length=self.given.length,
            samples=self.given.samples,
            batch_size=BATCH,
            progress=False,
        )

    def adapter(self, candidate: Candidate) -> eq.Adapter:
        """A method without tempering; poise with its rehearsal, which decides when it answers."""
        tempering = {} if candidate.name == "poise" else {"tempering": "none"}
        return eq.create(candidate.name, self.trained.model, self.source, **tempering, **candidate.options)


def measure(subject: Subject, kind: StreamKind, rows: Rows) -> None:
    """Add the rows of a model and a kind of stream that are not there yet."""
    cell, model = subject.cell, subject.trained.model
    shared = {name: cell[name] for name in ("data", "backbone", "target", "seed")} | {"stream": kind}
    missing = [d for d in subject.domains if not rows.has({**shared, "domains": d, "method": RECOMMENDED})]
    if missing:
        found = subject.recommended(kind)
        print(found, flush=True)
        for domains in missing:
            scores = answered(found.adapter(model), subject.domains[domains], kind, cell["seed"])
            choice = str(Candidate(found.method, found.options))
            rows.add({**shared, "domains": domains, "method": RECOMMENDED, "choice": choice, **scores})
    for candidate in every_candidate(len(subject.trained.info.classes)):
        for domains, images in subject.domains.items():
            row = {**shared, "domains": domains, "method": str(candidate), "choice": ""}
            if not rows.has(row):
                rows.add(row | answered(subject.adapter(candidate), images, kind, cell["seed"]))


def main() -> None:
    """Measure the models of the command line."""
    parser = arguments(__doc__ or "", images=1000)
    parser.add_argument("--csv", type=Path, required=True, help="the file that rows are added to")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0], help="of the models")
    parser.add_argument("--streams", nargs="*", default=STREAMS, choices=get_args(StreamKind))
    parser.add_argument("--length", type=int, default=1600, help="of the made-up streams")
    parser.add_argument("--samples", type=int, default=300, help="labelled, held out")
    parser.add_argument("--domains", nargs="*", default=[CORRUPTED], choices=[AS_IT_IS, CORRUPTED])
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows(given.csv)
    models = given.out.resolve() / MODELS
    subjects = [Subject(run, models, given) for run in plans(given, ["source"], [RAW], seeds=given.seeds)]
    for kind in given.streams:
        for subject in subjects:
            measure(subject, kind, rows)


if __name__ == "__main__":
    main()
