"""Poise, and others, with the temperature of a rehearsal."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.errors import OptionError, RehearsalWarning, SourceError
from equipoise.testing.subject import unread_step
from tests.support.models import Counting, same, snapshot, step_of
from tests.support.rehearsals import (
    check_alike,
    flat,
    flat_gap,
    flat_lead,
    held_out,
    plain_novelty,
    rehearsed,
    samples,
    trained,
    window_of,
)


def stream(count: int, rows: int = 50, seed: int = 20) -> list[Tensor]:
    return [samples(rows, seed=seed + place)[0] for place in range(count)]


def estimating(
    value: float, source: float | None = None, gap: float | None = None, **others: Any
) -> eq.SourceStatistics:
    """The statistics of the trained model with estimates of one's own for poise, in logits, whatever comes.

    The source model is as much more accurate as its estimate says, by both regressions but for another `gap`.
    """
    theirs = value if source is None else source
    lead = 1 / (1 + math.exp(-theirs)) - 1 / (1 + math.exp(-value))
    own = rehearsed()
    made = replace(
        own.rehearsals["poise"],
        student=flat(value),
        compared=flat(value),
        source=flat(theirs),
        lead=flat_lead(lead),
        gap=flat_gap(theirs - value if gap is None else gap),
        disagreement=1.0,
        coolest=torch.full((2,), 0.25, dtype=torch.float64),
        hottest=torch.full((2,), 32.0, dtype=torch.float64),
    )
    return replace(own, rehearsals={**own.rehearsals, "poise": replace(made, **others)})


def ahead(amount: float) -> eq.SourceStatistics:
    """Those of a source model that is better, or worse, by so many logits, whatever comes."""
    return estimating(0.5, 0.5 + amount)


def observed(adapter: eq.Adapter) -> dict[str, Tensor]:
    """The observations of the temperature."""
    assert adapter.temper.rehearsed is not None
    return adapter.responder.state.temperature


# ---------------------------------------------------------------------- choosing it


def test_with_a_rehearsal_it_is_the_default() -> None:
    adapter = eq.Poise(trained(), rehearsed())
    assert adapter.options["tempering"] == "rehearsed"
    assert adapter.rehearsal is rehearsed().rehearsal
    adapter(stream(1)[0])
    assert step_of(adapter).accuracy is not None
    assert eq.create("poise", trained(), rehearsed()).options["tempering"] == "rehearsed"


def test_without_one_there_is_no_tempering_and_one_warning() -> None:
    bare = replace(rehearsed(), rehearsals={})
    with pytest.warns(
        RehearsalWarning, match=r"equipoise.rehearse\(model, held_out_loader, source"
    ) as caught:
        adapter = eq.Poise(trained(), bare)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert adapter.options["tempering"] == "none"
    assert adapter.rehearsal is None
    adapter(stream(1)[0])
    assert (adapter.accuracy, adapter.source_accuracy) == (None, None)
    assert (step_of(adapter).accuracy, step_of(adapter).temperature) == (None, None)
    with pytest.warns(RehearsalWarning) as caught:
        eq.create("poise", trained(), bare)
    assert len(caught) == 1


def test_tempering_that_was_chosen_does_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    bare = replace(rehearsed(), rehearsals={})
    for tempering in ("none", "mean"):
        eq.create("poise", trained(), bare, tempering=tempering)
    eq.create("poise", trained(), rehearsed(), tempering="none")
    assert not recwarn.list


@pytest.mark.parametrize("method", ["poise", "tent", "dec"])
def test_asking_for_it_without_a_rehearsal_shows_how_to_make_one(method: str) -> None:
    bare = replace(rehearsed(), rehearsals={"other": rehearsed().rehearsal})
    call = rf"equipoise\.rehearse\(model, held_out_loader, method='{method}', source=source\)"
    with pytest.raises(SourceError, match=rf"no rehearsal of '{method}' \(of other\).*{call}"):
        eq.create(method, trained(), bare, tempering="rehearsed")
    with pytest.raises(SourceError, match=r"rehearse|measure"):
        eq.create(method, trained(), tempering="rehearsed")


@pytest.mark.parametrize(("method", "options"), [("tent", {"learning_rate": 0.5}), ("tent", {"steps": 2})])
def test_other_options_than_those_rehearsed_are_refused(method: str, options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(
        SourceError, match=f"{method} was rehearsed with .*rehearse it as it runs.*{name}={value}"
    ):
        eq.create(method, trained(), rehearsed(), tempering="rehearsed", **options)


@pytest.mark.parametrize(
    "options", [{"falls_back": False}, {"source_copy": "swapped"}, {"precision": "bf16"}, {"engine": "eager"}]
)
def test_options_that_change_no_answer_need_no_rehearsal_of_their_own(options: dict[str, Any]) -> None:
    adapter = eq.create("poise", trained(), rehearsed(), **options)
    assert bool(adapter(stream(1)[0]).isfinite().all())


# ---------------------------------------------------------------------- accuracy


def test_accuracy_before_the_first_batch_is_that_of_source_data() -> None:
    adapter, made = eq.Poise(trained(), rehearsed()), rehearsed().rehearsal
    own, theirs = made.estimates(50 * made.prior)
    assert adapter.accuracy is not None
    assert adapter.accuracy.value == pytest.approx(own.value, rel=1e-5)
    assert adapter.source_accuracy is not None
    assert theirs is not None
    assert adapter.source_accuracy.value == pytest.approx(theirs.value, rel=1e-5)


def test_accuracy_follows_the_window() -> None:
    adapter, made = eq.Poise(trained(), rehearsed()), rehearsed().rehearsal
    model = trained()
    source_window = 50 * made.prior[1]
    for x in stream(4):
        answer = adapter(x)
        new = plain_novelty(rehearsed(), x)
        source_window = source_window * 2 ** (-50 / 300) + window_of(model(x), answer, new)
        assert step_of(adapter).accuracy == adapter.accuracy
        assert step_of(adapter).source_accuracy == adapter.source_accuracy
        assert step_of(adapter).answered_by == "student"
        torch.testing.assert_close(
            observed(adapter)["windows"][1, 0].double(), source_window, rtol=1e-3, atol=1e-3
        )
    assert adapter.accuracy is not None
    check_alike(adapter.accuracy, made.estimates(observed(adapter)["windows"][:, 0])[0])
    right = torch.cat([adapter.predict(x).argmax(1) == y for x, y in held_out()]).double().mean()
    assert adapter.accuracy.low < float(right) < adapter.accuracy.high


def test_answers_are_divided_by_the_temperature_of_the_window() -> None:
    adapter, plain = eq.Poise(trained(), rehearsed()), eq.Poise(trained(), rehearsed(), tempering="none")
    for x in stream(3):
        found, raw = adapter(x), plain(x)
        temperature = adapter.temperature
        assert step_of(adapter).temperature == pytest.approx(temperature)
        torch.testing.assert_close(found * temperature, raw)
        torch.testing.assert_close(adapter.predict(x) * temperature, plain.predict(x))


def test_a_doubtful_model_is_sharpened_unless_t_min_says_otherwise(tmp_path: Path) -> None:
    source = estimating(4.0)  # nearly every answer is right
    adapter, held = eq.Poise(trained(), source), eq.Poise(trained(), source, t_min=1.0)
    for seed in (20, 21):
        noisy, _ = samples(200, seed=seed, noise=4.0)
        answer, kept = adapter(noisy), held(noisy)
    assert 0.25 <= adapter.temperature < 0.9
    assert float(answer.softmax(1).amax(1).mean()) == pytest.approx(0.982, abs=0.02)
    assert held.temperature == 1.0
    torch.testing.assert_close(answer * adapter.temperature, kept)
    assert (adapter.options["t_min"], held.options["t_min"], held.options["t_max"]) == (None, 1.0, None)
    held.save(tmp_path / "state.safetensors")
    again = eq.load(tmp_path / "state.safetensors", trained())
    assert again.options == held.options
    assert again.temperature == 1.0


@pytest.mark.parametrize("options", [{"t_min": 0.1}, {"t_max": 40.0}, {"t_min": 3.0, "t_max": 2.0}])
def test_a_range_of_rehearsed_temperatures_is_within_those_that_are_searched(
    options: dict[str, float],
) -> None:
    with pytest.raises(OptionError, match=r"expected 0\.25 <= t_min <= t_max <= 32"):
        eq.Poise(trained(), rehearsed(), **options)


@pytest.mark.parametrize("method", ["poise", "tent"])
def test_a_rehearsal_does_not_depend_on_a_range(method: str) -> None:
    with pytest.raises(OptionError, match=f"t_max: a rehearsal of {method} does not depend on the range"):
        eq.rehearse(trained(), held_out(), method=method, t_max=2.0)


def test_predict_uses_the_recent_stream() -> None:
    adapter = eq.Poise(trained(), estimating(0.5))
    clean = stream(1, seed=50)[0]
    found = []
    for factor in (1.0, 0.02, 1.0):
        for x in stream(30):
            adapter(factor * x)
        raw = eq.Poise(trained(), rehearsed(), tempering="none")
        raw.load_state_dict(
            {n: t for n, t in adapter.state_dict().items() if "temperature" not in n}
            | {"poise.temperature.count": torch.zeros((), dtype=torch.int64)}
        )
        ratio = raw.predict(clean) / adapter.predict(clean)
        assert float(ratio.std()) < 1e-3
        found.append(float(ratio.mean()))
    assert found[2] == pytest.approx(found[0], rel=0.02)
    assert adapter.predict(clean).softmax(1).amax(1).mean() == pytest.approx(0.622, abs=0.05)


def test_the_window_forgets_a_stretch_of_another_domain() -> None:
    adapter = eq.Poise(trained(), estimating(0.5), falls_back=False)
    found = []
    for noisy in (0.0, 3.0, 0.0):
        for place, x in enumerate(stream(30)):
            adapter(x + noisy * torch.randn(x.shape, generator=torch.Generator().manual_seed(place)))
        found.append(adapter.temperature)
    assert abs(found[1] - found[0]) > 0.2
    assert found[2] == pytest.approx(found[0], rel=0.02)


# ---------------------------------------------------------------------- who answers


def test_the_source_model_answers_where_it_is_estimated_to_be_better(tmp_path: Path) -> None:
    model, x = trained(), stream(1)[0]
    adapter = eq.Poise(model, ahead(1.0))
    assert adapter.accuracy is not None
    assert adapter.accuracy.value == pytest.approx(torch.tensor(0.5).sigmoid().item())  # not before a batch
    answer = adapter(x)
    assert step_of(adapter).answered_by == "source"
    assert (
        step_of(adapter).accuracy
        == step_of(adapter).source_accuracy
        == adapter.accuracy
        == adapter.source_accuracy
    )
    assert adapter.accuracy.value == pytest.approx(torch.tensor(1.5).sigmoid().item())
    temperature = step_of(adapter).temperature
    assert temperature is not None
    torch.testing.assert_close(answer * temperature, model(x))
    torch.testing.assert_close(adapter.predict(x), answer)
    torch.testing.assert_close(adapter.detach()(x), answer)
    adapter.save(tmp_path / "state.safetensors")
    torch.testing.assert_close(eq.load(tmp_path / "state.safetensors", model).predict(x), answer)
    assert step_of(adapter).updated  # the student goes on learning
    adapter.reset()
    assert adapter.last is None
    assert not torch.allclose(adapter.predict(x), answer)


@pytest.mark.parametrize("amount", [0.0, -1.0])
def test_the_student_answers_otherwise_and_detaches_as_it_predicts(amount: float) -> None:
    adapter = eq.Poise(trained(), ahead(amount))
    for x in stream(3):
        adapter(x)
    assert step_of(adapter).answered_by == "student"
    torch.testing.assert_close(adapter.detach()(x), adapter.predict(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("source_copy", ["resident", "swapped"])
def test_what_is_detached_is_the_source_model_however_it_is_kept(source_copy: str) -> None:
    model, adapter = trained(), eq.create("poise", trained(), ahead(1.0), source_copy=source_copy)
    for x in stream(3):
        answer = adapter(3 * x + 1)
    out = adapter.detach()
    torch.testing.assert_close(out(3 * x + 1), answer)
    torch.testing.assert_close(answer * step_of(adapter).temperature, model(3 * x + 1))


def test_it_does_not_answer_where_it_may_not() -> None:
    adapter = eq.Poise(trained(), ahead(3.0), falls_back=False)
    adapter(stream(1)[0])
    assert step_of(adapter).answered_by == "student"
    assert step_of(adapter).source_accuracy is None
    assert adapter.source_accuracy is None


@pytest.mark.parametrize(
    ("options", "to_learn", "to_predict"),
    [({}, 2, 1), ({"falls_back": False}, 1, 1), ({"tempering": "none"}, 1, 1)],
)
@pytest.mark.parametrize("amount", [-1.0, 1.0])
def test_forwards(options: dict[str, Any], to_learn: int, to_predict: int, amount: float) -> None:
    source = replace(ahead(amount), model_fingerprint="")
    adapter = eq.create("poise", Counting(trained()).eval(), source, **options)
    for x in stream(3):
        Counting.forwards = 0
        adapter(x)
        assert Counting.forwards == to_learn
        Counting.forwards = 0
        adapter.predict(x)
        assert Counting.forwards == to_predict


# ---------------------------------------------------------------------- the window is kept right


def reaching(reach: float) -> eq.Adapter:
    """TENT whose weights moved so far in rehearsal at most."""
    own = rehearsed()
    changed = {**own.rehearsals, "tent": replace(own.rehearsals["tent"], reach=reach)}
    return eq.create("tent", trained(), replace(own, rehearsals=changed), tempering="rehearsed")


MADE: dict[str, Callable[[], eq.Adapter]] = {
    "poise": lambda: eq.create("poise", trained(), rehearsed()),
    "poise alone": lambda: eq.create("poise", trained(), rehearsed(), falls_back=False),
    "poise, source answers": lambda: eq.create("poise", trained(), ahead(1.0)),
    "tent": lambda: eq.create("tent", trained(), rehearsed(), tempering="rehearsed"),
    "tent, far away": lambda: reaching(2e-3),
}


@pytest.mark.parametrize("kind", MADE)
def test_saved_loaded_and_reset(kind: str, tmp_path: Path) -> None:
    adapter, twin = MADE[kind](), MADE[kind]()
    fresh = snapshot(adapter)
    first, second = stream(4)[:2], stream(4)[2:]
    for x in first:
        adapter(x)
    adapter.save(tmp_path / "state.safetensors")
    state = adapter.state_dict()
    again = eq.load(tmp_path / "state.safetensors", trained())
    twin.load_state_dict(state)
    assert same(snapshot(adapter), snapshot(again))
    assert same(snapshot(adapter), snapshot(twin))
    assert again.accuracy == adapter.accuracy
    for x in second:
        answer = adapter(x)
        assert torch.equal(again(x), answer)
        assert torch.equal(twin(x), answer)
    assert not same(state, adapter.state_dict())
    adapter.reset()
    assert same(fresh, snapshot(adapter))
    for x in (*first, *second):
        last = adapter(x)
    assert torch.equal(last, answer)


@pytest.mark.parametrize("kind", MADE)
def test_a_step_that_fails_leaves_the_window_alone(kind: str) -> None:
    adapter = MADE[kind]()
    for x in stream(2):
        adapter(x)
    before = snapshot(adapter)
    adapter(1e30 * stream(1)[0])
    assert not step_of(adapter).updated
    assert same(before, snapshot(adapter))
    adapter(torch.full((4, 3, 8, 8), torch.nan))
    assert same(before, snapshot(adapter))
    with pytest.raises(RuntimeError):
        adapter(torch.zeros(4, 2, 8, 8))
    assert same(before, snapshot(adapter))


@pytest.mark.parametrize("kind", MADE)
def test_samples_set_aside_do_not_count(kind: str) -> None:
    adapter, twin = MADE[kind](), MADE[kind]()
    x = stream(1)[0]
    bad = x.clone()
    bad[[3, 17]] = torch.nan
    rest = [row for row in range(50) if row not in (3, 17)]
    answer = adapter(bad)
    torch.testing.assert_close(answer[rest], twin(x[rest]))
    assert bool(answer[[3, 17]].isnan().all())
    torch.testing.assert_close(observed(adapter)["windows"], observed(twin)["windows"])
    count = float(observed(adapter)["windows"][0, 0, 0])
    assert count == pytest.approx(50 * 2 ** (-48 / 300) + 48)


@pytest.mark.parametrize("size", [1e20, 1e30, 3e37])
@pytest.mark.parametrize("method", ["source", "poise"])
def test_finite_answers_with_too_large_a_norm_do_not_count(method: str, size: float) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4, bias=False))
    source = eq.rehearse(model, held_out(100), method=method, shifts=8, check_held_out=False, progress=False)
    adapter, twin = (eq.create(method, model, source, tempering="rehearsed") for _ in range(2))
    x = stream(1)[0]
    large = x.clone()
    large[[3, 17]] *= size / model(x).abs().max()
    logits = model(large)
    assert bool(logits.isfinite().all())
    assert not bool(logits.square().sum(1).isfinite().all())
    rest = [row for row in range(50) if row not in (3, 17)]
    answer, clean = adapter(large), twin(x[rest])
    windows = observed(adapter)["windows"].clone()
    assert windows[:, 0, 0].tolist() == pytest.approx([50 * 2 ** (-48 / 300) + 48] * len(windows))
    assert bool(windows.isfinite().all())
    torch.testing.assert_close(windows[-1], observed(twin)["windows"][-1])  # of the model that learns nothing
    if method == "source":
        torch.testing.assert_close(answer[rest], clean)
        assert bool(answer.isfinite().all())
        assert adapter.accuracy is not None
        assert twin.accuracy is not None
        assert adapter.accuracy.value == pytest.approx(twin.accuracy.value, rel=1e-5)
    adapter(large[[3, 17]])
    assert torch.equal(observed(adapter)["windows"], windows)
    assert adapter.accuracy is not None
    assert 0 < adapter.accuracy.low <= adapter.accuracy.value <= adapter.accuracy.high < 1


@pytest.mark.parametrize("kind", MADE)
def test_the_record_of_a_batch_without_a_good_sample_has_the_accuracy(kind: str) -> None:
    adapter, twin = MADE[kind](), MADE[kind]()
    for x in stream(2):
        adapter(x)
        twin(x)
    bad = torch.full((4, 3, 8, 8), torch.nan)
    captured = unread_step(twin, bad)[1].read()
    adapter(bad)
    assert step_of(adapter).set_aside == captured.set_aside == 4
    assert step_of(adapter).accuracy == adapter.accuracy
    assert step_of(adapter).source_accuracy == adapter.source_accuracy
    check_alike(captured.accuracy, adapter.accuracy)
    check_alike(captured.source_accuracy, adapter.source_accuracy)
    assert step_of(adapter).answered_by == captured.answered_by


def test_states_of_others_are_refused() -> None:
    adapter = MADE["poise"]()
    for other in (MADE["poise alone"](), eq.create("poise", trained(), rehearsed(), tempering="none")):
        with pytest.raises(eq.errors.StateError):
            adapter.load_state_dict(other.state_dict())


# ---------------------------------------------------------------------- a second temper


def test_a_second_temper_does_what_the_adapters_own_would() -> None:
    own = MADE["tent"]()
    bare = eq.create("tent", trained())
    tempered = eq.Tempered(bare, rehearsed(), "rehearsed")
    for x in stream(4):
        torch.testing.assert_close(tempered(x), own(x))
        assert step_of(tempered).accuracy == step_of(own).accuracy
    torch.testing.assert_close(tempered.predict(x), own.predict(x))
    torch.testing.assert_close(tempered.detach()(x), own.predict(x), rtol=1e-4, atol=1e-5)
    assert bare.accuracy is None


def test_a_second_temper_is_saved_and_reset(tmp_path: Path) -> None:
    tempered = eq.Tempered(eq.create("tent", trained()), rehearsed(), "rehearsed")
    x = stream(3)
    fresh = tempered.state_dict()
    for batch in x:
        tempered(batch)
    tempered.save(tmp_path / "state.safetensors")
    again = eq.load(tmp_path / "state.safetensors", trained())
    assert again.options["tempering"] == "rehearsed"
    torch.testing.assert_close(again.predict(x[0]), tempered.predict(x[0]))
    tempered.reset()
    assert same(fresh, tempered.state_dict())


def test_a_second_temper_needs_a_rehearsal_of_the_method_and_its_options() -> None:
    bare = replace(rehearsed(), rehearsals={})
    with pytest.raises(
        SourceError, match=r"rehearse\(model, held_out_loader, method='tent', source=source\)"
    ):
        eq.Tempered(eq.create("tent", trained()), bare, "rehearsed")
    with pytest.raises(SourceError, match="tent was rehearsed with"):
        eq.Tempered(eq.create("tent", trained(), learning_rate=0.5), rehearsed(), "rehearsed")


# ---------------------------------------------------------------------- the step that a CUDA graph records


@pytest.mark.parametrize("kind", MADE)
def test_a_step_as_it_is_captured_equals_the_eager_one_and_reads_no_number(kind: str) -> None:
    plain, captured = MADE[kind](), MADE[kind]()
    for x in stream(2):
        plain(x)
        captured(x)
    answers = [plain(x) for x in stream(3, seed=40)]
    for x, expected in zip(stream(3, seed=40), answers, strict=True):
        answer, record = unread_step(captured, x, refusing=True)
        assert bool(record.verdict.allowed)
        torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)
    step = record.read()
    assert step.answered_by == step_of(plain).answered_by
    for found, wanted in (
        (step.accuracy, step_of(plain).accuracy),
        (step.source_accuracy, step_of(plain).source_accuracy),
    ):
        assert (found is None) == (wanted is None)
        if found and wanted:
            assert (found.value, found.low, found.high) == pytest.approx(
                (wanted.value, wanted.low, wanted.high), rel=1e-3
            )
    left, right = snapshot(plain), snapshot(captured)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(right[name], tensor, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", MADE)
def test_a_step_as_it_is_captured_with_a_bad_sample(kind: str, bad: float) -> None:
    adapter, twin = MADE[kind](), MADE[kind]()
    for x in stream(2):
        adapter(x)
        twin(x)
    before = snapshot(adapter)
    x = stream(1, seed=40)[0]
    spoilt = x.clone()
    spoilt[[2, 9], 1, 3, 3] = bad
    answer, record = unread_step(adapter, spoilt)
    step, rest = record.read(), [row for row in range(50) if row not in (2, 9)]
    assert not bool(record.verdict.allowed)
    assert bool(answer[[2, 9]].isnan().all())
    assert bool(answer[rest].isfinite().all())
    assert (step.set_aside, step.used) == (2, 0)
    assert same(before, snapshot(adapter))
    # The temperature is that of the good samples, without those that take the places of the others.
    filled = x.clone()
    filled[[2, 9]] = x[0]
    whole, _ = unread_step(twin, filled)
    assert step.accuracy is not None
    assert float((answer[rest].argmax(1) == whole[rest].argmax(1)).double().mean()) > 0.95
    count = 50 * 2 ** (-100 / 300) + 50 * 2 ** (-50 / 300) + 50  # the window before, if nothing changed
    assert float(observed(adapter)["windows"][0, 0, 0]) == pytest.approx(count, rel=1e-4)


def test_a_model_without_batch_norm_is_tempered_too() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    source = eq.rehearse(model, held_out(100), shifts=8, check_held_out=False, progress=False)
    adapter = eq.Poise(model, source)
    assert bool(adapter(stream(1)[0]).isfinite().all())
    assert "age" not in adapter.memory
    assert adapter.accuracy is not None


# ---------------------------------------------------------------------- how far the weights are


def plain_distance(adapter: eq.Adapter) -> float:
    """How far the weights that learn are from those of the trained model, in their norm."""
    model = trained()
    pairs = [(model.get_parameter(name).detach(), p.detach()) for name, p in adapter.learned.items()]
    apart = sum(float((p - start).square().sum()) for start, p in pairs)
    return math.sqrt(apart / sum(float(start.square().sum()) for start, _ in pairs))


def width(found: eq.Estimate | None) -> float:
    """An interval as a difference of logits."""
    assert found is not None
    low, high = (math.log(end / (1 - end)) for end in (found.low, found.high))
    return high - low


def test_the_interval_is_wider_where_the_weights_are_further_than_in_rehearsal() -> None:
    never, adapter = reaching(1e9), reaching(2e-3)
    assert adapter.weight_distance == 0
    beyond = []
    for x in stream(6):
        never(x)
        adapter(x)
        distance = plain_distance(adapter)
        assert adapter.weight_distance == pytest.approx(distance, rel=1e-4)
        assert never.accuracy is not None
        assert adapter.accuracy is not None
        assert step_of(adapter).accuracy == adapter.accuracy
        times = math.sqrt(max(1.0, distance / 2e-3))
        assert width(adapter.accuracy) == pytest.approx(times * width(never.accuracy), rel=1e-3)
        assert adapter.accuracy.value == never.accuracy.value
        assert adapter.accuracy.inside == (never.accuracy.inside and times == 1)
        beyond.append(times > 1)
    assert beyond[-1]
    assert not all(beyond)
    adapter.reset()
    assert adapter.weight_distance == 0
    poise = eq.Poise(trained(), rehearsed())
    poise(stream(1)[0])
    assert poise.weight_distance == 0


def test_a_guard_stops_weights_that_move_four_times_as_far_as_in_rehearsal() -> None:
    """With a larger reach TENT goes on, with less it is stopped, and the limit is in the reason."""
    free, held = eq.Guarded(reaching(1.0)), eq.Guarded(reaching(5e-4))
    for x in stream(6):
        before = plain_distance(held.adapter)
        free(x)
        held(x)
        if held.events:
            break
        assert plain_distance(held.adapter) <= 2e-3
    assert before <= 2e-3
    assert not free.events
    (event,) = held.events
    assert event.trigger == "runaway"
    assert "over the limit of 0.002" in event.reason
    assert plain_distance(held.adapter) <= 2e-3
