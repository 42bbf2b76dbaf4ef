"""RoTTA's memory against lists of samples by class."""

import math

import pytest
import torch
from torch import Tensor

from equipoise.core.verdict import no_free_reads
from equipoise.methods.parts.robust_teacher import Offer, free_categories, join_memory, timeliness
from tests.support.category_memory import ListedCategories


def offered(
    classes: Tensor, nats: Tensor, numbers: Tensor, num_classes: int, good: Tensor | None = None
) -> Offer:
    every = torch.ones(len(classes), dtype=torch.bool)
    return Offer({"0": numbers}, classes, nats, every if good is None else good, num_classes)


def contents(stored: dict[str, Tensor]) -> list[tuple[int, int, int]]:
    """Class, sample and age of each slot that is taken."""
    columns = [stored[name].tolist() for name in ("classes", "samples.0", "ages")]
    return sorted(row for row in zip(*columns, strict=True) if row[0] >= 0)


@pytest.mark.parametrize("capacity", [1, 3, 16])
@pytest.mark.parametrize("classes", [2, 5, 40])
@pytest.mark.parametrize("free_reads", [True, False])
def test_a_stream_leaves_the_same_samples_as_lists_do(capacity: int, classes: int, free_reads: bool) -> None:
    generator = torch.Generator().manual_seed(capacity * classes)
    stored, listed = free_categories(capacity, torch.zeros(())), ListedCategories(capacity, classes)
    for start in range(0, 100, 10):
        labels = (torch.rand(10, generator=generator) ** 2 * classes).long()
        nats = torch.rand(10, generator=generator) * math.log(classes)
        inside = torch.rand(10, generator=generator) < 0.8
        numbers = torch.arange(start, start + 10)
        offer = offered(labels, nats, numbers, classes)
        if free_reads:
            stored |= join_memory(stored, offer, inside)
        else:
            with no_free_reads():
                stored |= join_memory(stored, offer, inside)
        for row in inside.nonzero().flatten().tolist():
            listed.offer(int(labels[row]), float(nats[row]), numbers[row])
        assert contents(stored) == sorted((k, int(item.sample), item.age) for k, item in listed.listed())


def filled_with(labels: list[int], classes: int, capacity: int, nats: float = 0.0) -> dict[str, Tensor]:
    stored = free_categories(capacity, torch.zeros(()))
    rows = torch.arange(len(labels))
    offer = offered(torch.tensor(labels), torch.full((len(labels),), nats), rows, classes)
    return {**stored, **join_memory(stored, offer, torch.ones(len(labels), dtype=torch.bool))}


def one(label: int, nats: float, classes: int) -> Offer:
    return offered(torch.tensor([label]), torch.tensor([nats]), torch.tensor([99]), classes)


ALWAYS = torch.ones(1, dtype=torch.bool)


def test_more_classes_than_slots_do_not_block_new_classes() -> None:
    stored = filled_with([0, 1, 2, 3], classes=100, capacity=4, nats=0.5)
    assert stored["classes"].tolist() == [0, 1, 2, 3]  # a quota of 4 / 100 counts as 1
    stored |= join_memory(stored, one(50, 0.1, 100), ALWAYS)
    assert stored["classes"].tolist() == [50, 1, 2, 3]  # the oldest of all classes gave way
    stored |= join_memory(stored, one(50, 0.0, 100), ALWAYS)
    assert sorted(stored["classes"].tolist()) == [1, 2, 3, 50]  # no second sample of a class


def test_a_sample_over_the_quota_replaces_one_of_its_own_class_though_slots_are_free() -> None:
    stored = filled_with([0, 0, 0], classes=4, capacity=8)  # two samples for each class
    assert stored["classes"].tolist()[:3] == [0, 0, -1]
    assert stored["samples.0"].tolist()[:2] == [2, 1]


def test_a_newcomer_of_the_highest_score_does_not_enter() -> None:
    stored = filled_with([0, 0, 1, 1], classes=2, capacity=4)
    after = {**stored, **join_memory(stored, one(0, math.log(2), 2), ALWAYS)}
    assert torch.equal(after["samples.0"], stored["samples.0"])
    assert after["ages"].tolist() == [age + 1 for age in stored["ages"].tolist()]


def test_samples_that_are_not_good_neither_enter_nor_age_the_others() -> None:
    stored = filled_with([0, 1], classes=2, capacity=4)
    bad = one(1, 0.1, 2)._replace(good=torch.zeros(1, dtype=torch.bool))
    after = {**stored, **join_memory(stored, bad, ALWAYS)}
    assert all(torch.equal(after[name], stored[name]) for name in stored)


def test_an_offer_changes_nothing_that_it_is_given() -> None:
    stored = filled_with([0, 1, 1], classes=2, capacity=4)
    before = {name: tensor.clone() for name, tensor in stored.items()}
    join_memory(stored, one(1, 0.1, 2), ALWAYS)
    assert all(torch.equal(stored[name], before[name]) for name in before)


def test_the_memory_does_not_depend_on_how_the_stream_is_cut_into_batches() -> None:
    labels, nats = torch.randint(3, (40,), generator=torch.Generator().manual_seed(1)), torch.rand(40)
    whole = join_memory(
        free_categories(7, torch.zeros(())),
        offered(labels, nats, torch.arange(40), 3),
        torch.ones(40, dtype=torch.bool),
    )
    single = free_categories(7, torch.zeros(()))
    for row in range(40):
        only = slice(row, row + 1)
        single |= join_memory(single, offered(labels[only], nats[only], torch.tensor([row]), 3), ALWAYS)
    assert all(torch.equal(whole[name], single[name]) for name in whole)


def test_weights_fall_with_age() -> None:
    stored = filled_with([0, 1], classes=2, capacity=4)
    expected = [math.exp(-age / 4) / (1 + math.exp(-age / 4)) for age in (2, 1)]
    assert timeliness(stored, whole=False).tolist() == pytest.approx(expected)
    assert timeliness(stored, whole=True).tolist() == pytest.approx([*expected, 0.5, 0.5])


def test_off_the_cpu_no_choice_waits_for_a_value() -> None:
    stored = {name: t.to("meta") for name, t in filled_with([0, 1], classes=2, capacity=4).items()}
    offer = Offer(
        {"0": torch.empty(3, dtype=torch.long, device="meta")},
        torch.empty(3, dtype=torch.long, device="meta"),
        torch.empty(3, device="meta"),
        torch.empty(3, dtype=torch.bool, device="meta"),
        2,
    )
    news = join_memory(stored, offer, torch.empty(3, dtype=torch.bool, device="meta"))
    assert {n: (t.shape, t.dtype) for n, t in news.items()} == {
        n: (t.shape, t.dtype) for n, t in stored.items()
    }
