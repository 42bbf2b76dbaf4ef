"""What a rehearsal says of windows, and how it is kept."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.calibration import window
from equipoise.calibration.rehearsal import believed, calibration_error, logit
from equipoise.errors import StateError
from tests.support.rehearsals import (
    CLASSES,
    alike,
    flat,
    flat_gap,
    flat_lead,
    line,
    rehearsal,
    rehearsed,
    samples,
    trained,
    windows_of,
)

STUDENT, SOURCE = [0.5, 0.2, -0.1, 0.3, -0.2, 0.1, -0.3], [0.1, 0.0, 0.2, -0.3, 0.2, 0.0, 0.2]


def logits_of(rows: int = 60, seed: int = 4, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, CLASSES, generator=torch.Generator().manual_seed(seed))


def drawn(rows: int = 60, scale: float = 2.0) -> Tensor:
    return windows_of(torch.stack([logits_of(rows, 4, scale), logits_of(rows, 5, scale)]))


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def line_rows() -> list[list[float]]:
    """The features of the rows of a `line`."""
    ends = [[side * 0.1 * (at == place) for at in range(7)] for place in range(7) for side in (-1, 1)]
    return [*ends, [0.0] * 7]


@pytest.mark.parametrize("limit", [1e9, 3e4, 1e4])
@pytest.mark.parametrize("rows", [5, 60])
def test_the_interval_of_an_estimate(limit: float, rows: int) -> None:
    made = rehearsal(
        line(STUDENT, 0.2, margin=0.3, limit=limit), line(SOURCE, 0.1, margin=0.9, limit=2 * limit)
    )
    windows = drawn(rows)
    found, features = made.estimates(windows), window.features(windows).tolist()
    for place, (weights, bias, margin, own) in enumerate(
        ((STUDENT, 0.2, 0.3, limit), (SOURCE, 0.1, 0.9, 2 * limit))
    ):
        estimate, x = found[place], features[place]
        assert estimate is not None
        value = bias + sum(w * f for w, f in zip(weights, x, strict=True))
        a = sigmoid(value)
        far = 1e4 * min(math.dist(x, row) for row in line_rows()) / own
        wide = made.processes(2)[place].at(window.features(windows)[place]).half_width
        assert wide > margin * 0.1
        half = math.sqrt(wide**2 + 1.645**2 / (rows * a * (1 - a) + 1))
        assert estimate.value == pytest.approx(a, abs=1e-5)
        ends = (sigmoid(value - half), sigmoid(value + half))
        assert (estimate.low, estimate.high) == pytest.approx(ends, abs=1e-4)
        assert estimate.inside == (far <= 1)


def test_an_interval_narrows_with_the_window_and_widens_outside() -> None:
    made = rehearsal(line(STUDENT, margin=0.1))
    few, many = (made.estimates(drawn() * weight)[0] for weight in (0.1, 10))
    assert few.value == pytest.approx(many.value)
    assert few.high - few.low > many.high - many.low
    outside = rehearsal(line(STUDENT, margin=0.1, limit=1e3)).estimates(drawn())[0]
    inside = made.estimates(drawn())[0]
    assert (outside.inside, inside.inside) == (False, True)
    assert outside.low < inside.low < inside.value < inside.high < outside.high
    assert outside.value == inside.value


def test_an_estimate_is_never_beyond_what_was_rehearsed() -> None:
    for weight in (-50.0, 50.0):
        made = rehearsal(line([weight, 0, 0, 0, 0, 0, 0], low=-10.0, high=11.0))
        own, theirs = made.estimates(drawn(scale=6.0))
        assert own.value == pytest.approx(sigmoid(11.0 if weight > 0 else -10.0))
        assert theirs is None


# ---------------------------------------------------------------------- new inputs, weights that moved


def plain_belief(value: float, at_rest: float, novelty: float, familiar: float) -> float:
    """What is believed of an estimate in logits: all of it, or less of what is above the logit at rest."""
    if value <= at_rest or novelty <= familiar:
        return value
    if novelty >= 2 * familiar:
        return at_rest
    return at_rest + (2 - novelty / familiar) * (value - at_rest)


NOVELTIES = [-1.0, 0.0, 0.19, 0.3, 0.4, 0.55, 0.6, 3.0]


@pytest.mark.parametrize("familiar", [0.2, 0.4])
@pytest.mark.parametrize("novelty", NOVELTIES)
def test_new_inputs_are_believed_to_be_no_easier_than_those_at_rest(novelty: float, familiar: float) -> None:
    values, at_rest = torch.tensor([-2.0, 0.9, 1.1, 3.0]).double(), torch.tensor(1.0).double()
    found = believed(values, at_rest, torch.tensor(novelty).double(), familiar).tolist()
    expected = [plain_belief(value, 1.0, novelty, familiar) for value in values.tolist()]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("novelty", NOVELTIES)
@pytest.mark.parametrize("value", [0.5, 1.1, 1.25, 1.4, 3.0])
def test_an_estimate_is_what_is_believed(value: float, novelty: float) -> None:
    both = torch.stack([logits_of(60, 4), logits_of(60, 5)])
    windows = windows_of(both, torch.full((60,), novelty))
    made = rehearsal(flat(value, at_rest=1.0), flat(0.8, at_rest=0.2), familiar=0.32)
    for found, own, at_rest in zip(made.estimates(windows), (value, 0.8), (1.0, 0.2), strict=True):
        assert found is not None
        belief = plain_belief(own, at_rest, novelty, 0.32)
        a = sigmoid(belief)
        half = math.sqrt(0.3**2 + 1.645**2 / (60 * a * (1 - a) + 1))
        assert found.value == pytest.approx(a, abs=1e-5)
        assert (found.low, found.high) == pytest.approx(
            (sigmoid(belief - half), sigmoid(belief + half)), abs=1e-4
        )
        assert found.inside == (novelty <= 0.32 or own <= at_rest + 0.3)


def width(found: eq.Estimate) -> float:
    """The interval as a difference of logits."""
    low, high = (math.log(end / (1 - end)) for end in (found.low, found.high))
    return high - low


@pytest.mark.parametrize("distance", [0.0, 0.1, 0.2, 0.21, 0.5])
@pytest.mark.parametrize("reach", [0.0, 0.2, 1.0])
def test_weights_further_away_than_in_rehearsal_stretch_the_interval(reach: float, distance: float) -> None:
    made = rehearsal(line(STUDENT, 0.2, margin=0.01), line(SOURCE, 0.1, margin=0.01), reach=reach)
    near, theirs = made.estimates(drawn())
    far, still = made.estimates(drawn(), distance)
    times = math.sqrt(distance / reach) if reach > 0 and distance > reach else 1.0
    assert width(far) == pytest.approx(times * width(near), rel=1e-6)
    assert far.value == near.value
    assert near.inside
    assert far.inside == (times == 1.0)
    assert still == theirs


# ---------------------------------------------------------------------- each model by its own answers


def of_two(mine: Tensor, other: Tensor) -> tuple[eq.Estimate, eq.Estimate]:
    own, theirs = rehearsed().rehearsal.estimates(windows_of(torch.stack([mine, other])))
    assert theirs is not None
    return own, theirs


def test_the_source_model_is_estimated_by_its_own_answers_alone() -> None:
    source = trained()(samples(60)[0]).detach()
    one, two = (source + 0.5 * logits_of(seed=seed) for seed in (1, 2))
    (first, same), (second, again) = of_two(one, source), of_two(two, source)
    assert same == again
    assert min(first.value, second.value) > 0.002  # not the least that was rehearsed
    assert first.value != second.value
    agreed, still = of_two(source, source)
    assert still == same
    assert agreed.value != first.value


def test_answers_are_estimated_without_those_of_the_source_model_but_for_their_disagreement() -> None:
    mine, other = logits_of(seed=1), logits_of(seed=9)
    first, of_source = of_two(mine, other)
    second, changed = of_two(mine, 0.4 * other)  # the same classes
    assert first == second
    assert of_source.value != changed.value
    made = rehearsed().rehearsal
    alone = [made.estimates(windows_of(torch.stack([mine, z]))[:1])[0] for z in (mine, other)]
    assert alone[0] == alone[1]


def test_a_window_of_one_model_is_estimated_without_the_other() -> None:
    made = rehearsal(flat(0.3), flat(0.8), compared=flat(-0.5))
    own, theirs = made.estimates(drawn())
    assert theirs is not None
    assert (own.value, theirs.value) == pytest.approx((sigmoid(-0.5), sigmoid(0.8)))
    own, theirs = made.estimates(drawn()[:1])
    assert own.value == pytest.approx(sigmoid(0.3))
    assert theirs is None
    assert made.processes(1) == (made.student,)
    assert made.processes(2) == (made.compared, made.source)


def test_an_estimate_tells_itself() -> None:
    assert str(eq.Estimate(0.5, 0.25, 0.75, True)) == "0.500 (0.250 to 0.750)"
    assert float(eq.Estimate(0.5, 0.25, 0.75, True)) == 0.5
    assert str(eq.Estimate(0.5, 0.25, 0.75, False)).endswith("0.750, outside of what was rehearsed)")
    assert f"{eq.Estimate(0.5, 0.25, 0.75, True):.1%}" == "50.0%"
    assert f"{eq.Estimate(0.5, 0.25, 0.75, True)}" == "0.500 (0.250 to 0.750)"


def test_logits_are_finite_at_the_ends() -> None:
    found = logit(torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)).tolist()
    assert found == pytest.approx([math.log(0.001 / 0.999), math.log(0.25 / 0.75), math.log(999)])


def two_models() -> eq.Rehearsal:
    return rehearsal(line(STUDENT), line(SOURCE), lead=flat_lead(0.1), gap=flat_gap(0.2), disagreement=0.25)


@pytest.mark.parametrize("source", [None, SOURCE])
def test_text_and_tensors_make_it_again(source: list[float] | None) -> None:
    made = rehearsal(line(STUDENT, 0.2, margin=0.3)) if source is None else two_models()
    again = eq.Rehearsal.from_parts(made.to_json(), made.tensors())
    assert alike(made, again)
    assert again.runs == made.runs
    assert (again.gap is None) == (again.lead is None) == (source is None)
    assert again.disagreement == (None if source is None else 0.25)
    assert again.models == (1 if source is None else 2)
    assert again.estimates(drawn()) == made.estimates(drawn())


def test_what_was_rehearsed_makes_it_again() -> None:
    for made in rehearsed().rehearsals.values():
        again = eq.Rehearsal.from_parts(made.to_json(), made.tensors())
        assert alike(made, again)
        assert str(again) == str(made)
        assert again.estimates(drawn()) == made.estimates(drawn())


@pytest.mark.parametrize("version", [None, 1, 2, 4, "3"])
def test_files_of_other_versions_are_refused_with_what_makes_new_ones(version: object) -> None:
    made = two_models()
    text = {**json.loads(made.to_json()), "version": version}
    if version is None:
        del text["version"]
    with pytest.raises(
        StateError, match=r"^the rehearsal of 'poise' .*version.* equipoise\.rehearse\(.*method='poise'"
    ):
        eq.Rehearsal.from_parts(json.dumps(text), made.tensors())


@pytest.mark.parametrize("text", ["", "null", "3", "[]", "{}", "{", '"words"'])
def test_text_that_is_none_of_its_own_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="not a rehearsal"):
        eq.Rehearsal.from_parts(text, rehearsal(line(STUDENT)).tensors())


def test_parts_that_are_missing_are_refused() -> None:
    made = two_models()
    text, tensors = made.to_json(), made.tensors()
    for name in json.loads(text):
        less = {key: value for key, value in json.loads(text).items() if key != name}
        with pytest.raises(StateError, match="another version" if name == "version" else "not a rehearsal"):
            eq.Rehearsal.from_parts(json.dumps(less), tensors)
    for name in tensors:
        with pytest.raises(StateError, match="not a rehearsal"):
            eq.Rehearsal.from_parts(text, {key: t for key, t in tensors.items() if key != name})
    for part in ("compared", "source", "lead", "gap"):
        rest = {key: tensor for key, tensor in tensors.items() if not key.startswith(f"{part}.")}
        assert len(rest) < len(tensors)
        with pytest.raises(StateError, match="not a rehearsal"):
            eq.Rehearsal.from_parts(text, rest)
    bare = json.dumps({**json.loads(text), "disagreement": None})
    with pytest.raises(StateError, match="all that compares two models"):
        eq.Rehearsal.from_parts(bare, tensors)
    alone = rehearsal(line(STUDENT))
    with pytest.raises(StateError, match="all that compares two models"):
        eq.Rehearsal.from_parts(text, alone.tensors())
    runs: list[Any] = [3, {}, {"shift": "none"}, None]
    for run in runs:
        with pytest.raises(StateError, match="not a rehearsal"):
            eq.Rehearsal.from_parts(json.dumps({**json.loads(text), "runs": [run]}), tensors)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    made = two_models()
    for name, tensor in made.tensors().items():
        if not tensor.is_floating_point():
            continue
        with pytest.raises(StateError, match="finite"):
            eq.Rehearsal.from_parts(made.to_json(), {**made.tensors(), name: torch.full_like(tensor, bad)})


def test_tensors_of_other_shapes_are_refused() -> None:
    made = two_models()
    for name, tensor in made.tensors().items():
        with pytest.raises(StateError, match="not a rehearsal"):
            other = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
            eq.Rehearsal.from_parts(made.to_json(), {**made.tensors(), name: other})


def test_a_file_with_a_damaged_rehearsal_is_refused(tmp_path: Path) -> None:
    source = rehearsed()
    tensors = source.tensors()
    name = next(name for name in tensors if name.endswith("poise.prior"))
    text = source.to_json()
    with pytest.raises(StateError):
        eq.SourceStatistics.from_parts(text, {key: t for key, t in tensors.items() if key != name})


def test_the_table_has_a_row_for_each_stream() -> None:
    for made in (rehearsal(line(STUDENT)), rehearsed().rehearsal):
        lines = str(made).splitlines()
        for run in made.runs:
            (shown,) = [x for x in lines if (x[:25].strip(), x[25:44].strip()) == (run.shift, run.order)]
            numbers = [float(word) for word in shown.split()[-4:]]
            expected = [run.accuracy, run.estimate, run.estimate - run.accuracy, run.confidence]
            assert numbers == pytest.approx(expected, abs=6e-4)
        assert len(lines) == 1 + len(made.runs) + 2
        error = sum(abs(run.estimate - run.accuracy) for run in made.runs) / len(made.runs)
        assert made.error == pytest.approx(error)
        assert f"{error:.3f}" in lines[-2]
        worst = max(made.runs, key=lambda run: abs(run.estimate - run.accuracy))
        off = abs(worst.estimate - worst.accuracy)
        assert lines[-1].startswith(f"at worst within {off:.3f} ({worst.shift}, {worst.order}); ")


def test_the_summary_says_whether_the_calibration_error_falls_or_rises() -> None:
    near, far = (torch.tensor([[10.0], [10 * sure], [9.0]]).double().expand(3, 15) for sure in (0.9, 0.8))
    better = rehearsal(line(STUDENT), bins=torch.stack([far, near]))
    worse = rehearsal(line(STUDENT), bins=torch.stack([near, far]))
    assert str(better).endswith("the calibration error over all of them falls from 0.100 to 0.000")
    assert str(worse).endswith("the calibration error over all of them rises from 0.000 to 0.100")


def test_the_calibration_error_of_bins() -> None:
    counts, sure, hits = [2.0, 0.0, 6.0], [0.5, 0.0, 5.0], [1.0, 0.0, 3.0]
    expected = (2 / 8) * abs(0.25 - 0.5) + (6 / 8) * abs(5 / 6 - 3 / 6)
    assert calibration_error(torch.tensor([counts, sure, hits])) == pytest.approx(expected)
    assert calibration_error(torch.zeros(3, 15)) == 0


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_it_draws_a_picture(ending: str, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"rehearsal.{ending}"
    rehearsed().rehearsal.plot(path)
    assert path.read_bytes().startswith(start)
    rehearsal(line(STUDENT)).plot(str(path))
    assert path.stat().st_size > 1000


def test_a_picture_without_matplotlib_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"equipoise\[demo\]"):  # the extra that has it
        rehearsal(line(STUDENT)).plot(tmp_path / "picture.png")
    assert not list(tmp_path.iterdir())
