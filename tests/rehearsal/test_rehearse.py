"""A rehearsal as a whole: what it changes, what it repeats, what it refuses, what it learns."""

import copy
import math
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

import equipoise as eq
from equipoise.calibration import window
from equipoise.calibration.regression import Process, fit_process
from equipoise.errors import OptionError, RehearsalError, SourceError
from equipoise.rehearsal.labelled import Labelled, take
from equipoise.rehearsal.passes import plan_passes
from tests.support.models import WithLogits, drifted, make
from tests.support.models import rehearsed as rehearsed_by_hand
from tests.support.rehearsals import (
    CLASSES,
    alike,
    held_out,
    plain_model,
    plain_novelty,
    rehearsed,
    rows_of_features,
    samples,
    temperature_at,
    trained,
    window_of,
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
    assert adapter(pixel_values=x[:20]).logits.shape == (20, CLASSES)
    assert len(found.rehearsal.runs) == 8 + 4 + 1 + 3 * 4 + 2  # shuffled, sorted, bursts, drawn, by values


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


def test_finite_answers_with_too_large_a_norm_do_not_count() -> None:
    def some(x: Tensor, _: torch.Generator) -> Tensor:
        return torch.where(x[:, :1] > 1, 1e25 * x, x)

    (x, y), shifts = rows_of_features(), {**own_shifts(), "some": some}
    model = plain_model()
    assert bool(model(1e25 * x).isfinite().all())
    for method in ("source", "poise"):
        own = eq.rehearse(model, [(x, y)], method=method, shifts=shifts, progress=False).rehearsal
        assert all(bool(tensor.isfinite().all()) for tensor in own.tensors().values())
        (run,) = (run for run in own.runs if (run.shift, run.order) == ("some", "shuffled"))
        rest = x[:, 0] <= 1
        assert 0 < int(rest.sum()) < 120
        assert run.accuracy == pytest.approx(float((model(x[rest]).argmax(1) == y[rest]).double().mean()))
        far = {**own_shifts(), "far": lambda x, _: 1e25 * x}
        with pytest.raises(RehearsalError, match="the shift 'far' left no sample with a finite answer"):
            eq.rehearse(model, [(x, y)], method=method, shifts=far, progress=False)


def test_stopping_it_says_what_became_of_it() -> None:
    def stopping(_inputs: Tensor, _generator: torch.Generator) -> Tensor:
        raise KeyboardInterrupt

    model = plain_model()
    before = copy.deepcopy(model.state_dict())
    shifts: Own = {"one": lambda x, _: x, **own_shifts(), "stop": stopping}
    with pytest.raises(KeyboardInterrupt, match="stopped after 10 of 32 streams: nothing was kept"):
        eq.rehearse(model, [rows_of_features()], shifts=shifts, progress=False)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_an_interrupt_while_reading_has_a_message() -> None:
    def stopped() -> Iterator[tuple[Tensor, Tensor]]:
        yield held_out()[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="the rehearsal was stopped: nothing was kept"):
        eq.rehearse(trained(), stopped(), progress=False)


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
def test_every_method_is_rehearsed_with_what_it_needs(method: str) -> None:
    model, loader = trained(), held_out(100)
    source = eq.rehearse(model, loader, method=method, shifts=8, progress=False)
    adapter = eq.create(method, model, source, tempering="rehearsed")
    answer = adapter(samples(20, seed=3)[0])
    assert bool(answer.isfinite().all())
    assert adapter.accuracy is not None
    assert 0 < adapter.accuracy.low <= adapter.accuracy.value <= adapter.accuracy.high < 1


# ------------------------------------------------ adapters with a rehearsal


def test_options_that_were_not_rehearsed_are_found_when_poise_is_made() -> None:
    model, source = make()
    with pytest.raises(SourceError, match="rehearse it as it runs"):
        eq.Poise(model, rehearsed_by_hand(source, "poise"), norm_momentum=0.2)


def test_what_tempered_saves_can_be_loaded(tmp_path: Path) -> None:
    model, source = make()
    source = rehearsed_by_hand(source, "poise")
    tempered = eq.Tempered(eq.create("poise", model, source, tempering="none"), source, tempering="rehearsed")
    tempered(drifted(8))
    tempered.save(tmp_path / "state.safetensors")
    again = eq.load(tmp_path / "state.safetensors", model)
    assert torch.equal(again.predict(drifted(5)), tempered.predict(drifted(5)))
    assert tempered.accuracy == again.accuracy


def test_another_rehearsal_is_not_taken_for_the_one_of_a_state(tmp_path: Path) -> None:
    model, source = make()
    source = rehearsed_by_hand(source, "poise")
    adapter = eq.Poise(model, source)
    adapter(drifted(8))
    adapter.save(tmp_path / "state.safetensors")
    eq.load(tmp_path / "state.safetensors", model, source)
    other = replace(source, rehearsals={"poise": replace(source.rehearsal, seed=9)})
    with pytest.raises(SourceError, match="expected the rehearsal of 'poise'"):
        eq.load(tmp_path / "state.safetensors", model, other)


def test_a_failed_batch_is_in_no_estimate() -> None:
    model, source = make()
    adapter = eq.Poise(model, rehearsed_by_hand(source, "poise"))
    adapter(drifted(8))
    before = adapter.accuracy
    spoilt = drifted(8, 1)
    spoilt[2] = 1e30  # finite, and too large for a variance
    adapter(spoilt)
    assert adapter.last is not None
    assert "non-finite statistics" in adapter.last.reason
    assert adapter.last.accuracy == adapter.accuracy == before


def test_the_warning_is_for_the_callers_line() -> None:
    model, source = make()
    with pytest.warns(eq.errors.RehearsalWarning) as caught:
        eq.create("poise", model, source)
    assert caught[0].filename == __file__


# ------------------------------------------------ what is learned, for a model that never adapts


Answered = tuple[str, Tensor, list[bool], Tensor]


def answered(
    model: nn.Module, source: eq.SourceStatistics, data: Labelled, parts: Any, shifts: Own, seed: int
) -> list[Answered]:
    """The answers to each batch of a pass, its shift, whether they are right, and the inputs' novelty."""
    found = []
    for part in parts:
        for rows in part.rows.split(50):
            assert isinstance(data.inputs, Tensor)
            changed = shifts[part.shift](data.inputs[rows], torch.Generator().manual_seed(seed))
            logits = model(changed).detach()
            right = (logits.argmax(1) == data.labels[rows]).tolist()
            found.append((part.shift, logits, right, plain_novelty(source, changed)))
    return found


def snapshots(batches: list[Answered]) -> list[tuple[str, Tensor, float]]:
    """The shift, the window and the share of right answers in it, every 500 samples and at the end."""
    slow, fast, seen = torch.zeros(()), torch.zeros(()), 0
    found, total = [], sum(len(right) for _, _, right, _ in batches)
    for name, logits, right, new in batches:
        fresh = torch.cat([window_of(logits, new=new), torch.tensor([float(sum(right))])])
        slow = slow * 2 ** (-len(right) / 300) + fresh
        fast = fast * 2 ** (-len(right) / 50) + fresh
        mean = float(slow[1] / slow[0])
        deviation = math.sqrt(max(float(slow[2] / slow[0]) - mean**2, 1e-4))
        if abs(float(fast[1] / fast[0]) - mean) > 4 * deviation / math.sqrt(float(fast[0])):
            slow = fast
        before, seen = seen, seen + len(right)
        if seen // 500 > before // 500 or seen == total:
            found.append((name, slow[:-1], float(slow[-1] / slow[0])))
    return found


def logit(share: float) -> float:
    inside = min(max(share, 1e-3), 1 - 1e-3)
    return math.log(inside / (1 - inside))


def plain_features(window: Tensor) -> list[float]:
    count, sure, square, nats, norms, apart, new = window[:7].tolist()
    c = sure / count
    q = (window[36:] / window[36:].sum()).tolist()
    balance = -sum(p * math.log(p) for p in q) / math.log(len(q))
    variance = square / count - c**2
    return [
        math.log(c / (1 - c)),
        math.log(nats / count / (1 - c)),
        math.log(variance / (c * (1 - c))),
        balance,
        norms / count,
        logit(min(max(apart / count, 0.01), 0.99)),
        math.copysign(math.log(1 + abs(new / count) / 0.3), new),
    ]


def without_batch_norm() -> nn.Sequential:
    """The trained classifier, its batch norms folded into the layers before them."""
    layers: list[Any] = list(trained())
    conv, first, relu, flat, linear, second, other, head = layers
    return nn.Sequential(
        fuse_conv_bn_eval(conv, first), relu, flat, fuse_linear_bn_eval(linear, second), other, head
    )


NEVER_ADAPTS: dict[str, dict[str, Any]] = {
    "source": {},
    "tent": {"parameters": "all", "learning_rate": 0.0},  # learns weights: all shifts without a reset
}


@pytest.mark.parametrize("method", NEVER_ADAPTS)
def test_what_is_learned_of_a_model_that_never_adapts(method: str) -> None:
    model, (x, y) = without_batch_norm(), samples(200, seed=1, noise=2.0)
    options: dict[str, Any] = {"method": method, **NEVER_ADAPTS[method]}
    if method == "tent":  # measured on clearer images, so that all windows are new
        clearer = samples(400, seed=7, noise=1.5)[0]
        options["source"] = eq.SourceStatistics.measure(model, [clearer], progress=False)
    found = eq.rehearse(model, [(x, y)], shifts=own_shifts(), progress=False, **options)
    made, order = found.rehearsal, _order(200)
    data, shifts = Labelled(x[order], y[order]), {"none": lambda x, _: x, **own_shifts()}
    answers = torch.cat([model(part).detach().softmax(1) for part in x[order].split(50)])
    plan = plan_passes(list(shifts), data, answers, 0, method == "tent")
    assert ("continual" in {own.order for own in plan}) is (method == "tent")
    assert [(run.shift, run.order) for run in made.runs] == [(own.shift, own.order) for own in plan]
    features, aims, groups, counts, share = [], [], [], [], []
    wholes, sizes, right_at, unshifted = [], [], [], []
    bins = torch.zeros(3, 15, dtype=torch.float64)
    for own, run in zip(plan, made.runs, strict=True):
        batches = answered(model, found, data, own.parts, shifts, own.seed)
        logits = torch.cat([logits for _, logits, _, _ in batches])
        right = [flag for _, _, flags, _ in batches for flag in flags]
        novelty = torch.cat([new for *_, new in batches])
        assert run.accuracy == pytest.approx(sum(right) / len(right))
        assert run.confidence == pytest.approx(float(logits.softmax(1).amax(1).mean()), rel=1e-4)
        assert run.source_accuracy is None
        noted = snapshots(batches)
        assert len(noted) == (4 if own.order == "continual" else 1)
        for name, seen, hits in noted:
            features.append(plain_features(seen))
            aims.append(logit(hits))
            counts.append((float(seen[0]), hits))
            groups.append(name)
            share.append(1 / len(noted))
            unshifted += [float(seen[6] / seen[0])] * (name == "none")
        sizes.append(len(noted))
        wholes.append(window_of(logits, new=novelty))
        right_at.append(temperature_at(wholes[-1], run.accuracy))
        for sure, flag in zip(logits.softmax(1).amax(1).tolist(), right, strict=True):
            bins[:, math.ceil(sure * 15) - 1] += torch.tensor([1.0, sure, float(flag)])
    assert (plan[0].shift, plan[0].order) == ("none", "shuffled")
    clean = made.runs[0].accuracy
    expected = fit_process(
        torch.tensor(features).double(),
        torch.tensor(aims).double(),
        variance=torch.tensor([1 / (n * a * (1 - a) + 1) for n, a in counts]).double(),
        weight=torch.tensor(share).double(),
        shifts=groups,
        none="none",
        floors=torch.tensor([0.3, 0.03, 0.1, 0.04, 0.05, math.inf, 0.1]).double(),
        origin=torch.tensor(plain_features(wholes[0])).double(),
        exact=torch.tensor([logit(clean), 1 / (200 * clean * (1 - clean) + 1)]).double(),
    )
    assert_alike(made.student, expected)
    alone, at = expected.left_out().sigmoid().tolist(), 0
    for place, run in enumerate(made.runs):
        estimate = sum(alone[at : at + sizes[place]]) / sizes[place]
        at += sizes[place]
        assert run.estimate == pytest.approx(estimate, abs=2e-3)
        assert run.temperature == pytest.approx(temperature_at(wholes[place], run.estimate), rel=1e-3)
    assert made.coolest.tolist() == pytest.approx([min(1.0, *right_at)], rel=1e-3)
    assert made.hottest.tolist() == pytest.approx([max(1.0, *right_at)], rel=1e-3)
    torch.testing.assert_close(made.prior[0], wholes[0] / 200, rtol=1e-4, atol=1e-5)
    assert made.familiar == pytest.approx(max(0.2, float(np.quantile(unshifted, 0.9))), abs=1e-4)
    assert (made.familiar > 0.21) is (method == "tent")
    assert made.reach == 0
    both = (made.compared, made.source, made.lead, made.gap, made.disagreement)
    assert all(part is None for part in both)
    torch.testing.assert_close(made.bins[0], bins, rtol=1e-4, atol=1e-2)
    assert made.bins.shape == (2, 3, 15)
    total = [sum(len(part.rows) for part in own.parts) for own in plan]
    assert float(made.bins[0, 0].sum()) == sum(total)
    for place in range(2):
        hits = sum(size * run.accuracy for size, run in zip(total, made.runs, strict=True))
        assert float(made.bins[place, 2].sum()) == pytest.approx(hits)
    sure = sum(size * run.confidence for size, run in zip(total, made.runs, strict=True))
    assert float(made.bins[0, 1].sum()) == pytest.approx(sure, rel=1e-4)


def assert_alike(found: Process, expected: Process) -> None:
    """Fitted to the same rows, and with the same estimates at and between them."""
    for part, tensor in expected.tensors().items():
        torch.testing.assert_close(found.tensors()[part], tensor, rtol=5e-3, atol=2e-3, msg=part)
    x = expected.mean + 0.7 * torch.randn(20, 7, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(found(x), expected(x), rtol=1e-2, atol=1e-2)


def _order(rows: int) -> Tensor:
    """The order that samples are put in: the one thing taken from the library."""
    found = take([(torch.arange(rows).unsqueeze(1), torch.arange(rows) % 2)], 2000, 0, progress=False).inputs
    assert isinstance(found, Tensor)
    return found[:, 0]


def test_the_lead_of_the_source_model_is_learned_for_poise() -> None:
    made = rehearsed().rehearsal
    assert made.gap is not None
    assert made.lead is not None
    assert made.gap.weights.shape == made.lead.mean.shape == (14,)
    model = trained()
    clean = next(run for run in made.runs if (run.shift, run.order) == ("none", "shuffled"))
    x, y = (torch.cat(parts) for parts in zip(*held_out(), strict=True))
    assert clean.source_accuracy == pytest.approx(float((model(x).argmax(1) == y).double().mean()))
    assert all(run.source_accuracy is not None for run in made.runs)
    both = plain_features(made.prior[0]) + plain_features(made.prior[1])
    ahead = 0.2 * float(made.lead(torch.tensor(both).double()))
    assert clean.accuracy + ahead == pytest.approx(clean.source_accuracy, abs=0.005)
    assert made.disagreement is not None
    assert 0 <= made.disagreement <= 1


@pytest.mark.parametrize("method", ["poise", "tent"])
def test_where_nothing_shifted_the_estimate_is_the_accuracy_on_the_held_out_samples(method: str) -> None:
    made = rehearsed().rehearsals[method]
    clean = next(run for run in made.runs if (run.shift, run.order) == ("none", "shuffled"))
    own, theirs = made.estimates(made.prior * 300)
    assert own.value == pytest.approx(clean.accuracy, abs=0.01)
    assert own.inside
    assert own.low <= clean.accuracy <= own.high
    assert (theirs is None) is (method == "tent")
    if theirs is not None:
        assert theirs.value == pytest.approx(clean.source_accuracy, abs=0.01)
    alone, none = made.estimates(made.prior[:1] * 300)
    assert none is None
    assert alone.value == pytest.approx(clean.accuracy, abs=0.01)


def test_a_model_alone_is_estimated_without_a_disagreement() -> None:
    made = rehearsed().rehearsal
    place = ("confidence", "entropy ratio", "spread ratio", "class balance", "logit norm", "disagreement")
    assert (*place, "novelty") == window.FEATURES
    assert made.source is not None
    assert made.compared is not None
    assert made.lead is not None
    assert float(made.student.scale[5]) == float(made.source.scale[5]) == 0
    assert float(made.compared.scale[5]) > 0
    assert float(made.lead.scale[5]) > 0
    assert float(made.lead.scale[12]) == 0  # the disagreement is in it once
    assert bool((made.compared.scale > 0).all())
    others = [at for at in range(7) if at != 5]
    for part in (made.student, made.source):
        assert bool((part.scale[others] > 0).all())
    assert bool((made.lead.scale[[at + 7 for at in others]] > 0).all())


def test_the_rehearsed_disagreement_is_the_largest_of_windows_without_loss() -> None:
    made = rehearsed().rehearsal
    assert made.lead is not None
    assert made.compared is not None
    assert made.disagreement is not None
    # Windows by what the regressions were fitted to: the lead, and the logit of the disagreement.
    ahead = made.lead.targets[:-1]
    x = made.compared.rows[:-1] / made.compared.scale + made.compared.mean
    assert made.disagreement == pytest.approx(float(x[:, 5][ahead <= 0].max().sigmoid()), abs=1e-6)


def test_the_reach_is_how_far_the_weights_were_at_a_snapshot_at_most() -> None:
    model, (x, y), order = trained(), samples(120, seed=1), _order(120)
    made = eq.rehearse(model, [(x, y)], method="tent", shifts=own_shifts(), progress=False).rehearsal
    data, shifts = Labelled(x[order], y[order]), {"none": lambda x, _: x, **own_shifts()}
    answers = torch.cat([model(part).detach().softmax(1) for part in x[order].split(50)])
    adapter, found = eq.create("tent", model, tempering="none"), []
    for own in plan_passes(list(shifts), data, answers, 0, True):
        adapter.reset()
        seen, total = 0, sum(len(part.rows) for part in own.parts)
        for part in own.parts:
            for rows in part.rows.split(50):
                adapter(shifts[part.shift](x[order][rows], torch.Generator().manual_seed(own.seed)))
                before, seen = seen, seen + len(rows)
                if seen // 500 > before // 500 or seen == total:
                    pairs = [
                        (model.get_parameter(n).detach(), p.detach()) for n, p in adapter.learned.items()
                    ]
                    apart = math.fsum(float((p - start).square().sum()) for start, p in pairs)
                    found.append(
                        math.sqrt(apart / math.fsum(float(start.square().sum()) for start, _ in pairs))
                    )
    assert min(found) > 0
    assert made.reach == pytest.approx(max(found), rel=1e-3)
    again = eq.Rehearsal.from_parts(made.to_json(), made.tensors())
    assert (again.reach, again.familiar) == (made.reach, made.familiar)


def test_weights_that_came_back_within_a_stream_count_for_the_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    distances: list[float] = []
    options: dict[str, Any] = {"method": "tent", "shifts": own_shifts(), "progress": False}

    def far(_: eq.Adapter) -> float:
        distances.append(0.9 if len(distances) == most - 2 else 0.1)
        return distances[-1]

    monkeypatch.setattr(eq.Adapter, "weight_distance", property(far))
    most = 0
    assert eq.rehearse(trained(), held_out(100), **options).rehearsals["tent"].reach == 0.1
    most = len(distances)  # the last of them are of the continual pass
    distances.clear()
    assert eq.rehearse(trained(), held_out(100), **options).rehearsals["tent"].reach == 0.9
    assert distances[-2:] == [0.9, 0.1]


def test_a_method_that_learns_no_weights_has_no_reach() -> None:
    assert rehearsed().rehearsals["poise"].reach == 0
    assert rehearsed().rehearsals["tent"].reach > 0
