"""RoTTA against formulas written out in tests/support/robust_teacher.py, and its traps."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import drifted, same, snapshot, step_of
from tests.support.robust_teacher import LEARNED, LIVELY, ByHand, assert_stream_is_exact, small_model, stream


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ([64, 64, 64], {}),
        ([4] * 6, LIVELY),
        ([10] * 4, {**LIVELY, "seed": 7}),  # two or three updates within a batch
        ([1, 5, 13, 2, 1], {**LIVELY, "every": 3, "capacity": 20}),
        ([1] * 6, {**LIVELY, "every": 1, "capacity": 3}),  # the first memory is of one sample
    ],
)
def test_a_stream_is_exact(sizes: list[int], options: dict[str, Any]) -> None:
    model = small_model()
    adapter, expected = eq.create("rotta", model, **options), ByHand(model, **options)
    assert_stream_is_exact(adapter, expected, sizes, rtol=1e-6, atol=1e-8)
    for name, value in expected.w.items():
        assert torch.equal(value, model.state_dict()[name]) != (name in LEARNED or "running" in name), name


def statistics_of(adapter: eq.Adapter) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in adapter.student.state_dict().items() if "running" in n}


def test_statistics_move_in_updates_alone_by_the_memory_as_it_came() -> None:
    adapter = eq.create("rotta", small_model(), **LIVELY)
    before = statistics_of(adapter)
    adapter(stream([3])[0])
    assert same(before, statistics_of(adapter))  # the teacher answers in eval mode
    seen: list[dict[str, Tensor]] = []
    adapter.student.register_forward_hook(lambda *_: seen.append(statistics_of(adapter)))
    adapter(stream([1])[0])
    # The answer, the teacher's labels of the memory, which alone move them, and the student's views.
    assert len(seen) == 3
    assert same(before, seen[0])
    assert not same(before, seen[2])
    assert same(seen[2], statistics_of(adapter))


def test_the_first_window_is_answered_by_the_source_model_and_then_by_the_teacher() -> None:
    model = small_model()
    adapter, x = eq.create("rotta", model, **{**LIVELY, "every": 8}), stream([8])[0]
    with torch.no_grad():
        assert torch.allclose(adapter(x), model(x))
        assert not torch.allclose(adapter.predict(x), model(x), rtol=1e-3)
        assert not torch.allclose(adapter.predict(x), adapter.student(x), rtol=1e-3)


@pytest.mark.parametrize("classes", [20, 200])
def test_with_more_classes_than_slots_new_classes_still_enter(classes: int) -> None:
    adapter = eq.create("rotta", small_model(classes=classes), capacity=8, every=1000)
    for x in stream([40, 40]):
        adapter(x)
    held = adapter.memory["classes"].tolist()
    recent = adapter.memory["ages"].max()
    assert len(set(held)) == 8
    assert recent < 80


def test_samples_until_the_next_update_are_the_reason_for_none() -> None:
    adapter = eq.create("rotta", small_model(), every=5)
    adapter(stream([3])[0])
    assert (step_of(adapter).updated, step_of(adapter).reason) == (False, "2 samples until the next update")


def test_one_class_only_is_learned_from() -> None:
    model = small_model()
    with torch.no_grad():
        model.get_parameter("4.bias")[2] = 50.0
    adapter = eq.create("rotta", model, every=4, capacity=10)
    adapter(stream([8])[0])
    assert (step_of(adapter).updated, step_of(adapter).used) == (
        True,
        2,
    )  # its share of ten slots for five classes
    assert all(tensor.isfinite().all() for tensor in snapshot(adapter).values())


def test_an_empty_memory_takes_no_step() -> None:
    class Overflowing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_model()

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x)
            return torch.where(x.amax((1, 2, 3)).unsqueeze(1) > 1e3, torch.nan, logits)

    adapter = eq.create("rotta", Overflowing(), every=2, capacity=4)
    before = snapshot(adapter)
    adapter(stream([2])[0] + 1e4)
    assert (step_of(adapter).updated, step_of(adapter).used) == (False, 0)
    assert step_of(adapter).reason == "the memory is empty: no sample has entered it"
    after = snapshot(adapter)
    assert same(before, {name: after[name] for name in before})


class Twice(nn.Module):
    """Uses one batch norm two times in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.norm(self.first(x)).relu()).flatten(1))
        return logits


def test_a_layer_that_is_used_twice_learns() -> None:
    adapter = eq.create("rotta", Twice().eval(), **LIVELY)
    adapter(drifted(4))
    assert step_of(adapter).updated
