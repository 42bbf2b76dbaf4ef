"""What a rehearsal takes from a pair, a data set or a loader, and what it refuses, with the cure."""

import math
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import equipoise as eq
from equipoise.errors import OptionError, RehearsalError, SourceError, UnknownMethodError
from equipoise.rehearsal import labelled
from equipoise.rehearsal.labelled import Labelled, take
from tests.support.models import CLASSES as OF_IMAGES
from tests.support.models import images, make
from tests.support.rehearsals import held_out, plain_model, rows_of_features, trained


def rows(count: int = 200) -> tuple[Tensor, Tensor]:
    """Inputs that say which row they are, sorted by class."""
    return torch.arange(count).float().unsqueeze(1).repeat(1, 6), torch.arange(count) * 3 // count


def spoilt(x: Tensor, value: float) -> Tensor:
    changed = x.clone()
    changed[7, 2] = value
    return changed


X, Y = rows_of_features()


class Rows(Dataset[Any]):
    """Items as data sets return them: a tensor and a number."""

    def __init__(self, rows: int = 400) -> None:
        self.rows, self.read = rows, list[int]()

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        self.read.append(place)
        return torch.full((6,), float(place)), place % 3


class Words(Rows):
    def __getitem__(self, place: int) -> Any:
        return object(), place % 3


class Growing(Rows):
    def __getitem__(self, place: int) -> Any:
        return torch.zeros(place), place % 3


WHOLE = r"whole numbers of shape \(N,\), got torch\."
NO_LABELS = r"\(inputs, labels\), got Tensor: a rehearsal needs labels.*\(x, y\)"
MULTI = (torch.rand(120, 5, generator=torch.Generator().manual_seed(0)) > 0.5).long()
FRAME = pd.DataFrame(X.numpy())

REFUSED: dict[str, tuple[Any, str]] = {
    "tuples without labels": ([(X,)], "got 1 of them: a rehearsal needs labels"),
    "a tensor": (X, "expected a loader"),
    "a dict": ({"x": X}, "expected a loader"),
    "a number": (3, "expected a loader"),
    "one class": ([(X, torch.ones(120, dtype=torch.long))], "at least two classes, got class 1 alone"),
    "ten images": ([(X[:10], Y[:10])], "at least 100 labelled samples.* got 10"),
    "labels that are too large": ([(X, Y + 1)], "labels from 0 to 2.* got 1 to 3"),
    "labels below zero": ([(X, Y - 1)], "labels from 0 to 2.* got -1 to 1"),
    "labels that are not there": ([(X, None)], "whole numbers of shape .N,., got NoneType"),
    "inputs in a list": ([([X, X], Y)], "inputs that the model takes, .input., got 2 positional"),
    "words as inputs": ([({"text": ["cat"] * 120}, Y)], "inputs as a tensor, or a tuple or dict of tensors"),
    "inputs that are not numbers": ([(spoilt(X, math.nan), Y)], "expected finite inputs"),
    "infinite inputs": ([(spoilt(X, math.inf), Y)], "expected finite inputs"),
    "inputs of two shapes": ([(X, Y), (X[:, :5], Y)], "inputs of one shape"),
    "inputs of two kinds": ([(X, Y), ({"input": X}, Y)], "inputs of one shape"),
    "inputs of another name": ([({"x": X}, Y)], "model takes, .input., got the keywords x"),
    "inputs without their labels": ([(X, Y), (X, Y[:0])], "a row of inputs for each of 0 labels"),
    "labels without their inputs": ([(X, Y), (X[:0], Y)], "at least one sample, got an empty batch"),
    "batches without samples": ([(X[:0], Y[:0])], "at least 100 labelled samples.* got 0"),
    "nothing": ([], "got 0 .an iterator already used up"),
    "an iterator that is used up": (iter([]), "got 0 .an iterator already used up"),
    "a dict without labels": ([{"values": X}], r"'labels'.*got a dict with values"),
    "a dict with labels twice": ([{"values": X, "labels": Y, "label": Y}], "one of 'labels' and 'label'"),
    "three things": ([(X, X, Y)], r"\(inputs, labels\), got 3 of them.*\(\(first, second\), labels\)"),
    "inputs in an array": ((X.numpy(), Y.numpy()), r"torch\.from_numpy\(x\)"),
    "inputs in an array, by batches": ([(X.numpy(), Y.numpy())], r"torch\.from_numpy\(x\)"),
    "inputs in arrays": (((X.numpy(), X.numpy()), Y), r"torch\.from_numpy\(x\)"),
    "inputs in arrays by name": (({"input": X.numpy()}, Y), r"torch\.from_numpy\(x\)"),
    "inputs in a table": ((FRAME, Y), r"torch\.as_tensor\(x\.to_numpy\("),
    "a table": (FRAME, r"a pair \(x, y\).*got DataFrame.*torch\.as_tensor\("),
    "an array": (X.numpy(), r"a pair \(x, y\).*got ndarray.*torch\.from_numpy\("),
    "whole floats": (
        (X, Y.float()),
        WHOLE + r"float32 \(120,\): labels\.long\(\)",
    ),
    "flags": ((X, Y > 0), WHOLE + r"bool \(120,\): labels\.long\(\)"),
    "a column": (
        (X, Y[:, None]),
        WHOLE + r"int64 \(120, 1\): labels\.squeeze\(1\)",
    ),
    "one-hot rows": ((X, torch.eye(3)[Y]), WHOLE + r"float32 \(120, 3\): .*labels\.argmax\(1\)"),
    "several labels": ((X, MULTI), "one class for a sample, not for several labels or regression"),
    "targets of a regression": ((X, Y + 0.5), "one class for a sample, not for several labels or regr"),
    "targets that are missing": (
        (X, Y * torch.nan),
        "one class for a sample, not for several labels or regr",
    ),
    "one sample at a time": ([(x, y) for x, y in zip(X, Y, strict=True)], "put a data set into a DataLoader"),
    "fewer labels than inputs": ([(X, Y[:100])], "a row of inputs for each of 100 labels"),
    "words": ((X, ["cat"] * 120), r"whole numbers of shape .N,., got list.*classes\.index\(name\)"),
    "a column of words": ((X, pd.Series(["cat"] * 120)), r"got Series.*classes\.index\(name\)"),
    "a path": ("folder", "expected a loader"),
    "two batches without labels": ((X[:60], X[60:]), NO_LABELS),
    "batches without labels": ([X, X, X], NO_LABELS),
    "a gap in the inputs": ((torch.where(X > 2, torch.nan, X), Y), "fill in missing values as in production"),
    "a data set of other things": (Words(), "a transform to tensors"),
    "a data set of several shapes": (Growing(), "tensors of one shape"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_learned_from_is_refused(name: str) -> None:
    loader, message = REFUSED[name]
    model = plain_model()
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    source = eq.SourceStatistics.measure(model, [X], progress=False)
    for given in (None, source):
        with pytest.raises(RehearsalError, match=message):
            eq.rehearse(model, loader, shifts=8, progress=False, source=given)
    assert not source.rehearsals
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"shifts": 7}, OptionError, "shifts >= 8, got 7"),
        ({"shifts": {"one": lambda x, _: x}}, OptionError, "at least 7 shifts, better 16, got 1"),
        ({"shifts": {str(n): n for n in range(9)}}, OptionError, "names to functions"),
        ({"method": "nobody"}, UnknownMethodError, "nobody"),
        ({"tempering": "mean"}, OptionError, "tempering is not an option of a rehearsal"),
        ({"engine": "eager"}, OptionError, "engine is not an option of a rehearsal"),
        ({"distributed": False}, OptionError, "distributed is not an option of a rehearsal"),
        ({"colour": 3}, OptionError, "poise has no option colour"),
        ({"samples": 99}, OptionError, "samples >= 100, got 99"),
        ({"samples": 0}, OptionError, "samples"),
        ({"batch_size": 0}, OptionError, "batch_size"),
        ({"seed": -1}, OptionError, "seed"),
    ],
)
def test_wrong_options_are_found_before_anything_is_read(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        eq.rehearse(plain_model(), _unread(), progress=False, **options)


def test_what_is_no_model_is_refused() -> None:
    model: Any = torch.relu
    with pytest.raises(eq.errors.ModelError):
        eq.rehearse(model, [(X, Y)], progress=False)


CALLS: list[Callable[..., Any]] = [eq.rehearse, eq.recommend]


@pytest.mark.parametrize("call", CALLS)
def test_statistics_of_another_model_are_refused_as_create_does_before_anything_is_read(
    call: Callable[..., Any],
) -> None:
    other = eq.SourceStatistics.measure(plain_model(), [X], progress=False)
    with pytest.raises(SourceError, match="measured on another model") as expected:
        eq.create("tent", trained(), other)
    with pytest.raises(SourceError) as found:
        call(trained(), _unread(), source=other, shifts=8, progress=False)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("source", [3, 0, {}])
def test_sources_that_are_no_statistics_are_refused_before_anything_is_read(
    call: Callable[..., Any], source: Any
) -> None:
    with pytest.raises(SourceError, match="expected source as SourceStatistics, or as the path"):
        call(plain_model(), _unread(), source=source, shifts=8, progress=False)


def _unread() -> Iterator[Any]:
    raise AssertionError("labelled data were read")
    yield


class Endless(IterableDataset[Any]):
    """Has no length, and no end."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(20):
            yield from zip(X, Y, strict=True)
        raise RuntimeError("read too far")


def endless() -> Iterator[Any]:
    for _ in range(20):
        yield X, Y
    raise RuntimeError("read too far")


def taken(loader: Iterable[Any], count: int, seed: int = 0) -> tuple[list[int], list[int]]:
    found = take(loader, count, seed, progress=False)
    assert isinstance(found.inputs, Tensor)
    return [int(v) for v in found.inputs[:, 0]], found.labels.tolist()


def test_a_sorted_loader_of_known_length_is_sampled_over_all_of_it() -> None:
    loader = DataLoader(TensorDataset(*rows(1200)), batch_size=50)
    places, labels = taken(loader, 300)
    assert len(set(places)) == 300
    assert labels == [place * 3 // 1200 for place in places]
    for part in range(12):  # 25 of each hundred, give or take
        assert 8 <= sum(100 * part <= place < 100 * (part + 1) for place in places) <= 42
    assert places != sorted(places)
    counts = [labels.count(label) for label in range(3)]
    assert min(counts) > 70


def test_every_sample_has_the_same_chance() -> None:
    x, y = rows(30)
    counts = torch.zeros(30)
    for seed in range(100):
        draw = torch.Generator().manual_seed(seed)
        reservoir = labelled._Reservoir(10)
        for part in ((x[:7], y[:7]), (x[7:], y[7:])):
            reservoir.add(labelled.Labelled(*part), draw)
        found = reservoir.result().inputs
        assert isinstance(found, Tensor)
        counts[found[:, 0].long()] += 1
    assert float(counts.sum()) == 1000
    assert float(counts.min()) >= 15  # 33 are expected, with a standard deviation of 5
    assert float(counts.max()) <= 52


@pytest.mark.parametrize(("count", "size"), [(100, 33), (150, 500), (499, 7)])
def test_choices_are_those_of_algorithm_r_by_the_seed(count: int, size: int) -> None:
    x, y = rows(500)
    loader = DataLoader(TensorDataset(x, y), batch_size=size)
    draw, chosen = torch.Generator().manual_seed(3), list(range(count))
    for number in range(count + 1, 501):
        place = int(torch.randint(number, (), generator=draw))
        if place < count:
            chosen[place] = number - 1
    expected = [chosen[place] for place in torch.randperm(count, generator=draw).tolist()]
    assert taken(loader, count, seed=3) == (expected, [int(y[row]) for row in expected])


def test_memory_is_for_the_samples_that_came_and_not_for_those_that_may_come() -> None:
    places, labels = taken(DataLoader(TensorDataset(*rows(200)), batch_size=30), 10**15)
    assert sorted(places) == list(range(200))
    assert labels == [place * 3 // 200 for place in places]


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("labels", [torch.zeros(0, dtype=torch.long), [], torch.zeros(0)])
def test_batches_without_samples_are_left_out(place: int, labels: Any) -> None:
    plain, model = [(X[:60], Y[:60]), (X[60:], Y[60:])], plain_model()
    with_empty = [*plain[:place], (X[:0], labels), *plain[place:]]
    expected, found = (take(loader, 110, 0, False, model) for loader in (plain, with_empty))
    assert isinstance(expected.inputs, Tensor)
    assert isinstance(found.inputs, Tensor)
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.labels, expected.labels)


def test_a_small_loader_is_taken_whole_in_random_order() -> None:
    places, _ = taken([rows(150)], 1000)
    assert sorted(places) == list(range(150))
    assert places != list(range(150))
    assert places == taken([rows(150)], 1000)[0]
    assert places != taken([rows(150)], 1000, seed=1)[0]


@pytest.mark.parametrize("loader", [endless(), DataLoader(Endless(), batch_size=20)])
def test_a_loader_without_a_length_is_read_until_there_are_enough(loader: Iterable[Any]) -> None:
    assert len(take(loader, 150, 0, progress=False)) == 150


def test_labels_may_be_lists_and_numbers_of_any_width() -> None:
    for labels in (Y.tolist(), Y.numpy(), Y.to(torch.int32), Y.to(torch.uint8)):
        found = take([(X, labels)], 500, 0, progress=False)
        assert found.labels.dtype == torch.int64
        assert sorted(found.labels.tolist()) == sorted(Y.tolist())


def test_keyword_inputs_stay_together() -> None:
    x, y = rows(120)
    found = take([({"a": x, "b": 2 * x, "note": "words"}, y)], 110, 0, progress=False)
    assert isinstance(found.inputs, dict)
    assert found.inputs.keys() == {"a", "b"}
    assert torch.equal(2 * found.inputs["a"], found.inputs["b"])
    assert len(found) == 110


def test_it_shows_progress(capsys: pytest.CaptureFixture[str]) -> None:
    take([(X, Y)], 200, 0, progress=True)
    assert "reading labelled samples" in capsys.readouterr().err


def test_samples_go_to_a_gpu_only_if_they_take_an_eighth_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = take([(X, Y)], 200, 0, progress=False)
    assert found.near(torch.device("cpu")) is found
    size = found.inputs.nbytes if isinstance(found.inputs, Tensor) else 0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 * size - 1, 8 * size))
    assert found.near(torch.device("cuda")) is found


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_a_rehearsal_is_the_same_with_its_samples_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model, loader = trained().cuda(), held_out(150)
    near = eq.rehearse(model, loader, shifts=8, progress=False).rehearsal
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, 0))
    far = eq.rehearse(model, loader, shifts=8, progress=False).rehearsal
    assert near.runs == far.runs
    assert torch.equal(near.student.weights, far.student.weights)


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


def test_a_loader_that_shuffles_does_so_by_the_seed_and_leaves_the_random_state_alone() -> None:
    model, source = make()
    data = TensorDataset(images(300, 5), torch.arange(300) % OF_IMAGES)
    loader = DataLoader(data, batch_size=50, shuffle=True)
    found = []
    for _ in range(2):
        before = torch.get_rng_state()
        given: dict[str, Any] = {"source": source, "check_held_out": False, "progress": False}
        made = eq.rehearse(model, loader, shifts=8, samples=100, **given)
        assert torch.equal(torch.get_rng_state(), before)
        found.append(made.rehearsal.student.weights)
        torch.rand(3)
    assert torch.equal(*found)
