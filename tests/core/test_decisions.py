"""Sets and decisions of an adapter: where they come from, what they learn, and what they refuse."""

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.verdict import Check
from equipoise.errors import BatchError, OptionError, SourceError

CLASSES = 4


def _data(count: int, seed: int, moved: float = 0.0) -> tuple[Tensor, Tensor]:
    """Rows around four centres, and their classes; `moved` adds noise."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=draw)
    centres = 1.6 * torch.eye(CLASSES, 6)
    noise = torch.randn(count, 6, generator=draw) + moved * torch.randn(count, 6, generator=draw)
    return centres[labels] + noise, labels


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))
    x, y = _data(2000, 1)
    descent = torch.optim.Adam(made.parameters(), 1e-2)
    for _ in range(150):
        descent.zero_grad()
        nn.functional.cross_entropy(made(x), y).backward()
        descent.step()
    return made.eval()


@pytest.fixture(scope="module")
def source(model: nn.Module) -> eq.SourceStatistics:
    return eq.rehearse(model, _data(1500, 2), shifts=10, progress=False)


@pytest.fixture
def adapter(model: nn.Module, source: eq.SourceStatistics) -> eq.Adapter:
    return eq.Poise(model, source)


def test_sets_without_shift_cover_as_asked(adapter: eq.Adapter) -> None:
    x, y = _data(3000, 3)
    sets = torch.cat([adapter.sets(adapter(batch), coverage=0.9) for batch in x.split(50)])
    assert sets.shape == (3000, CLASSES)
    assert sets.dtype == torch.bool
    assert float(sets.gather(1, y[:, None]).float().mean()) == pytest.approx(0.9, abs=0.02)


def test_sets_under_noise_cover_about_as_asked(adapter: eq.Adapter) -> None:
    x, y = _data(3000, 4, moved=1.5)
    logits = [adapter(batch) for batch in x.split(50)]
    sets = torch.cat([adapter.sets(each) for each in logits])
    assert float(sets.gather(1, y[:, None]).float().mean()) > 0.85
    estimate = adapter.coverage(0.9)
    assert estimate.low < 0.9 < estimate.high


def test_decisions_without_shift_are_as_accurate_as_asked(adapter: eq.Adapter) -> None:
    x, y = _data(3000, 5)
    found = [adapter.decide(batch, accuracy=0.9) for batch in x.split(50)]
    right = torch.cat([each.classes for each in found]) == y
    mask = torch.cat([each.mask for each in found])
    assert 0.88 < float(right[mask].float().mean()) < 0.94  # a fall by chance makes it stricter
    assert float(mask.float().mean()) == pytest.approx(found[-1].share, abs=0.06)
    assert found[-1].reached
    assert found[-1].accuracy is not None
    assert found[-1].accuracy.low <= 0.9 <= found[-1].accuracy.high


def test_inputs_are_learned_from_once(model: nn.Module, source: eq.SourceStatistics) -> None:
    one, other = eq.Poise(model, source), eq.Poise(model, source)
    x, _ = _data(50, 6)
    logits = one(x)
    sets = one.sets(x)
    decided = one.decide(x)
    torch.testing.assert_close(sets, other.sets(x))
    torch.testing.assert_close(decided.mask, other.decide(logits).mask)
    assert _same(one.state_dict(), other.state_dict())
    x += 0.1  # another batch, though the same tensor
    one.sets(x)
    assert not _same(one.state_dict(), other.state_dict())


def test_logits_are_not_learned_from(adapter: eq.Adapter) -> None:
    x, _ = _data(50, 6)
    logits = adapter(x)
    before = adapter.state_dict()
    adapter.sets(logits)
    adapter.decide(logits=logits)
    adapter.curve()
    adapter.coverage()
    assert _same(before, adapter.state_dict())


def _same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_copy_and_a_saved_state_decide_alike(
    adapter: eq.Adapter, model: nn.Module, source: eq.SourceStatistics, tmp_path: Path
) -> None:
    x, _ = _data(600, 7, moved=1.0)
    for batch in x.split(50):
        logits = adapter(batch)
    adapter.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", model)
    fresh = eq.Poise(model, source)
    fresh.load_state_dict(adapter.state_dict())
    for other in (copy.deepcopy(adapter), loaded, fresh):
        assert torch.equal(other.sets(logits), adapter.sets(logits))
        assert other.decide(logits).threshold == adapter.decide(logits).threshold
    snapshot, threshold = adapter.snapshot(), adapter.decide(logits).threshold
    adapter.reset()
    assert adapter.decide(logits).threshold == eq.Poise(model, source).decide(logits).threshold != threshold
    adapter.restore(snapshot)
    assert adapter.decide(logits).threshold == threshold


def test_rows_that_were_set_aside(adapter: eq.Adapter) -> None:
    x, _ = _data(50, 8)
    x[3] = math.nan
    logits = adapter(x)
    assert adapter.sets(logits)[3].all()
    found = adapter.decide(logits)
    assert found.classes[3] == -1
    assert not found.mask[3]
    assert (found.classes[:3] >= 0).all()


def test_an_accuracy_out_of_reach_is_said(adapter: eq.Adapter) -> None:
    x = 0.02 * _data(800, 9)[0]  # all alike: nothing can be told apart
    for batch in x.split(50):
        found = adapter.decide(batch, accuracy=0.999)
    assert not found.reached
    assert not found.mask.any()
    assert (found.share, found.accuracy, found.threshold) == (0.0, None, math.inf)


def test_the_curve_falls_with_the_share(adapter: eq.Adapter) -> None:
    curve = adapter.curve()
    assert (curve.share.diff() >= 0).all()
    assert curve.share[-1] == 1
    assert adapter.rehearsal is not None
    assert float(curve.risk[-1]) == pytest.approx(1 - adapter.rehearsal.runs[0].accuracy, abs=0.02)
    assert 0 < float(curve.area) < float(curve.risk[-1])


@pytest.mark.parametrize("score", ["aps", "raps"])
def test_other_scores_have_the_first_class(adapter: eq.Adapter, score: str) -> None:
    x, _ = _data(200, 10)
    logits = adapter(x)
    sets = adapter.sets(logits, score=score)
    assert sets.gather(1, logits.argmax(1, keepdim=True)).all()


def test_options_are_checked(adapter: eq.Adapter) -> None:
    logits = torch.randn(5, CLASSES)
    wrong: Any
    for wrong in (0.2, 1.0, math.nan, "high"):
        with pytest.raises(OptionError, match="coverage"):
            adapter.sets(logits, coverage=wrong)
    with pytest.raises(OptionError, match="accuracy"):
        adapter.decide(logits, accuracy=1.0)
    with pytest.raises(OptionError, match="score"):
        adapter.sets(logits, score="margin")
    with pytest.raises(OptionError, match="score"):
        adapter.coverage(score="margin")
    with pytest.raises(BatchError, match=r"expected logits \(N, 4\)"):
        adapter.sets(logits=torch.randn(5, 3))
    with pytest.raises(BatchError, match="both"):
        adapter.sets(logits, logits=logits)


@pytest.mark.parametrize("guard", [False, True])
def test_wrong_options_are_refused_before_anything_is_learned(adapter: eq.Adapter, guard: bool) -> None:
    called: eq.Adapter | eq.Guarded = eq.Guarded(adapter) if guard else adapter
    x, _ = _data(50, 6)
    with pytest.raises(OptionError, match="coverage"):
        called.sets(x, coverage=2)
    with pytest.raises(OptionError, match="score"):
        called.sets(x, score="margin")
    with pytest.raises(OptionError, match="accuracy"):
        called.decide(x, accuracy=math.nan)
    assert adapter.last is None


def test_probabilities_in_place_of_logits_are_refused(adapter: eq.Adapter) -> None:
    p = torch.randn(5, CLASSES).softmax(1)
    p[2] = math.nan
    for call in (adapter.sets, adapter.decide):
        with pytest.raises(BatchError, match=r"probabilities that sum to one.*\.log\(\)"):
            call(p)
        with pytest.raises(BatchError, match="probabilities"):
            call(logits=p)
    assert adapter.sets(p.log()).shape == (5, CLASSES)


def test_an_adapter_that_answered_can_be_pickled_and_copied(adapter: eq.Adapter) -> None:
    x, _ = _data(50, 6)
    logits = adapter(x)
    loaded = pickle.loads(pickle.dumps(adapter))
    assert torch.equal(loaded.sets(logits), adapter.sets(logits))
    copied, before = copy.deepcopy(adapter), adapter.state_dict()
    assert torch.equal(copied.sets(x), adapter.sets(x))
    assert _same(before, copied.state_dict())


class _Flagged(nn.Module):
    """A model with an argument beside its inputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, flag: bool = False, names: list[str] | None = None) -> Tensor:
        logits: Tensor = self.model(-x if flag else x)
        return logits


def test_a_batch_with_other_arguments_is_another(model: nn.Module) -> None:
    flagged = _Flagged(model).eval()
    source = eq.rehearse(flagged, _data(1500, 2), shifts=10, progress=False)
    adapter, (x, _) = eq.Poise(flagged, source), _data(50, 6)

    def learns(*args: Any, **kwargs: Any) -> bool:
        adapter.reset()
        adapter(x, flag=True, names=["a", "b"])
        before = adapter.last
        adapter.decide(*args, **kwargs)
        return adapter.last is not before

    assert not learns(x, flag=True, names=["a", "b"])
    assert learns(x, flag=False, names=["a", "b"])
    assert learns(x, flag=1, names=["a", "b"])
    assert learns(x, flag=True, names=["a", "c"])
    assert learns(x=x, flag=True, names=["a", "b"])


def test_a_move_forgets_what_was_computed(adapter: eq.Adapter, source: eq.SourceStatistics) -> None:
    x, _ = _data(50, 6)
    for one in (adapter, eq.Tempered(adapter, source, "rehearsed")):
        logits, before = one(x), one.expectations()
        assert one.sets(logits).dtype == torch.bool
        one.double()
        assert one.expectations() is not before
        ids = one.last.ids if one.last else None
        one.sets(x.double())
        assert one.last is not None
        assert one.last.ids != ids
        one.float()


def test_a_tempered_adapter_gone_back_to_has_no_estimates_of_before(
    adapter: eq.Adapter, source: eq.SourceStatistics
) -> None:
    tempered = eq.Tempered(adapter, source, "rehearsed")
    x, _ = _data(50, 6)
    snapshot, state = tempered.snapshot(), tempered.state_dict()
    goes_back: Any
    for goes_back in (lambda: tempered.restore(snapshot), lambda: tempered.load_state_dict(state)):
        adapter(x)
        before = adapter.expectations()
        ids = adapter.last.ids if adapter.last else None
        goes_back()
        assert adapter.expectations() is not before
        adapter.sets(x)
        assert adapter.last is not None
        assert adapter.last.ids != ids


def test_the_calibration_gap_is_confidence_less_accuracy(adapter: eq.Adapter) -> None:
    x, y = _data(1000, 8, moved=1.0)
    answers = torch.cat([adapter(batch) for batch in x.split(50)])
    adapter.label((y[:400] + 1) % CLASSES, range(400))  # most are wrong
    gap, accuracy = adapter.calibration_gap, adapter.accuracy
    assert accuracy is not None
    confidence = float(answers[-300:].softmax(1).amax(1).mean())
    assert gap.value == pytest.approx(confidence - accuracy.value, abs=0.06) and gap.value > 0.1
    assert gap.high - gap.value == pytest.approx(accuracy.value - accuracy.low, abs=1e-6)
    assert gap.value - gap.low == pytest.approx(accuracy.high - accuracy.value, abs=1e-6)
    assert gap.inside is accuracy.inside is False


def test_an_estimate_is_of_the_state_where_a_step_was_undone(
    adapter: eq.Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in _data(500, 9)[0].split(50):
        adapter(batch)
    before, covered = adapter.accuracy, adapter.coverage()
    assert before is not None
    broken = Check(torch.tensor(False), "made up")
    monkeypatch.setattr(type(adapter.responder.student), "finite_statistics", lambda student: broken)
    adapter(_data(50, 10, moved=6.0)[0])
    last = adapter.last
    assert last is not None and last.reason == "made up" and last.accuracy is not None
    assert adapter.accuracy is not None
    for found in (adapter.accuracy, last.accuracy):
        assert (found.value, found.low) == pytest.approx((before.value, before.low), abs=1e-5)
    assert adapter.coverage().low == pytest.approx(covered.low, abs=1e-5)


def test_expectations_stay_as_they_were(adapter: eq.Adapter) -> None:
    x, y = _data(50, 6)
    adapter(x)
    before = adapter.expectations()
    taught = [each.clone() for each in before.taught]
    adapter.label(y)
    for now, own, kept in zip(adapter.expectations().taught, before.taught, taught, strict=True):
        assert not torch.equal(now, kept)
        assert torch.equal(own, kept)


def test_an_adapter_without_rehearsal_says_what_to_do(model: nn.Module) -> None:
    plain = eq.create("tent", model)
    for call in (plain.sets, plain.decide):
        with pytest.raises(SourceError, match=r"adapter\.[a-z]+ needs a rehearsal.*equipoise\.wrap"):
            call(torch.randn(5, 6))
    with pytest.raises(SourceError, match=r"adapter\.[a-z]+ needs a rehearsal.*equipoise\.wrap"):
        plain.curve()


def test_inputs_with_the_shape_of_logits_are_told_apart_by_name() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    x = torch.randn(1000, 3)
    source = eq.rehearse(model, (x, model(x).argmax(1)), shifts=8, progress=False, check_held_out=False)
    adapter = eq.Poise(model, source)
    with pytest.raises(OptionError, match=r"logits=adapter\(x\)"):
        adapter.sets(x[:50])
    assert adapter.sets(logits=adapter(x[:50])).shape == (50, 3)


def test_an_answer_with_logits_is_taken(adapter: eq.Adapter) -> None:
    class Answer:
        logits = torch.randn(5, CLASSES)

    assert torch.equal(adapter.sets(Answer()), adapter.sets(Answer.logits))


def test_the_source_model_that_answers_has_thresholds_of_its_own(adapter: eq.Adapter) -> None:
    rehearsed = adapter.temper.rehearsed
    assert rehearsed is not None
    observed = rehearsed.initial()
    estimate = rehearsed.estimates(observed)[1]
    assert estimate is not None
    trusted = {**observed, "trusts_source": torch.tensor(True)}
    found = rehearsed.expectations(trusted, estimate)
    assert found.true.right != rehearsed.expectations(observed, estimate).true.right
