"""Batch statistics of several processes: every check is against one process with all the rows."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from equipoise.distributed.ranks import Ranks
from equipoise.network.normalisation import batch_statistics, pooled_batch, pooled_batch_norm, pooled_moments
from equipoise.network.running_statistics import following_statistics
from tests.support.processes import in_processes

MOMENTUM, STEPS = 0.3, 2


class WithActivation(nn.BatchNorm2d):
    """A batch norm that does more, as timm's do."""

    def forward(self, x: Tensor) -> Tensor:  # the name of the input is timm's, too
        y = functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.2, self.eps
        )
        return functional.silu(y)


def norm_free() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.Tanh(), nn.Linear(6, 4))


def with_norms() -> nn.Sequential:
    """Batch norms of every kind, one of them before all that learns, and an instance norm that is tracked."""
    return nn.Sequential(
        nn.BatchNorm2d(3, affine=False),
        nn.Conv2d(3, 4, 2),
        nn.BatchNorm2d(4),
        WithActivation(4),
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        nn.Conv2d(4, 4, 1),
        nn.SyncBatchNorm(4),
        nn.Flatten(2),
        nn.BatchNorm1d(4),
        nn.Tanh(),
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.Flatten(),
        nn.Linear(36, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Linear(6, 4),
    )


MODELS = {"norm_free": norm_free, "with_norms": with_norms}


def prepared(name: str, dtype: torch.dtype) -> nn.Sequential:
    """A model whose every number is its own."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODELS[name]()
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.data = tensor.data + 0.5 * torch.rand_like(tensor)
    return model.to(dtype).eval()


def images(rows: int, dtype: torch.dtype) -> Tensor:
    # Far from 0 and different by rank: sums of squares would lose digits, and means of means would be wrong.
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 3, 4, 4, generator=draw, dtype=torch.float64)
    return (x * torch.linspace(0.5, 2, rows)[:, None, None, None] + 5).to(dtype)


def objective(logits: Tensor, model: nn.Module) -> Tensor:
    """Not a sum over samples, and with a term of the weights alone."""
    p = logits.softmax(1)
    diversity = (p.mean(0) * p.mean(0).log()).sum()
    penalty = sum(((parameter - 0.1) ** 2).sum() for parameter in model.parameters())
    return -(p * p.log()).sum(1).mean() + diversity**2 + 0.01 * penalty


@contextmanager
def normalised(following: bool, model: nn.Module, ranks: Ranks, counts: list[int]) -> Iterator[None]:
    """The statistics of a forward as a student has them."""
    measure = partial(pooled_moments, ranks=ranks, counted=counts[ranks.rank] > 0)
    statistics: AbstractContextManager[object] = (
        following_statistics(model, MOMENTUM, measure)
        if following
        else batch_statistics(model, MOMENTUM, sum(counts))
    )
    with statistics, pooled_batch(model, ranks, counts):
        yield


def described(model: nn.Module, logits: Tensor, gradients: Sequence[Tensor]) -> dict[str, Tensor]:
    named = {name: gradient for (name, _), gradient in zip(model.named_parameters(), gradients, strict=True)}
    return {"logits": logits.detach(), **dict(model.named_buffers()), **named}


def adapted_by_ranks(name: str, dtype: torch.dtype, counts: list[int], following: bool) -> dict[str, Tensor]:
    ranks, model = Ranks.found(), prepared(name, dtype)
    mine = ranks.own(images(sum(counts), dtype), counts)
    given = mine if len(mine) else torch.full((1, 3, 4, 4), 9.0, dtype=dtype)  # a stand-in
    for _ in range(STEPS):
        with normalised(following, model, ranks, counts):
            logits = ranks.gather(model(given)[: len(mine)], counts, "logits")
    found = torch.autograd.grad(objective(logits, model), list(model.parameters()))
    return described(model, logits, ranks.average(found))


def adapted_alone(name: str, dtype: torch.dtype, rows: int, following: bool) -> dict[str, Tensor]:
    """By torch's own layers, in train mode."""
    model, x = prepared(name, dtype), images(rows, dtype)
    for layer in model.modules():
        if isinstance(layer, _NormBase) and not following:
            layer.train(rows > 1)
            layer.momentum = MOMENTUM
    for _ in range(STEPS):
        if following:
            with following_statistics(model, MOMENTUM):
                logits = model(x)
        else:
            logits = model(x)
    return described(model, logits, torch.autograd.grad(objective(logits, model), list(model.parameters())))


CASES: list[tuple[str, torch.dtype, list[int], bool]] = [
    ("norm_free", torch.float32, [6, 4], False),
    ("norm_free", torch.float64, [6, 4], False),
    ("with_norms", torch.float32, [6, 4], False),
    ("with_norms", torch.float64, [6, 4], False),
    ("with_norms", torch.float64, [1, 1], False),
    ("with_norms", torch.float64, [0, 5], False),
    ("with_norms", torch.float32, [7, 3], True),
    ("with_norms", torch.float64, [7, 3], True),
    ("with_norms", torch.float64, [3, 0], True),
    ("with_norms", torch.float64, [4, 0, 3], False),
    ("with_norms", torch.float64, [4, 0, 3], True),
]


def halved(ranks: Ranks) -> list[Tensor]:
    weight = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    x = ranks.own(images(10, torch.bfloat16), [6, 4]).requires_grad_()
    y = pooled_batch_norm(x, None, None, weight, None, 0.1, 1e-5, ranks)
    (dx,) = torch.autograd.grad(ranks.gather(y, [6, 4]).float().pow(3).sum(), [x])
    return [ranks.gather(y, [6, 4]).detach(), ranks.gather(dx, [6, 4]) / ranks.size]


def beside_a_stand_in(ranks: Ranks) -> list[Tensor]:
    """The answers, and the gradients of inputs and weight, where the second rank's numbers are NaN."""
    x, weight = images(6, torch.float64), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    if ranks.rank == 1:
        x = torch.full_like(x[:1], torch.nan)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    y = pooled_batch_norm(x, None, None, weight, None, 0.1, 1e-5, ranks, counted=ranks.rank == 0)
    return [y.detach(), *torch.autograd.grad(y[: 6 * (1 - ranks.rank)].pow(3).sum(), [x, weight])]


def one_row(ranks: Ranks) -> dict[str, Tensor]:
    model, x = prepared("with_norms", torch.float64)[1:10], images(2, torch.float64)[:1]
    with torch.no_grad(), normalised(False, model, ranks, [1, 0]):
        return {"logits": model(x), **dict(model.named_buffers())}


def pooled_by(size: int) -> dict[str, Any]:
    """Everything of `size` ranks in one process group."""
    done: dict[str, Any] = {}
    for index, case in enumerate(CASES):
        if len(case[2]) == size:
            done[f"case {index}"] = adapted_by_ranks(*case)
    if size == 2:
        ranks = Ranks.found()
        done |= {"half": halved(ranks), "stand-in": beside_a_stand_in(ranks), "one row": one_row(ranks)}
    return done


@pytest.fixture(scope="module")
def pair() -> list[dict[str, Any]]:
    return in_processes(2, pooled_by, 2)


@pytest.fixture(scope="module")
def trio() -> list[dict[str, Any]]:
    return in_processes(3, pooled_by, 3)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_ranks_learn_as_one(index: int, pair: list[dict[str, Any]], trio: list[dict[str, Any]]) -> None:
    name, dtype, counts, following = CASES[index]
    alone = adapted_alone(name, dtype, sum(counts), following)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6 if name == "norm_free" else 1e-5
    everyone = [done[f"case {index}"] for done in (pair if len(counts) == 2 else trio)]
    for found in everyone:
        assert found.keys() == alone.keys()
        for key, expected in alone.items():
            torch.testing.assert_close(found[key], expected, rtol=tolerance, atol=tolerance, msg=key)
            assert torch.equal(found[key], everyone[0][key]), key  # in step to the bit


def test_statistics_of_half_precision_are_in_single(pair: list[dict[str, Any]]) -> None:
    x = images(10, torch.bfloat16).float().requires_grad_()
    y = functional.batch_norm(x, None, None, training=True)
    (dx,) = torch.autograd.grad(y.pow(3).sum(), [x])
    for done in pair:
        found, gradient = done["half"]
        assert found.dtype == gradient.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), y.detach(), rtol=8e-3, atol=1e-3)
        torch.testing.assert_close(gradient.float(), dx, rtol=0.05, atol=0.1)


def test_a_stand_in_counts_for_nothing_whatever_its_numbers(pair: list[dict[str, Any]]) -> None:
    x, weight = images(6, torch.float64).requires_grad_(), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    y = functional.batch_norm(x, None, None, weight.requires_grad_(), training=True)
    alone = [y.detach(), *torch.autograd.grad(y.pow(3).sum(), [x, weight])]
    for found, expected in zip(pair[0]["stand-in"], alone, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert all(bool((gradient == 0).all()) for gradient in pair[1]["stand-in"][1:])


def test_one_row_on_all_ranks_is_normalised_by_the_running_statistics(pair: list[dict[str, Any]]) -> None:
    model, x = prepared("with_norms", torch.float64)[1:10], images(2, torch.float64)[:1]
    with torch.no_grad(), batch_statistics(model, MOMENTUM, 1):
        alone = {"logits": model(x), **dict(model.named_buffers())}
    for done in pair:
        for key, expected in alone.items():
            torch.testing.assert_close(done["one row"][key], expected, rtol=1e-12, atol=1e-12)


def test_alone_the_layers_are_torch_s_own() -> None:
    for following in (False, True):
        model, alone = (
            prepared("with_norms", torch.float64),
            adapted_alone("with_norms", torch.float64, 8, following),
        )
        for _ in range(STEPS):
            with normalised(following, model, Ranks.found(), [8]):
                logits = model(images(8, torch.float64))
        torch.testing.assert_close(logits, alone["logits"], rtol=0, atol=0)


def test_the_model_is_as_before_when_the_context_ends() -> None:
    model = prepared("with_norms", torch.float32)
    before = [(dict(vars(m)), m.training) for m in model.modules() if isinstance(m, _BatchNorm)]
    pretended = Ranks(size=2)
    for following in (False, True):
        with pytest.raises(KeyError), normalised(following, model, pretended, [4, 4]):
            raise KeyError
    assert [(dict(vars(m)), m.training) for m in model.modules() if isinstance(m, _BatchNorm)] == before
