"""The orders of a rehearsal: what is in each, by counting."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.adapter import Adapter
from equipoise.network.batch import leaves
from equipoise.rehearsal.labelled import Inputs, Labelled
from equipoise.rehearsal.passes import Pass, count_samples, plan_passes
from equipoise.rehearsal.shifts import NO_SHIFT
from tests.support.rehearsals import plain_model, rows_of_features

ROWS = 320


def names(count: int) -> list[str]:
    return [NO_SHIFT, *(f"shift {place}" for place in range(1, count))]


def table(rows: int = ROWS, classes: int = 4) -> Labelled:
    """A table of four columns, of which one is constant."""
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))
    x[:, 2] = 7.0
    return Labelled(x, torch.arange(rows) % classes)


def answers(rows: int, classes: int = 4) -> Tensor:
    """Probabilities of a model that is never sure."""
    return torch.rand(rows, classes, generator=torch.Generator().manual_seed(5)).softmax(1)


def plan(labelled: Labelled, count: int = 9, seed: int = 0, continual: bool = True) -> list[Pass]:
    return plan_passes(names(count), labelled, answers(len(labelled)), seed, continual)


def rows_of(passes: list[Pass], order: str) -> list[Tensor]:
    return [own.parts[0].rows for own in passes if own.order == order]


KINDS: dict[str, Inputs] = {
    "images": torch.rand(ROWS, 3, 8, 8, generator=torch.Generator().manual_seed(1)),
    "bytes": torch.randint(256, (ROWS, 3, 8, 8), dtype=torch.uint8),
    "tuple": (torch.randn(ROWS, 5), torch.randint(9, (ROWS, 3))),
    "dict": {"ids": torch.randint(99, (ROWS, 7)), "mask": torch.ones(ROWS, 7, dtype=torch.bool)},
    "integers": torch.randint(9, (ROWS, 6)),
    "flags": torch.rand(ROWS, 6) < 0.5,
    "column": torch.randn(ROWS),
    "half": torch.randn(ROWS, 6).half(),
    "steps": torch.randn(ROWS, 10, 3),
    "nothing varies": torch.ones(ROWS, 3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_pass_has_valid_rows(kind: str) -> None:
    labelled = Labelled(KINDS[kind], torch.arange(ROWS) % 4)
    passes = plan(labelled)
    for own in passes:
        for part in own.parts:
            assert part.shift in names(9)
            assert part.rows.dtype == torch.int64
            assert part.rows.device.type == "cpu"
            assert 0 <= int(part.rows.min()) <= int(part.rows.max()) < ROWS
            labelled.select(part.rows)
        if own.order in ("shuffled", "sorted", "bursts", "sorted by a value", "sorted by an answer"):
            (part,) = own.parts
            assert sorted(part.rows.tolist()) == list(range(ROWS))
        if own.order.split(" drawn")[0] in ("classes", "values", "answers"):
            assert len(own.parts[0].rows) == ROWS


def test_the_orders_of_each_shift() -> None:
    passes = plan(table())
    by_order: dict[str, list[str]] = {}
    for own in passes[:-1]:
        by_order.setdefault(own.order, []).append(own.shift)
        assert [part.shift for part in own.parts] == [own.shift]
    every = names(9)
    assert by_order.pop("shuffled") == every
    assert by_order.pop("sorted") == every[::2]
    assert list(by_order) == [
        "bursts",
        *(f"{what} drawn {number}" for what in ("classes", "values", "answers") for number in (1, 2, 3, 4)),
        "sorted by a value",
        "sorted by an answer",
    ]
    assert all(shifts == [NO_SHIFT] for shifts in by_order.values())


def test_a_shift_draws_other_numbers_in_every_order() -> None:
    seeds = [(own.shift, own.seed) for own in plan(table()) if own.shift != NO_SHIFT]
    assert len(set(seeds)) == len(seeds)


def test_samples_come_sorted_by_class() -> None:
    labelled = table()
    for rows in rows_of(plan(labelled), "sorted"):
        labels = labelled.labels[rows].tolist()
        assert labels == sorted(labels)


def bursts_of(labels: list[int]) -> list[list[int]]:
    """Labels cut into parts of 80."""
    return [labels[at : at + 80] for at in range(0, len(labels), 80)]


@pytest.mark.parametrize("seed", range(3))
def test_bursts_have_two_classes_at_most(seed: int) -> None:
    labelled = table(800, classes=10)  # 80 samples of each class: no burst ends before it is full
    (rows, *_) = rows_of(plan(labelled, seed=seed), "bursts")
    found = bursts_of(labelled.labels[rows].tolist())
    assert [len(burst) for burst in found] == [80] * 10
    for burst in found:
        assert len(set(burst)) <= 2
        assert burst != sorted(burst) or len(set(burst)) == 1  # the two are mixed
        assert set(Counter(burst).values()) <= {40, 80}
    assert len({tuple(sorted(set(burst))) for burst in found}) > 3


def test_bursts_have_all_rows_of_classes_of_other_sizes() -> None:
    labels = torch.tensor([0] * 200 + [1] * 3 + [5] * 90 + [7] * 41)
    labelled = Labelled(torch.randn(len(labels), 2), labels)
    (rows, *_) = rows_of(plan(labelled), "bursts")
    assert sorted(rows.tolist()) == list(range(len(labels)))


def shares(labels: Tensor, classes: int) -> list[float]:
    return sorted(float((labels == label).double().mean()) for label in range(classes))


@pytest.mark.parametrize("seed", range(3))
def test_classes_are_drawn_in_skewed_shares(seed: int) -> None:
    labelled = table(1000, classes=10)
    found = [
        shares(labelled.labels[own.parts[0].rows], 10)
        for own in plan(labelled, seed=seed)
        if own.order.startswith("classes drawn")
    ]
    assert len(found) == 4
    for own in found:
        assert own[-1] > 0.25  # ten times as even it would be .1
        assert own[2] < 0.03
    assert len({tuple(own) for own in found}) == 4


def test_values_are_drawn_more_often_from_one_end() -> None:
    x = torch.linspace(-1, 1, ROWS).unsqueeze(1)[torch.randperm(ROWS)]
    labelled = Labelled(x, torch.arange(ROWS) % 4)
    means = []
    for seed in range(6):
        passes = plan(labelled, seed=seed)
        means += [
            float(x[own.parts[0].rows].mean()) for own in passes if own.order.startswith("values drawn")
        ]
    # Density e^(4 u) for u from 0 to 1, or the other way round: the mean of 2 u - 1 is ±.537.
    assert all(abs(abs(mean) - 0.537) < 0.1 for mean in means)
    assert min(means) < 0 < max(means)


def test_a_constant_column_is_not_chosen() -> None:
    labelled = table()
    assert isinstance(labelled.inputs, Tensor)
    chosen = set()
    for seed in range(20):
        (rows,) = rows_of(plan(labelled, seed=seed), "sorted by a value")
        columns = [at for at in range(4) if at != 2 and bool((labelled.inputs[rows, at].diff() >= 0).all())]
        assert len(columns) == 1
        chosen |= set(columns)
    assert chosen == {0, 1, 3}


def test_an_input_that_never_varies_is_not_chosen() -> None:
    inputs: Inputs = {"mask": torch.ones(ROWS, 7, dtype=torch.int64), "ids": torch.randint(99, (ROWS, 7))}
    labelled = Labelled(inputs, torch.arange(ROWS) % 4)
    for seed in range(10):
        (rows,) = rows_of(plan(labelled, seed=seed), "sorted by a value")
        ids = leaves(inputs)["ids"][rows]
        assert any(bool((ids[:, at].diff() >= 0).all()) for at in range(7))


def test_images_are_sorted_by_their_mean() -> None:
    x = KINDS["images"]
    assert isinstance(x, Tensor)
    (rows,) = rows_of(plan(Labelled(x, torch.arange(ROWS) % 4)), "sorted by a value")
    means = x[rows].mean((1, 2, 3)).tolist()
    assert means == sorted(means)


@pytest.mark.parametrize("count", [8, 9, 10, 11, 16, 25])
@pytest.mark.parametrize("rows", [100, 320, 700])
@pytest.mark.parametrize("continual", [True, False])
def test_the_number_of_samples_is_that_of_the_plan(count: int, rows: int, continual: bool) -> None:
    passes = plan(table(rows), count, continual=continual)
    total = sum(len(part.rows) for own in passes for part in own.parts)
    assert count_samples(count, rows, continual) == total


def test_answers_are_sorted_and_drawn_by_the_probability_of_one_class() -> None:
    labelled = table(1000)
    told = answers(1000)
    passes = plan(labelled, continual=False)
    (rows,) = rows_of(passes, "sorted by an answer")
    assert sum(bool((told[rows, at].diff() >= 0).all()) for at in range(4)) == 1
    drawn = [own.parts[0].rows for own in passes if own.order.startswith("answers drawn")]
    for own in drawn:  # one class is drawn by rank, from .5 to .5 ± .27; the others hardly move
        ranks = told.argsort(0).argsort(0)[own].double().mean(0) / 1000
        assert float((ranks - 0.5).abs().max()) > 0.15


def test_only_a_method_that_learns_weights_goes_over_all_shifts_without_a_reset() -> None:
    assert plan(table(), continual=True)[-1].order == "continual"
    assert all(own.order != "continual" for own in plan(table(), continual=False))


def test_the_plan_is_that_of_the_seed() -> None:
    def flat(seed: int) -> list[Any]:
        return [
            (own.shift, own.order, own.seed, [(part.shift, part.rows.tolist()) for part in own.parts])
            for own in plan(table(), seed=seed)
        ]

    first = flat(3)
    torch.manual_seed(8)
    state = torch.get_rng_state()
    assert flat(3) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert flat(4) != first


def test_the_last_pass_has_300_samples_of_every_shift() -> None:
    for rows, each in ((700, 300), (120, 120)):
        last = plan(table(rows))[-1]
        assert last.order == "continual"
        assert [part.shift for part in last.parts] == names(9)
        assert all(len(part.rows) == len(set(part.rows.tolist())) == each for part in last.parts)
        assert len({tuple(part.rows.tolist()) for part in last.parts}) == 9


def test_the_last_pass_meets_every_shift_once_without_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    reset = Adapter.reset

    def noted(adapter: Adapter) -> None:
        events.append("reset")
        reset(adapter)

    def shift(name: str) -> Any:
        def changed(x: Tensor, _: torch.Generator) -> Tensor:
            if not events or events[-1] != name:
                events.append(name)
            return x + 0.1

        return changed

    monkeypatch.setattr(Adapter, "reset", noted)
    shifts = {name: shift(name) for name in names(9)[1:]}
    model = nn.Sequential(plain_model(), nn.LayerNorm(3))
    source = eq.rehearse(
        model, [rows_of_features()], method="tent", shifts=shifts, progress=False, check_held_out=False
    )
    passes = source.rehearsal.runs
    assert events.count("reset") == len(passes)
    assert passes[-1].order == "continual"
    last = len(events) - events[::-1].index("reset")
    assert events[last:] == list(shifts)  # after the one that changes nothing
