"""SoTTA's memory against a list that takes samples one by one, with the same random numbers."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from equipoise.core.state import HostRandom
from equipoise.methods.sotta import offer, replaced_slots, taken_slots, takers_by_tensors, takers_on_cpu
from tests.support.list_memory import ListMemory


def drawn(random: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
    """Random numbers of a shape, and the state of the generator after them."""
    host = HostRandom(0)
    host.state = random
    numbers = host.draw(shape)
    assert host.state is not None
    return numbers, host.state


def empty(capacity: int, seed: int = 0) -> dict[str, Tensor]:
    return {"classes": torch.full((capacity,), -1), "random": torch.Generator().manual_seed(seed).get_state()}


def offered_all(
    stored: dict[str, Tensor],
    samples: dict[str, Tensor],
    labels: Tensor,
    classes: int,
    sure: Tensor | None = None,
) -> dict[str, Tensor]:
    """The memory after a batch, with random numbers of its own."""
    draws, random = drawn(stored["random"], len(labels), classes + len(stored["classes"]))
    sure = torch.ones(len(labels), dtype=torch.bool) if sure is None else sure
    return {**stored, **offer(stored, samples, labels, sure, draws), "random": random}


def skewed(rows: int, classes: int, generator: torch.Generator) -> Tensor:
    """Classes of a stream in which each comes less often than the one before."""
    shares = (1.0 / torch.arange(1, classes + 1)).cumsum(0)
    return torch.searchsorted(shares, torch.rand(rows, generator=generator) * shares[-1])


@pytest.mark.parametrize("capacity", [1, 3, 64])
@pytest.mark.parametrize("classes", [2, 10, 200])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_long_stream_leaves_the_same_sample_in_every_slot(capacity: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(10 + seed)
    stored, expected = empty(capacity, seed), ListMemory(capacity, classes, seed)
    longest = 0
    for start in range(0, 4000, 200):
        rows = int(torch.randint(0, 2 * capacity + 5, (), generator=generator))
        longest = max(longest, rows)
        labels = skewed(rows, classes, generator)
        numbers = torch.arange(start, start + rows)
        pictures = torch.rand(rows, 2, 3, generator=generator)
        sure = torch.rand(rows, generator=generator) < 0.8
        stored = offered_all(stored, {"0": pictures, "number": numbers}, labels, classes, sure)
        for row in range(rows):
            sample = torch.cat([numbers[row, None], pictures[row].flatten()])
            expected.offer(int(labels[row]), sample, sure=bool(sure[row]))
        filled = len(expected.slots)
        assert stored["classes"].tolist() == [held for held, _ in expected.slots] + [-1] * (capacity - filled)
        for slot, (_, sample) in enumerate(expected.slots):
            assert stored["samples.number"][slot] == sample[0]
            assert torch.equal(stored["samples.0"][slot].flatten(), sample[1:])
    assert len(expected.slots) == capacity
    assert longest > capacity


@pytest.mark.parametrize("capacity", [1, 3, 64])
@pytest.mark.parametrize("classes", [2, 10, 200])
def test_replaced_slots_are_those_of_one_sample_after_another(capacity: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(capacity * classes)
    for rows in (0, 1, 2, capacity, 3 * capacity + 1):
        held, labels = skewed(capacity, classes, generator), skewed(rows, classes, generator)
        draws = torch.rand(rows, classes + capacity, generator=generator)
        memory = ListMemory(capacity, classes)
        memory.slots = [(int(label), torch.empty(0)) for label in held]
        expected = []
        for label, row in zip(labels.tolist(), draws.tolist(), strict=True):
            expected.append(memory.slot_for(label, row))
            memory.slots[expected[-1]] = (label, torch.empty(0))
        came = replaced_slots(held.numpy(), labels.numpy(), draws.numpy(), classes)
        assert came.tolist() == expected


def test_the_memory_does_not_depend_on_how_the_stream_is_cut_into_batches() -> None:
    labels = skewed(300, 5, torch.Generator().manual_seed(4))
    samples = torch.arange(300)
    sure = torch.rand(300, generator=torch.Generator().manual_seed(6)) < 0.7
    whole = offered_all(empty(8), {"0": samples}, labels, 5, sure)
    single = empty(8)
    for row in samples.split(1):
        single = offered_all(single, {"0": row}, labels[row], 5, sure[row])
    assert whole.keys() == single.keys()
    assert all(torch.equal(whole[name], single[name]) for name in whole)


def test_a_skewed_stream_ends_in_a_balanced_memory() -> None:
    labels, stored = skewed(1200, 4, torch.Generator().manual_seed(5)), empty(64)
    for rows in torch.arange(1200).split(100):
        stored = offered_all(stored, {"0": rows}, labels[rows], 4)
    assert Counter(stored["classes"].tolist()) == {0: 16, 1: 16, 2: 16, 3: 16}
    assert torch.equal(labels[stored["samples.0"]], stored["classes"])


@pytest.mark.parametrize(
    ("label", "places", "bound"),
    [
        (0, 10, 30.0),  # in the largest classes: one of its own; chi-square with 9 degrees of freedom
        (2, 20, 50.0),  # not in them: one of both; 19 degrees of freedom
        (3, 20, 50.0),  # not in the memory at all
    ],
)
def test_evictions_are_uniform(label: int, places: int, bound: float) -> None:
    held = torch.tensor([0] * 10 + [1] * 10 + [2] * 4)
    trials = 1200
    stored = {**empty(24), "classes": held}
    taken: Counter[int] = Counter()
    for _ in range(trials):
        news = offered_all(stored, {"0": torch.ones(1)}, torch.tensor([label]), 4)
        taken[int(news["samples.0"].argmax())] += 1
        stored["random"] = news["random"]
    assert set(taken) == set(range(places))
    mean = trials / places
    assert sum((count - mean) ** 2 / mean for count in taken.values()) < bound


def test_an_offer_changes_nothing_that_it_is_given() -> None:
    stored = offered_all(empty(3), {"0": torch.arange(5)}, torch.tensor([0, 1, 1, 0, 1]), 2)
    before = {name: tensor.clone() for name, tensor in stored.items()}
    offered_all(stored, {"0": torch.arange(10, 20)}, torch.ones(10, dtype=torch.long), 2)
    assert all(torch.equal(stored[name], before[name]) for name in before)


@pytest.mark.parametrize("rows", [0, 4])
def test_an_offer_of_nothing_makes_room(rows: int) -> None:
    pictures, labels = torch.ones(rows, 2, dtype=torch.uint8), torch.zeros(rows, dtype=torch.long)
    stored = offered_all(empty(3), {"0": pictures}, labels, 2, torch.zeros(rows, dtype=torch.bool))
    assert (stored["samples.0"].tolist(), stored["samples.0"].dtype) == ([[0, 0]] * 3, torch.uint8)
    assert stored["classes"].tolist() == [-1, -1, -1]


def test_the_number_of_draws_depends_on_the_shapes_alone() -> None:
    random = empty(3)["random"]
    before = random.clone()
    draws, after = drawn(random, 4, 5)
    expected = torch.Generator().manual_seed(0)
    assert torch.equal(draws, torch.rand(4, 5, generator=expected))
    assert torch.equal(after, expected.get_state())
    assert torch.equal(random, before)
    assert torch.equal(drawn(random, 0, 5)[1], random)


def a_case(capacity: int, classes: int, rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A memory filled to some part, a batch, which of it is offered, and draws, some of them equal."""
    generator = torch.Generator().manual_seed(seed)
    filled = (0, capacity // 2, capacity, capacity)[seed % 4]
    memory = torch.full((capacity,), -1)
    memory[:filled] = skewed(filled, classes, generator)
    offered = torch.rand(rows, generator=generator) < (1.0, 0.9, 0.3, 0.0)[seed // 5 % 4]
    draws = torch.rand(rows, classes + capacity, generator=generator)
    if seed % 3 == 0:
        draws = (draws * 4).floor() / 4
    return memory, skewed(rows, classes, generator), offered, draws


@pytest.mark.parametrize("choose", [takers_on_cpu, takers_by_tensors])
@pytest.mark.parametrize("capacity", [1, 2, 7, 64])
@pytest.mark.parametrize("classes", [2, 10, 200])
def test_slots_are_taken_as_by_one_sample_after_another(
    choose: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], capacity: int, classes: int
) -> None:
    for seed, rows in enumerate([1, 2, capacity, 2 * capacity + 3, 50] * 12):
        memory, labels, offered, draws = a_case(capacity, classes, rows, seed)
        expected, taker = ListMemory(capacity, classes), [-1] * capacity
        expected.slots = [(held, torch.empty(0)) for held in memory.tolist() if held >= 0]
        for row in offered.nonzero().flatten().tolist():
            taker[expected.take(int(labels[row]), torch.empty(0), draws[row].tolist())] = row
        given = [t.clone() for t in (memory, labels, offered, draws)]
        assert choose(memory, labels, offered, draws).tolist() == taker
        held, came = taken_slots(memory, labels, offered, draws)
        assert came.tolist() == taker
        assert held.tolist()[: len(expected.slots)] == [label for label, _ in expected.slots]
        assert held.tolist()[len(expected.slots) :] == [-1] * (capacity - len(expected.slots))
        assert all(map(torch.equal, given, (memory, labels, offered, draws)))


@pytest.mark.parametrize("rows", [0, 1, 30])
def test_off_the_cpu_no_choice_waits_for_a_value(rows: int) -> None:
    memory, labels, offered, draws = (t.to("meta") for t in a_case(8, 5, rows, seed=4))
    stored = {"classes": memory, "samples.0": torch.empty(8, 3, device="meta")}
    # Tensors without values: whatever asks for one, or for a shape that depends on one, raises.
    news = offer(stored, {"0": torch.empty(rows, 3, device="meta")}, labels, offered, draws)
    assert {name: (t.shape, t.dtype) for name, t in news.items()} == {
        name: (t.shape, t.dtype) for name, t in stored.items()
    }


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(("capacity", "classes", "rows"), [(64, 10, 200), (64, 200, 50), (5, 3, 30)])
def test_a_cuda_graph_takes_the_slots_that_the_cpu_takes(capacity: int, classes: int, rows: int) -> None:
    static = [t.cuda() for t in a_case(capacity, classes, rows, seed=0)]
    taken_slots(*static)  # what is made at the first use is not part of a graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        came = taken_slots(*static)
    for seed in range(20):
        case = a_case(capacity, classes, rows, seed)
        for held, value in zip(static, case, strict=True):
            held.copy_(value)
        graph.replay()
        assert all(torch.equal(a.cpu(), b) for a, b in zip(came, taken_slots(*case), strict=True))
