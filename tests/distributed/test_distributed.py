"""Several processes adapt as one: ranks with a part of each batch answer and learn as one with all of it."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.distributed import ranks as ranks_module
from equipoise.errors import RankError
from tests.support.cases import CASES, create, impossible
from tests.support.models import drifted, make
from tests.support.processes import in_processes
from tests.support.waiting import HANG, wait_until

SHARES = [(4, 4), (5, 3), (1, 7), (8, 8), (2, 1)]
"""Samples of each batch that the two ranks have."""

# Two are below, by their windows. CoTTA's first gradient is 0 but for rounding: Adam takes steps of that.
ON_ALL = [case for case in CASES if case not in ("tent, lively", "eata, lively", "cotta")]


def batches(bad: bool) -> list[Tensor]:
    found = [drifted(sum(shares), seed) for seed, shares in enumerate(SHARES)]
    if bad:  # one sample of the first rank, and all of the second's
        found[1][0] = torch.nan
        found[3][8:] = torch.inf
    return found


def shared(case: str, kind: str, bad: bool) -> tuple[list[Tensor], dict[str, Tensor], list[Any]]:
    """Answers, state and records of a rank that gets its part of each batch."""
    model, source = make(kind)
    rank = torch.distributed.get_rank()
    adapter = create(case, model, source, memory_format="contiguous")
    answers, used = [], []
    for x, shares in zip(batches(bad), SHARES, strict=True):
        answers.append(adapter(x.split(shares)[rank]))
        last = adapter.last
        used.append(None if last is None else (last.used, last.loss, last.temperature))
    return answers, dict(adapter.state_dict()), used


def both(case_kinds: list[tuple[str, str]], bad: bool) -> list[Any]:
    return [shared(case, kind, bad) for case, kind in case_kinds]


def assert_as_one(case_kinds: list[tuple[str, str]], bad: bool) -> None:
    """Two ranks against one process, for answers, state and records."""
    first, second = in_processes(2, both, case_kinds, bad)
    for place, (case, kind) in enumerate(case_kinds):
        model, source = make(kind)
        alone = create(case, model, source, memory_format="contiguous")
        (ours, state, told), (theirs, other, _) = first[place], second[place]
        for at, x in enumerate(batches(bad)):
            expected = alone(x)
            came = torch.cat([ours[at], theirs[at]])
            assert torch.allclose(came, expected, atol=1e-5, equal_nan=True), (case, kind, at)
            last = alone.last
            assert last is not None
            assert told[at][0] == last.used, (case, kind, at)
            same = (
                told[at][1] is None
                if last.loss is None
                else told[at][1] == pytest.approx(last.loss, rel=1e-4)
            )
            assert same, (case, kind, at)
        for name, tensor in alone.state_dict().items():
            assert torch.equal(state[name], other[name]), (case, kind, name)  # the ranks, bit for bit
            near = torch.allclose(state[name].double(), tensor.double(), atol=1e-5)
            # Biases before a batch norm have no gradient but rounding errors, and Adam takes steps of those.
            noise = case in ("dec, lively", "rmt") and kind == "batch_norm"
            assert near or noise or "optimizer" in name, (case, kind, name)


@pytest.mark.parametrize(
    "kind",
    ["batch_norm", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("norm_free", "layer_norm"))],
)
def test_two_ranks_adapt_as_one(kind: str) -> None:
    assert_as_one([(case, kind) for case in ON_ALL if not impossible(case, kind)], bad=False)


def test_bad_samples_are_left_out_of_the_whole_and_a_rank_may_have_none_left() -> None:
    cases = [
        "poise",
        "poise, rehearsed",
        "dec",
        "tent",
        "eta, lively",
        "t3a",
        "sotta, lively",
        "norm",
        "source, each tempered",
        "mean teacher",
    ]
    assert_as_one([(case, "batch_norm") for case in cases], bad=True)


def table(rows: int, seed: int, by: float = 0.0) -> Tensor:
    """Rows of a table whose columns have moved by so much."""
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed)) + by


def on_table() -> eq.Adapter:
    """Poise, which sees how new the rows of a table are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()
    source = eq.SourceStatistics.measure(model, [table(400, 1)], progress=False)
    return eq.create("poise", model, source, tempering="none")


def new_rows() -> list[tuple[Tensor, Tensor]]:
    """The rows of each rank, batch by batch: only those of the second are new."""
    return [(table(20, seed), table(30, 50 + seed, 1.5)) for seed in range(10, 15)]


def shared_table() -> tuple[list[Tensor], dict[str, Tensor]]:
    adapter, rank = on_table(), torch.distributed.get_rank()
    return [adapter(both[rank]) for both in new_rows()], dict(adapter.state_dict())


def test_what_is_new_is_a_share_of_the_rows_of_all_ranks() -> None:
    ours, theirs = in_processes(2, shared_table)
    alone = on_table()
    for at, both in enumerate(new_rows()):
        expected = alone(torch.cat(both))
        torch.testing.assert_close(torch.cat([ours[0][at], theirs[0][at]]), expected, atol=1e-5, rtol=1e-4)
    total, count = alone.memory["novelty"].tolist()
    assert 1 < total / count < 2
    for name, tensor in alone.state_dict().items():
        assert torch.equal(ours[1][name], theirs[1][name]), name
        torch.testing.assert_close(ours[1][name], tensor, atol=1e-5, rtol=1e-4, msg=name)


def apart() -> list[Tensor]:
    """Each rank for itself, if that is wanted."""
    model, source = make()
    adapter = eq.create("tent", model, source, distributed=False)
    return [adapter(drifted(4, torch.distributed.get_rank())) for _ in range(2)]


def test_ranks_that_want_to_be_alone_are() -> None:
    for rank, answers in enumerate(in_processes(2, apart)):
        model, source = make()
        adapter = eq.create("tent", model, source)
        assert all(torch.equal(adapter(drifted(4, rank)), answer) for answer in answers)


class Failing(nn.Module):
    """Raises on the second rank when `now` is set."""

    now = False

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        if Failing.now and torch.distributed.get_rank() == 1:
            raise ValueError("the model's own words")
        logits: Tensor = self.inner(x)
        return logits


def one_fails() -> tuple[str, bool, Tensor]:
    inner, _ = make()
    model = Failing(inner)
    adapter = eq.create("tent", model)
    adapter(drifted(4, 0))
    before = adapter.state_dict()
    Failing.now = True
    try:
        adapter(drifted(4, 1))
        said = "nothing"
    except (RankError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
    Failing.now = False
    after = adapter.state_dict()
    same = all(torch.equal(before[name], after[name]) for name in before)
    return said, same, adapter(drifted(4, 2))  # and they go on


def test_an_error_on_one_rank_is_one_on_all_and_nothing_changes() -> None:
    (first, same, _), (second, also, _) = in_processes(2, one_fails)
    assert first.startswith("RankError") and "the model's own words" in first
    assert second == "ValueError: the model's own words"
    assert same and also


def no_agreement() -> list[bool]:
    """Lose the other ranks before the student's logits are gathered, when gradients are, and after a step."""
    same = []
    for lost, place in (("gather", 3), ("average", 1), ("agree", 1)):
        model, source = make()
        adapter = eq.create("dec", model, source, learning_rate=0.1)
        adapter(drifted(4, 0))
        before = adapter.state_dict()
        ranks, calls = adapter.responder.student.ranks, [0]
        original = getattr(ranks, lost)

        def failing(*args: Any, at: list[int] = calls, call: Any = original, last: int = place) -> Any:
            at[0] += 1
            if at[0] == last:
                raise RankError("lost")
            return call(*args)

        vars(ranks)[lost] = failing
        with suppress(RankError):
            adapter(drifted(4, 1))
        vars(ranks).pop(lost)
        after = adapter.state_dict()
        same.append(calls[0] == place and all(torch.equal(before[name], after[name]) for name in before))
    return same


def test_a_rank_that_loses_the_others_late_is_as_before_the_batch() -> None:
    assert in_processes(2, no_agreement) == [[True] * 3] * 2


def one_gets_nothing() -> str:
    model, source = make()
    adapter = eq.create("tent", model, source)
    rows = 4 if torch.distributed.get_rank() == 0 else 0
    try:
        adapter(drifted(4, 0)[:rows])
    except Exception as error:
        return type(error).__name__
    return "nothing"


def test_an_empty_batch_on_one_rank_is_an_error_on_all() -> None:
    assert in_processes(2, one_gets_nothing) == ["RankError", "BatchError"]


def one_dies() -> tuple[str, float, bool]:
    model, source = make()
    adapter = eq.create("poise", model, source)
    adapter(drifted(4, 0))
    before = adapter.state_dict()
    if torch.distributed.get_rank() == 1:
        os._exit(1)
    start = time.monotonic()
    try:
        adapter(drifted(4, 1))
        said = "nothing"
    except RankError as error:
        said = str(error)
    after = adapter.state_dict()
    same = all(torch.equal(before[name], after[name]) for name in before)
    return said, time.monotonic() - start, same


def test_a_lost_rank_raises_and_never_hangs() -> None:
    said, seconds, same = in_processes(2, one_dies, dying=[1])[0]
    assert said != "nothing"
    assert seconds < HANG / 10
    assert same


def one_falls_behind(mark: str) -> str:
    model, source = make()
    adapter = eq.create("poise", model, source)
    adapter(drifted(4, 0))
    ranks_module.PATIENCE = type(ranks_module.PATIENCE)(seconds=1)
    if torch.distributed.get_rank() == 1:
        wait_until(Path(mark).exists, "the other rank has given up")
    try:
        adapter(drifted(4, 1))
    except RankError as error:
        return str(error)
    finally:
        Path(mark).touch()
    return "nothing"


def test_a_rank_that_falls_behind_raises_on_all(tmp_path: Path) -> None:
    assert "nothing" not in in_processes(2, one_falls_behind, str(tmp_path / "mark"))
