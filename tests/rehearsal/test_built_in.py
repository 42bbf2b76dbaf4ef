"""Which of a model's inputs the built-in shifts change, and what is said of the others."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.errors import OptionError, RehearsalWarning
from equipoise.rehearsal.labelled import Inputs
from equipoise.rehearsal.shifts import Shifts, built_in_shifts, chosen_shifts, shifted_inputs

DRAW = torch.Generator().manual_seed(0)
FLOATS = 3 * torch.randn(300, 9, generator=DRAW) + 5
OTHERS = torch.randn(300, 4, generator=DRAW)
CODES = torch.randint(10**6, 10**6 + 8, (300, 5), generator=DRAW)
STEPS = torch.randn(300, 6, 3, generator=DRAW)
MASK = torch.rand(300, 6, generator=DRAW) < 0.7
IMAGES = torch.rand(300, 3, 8, 8, generator=DRAW)


def built_in(inputs: Inputs, columns: Any = None) -> Shifts:
    """The shifts of inputs, which must come without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return built_in_shifts(inputs, columns, "rehearse")


def after(inputs: Inputs, shift: Callable[..., Any]) -> Any:
    """Inputs after a shift, of the types and shapes as before."""
    return shifted_inputs(inputs, shift, 0)


def entry(inputs: Any, name: int | str) -> Tensor:
    found: Tensor = inputs[name]
    return found


def changed_by(shifts: Shifts, inputs: Any, name: int | str) -> set[str]:
    """The shifts that change an entry."""
    entries = {shift: entry(after(inputs, function), name) for shift, function in shifts.items()}
    return {shift for shift, found in entries.items() if not torch.equal(found, entry(inputs, name))}


def test_all_tables_of_a_dict_are_shifted_each_by_its_own_spread() -> None:
    inputs = {"first": FLOATS, "second": 100 * OTHERS}
    shifts = built_in(inputs)
    assert changed_by(shifts, inputs, "first") == set(shifts)
    alone = {"permute .1", "permute .3"}  # four columns are not enough
    assert changed_by(shifts, inputs, "second") == set(shifts) - alone - {"freeze .3", "drop columns .3"}
    found = shifts["noise 1"](inputs, torch.Generator().manual_seed(0))
    noise = [(found[name] - inputs[name]) / inputs[name].std(0) for name in inputs]
    for each in noise:
        assert float(each.std()) == pytest.approx(1, rel=0.1)
    assert not torch.equal(noise[0][:, 0], noise[1][:, 0])


def test_codes_beside_floats_are_redrawn_from_their_own_values() -> None:
    inputs = (FLOATS, CODES, CODES[:, 0] - 10**6)
    shifts = built_in(inputs)
    only_floats = {"saturate", "round", "permute .1", "permute .3"}
    assert changed_by(shifts, inputs, 1) == set(shifts) - only_floats
    for shift in shifts.values():
        found = after(inputs, shift)
        assert found[2].shape == (300,)
        for column in range(5):
            assert set(found[1][:, column].tolist()) <= set(CODES[:, column].tolist())


def test_codes_alone_need_kinds() -> None:
    with pytest.raises(
        OptionError, match=r'codes of categories need columns=\["code", ...\]; for tokens.*pass your own'
    ):
        built_in(CODES)
    shifts = built_in(CODES, ["code"] * 5)
    assert len(shifts) >= 20
    assert set(built_in(CODES, {3: "code"})) == set(shifts)
    for shift in shifts.values():
        found = after(CODES, shift)
        assert not torch.equal(found, CODES)
        assert set(found.unique().tolist()) <= set(CODES.unique().tolist())


def test_tokens_beside_a_mask_of_floats_are_no_codes() -> None:
    with pytest.raises(OptionError, match="no built-in shifts"):
        built_in((CODES, torch.ones(300, 5)))


def test_what_stays_as_it_is_is_named() -> None:
    inputs = {"values": STEPS, "mask": MASK, "places": torch.arange(6).repeat(300, 1)}
    with pytest.warns(
        RehearsalWarning, match=r"change \(values\) and leave other inputs as they are \(mask\);"
    ):
        shifts = built_in_shifts(inputs, None, "rehearse")
    assert changed_by(shifts, inputs, "values") == set(shifts)
    assert changed_by(shifts, inputs, "mask") == changed_by(shifts, inputs, "places") == set()
    long = {"values": STEPS, "mask": MASK.long()}
    with pytest.warns(RehearsalWarning, match=r"\(mask\)"):  # as long as the steps: no codes
        assert not changed_by(built_in_shifts(long, None, "rehearse"), long, "mask")
    with pytest.warns(RehearsalWarning, match=r"\(1\)"):
        built_in_shifts((IMAGES, FLOATS), None, "rehearse")


def test_flags_that_are_boolean_change_if_they_are_named() -> None:
    inputs = {"values": FLOATS, "more": MASK}
    shifts = built_in(inputs, {("more", 0): "flag"})
    assert {"noise 1", "move 1", "freeze .1"} <= changed_by(shifts, inputs, "more")


def test_images_are_shifted_by_the_same_random_numbers() -> None:
    inputs = (IMAGES, IMAGES.flip(0), IMAGES[:, :1])
    shifts = built_in(inputs)
    assert {"grey", "rotate 25"} <= set(shifts)
    found = after((IMAGES, IMAGES.clone(), IMAGES[:, :1]), shifts["rotate 25"])
    assert torch.equal(found[0], found[1])
    assert not changed_by({"grey": shifts["grey"]}, inputs, 2)
    alone = built_in(IMAGES)
    assert torch.equal(found[0], after(IMAGES, alone["rotate 25"]))
    with pytest.raises(OptionError, match="for tables, these inputs have an image"):
        built_in(IMAGES, {0: "code"})


@pytest.mark.parametrize(
    "name", ["move 1", "stretch 1", "freeze .1", "drop columns .1", "permute .3", "scale 2"]
)
def test_batches_of_all_sizes_are_of_one_domain_in_all_tables(name: str) -> None:
    flags = (FLOATS > 5).float()  # of which some rows are set, drawn before the next table
    inputs = (flags, FLOATS, OTHERS, STEPS)
    shift = built_in(inputs)[name]
    whole = after(inputs, shift)
    part = after(tuple(each[:11] for each in inputs), shift)
    for large, small in zip(whole[1:], part[1:], strict=True):
        torch.testing.assert_close(large[:11], small)


def test_shifts_draw_columns_and_offsets_of_their_own() -> None:
    shifts = built_in(FLOATS)
    offsets = [after(FLOATS, shifts[name]) - FLOATS for name in ("move 1", "move 2")]
    assert len((offsets[0][0].sign() * offsets[1][0].sign()).unique()) == 2  # not twice the same


WRONG: list[tuple[Any, Any, str]] = [
    (FLOATS, "code", "expected columns as a list of kinds, or as a dict of indices to kinds, got 'code'"),
    (FLOATS, 3, "expected columns as a list"),
    (FLOATS, {0: "category"}, "kinds of columns from continuous, flag, constant, code, got 'category'"),
    (FLOATS, [["code"]] * 9, "kinds of columns from"),
    (FLOATS, ["continuous"] * 8, "a kind for each of 9 columns, got 8"),
    (FLOATS, {9: "code"}, "columns from 0 to 8, got 9"),
    (FLOATS, {-1: "code"}, "columns from 0 to 8, got -1"),
    (FLOATS, {"age": "code"}, "columns from 0 to 8, got 'age'"),
    (FLOATS, {("x", 0): "code"}, r"expected columns by index, got \('x', 0\)"),
    (FLOATS, {0: "flag"}, 'at most two values in column 0, which is to be "flag"'),
    ((FLOATS, CODES), {0: "code"}, r"dict of \(position or key, index\) to kinds.*\(0, 1\), got 0"),
    ((FLOATS, CODES), ["code"] * 5, r"dict of \(position or key, index\) to kinds.*got a list"),
    ((FLOATS, CODES), {(2, 0): "code"}, r"dict of \(position or key, index\).*got \(2, 0\)"),
    ((FLOATS, CODES), {(1, 5): "code"}, r"columns from 0 to 4 \(1\), got 5"),
]


@pytest.mark.parametrize(("inputs", "columns", "message"), WRONG)
def test_columns_that_are_none(inputs: Any, columns: Any, message: str) -> None:
    model = Tabular() if isinstance(inputs, tuple) else nn.Linear(9, 3)
    with pytest.raises(OptionError, match=message):
        eq.rehearse(model, [(inputs, torch.arange(300) % 3)], columns=columns, progress=False)


def test_columns_are_for_the_built_in_shifts() -> None:
    own: Any = {str(place): lambda x, _: x + 1 for place in range(8)}
    with pytest.raises(
        OptionError, match="columns= for the built-in shifts alone, got it with shifts of your own"
    ):
        eq.rehearse(nn.Linear(9, 3), [], shifts=own, columns={0: "code"}, progress=False)
    with pytest.raises(OptionError, match="columns= for the built-in shifts alone"):
        eq.recommend(nn.Linear(9, 3), [], shifts=own, columns={0: "code"}, progress=False)


class Tabular(nn.Module):
    """Numbers, and codes as a bag of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(8, 4, mode="mean"), nn.Linear(13, 3)

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([numbers, self.words(codes)], 1))
        return logits


def test_a_rehearsal_and_a_recommendation_with_codes() -> None:
    torch.manual_seed(0)
    codes = CODES - 10**6
    batch = {"numbers": FLOATS, "codes": codes, "labels": codes[:, 0] % 3}
    columns: Any = {("numbers", 0): "code"}
    small: Any = {"columns": columns, "shifts": 8, "samples": 200, "progress": False}
    small["check_held_out"] = False  # an untrained model
    found = eq.rehearse(Tabular(), [batch], method="source", **small)
    expected = chosen_shifts(8, {"numbers": FLOATS, "codes": codes}, columns)
    passes = {run.shift for run in found.rehearsal_of("source").runs}
    assert passes == set(expected)
    tried = eq.recommend(Tabular(), [batch], methods=["t3a"], length=300, **small)
    assert tried.method in ("source", "t3a", "poise")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_shifts_are_the_same_on_a_gpu() -> None:
    inputs = (FLOATS, CODES, STEPS)
    for name, shift in built_in(inputs).items():
        there = after(tuple(each.cuda() for each in inputs), shift)
        for near, far in zip(after(inputs, shift), there, strict=True):
            assert far.is_cuda
            torch.testing.assert_close(near, far.cpu(), msg=name)
