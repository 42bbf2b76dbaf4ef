"""Poise on tables in awkward orders, with and without the novelty of inputs.

    python -m benchmarks.rehearsal.novelty TABLES OUT.csv

TABLES has .npz files as benchmarks/estimators says. For each table, and made-up land cover, an MLP with
batch norm is trained once; accuracy is that of untempered answers over the whole stream, in batches of 50.
Orders other than that of time are of 12,000 random rows of the stream.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

import equipoise as eq
from benchmarks.estimators.subjects import STEPS, mlp, train

BATCH, ROWS, GROUPS, CLASSES = 50, 12_000, 8, 7
MOST_IN_ORDER = 36_000

Labelled = tuple[Tensor, Tensor]
"""Rows and classes."""


class Table(NamedTuple):
    """Rows to train on, rows kept aside, and a stream in order."""

    train: Labelled
    held_out: Labelled
    stream: Labelled


def read(path: Path) -> Table:
    """The table of a file."""
    with np.load(path, allow_pickle=False) as arrays:
        x = {part: torch.from_numpy(arrays[f"x_{part}"]).float() for part in ("train", "held", "stream")}
        y = {part: torch.from_numpy(arrays[f"y_{part}"]).long() for part in ("train", "held", "stream")}
    most = MOST_IN_ORDER
    return Table((x["train"], y["train"]), (x["held"], y["held"]), (x["stream"][:most], y["stream"][:most]))


def land_cover(seed: int = 0) -> Table:
    """Land cover of eight valleys: trained on balanced classes, met valley after valley.

    Each valley has other shares of seven classes, and a flag of its own. Rows of a class in a valley are of
    one distribution in training and in the stream: nothing about them changes.
    """
    draw = torch.Generator().manual_seed(100 + seed)
    of_class = 0.9 * torch.randn(CLASSES, 10, generator=draw)
    of_valley = 1.5 * torch.randn(GROUPS, 10, generator=draw)
    turn = torch.randn(10, 10, generator=draw) / 10**0.5

    def rows(valleys: Tensor, labels: Tensor) -> Tensor:
        slope = 0.5 * of_valley[valleys] * (1 + 0.3 * of_class[labels].tanh())
        base = of_class[labels] + slope + torch.randn(len(labels), 10, generator=draw)
        return torch.cat([base, (base @ turn).tanh(), one_hot(valleys, GROUPS).float()], 1)

    shares = torch.rand(GROUPS, CLASSES, generator=draw).pow(3) + 0.02
    shares[:, 1] += 2.2 * torch.rand(GROUPS, generator=draw)
    labels = (torch.arange(15_000) % CLASSES)[torch.randperm(15_000, generator=draw)]
    valleys = torch.multinomial(shares.T[labels], 1, generator=draw)[:, 0]
    x = rows(valleys, labels)
    visits = torch.randint(GROUPS, (24,), generator=draw).repeat_interleave(1_000)
    met = torch.multinomial(shares[visits], 1, generator=draw)[:, 0]
    return Table((x[:13_000], labels[:13_000]), (x[13_000:], labels[13_000:]), (rows(visits, met), met))


def orders(x: Tensor, y: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Rows of a stream in other orders and shares."""
    draw = torch.Generator().manual_seed(0)
    yield "in order", torch.arange(len(x))
    some = torch.randperm(len(x), generator=draw)[:ROWS]
    widest = int(x[some].var(0).argsort(descending=True)[1])
    yield "sorted by class", some[y[some].argsort(stable=True)]
    yield "sorted by a column", some[x[some, widest].argsort(stable=True)]
    yield "group after group", some[clusters(x[some], draw).argsort(stable=True)]
    often = torch.where(y[some] == y[some].mode().values, 5.0, 1.0)
    yield "uneven labels", some[torch.multinomial(often, len(some) // 2, generator=draw)]


def clusters(x: Tensor, draw: torch.Generator, count: int = 6, rounds: int = 15) -> Tensor:
    """The cluster of each row, by k-means."""
    centres = x[torch.randperm(len(x), generator=draw)[:count]].clone()
    for _ in range(rounds):
        nearest = torch.cdist(x, centres).argmin(1)
        centres = torch.stack([x[nearest == at].mean(0) for at in nearest.unique().tolist()])
    return torch.cdist(x, centres).argmin(1)


def without_novelty(source: eq.SourceStatistics) -> eq.SourceStatistics:
    """The statistics without what is known about inputs."""
    kept = {name: t for name, t in source.tensors().items() if not name.startswith("source.inputs.")}
    return eq.SourceStatistics.from_parts(source.to_json(), kept)


def accuracy(answer: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of right answers to a stream."""
    with torch.no_grad():
        answers = torch.cat([answer(batch) for batch in x.split(BATCH)])
    return float((answers.argmax(1) == y).double().mean())


def measured(name: str, table: Table) -> Iterator[dict[str, object]]:
    """A row for each order."""
    torch.manual_seed(0)
    model = mlp(table.train[0].shape[1], int(table.train[1].max()) + 1, "batch norm")
    train(model, *table.train, STEPS)
    source = eq.SourceStatistics.measure(model, table.held_out[0].split(BATCH), progress=False)
    adapters = {"without": eq.Poise(model, without_novelty(source), tempering="none")}
    adapters["with"] = eq.Poise(model, source, tempering="none")
    for order, at in orders(*table.stream):
        x, y = table.stream[0][at], table.stream[1][at]
        row: dict[str, object] = {"data": name, "order": order, "none": accuracy(model, x, y)}
        for kind, adapter in adapters.items():
            adapter.reset()
            row[kind] = accuracy(adapter, x, y)
        yield row


def main() -> None:
    """Measure all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tables", type=Path, help="folder of .npz files")
    parser.add_argument("out", type=Path, help="CSV file")
    given = parser.parse_args()
    tables = {path.stem: read(path) for path in sorted(given.tables.glob("*.npz"))}
    rows = [row for name, t in (tables | {"land_cover": land_cover()}).items() for row in measured(name, t)]
    pd.DataFrame(rows).to_csv(given.out, index=False, float_format="%.5f")
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
