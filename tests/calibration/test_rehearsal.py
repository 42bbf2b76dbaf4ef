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
from equipoise.calibration.rehearsal import calibration_error, logit
from equipoise.errors import StateError
from tests.support.rehearsals import CLASSES, rehearsal, rehearsed, ridge, window_of

STUDENT, GAP = [0.5, 0.2, -0.1, 0.3], [0.1, 0.0, 0.2, -0.3, -0.2, 0.1, 0.0, 0.4]


def drawn(rows: int = 60, scale: float = 2.0) -> Tensor:
    draw = torch.Generator().manual_seed(4)
    return torch.stack([window_of(scale * torch.randn(rows, CLASSES, generator=draw)) for _ in range(2)])


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def assert_interval(found: eq.Estimate, value: float, margin: float, rows: float, far: float) -> None:
    """The estimate and its interval written out."""
    a = sigmoid(value)
    half = math.sqrt(margin**2 + 1.645**2 / (rows * a * (1 - a) + 1))
    half *= math.sqrt(far) if far > 1 else 1
    assert found.value == pytest.approx(a)
    assert (found.low, found.high) == pytest.approx((sigmoid(value - half), sigmoid(value + half)))
    assert found.inside == (far <= 1)


@pytest.mark.parametrize("reach", [1e9, 2.0, 0.5])
@pytest.mark.parametrize("rows", [5, 60])
def test_the_interval_of_an_estimate(reach: float, rows: int) -> None:
    made = rehearsal(
        ridge(STUDENT, 0.2, margin=0.3, reach=reach), ridge(GAP, 0.1, margin=9.0, reach=2 * reach)
    )
    windows = drawn(rows)
    own, theirs = made.estimates(windows)
    x, other = (window.features(each).tolist() for each in windows)
    value = 0.2 + sum(w * f for w, f in zip(STUDENT, x, strict=True))
    assert_interval(own, value, 0.3, rows, sum(f * f for f in x) / reach)
    assert theirs is not None
    more = value + 0.1 + sum(w * f for w, f in zip(GAP, [*x, *other], strict=True))
    assert_interval(theirs, more, 0.4, rows, sum(f * f for f in [*x, *other]) / (2 * reach))


def test_an_interval_narrows_with_the_window_and_widens_outside() -> None:
    made = rehearsal(ridge(STUDENT, margin=0.1))
    few, many = (made.estimates(drawn() * weight)[0] for weight in (0.1, 10))
    assert few.value == pytest.approx(many.value)
    assert few.high - few.low > many.high - many.low
    outside = rehearsal(ridge(STUDENT, margin=0.1, reach=0.01)).estimates(drawn())[0]
    inside = made.estimates(drawn())[0]
    assert (outside.inside, inside.inside) == (False, True)
    assert outside.low < inside.low < inside.value < inside.high < outside.high
    assert outside.value == inside.value


def test_an_estimate_is_never_beyond_what_was_rehearsed() -> None:
    for weight in (-50.0, 50.0):
        made = rehearsal(ridge([weight, 0, 0, 0], low=-1.0, high=2.0))
        own, theirs = made.estimates(drawn(scale=6.0))
        assert own.value == pytest.approx(sigmoid(2.0 if weight > 0 else -1.0))
        assert theirs is None


def test_an_estimate_tells_itself() -> None:
    assert str(eq.Estimate(0.5, 0.25, 0.75, True)) == "0.500 (0.250 to 0.750)"
    assert str(eq.Estimate(0.5, 0.25, 0.75, False)).endswith("0.750, outside of what was rehearsed)")


def test_logits_are_finite_at_the_ends() -> None:
    found = logit(torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)).tolist()
    assert found == pytest.approx([math.log(0.001 / 0.999), math.log(0.25 / 0.75), math.log(999)])


def alike(left: eq.Rehearsal, right: eq.Rehearsal) -> bool:
    mine, other = left.tensors(), right.tensors()
    return (
        left.to_json() == right.to_json()
        and mine.keys() == other.keys()
        and all(torch.equal(mine[name], other[name]) for name in mine)
    )


@pytest.mark.parametrize("gap", [None, GAP])
def test_text_and_tensors_make_it_again(gap: list[float] | None) -> None:
    made = rehearsal(ridge(STUDENT, 0.2, margin=0.3), None if gap is None else ridge(gap))
    again = eq.Rehearsal.from_parts(made.to_json(), made.tensors())
    assert alike(made, again)
    assert again.runs == made.runs
    assert (again.gap is None) == (gap is None)
    assert again.models == (1 if gap is None else 2)
    assert again.estimates(drawn()) == made.estimates(drawn())


@pytest.mark.parametrize("text", ["", "null", "3", "[]", "{}", "{", '"words"'])
def test_text_that_is_none_of_its_own_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="not a rehearsal"):
        eq.Rehearsal.from_parts(text, rehearsal(ridge(STUDENT)).tensors())


def test_parts_that_are_missing_are_refused() -> None:
    made = rehearsal(ridge(STUDENT), ridge(GAP))
    text, tensors = made.to_json(), made.tensors()
    for name in json.loads(text):
        less = {key: value for key, value in json.loads(text).items() if key != name}
        with pytest.raises(StateError, match="not a rehearsal"):
            eq.Rehearsal.from_parts(json.dumps(less), tensors)
    for name in tensors:
        if name == "gap.mean":
            continue  # without it there is no gap
        with pytest.raises(StateError, match="not a rehearsal"):
            eq.Rehearsal.from_parts(text, {key: t for key, t in tensors.items() if key != name})
    runs: list[Any] = [3, {}, {"shift": "none"}, None]
    for run in runs:
        with pytest.raises(StateError, match="not a rehearsal"):
            eq.Rehearsal.from_parts(json.dumps({**json.loads(text), "runs": [run]}), tensors)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    made = rehearsal(ridge(STUDENT), ridge(GAP))
    for name, tensor in made.tensors().items():
        with pytest.raises(StateError, match="finite"):
            eq.Rehearsal.from_parts(made.to_json(), {**made.tensors(), name: torch.full_like(tensor, bad)})


def test_tensors_of_other_shapes_are_refused() -> None:
    made = rehearsal(ridge(STUDENT), ridge(GAP))
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
    for made in (rehearsal(ridge(STUDENT)), rehearsed().rehearsal):
        lines = str(made).splitlines()
        for run in made.runs:
            (line,) = [x for x in lines if x.startswith(f"{run.shift} ") and f" {run.order} " in x]
            numbers = [float(word) for word in line.split()[-4:]]
            expected = [run.accuracy, run.estimate, run.estimate - run.accuracy, run.confidence]
            assert numbers == pytest.approx(expected, abs=6e-4)
        assert len(lines) == 1 + len(made.runs) + 2
        error = sum(abs(run.estimate - run.accuracy) for run in made.runs) / len(made.runs)
        assert made.error == pytest.approx(error)
        assert f"{error:.3f}" in lines[-2]


def test_the_summary_says_whether_the_calibration_error_falls_or_rises() -> None:
    near, far = (torch.tensor([[10.0], [10 * sure], [9.0]]).double().expand(3, 15) for sure in (0.9, 0.8))
    better = rehearsal(ridge(STUDENT), bins=torch.stack([far, near]))
    worse = rehearsal(ridge(STUDENT), bins=torch.stack([near, far]))
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
    rehearsal(ridge(STUDENT)).plot(str(path))
    assert path.stat().st_size > 1000


def test_a_picture_without_matplotlib_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"equipoise\[demo\]"):  # the extra that has it
        rehearsal(ridge(STUDENT)).plot(tmp_path / "picture.png")
    assert not list(tmp_path.iterdir())
