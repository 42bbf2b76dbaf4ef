"""Exchanges between processes that adapt as one, and the loss of one of them."""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import equipoise.distributed.ranks
from equipoise.distributed.ranks import Ranks
from equipoise.errors import RankError
from tests.support.processes import in_processes
from tests.support.waiting import HANG, wait_until


def exchanged() -> dict[str, Any]:
    """Everything that two ranks can do with each other in one process group, the failures last."""
    ranks = Ranks.found()
    first = ranks.rank == 0
    done: dict[str, Any] = {"size": ranks.size, "rank": ranks.rank, "alone": ranks.alone}
    done["unwanted"] = Ranks.found(wanted=False).size
    done["counts"] = ranks.counts(3 if first else 0)
    done["agree"] = [ranks.agree(True), ranks.agree(first), ranks.agree(False)]
    for dtype in (torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32):
        for width in (2, 20_000):  # within the first message, and in one of its own
            rows = (torch.arange(3 * width).reshape(3, width) % 2 + ranks.rank).to(dtype)
            rows = rows if first else rows[:0]
            joined = ranks.gather(rows, [3, 0])
            same = torch.equal(ranks.own(joined, [3, 0]), rows) and joined.dtype == dtype
            done[f"gather {dtype} {width}"] = [same, *joined.shape]
    done["one number a row"] = ranks.gather(torch.full((1 + ranks.rank,), torch.nan), [1, 2])
    for length in (2, 20_000):
        values = [
            torch.full((length,), 1.0 + ranks.rank),
            torch.full((2, 2), 60000.0, dtype=torch.float16),
            torch.full((3,), ranks.rank, dtype=torch.float64),
        ]
        done[f"average {length}"] = ranks.average(values)
        done[f"sums {length}"] = ranks.sums(values[0])
        done[f"kept {length}"] = values[0]
    done["integers"] = ranks.sums(torch.tensor([2**40, ranks.rank]))
    done["other classes"] = refused(lambda: ranks.gather(torch.ones(2, 10 if first else 5), [2, 2], "logits"))
    done["other rows"] = refused(lambda: ranks.gather(torch.ones(2, 3), [2, 2] if first else [3, 2]))
    done["other calls"] = refused(lambda: ranks.counts(1) if first else ranks.sums(torch.ones(9000)))
    done["failure"] = refused(lambda: failing(ranks))
    done["after all"] = ranks.counts(ranks.rank)
    return done


def refused(call: Any) -> str:
    try:
        call()
    except (RankError, ZeroDivisionError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def failing(ranks: Ranks) -> None:
    """An error on one rank, while the other has got further."""
    with ranks.together():
        ranks.sums(torch.ones(2))
        if ranks.rank == 1:
            raise ZeroDivisionError("in the model")
        ranks.gather(torch.ones(9, 9000), [9, 9])


@pytest.fixture(scope="module")
def pair() -> list[dict[str, Any]]:
    return in_processes(2, exchanged)


def test_who_is_there(pair: list[dict[str, Any]]) -> None:
    for rank, done in enumerate(pair):
        assert (done["size"], done["rank"], done["alone"], done["unwanted"]) == (2, rank, False, 1)
        assert done["counts"] == [3, 0]
        assert done["agree"] == [True, False, False]


def test_rows_of_all_in_order_of_rank(pair: list[dict[str, Any]]) -> None:
    for done in pair:
        gathers = {name: value for name, value in done.items() if name.startswith("gather")}
        assert len(gathers) == 10
        assert all(value == [True, 3, int(name.split()[-1])] for name, value in gathers.items())
        assert done["one number a row"].isnan().tolist() == [True] * 3


def test_averages_and_sums(pair: list[dict[str, Any]]) -> None:
    for rank, done in enumerate(pair):
        for length in (2, 20_000):
            single, half, double = done[f"average {length}"]
            assert single.tolist() == [1.5] * length
            assert half.dtype == torch.float16
            assert half.tolist() == [[60000.0] * 2] * 2  # the sum would be too large for half precision
            assert double.dtype == torch.float64
            assert double.tolist() == [0.5] * 3
            assert done[f"sums {length}"].tolist() == [3.0] * length
            assert done[f"kept {length}"].tolist() == [1.0 + rank] * length
        assert done["integers"].tolist() == [2**41, 1]


def test_ranks_that_send_different_things_get_an_error(pair: list[dict[str, Any]]) -> None:
    for done in pair:
        assert "logits of float32 10" in done["other classes"]
        assert "logits of float32 5" in done["other classes"]
        assert done["other rows"].startswith("RankError: expected the same of every rank")
        assert done["other calls"].startswith("RankError: expected the same of every rank")
        assert done["after all"] == [0, 1]  # and all are still in step


def test_an_error_of_one_rank_is_one_of_all(pair: list[dict[str, Any]]) -> None:
    assert pair[1]["failure"] == "ZeroDivisionError: in the model"
    assert pair[0]["failure"].startswith(
        "RankError: rank 1 failed: ZeroDivisionError: in the model; the adapter"
    )


def lost(how: str, mark: str) -> tuple[str, float, str]:
    """One rank dies, or sleeps until the other has given up, after the ranks have exchanged something."""
    ranks = Ranks.found()
    ranks.counts(1)
    equipoise.distributed.ranks.PATIENCE = timedelta(seconds=1 if how == "sleeps" else HANG)
    if "short" in how and dist.group.WORLD:
        dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout = timedelta(seconds=1)
    if ranks.rank == 1:
        if how == "dies":
            os._exit(3)
        wait_until(Path(mark).exists, "the other rank has given up")
    start = time.monotonic()
    told = refused(lambda: ranks.gather(torch.ones(2, 4), [2, 2], "logits"))
    took = time.monotonic() - start
    Path(mark).touch()
    return told, took, refused(lambda: ranks.counts(1))


@pytest.mark.parametrize("how", ["dies", "sleeps", "sleeps, and the group's timeout is short"])
def test_a_lost_rank_raises_and_never_hangs(how: str, tmp_path: Path) -> None:
    results = in_processes(2, lost, how, str(tmp_path / "mark"), dying=[1] if how == "dies" else [])
    told, took, afterwards = results[0]
    assert told.startswith("RankError: a rank was lost or fell behind while rank 0 of 2 exchanged logits")
    assert told.endswith("; the adapter is as before the batch")
    assert (0 if how == "dies" else 0.9) < took < HANG / 10
    assert afterwards.startswith("RankError: a rank was lost before")
    if how != "dies":  # the one that comes too late hears of it at once
        assert results[1][0].startswith("RankError: a rank was lost")
        assert results[1][1] < HANG / 10


def test_operations_of_one_rank_alone_return_their_arguments() -> None:
    ranks = Ranks.found()
    rows = torch.ones(2, 3, requires_grad=True)
    assert (ranks.size, ranks.rank, ranks.alone) == (1, 0, True)
    assert ranks.counts(2) == [2]
    assert ranks.gather(rows, [2]) is rows
    assert ranks.own(rows, [2]) is rows
    assert ranks.sums(rows) is rows
    assert ranks.average([rows])[0] is rows
    assert ranks.agree(True)
    assert not ranks.agree(False)
    with pytest.raises(ZeroDivisionError), ranks.together():
        raise ZeroDivisionError
