"""Labelled samples as a pair, a data set or a loader, and what is told of other forms."""

from collections import UserDict
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

import equipoise as eq
from equipoise.errors import RehearsalError
from equipoise.rehearsal.labelled import Labelled, take
from tests.support.rehearsals import plain_model, rows_of_features

X, Y = rows_of_features()


def read(held_out: Any, count: int = 2000, seed: int = 0) -> Labelled:
    return take(held_out, count, seed, progress=False)


def same(left: Labelled, right: Labelled) -> bool:
    mine, other = ([*leaves_of(each.inputs), each.labels] for each in (left, right))
    return len(mine) == len(other) and all(map(torch.equal, mine, other))


def leaves_of(inputs: Any) -> list[Tensor]:
    if isinstance(inputs, Tensor):
        return [inputs]
    return list(inputs.values() if isinstance(inputs, dict) else inputs)


@pytest.mark.parametrize(
    "labels", [Y, Y.int(), Y.numpy(), Y.tolist(), tuple(Y.tolist()), pd.Series(Y.numpy())]
)
@pytest.mark.parametrize("inputs", [X, (X, X + 1), {"x": X, "mask": X > 0}], ids=["one", "two", "named"])
def test_a_pair_is_one_batch(inputs: Any, labels: Any) -> None:
    expected = read([(inputs, Y)])
    assert same(read((inputs, labels)), expected)
    assert same(read([inputs, labels]), expected)


def test_two_batches_in_a_tuple_or_a_list_are_two_batches() -> None:
    batches = ((X[:60], Y[:60]), (X[60:], Y[60:]))
    expected = read(iter(batches))
    assert same(read(batches), expected)
    assert same(read(list(batches)), expected)
    assert same(read([list(batch) for batch in batches]), expected)
    named = tuple({"x": x, "labels": y} for x, y in batches)
    assert len(read(named)) == 120
    assert len(read(tuple(UserDict(batch) for batch in named))) == 120


def test_a_rehearsal_of_a_pair_and_a_recommendation() -> None:
    expected = eq.rehearse(plain_model(), [(X, Y)], method="source", shifts=8, progress=False)
    found = eq.rehearse(plain_model(), (X, Y), method="source", shifts=8, progress=False)
    assert torch.equal(found.rehearsal.student.weights, expected.rehearsal.student.weights)
    assert eq.recommend(plain_model(), (X, Y), methods=[], shifts=8, length=200, progress=False).table


class Rows(Dataset[Any]):
    """Items as data sets return them: a tensor and a number."""

    def __init__(self, rows: int = 400) -> None:
        self.rows, self.read = rows, list[int]()

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        self.read.append(place)
        return torch.full((6,), float(place)), place % 3


def test_a_data_set_is_read_in_as_many_places_as_needed() -> None:
    data = Rows()
    before = torch.get_rng_state()
    found = read(data, 150)
    assert torch.equal(before, torch.get_rng_state())
    assert len(found) == len(data.read) == len(set(data.read)) == 150
    assert min(data.read) < 50
    assert max(data.read) > 350
    assert isinstance(found.inputs, Tensor)
    assert torch.equal(found.inputs[:, 0].long() % 3, found.labels)
    assert same(found, read(Rows(), 150))
    assert not same(found, read(Rows(), 150, seed=1))


def test_a_tensor_data_set_is_taken_whole() -> None:
    found = read(TensorDataset(X, Y))
    assert isinstance(found.inputs, Tensor)
    rows = sorted(map(tuple, torch.cat([found.inputs, found.labels[:, None]], 1).tolist()))
    assert rows == sorted(map(tuple, torch.cat([X, Y[:, None]], 1).tolist()))
    data = TensorDataset(X, Y)
    source = eq.rehearse(plain_model(), data, method="source", shifts=8, progress=False)
    assert source.rehearsal.samples == 120


class Words(Rows):
    def __getitem__(self, place: int) -> Any:
        return object(), place % 3


class Growing(Rows):
    def __getitem__(self, place: int) -> Any:
        return torch.zeros(place), place % 3


NO_LABELS = r"\(inputs, labels\), got Tensor: a rehearsal needs labels.*\(x, y\)"
MULTI = (torch.rand(120, 5, generator=torch.Generator().manual_seed(0)) > 0.5).long()
FRAME = pd.DataFrame(X.numpy())
TOLD: dict[str, tuple[Any, str]] = {
    "inputs in an array": ((X.numpy(), Y.numpy()), r"torch\.from_numpy\(x\)"),
    "inputs in an array, by batches": ([(X.numpy(), Y.numpy())], r"torch\.from_numpy\(x\)"),
    "inputs in arrays": (((X.numpy(), X.numpy()), Y), r"torch\.from_numpy\(x\)"),
    "inputs in arrays by name": (({"input": X.numpy()}, Y), r"torch\.from_numpy\(x\)"),
    "inputs in a table": ((FRAME, Y), r"torch\.as_tensor\(x\.to_numpy\("),
    "a table": (FRAME, r"a pair \(x, y\).*got DataFrame.*torch\.as_tensor\("),
    "an array": (X.numpy(), r"a pair \(x, y\).*got ndarray.*torch\.from_numpy\("),
    "whole floats": ((X, Y.float()), r"float32 \(120,\): labels\.long\(\)"),
    "flags": ((X, Y > 0), r"bool \(120,\): labels\.long\(\)"),
    "a column": ((X, Y[:, None]), r"int64 \(120, 1\): labels\.squeeze\(1\)"),
    "one-hot rows": ((X, torch.eye(3)[Y]), r"float32 \(120, 3\): .*labels\.argmax\(1\)"),
    "several labels": ((X, MULTI), "one class for a sample, not for several labels or regression"),
    "targets of a regression": ((X, Y + 0.5), "one class for a sample, not for several labels or regr"),
    "targets that are missing": (
        (X, Y * torch.nan),
        "one class for a sample, not for several labels or regr",
    ),
    "one sample at a time": ([(x, y) for x, y in zip(X, Y, strict=True)], "put a data set into a DataLoader"),
    "fewer labels than inputs": ((X, Y[:100]), "a row of inputs for each of 100 labels"),
    "words": ((X, ["cat"] * 120), "whole numbers of shape .N,., got list"),
    "two batches without labels": ((X[:60], X[60:]), NO_LABELS),
    "batches without labels": ([X, X, X], NO_LABELS),
    "a gap in the inputs": ((torch.where(X > 2, torch.nan, X), Y), "fill in missing values as in production"),
    "a data set of other things": (Words(), "a transform to tensors"),
    "a data set of several shapes": (Growing(), "tensors of one shape"),
}


@pytest.mark.parametrize("name", TOLD)
def test_other_forms_are_refused_with_the_cure(name: str) -> None:
    held_out, message = TOLD[name]
    with pytest.raises(RehearsalError, match=message):
        eq.rehearse(plain_model(), held_out, shifts=8, progress=False)
