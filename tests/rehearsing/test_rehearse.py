"""A rehearsal as a whole: what it changes, what it repeats, what it refuses, what it learns."""

import copy
import math
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.calibration.ridge import fit_ridge, left_out
from equipoise.errors import OptionError, RehearsalError
from equipoise.rehearsing.labelled import take
from tests.support.models import WithLogits
from tests.support.rehearsals import (
    CLASSES,
    GRID,
    held_out,
    plain_model,
    rehearsed,
    rows_of_features,
    samples,
    trained,
    window_of,
    window_rows,
)

Own = dict[str, Callable[[Any, torch.Generator], Any]]


def own_shifts() -> Own:
    """Eight changes without chance."""
    return {
        "half": lambda x, _: 0.5 * x,
        "double": lambda x, _: 2 * x,
        "turned": lambda x, _: x.flip(-1),
        "down": lambda x, _: x - 1,
        "up": lambda x, _: x + 1,
        "rolled": lambda x, _: x.roll(1, -1),
        "clipped": lambda x, _: x.clamp(-0.5, 0.5),
        "noisy": lambda x, draw: x + torch.randn(x.shape, generator=draw),
    }


def small(method: str = "source", **options: Any) -> eq.SourceStatistics:
    return eq.rehearse(plain_model(), [rows_of_features()], method=method, progress=False, **options)


def alike(left: eq.SourceStatistics, right: eq.SourceStatistics) -> bool:
    mine, other = left.tensors(), right.tensors()
    return (
        left.to_json() == right.to_json()
        and mine.keys() == other.keys()
        and all(torch.equal(mine[name], other[name]) for name in mine)
    )


def test_the_same_seed_gives_the_same_numbers() -> None:
    first = small("poise", shifts=8)
    torch.manual_seed(77)
    assert alike(first, small("poise", shifts=8))
    assert not alike(first, small("poise", shifts=8, seed=1))


def hooks_of(model: nn.Module) -> list[int]:
    return [
        len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
        for module in model.modules()
    ]


@pytest.mark.parametrize("method", ["poise", "tent", "sotta"])
def test_the_model_and_the_random_state_are_left_alone(method: str) -> None:
    model = trained()
    model.append(nn.Dropout(0.5))
    model[1].train()
    model[7].weight.requires_grad_(False)
    model[2].register_forward_hook(lambda *_: None)
    twin, hooks = copy.deepcopy(model), hooks_of(model)
    modes = [module.training for module in model.modules()]
    torch.manual_seed(5)
    states = torch.get_rng_state(), pickle.dumps(np.random.get_state()), random.getstate()
    loader = held_out(100)
    before = [x.clone() for x, _ in loader]
    eq.rehearse(model, loader, method=method, shifts=8, progress=False)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert pickle.dumps(np.random.get_state()) == states[1]
    assert random.getstate() == states[2]
    assert [module.training for module in model.modules()] == modes
    assert hooks_of(model) == hooks
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, twin.state_dict()[name])
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert mine.requires_grad == other.requires_grad
        assert mine.grad is None
    assert all(torch.equal(x, old) for (x, _), old in zip(loader, before, strict=True))


def test_several_methods_go_into_one_file(tmp_path: Path) -> None:
    source = rehearsed()
    assert set(source.rehearsals) == {"poise", "tent"}
    assert source.rehearsal is source.rehearsals["poise"]
    assert source.rehearsal_of("tent").method == "tent"
    assert source.rehearsals["tent"].models == 1
    assert source.rehearsals["poise"].models == 2
    source.save(tmp_path / "source.safetensors")
    again = eq.SourceStatistics.load(tmp_path / "source.safetensors")
    assert alike(source, again)
    assert again.rehearsals["poise"].runs == source.rehearsals["poise"].runs
    with pytest.raises(eq.errors.SourceError, match=r"no rehearsal of 'dec' .of poise, tent.*method='dec'"):
        again.rehearsal_of("dec")


def test_statistics_that_are_given_stay_as_they_are() -> None:
    model = trained()
    given = eq.SourceStatistics.measure(model, [samples(80, seed=8)[0]], progress=False)
    found = eq.rehearse(model, held_out(100), source=given, shifts=8, progress=False)
    assert (found.h0, found.kappa, found.num_samples) == (given.h0, given.kappa, 80)
    assert torch.equal(found.norm_limits, given.norm_limits)
    assert not given.rehearsals
    measured = eq.rehearse(model, held_out(100), shifts=8, progress=False)
    assert measured.num_samples == 100


def test_keyword_inputs() -> None:
    model = WithLogits(nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES)))
    x, y = samples(120, seed=1)
    found = eq.rehearse(model, [({"pixel_values": x}, y)], shifts=8, check_held_out=False, progress=False)
    adapter = eq.Poise(model, found)
    assert adapter(pixel_values=x[:20]).shape == (20, CLASSES)
    assert len(found.rehearsal.runs) == 12


class Tokens(nn.Module):
    """A bag of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.head((self.words(ids) * mask.unsqueeze(2)).sum(1))
        return logits


def tokens() -> list[Any]:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(20, (120, 7), generator=draw)
    return [({"ids": ids, "mask": torch.ones(120, 7, dtype=torch.long)}, ids[:, 0] % 3)]


def test_tokens_need_shifts_of_ones_own() -> None:
    with pytest.raises(
        OptionError, match=r"no built-in shifts for these inputs .torch.int64 .7.*pass your own"
    ):
        eq.rehearse(Tokens(), tokens(), progress=False)
    with pytest.raises(OptionError, match="no built-in shifts"):
        eq.rehearse(nn.Embedding(20, 3), [(torch.arange(120) % 20, torch.arange(120) % 3)], progress=False)

    def dropped(place: int) -> Callable[[Any, torch.Generator], Any]:
        return lambda inputs, _: {**inputs, "ids": inputs["ids"].roll(place, 1).clamp(max=19 - place)}

    shifts = {f"drop {place}": dropped(place) for place in range(7)}
    found = eq.rehearse(Tokens(), tokens(), shifts=shifts, check_held_out=False, progress=False)
    assert {run.shift for run in found.rehearsal.runs} == {"none", *shifts}


@pytest.mark.parametrize("count", [8, 12])
def test_so_many_built_in_shifts_are_met(count: int) -> None:
    runs = small(shifts=count).rehearsal.runs
    shuffled, by_class = (
        [run.shift for run in runs if run.order == order] for order in ("shuffled", "sorted")
    )
    assert len(shuffled) == count
    assert shuffled[0] == "none"
    assert by_class == shuffled[::2]


def raising(_inputs: Tensor, _generator: torch.Generator) -> Tensor:
    raise ZeroDivisionError("no way")


BROKEN: dict[str, tuple[Callable[[Any, torch.Generator], Any], str]] = {
    "raises": (raising, "ZeroDivisionError: no way"),
    "narrows": (lambda x, _: x[:, :5], "of the shapes and types .* again"),
    "drops a row": (lambda x, _: x[1:], "of the shapes and types .* again"),
    "widens": (lambda x, _: x.double(), "of the shapes and types .* again"),
    "spoils": (lambda x, _: x / 0, "finite inputs, got some that are NaN"),
    "renames": (lambda x, _: {"x": x}, "failed: "),
    "returns nothing": (lambda x, _: None, "as they came, a tensor, got NoneType"),
    "returns numbers": (lambda x, _: x.tolist(), "as they came, a tensor, got list"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_shift_is_named(name: str) -> None:
    shift, message = BROKEN[name]
    model = plain_model()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        RehearsalError, match=f"the shift 'mine' failed: .*{message.removeprefix('failed: ')}"
    ):
        eq.rehearse(model, [rows_of_features()], shifts={**own_shifts(), "mine": shift}, progress=False)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


class Picky(nn.Module):
    """Refuses values that it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = plain_model()

    def forward(self, x: Tensor) -> Tensor:
        if float(x.abs().max()) > 50:
            raise RuntimeError("out of range")
        logits: Tensor = self.inner(x)
        return logits


def test_a_model_that_refuses_a_shift_is_told_which() -> None:
    shifts = {**own_shifts(), "far": lambda x, _: x + 100}
    with pytest.raises(RehearsalError, match="the shift 'far' failed: RuntimeError: out of range"):
        eq.rehearse(Picky(), [rows_of_features()], shifts=shifts, progress=False)


def test_a_shift_that_leaves_no_answer_is_told() -> None:
    class Fragile(Picky):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x)
            return torch.where(x.amax(1, keepdim=True) > 50, torch.nan, logits)

    shifts = {**own_shifts(), "far": lambda x, _: x + 100}
    for method in ("source", "poise"):
        with pytest.raises(RehearsalError, match="the shift 'far' left no sample with a finite answer"):
            eq.rehearse(Fragile(), [rows_of_features()], method=method, shifts=shifts, progress=False)


def test_stopping_it_says_what_became_of_it() -> None:
    def stopping(_inputs: Tensor, _generator: torch.Generator) -> Tensor:
        raise KeyboardInterrupt

    model = plain_model()
    before = copy.deepcopy(model.state_dict())
    shifts: Own = {"one": lambda x, _: x, **own_shifts(), "stop": stopping}
    with pytest.raises(KeyboardInterrupt, match="stopped after 10 of 17 streams: nothing was kept"):
        eq.rehearse(model, [rows_of_features()], shifts=shifts, progress=False)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_a_shift_may_write_into_its_inputs() -> None:
    x, y = rows_of_features()
    before = x.clone()
    shifts: Own = {**own_shifts(), "in place": lambda x, _: x.add_(1)}
    written = eq.rehearse(plain_model(), [(x, y)], method="source", shifts=shifts, progress=False)
    assert torch.equal(x, before)
    shifts["in place"] = lambda x, _: x + 1
    plain = eq.rehearse(plain_model(), [(x, y)], method="source", shifts=shifts, progress=False)
    assert alike(written, plain)


def test_every_stream_starts_from_the_source_model() -> None:
    shifts: Own = {**own_shifts(), "again": own_shifts()["half"]}
    for method in ("tent", "poise"):
        made = eq.rehearse(trained(), held_out(100), method=method, shifts=shifts, progress=False).rehearsal
        runs = {run.shift: run for run in made.runs if run.order == "shuffled"}
        assert runs["again"].accuracy == runs["half"].accuracy
        assert runs["again"].confidence == runs["half"].confidence


def test_options_are_those_that_it_was_rehearsed_with() -> None:
    found = small("tent", shifts=8, learning_rate=0.01, parameters="all")
    assert found.rehearsals["tent"].options["learning_rate"] == 0.01
    assert "tempering" not in found.rehearsals["tent"].options
    assert (found.rehearsal.samples, found.rehearsal.batch_size, found.rehearsal.seed) == (120, 50, 0)


def test_it_shows_progress(capsys: pytest.CaptureFixture[str]) -> None:
    eq.rehearse(plain_model(), [rows_of_features()], method="source", shifts=8)
    shown = capsys.readouterr().err
    assert "rehearsing source" in shown


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "memo")) for name in eq.list_methods()],
)
def test_every_method_can_be_rehearsed(method: str) -> None:
    model, loader = trained(), held_out(100)
    given = [x for x, _ in loader]
    source = eq.SourceStatistics.measure(model, given, fisher=True, features=True, progress=False)
    source = eq.rehearse(model, loader, method=method, source=source, shifts=8, progress=False)
    adapter = eq.create(method, model, source, tempering="rehearsed")
    answer = adapter(samples(20, seed=3)[0])
    assert bool(answer.isfinite().all())
    assert adapter.accuracy is not None
    assert 0 < adapter.accuracy.low <= adapter.accuracy.value <= adapter.accuracy.high < 1


# ------------------------------------------------ what is learned, for a model that never adapts


def stretch(
    x: Tensor, y: Tensor, shift: Callable[..., Any], model: nn.Module
) -> tuple[list[Tensor], list[float]]:
    """Windows after 250 and 300 samples and the share of right answers in each, sample by sample."""
    logits = torch.cat(
        [model(shift(part, torch.Generator().manual_seed(0))) for part in x.split(50)]
    ).detach()
    right = (logits.argmax(1) == y).tolist()
    windows, hits, each = [], [], window_rows(logits)
    for end in (250, 300):
        ages = [end - 50 * (row // 50 + 1) for row in range(end)]  # samples in later batches
        weights = [2 ** (-age / 300) for age in ages]
        windows.append((torch.tensor(weights).double().unsqueeze(1) * each[:end]).sum(0))
        hits.append(sum(w for w, r in zip(weights, right, strict=False) if r) / sum(weights))
    return windows, hits


def logit(share: float) -> float:
    inside = min(max(share, 1e-3), 1 - 1e-3)
    return math.log(inside / (1 - inside))


def plain_features(window: Tensor) -> list[float]:
    count, sure, square, nats = window[:4].tolist()
    c = sure / count
    q = (window[25:] / window[25:].sum()).tolist()
    balance = -sum(p * math.log(p) for p in q) / math.log(len(q))
    variance = square / count - c**2
    return [
        math.log(c / (1 - c)),
        math.log(nats / count / (1 - c)),
        math.log(variance / (c * (1 - c))),
        balance,
    ]


def temperature_at(window: Tensor, aim: float) -> float:
    curve = (window[4:25] / window[0]).tolist()
    for low in range(20):
        if curve[low] > aim >= curve[low + 1]:
            return float(GRID[low] * GRID[1] ** ((curve[low] - aim) / (curve[low] - curve[low + 1])))
    return 1.0 if curve[0] <= aim else 32.0


def test_what_is_learned_of_a_model_that_never_adapts() -> None:
    model, (x, y) = trained(), samples(300, seed=1, noise=2.0)
    # Streams in which confidence never jumps: windows do not start anew.
    found = eq.rehearse(model, [(x, y)], method="source", shifts=own_shifts(), progress=False)
    made = found.rehearsal
    order = _order(300)
    x, y = x[order], y[order]
    by_class = y.argsort(stable=True)
    shifts = {"none": lambda x, _: x, **own_shifts()}
    plan = [(name, "shuffled") for name in shifts] + [(name, "sorted") for name in list(shifts)[::2]]
    assert [(run.shift, run.order) for run in made.runs] == plan
    features, aims, groups, hottest, whole_windows = [], [], [], 0.0, []
    bins = torch.zeros(3, 15, dtype=torch.float64)
    for (name, order_name), run in zip(plan, made.runs, strict=True):
        rows = by_class if order_name == "sorted" else torch.arange(300)
        windows, hits = stretch(x[rows], y[rows], shifts[name], model)
        parts = x[rows].split(50)
        logits = torch.cat([model(shifts[name](p, torch.Generator().manual_seed(0))) for p in parts]).detach()
        assert run.accuracy == pytest.approx(float((logits.argmax(1) == y[rows]).double().mean()))
        assert run.confidence == pytest.approx(float(logits.softmax(1).amax(1).mean()), rel=1e-4)
        assert run.source_accuracy is None
        features += [plain_features(window) for window in windows]
        aims += [logit(share) for share in hits]
        groups += [name, name]
        whole_windows.append(window_of(logits))
        for sure, right in zip(logits.softmax(1).amax(1).tolist(), logits.argmax(1) == y[rows], strict=True):
            bins[:, math.ceil(sure * 15) - 1] += torch.tensor([1.0, sure, float(right)])
        hottest = max(hottest, temperature_at(whole_windows[-1], sum(hits) / 2))
    inputs, outputs = torch.tensor(features).double(), torch.tensor(aims).double()
    floors, halves = torch.tensor([0.3, 0.03, 0.1, 0.04]).double(), torch.full((len(aims),), 0.5).double()
    expected = fit_ridge(inputs, outputs, halves, groups, floors)
    for part, tensor in expected.tensors().items():
        torch.testing.assert_close(made.student.tensors()[part], tensor, rtol=2e-2, atol=2e-3, msg=part)
    alone = left_out(inputs, outputs, halves, groups, floors).sigmoid().tolist()
    for at, run in enumerate(made.runs):
        estimate = (alone[2 * at] + alone[2 * at + 1]) / 2
        assert run.estimate == pytest.approx(estimate, abs=2e-3)
        assert run.temperature == pytest.approx(temperature_at(whole_windows[at], run.estimate), rel=1e-3)
    assert made.hottest.tolist() == pytest.approx([hottest], rel=1e-3)
    torch.testing.assert_close(made.prior[0], whole_windows[0] / 300, rtol=1e-4, atol=1e-5)
    assert made.gap is None
    torch.testing.assert_close(made.bins[0], bins, rtol=1e-4, atol=1e-2)
    assert made.bins.shape == (2, 3, 15)
    assert float(made.bins[0, 0].sum()) == 300 * len(plan)
    accuracy = sum(run.accuracy for run in made.runs)
    assert float(made.bins[0, 2].sum()) == pytest.approx(300 * accuracy)
    assert float(made.bins[1, 2].sum()) == pytest.approx(300 * accuracy)
    assert float(made.bins[0, 1].sum()) == pytest.approx(
        300 * sum(run.confidence for run in made.runs), rel=1e-4
    )


def _order(rows: int) -> Tensor:
    """The order that samples are put in: the one thing taken from the library."""
    found = take([(torch.arange(rows).unsqueeze(1), torch.arange(rows) % 2)], 2000, 0, progress=False).inputs
    assert isinstance(found, Tensor)
    return found[:, 0]


def test_the_gap_to_the_source_model_is_learned_for_poise() -> None:
    made = rehearsed().rehearsal
    assert made.gap is not None
    assert made.gap.weights.shape == (8,)
    model = trained()
    for run in made.runs:
        assert run.source_accuracy is not None
        if run.shift == "none":
            x, y = (torch.cat(parts) for parts in zip(*held_out(), strict=True))
            right = float((model(x).argmax(1) == y).double().mean())
            assert run.source_accuracy == pytest.approx(right)
    own, theirs = made.estimates(made.prior * 300)
    assert theirs is not None
    clean = next(run for run in made.runs if run.shift == "none")
    assert own.value == pytest.approx(clean.accuracy, abs=0.15)
    assert theirs.value == pytest.approx(clean.source_accuracy, abs=0.15)
