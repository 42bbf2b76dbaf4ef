from collections import Counter
from typing import Any, get_args

import pytest
import torch

from equipoise.data import Order, stream_order
from equipoise.errors import OptionError

LABELS = [torch.tensor([2, 0, 1, 0, 2] * 20), torch.tensor([1, 1, 0, 2, 3, 3, 0] * 10)]
SIZES = [len(labels) for labels in LABELS]
JOINED = torch.cat(LABELS)
ALONE = ("shuffled", "recorded")
"""Orders of one domain."""
DRAWN = [order for order in get_args(Order) if order != "recorded"]


def rows_of(order: Order, seed: int = 0) -> torch.Tensor:
    return stream_order(LABELS[:1] if order in ALONE else LABELS, order, seed)


def test_recorded_keeps_the_order_of_one_domain() -> None:
    assert rows_of("recorded", seed=3).tolist() == list(range(SIZES[0]))
    with pytest.raises(OptionError, match="one domain for the order 'recorded'"):
        stream_order(LABELS, "recorded", 0)


@pytest.mark.parametrize("order", DRAWN)
def test_every_row_comes_once_and_the_seed_decides(order: Order) -> None:
    rows = rows_of(order)
    assert rows.dtype == torch.int64
    assert sorted(rows.tolist()) == list(range(SIZES[0] if order == "shuffled" else sum(SIZES)))
    assert torch.equal(rows, rows_of(order))
    assert not torch.equal(rows, rows_of(order, seed=1))
    assert rows.tolist() != sorted(rows.tolist())


@pytest.mark.parametrize("order", get_args(Order))
def test_global_random_numbers_neither_matter_nor_change(order: Order) -> None:
    rows = rows_of(order)
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    assert torch.equal(rows, rows_of(order))
    assert torch.equal(before, torch.random.get_rng_state())


def test_sorted_is_class_after_class_and_random_within() -> None:
    rows = rows_of("sorted")
    labels = JOINED[rows].tolist()
    assert labels == sorted(labels)
    for label in range(4):
        mine = [row for row in rows.tolist() if JOINED[row] == label]
        assert mine != sorted(mine)
    # Both domains take turns within a class that both have.
    zeros = [row < SIZES[0] for row in rows.tolist() if JOINED[row] == 0]
    assert zeros != sorted(zeros)
    assert zeros != sorted(zeros, reverse=True)


def test_mixed_puts_domains_among_each_other() -> None:
    first_half = rows_of("mixed")[: sum(SIZES) // 2]
    share = float((first_half < SIZES[0]).float().mean())
    assert abs(share - SIZES[0] / sum(SIZES)) < 0.15


def test_sequence_is_one_domain_after_the_other() -> None:
    rows = rows_of("sequence").tolist()
    first, second = rows[: SIZES[0]], rows[SIZES[0] :]
    assert sorted(first) == list(range(SIZES[0]))
    assert sorted(second) == list(range(SIZES[0], sum(SIZES)))
    assert first != sorted(first)
    assert second != sorted(second)


def test_a_shuffle_is_fair() -> None:
    firsts = Counter(int(stream_order([torch.zeros(4)], "shuffled", seed)[0]) for seed in range(400))
    assert set(firsts) == {0, 1, 2, 3}
    assert min(firsts.values()) > 60


def test_what_is_not_there_is_refused() -> None:
    unknown: Any = "backwards"
    with pytest.raises(OptionError, match="expected one domain for the order 'shuffled', got 2"):
        stream_order(LABELS, "shuffled", 0)
    with pytest.raises(OptionError, match="expected at least one domain"):
        stream_order([], "mixed", 0)
    with pytest.raises(OptionError, match="expected order as one of shuffled, sorted, mixed, sequence"):
        stream_order(LABELS, unknown, 0)
