"""The made-up shifts of tables: what each kind of column keeps, and what changes."""

import pytest
import torch
from torch import Tensor

from equipoise.errors import OptionError
from equipoise.rehearsal.image_shifts import ShiftFunction
from equipoise.rehearsal.table_shifts import TableColumns, column_shifts, columns_of


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed))


def of(x: Tensor) -> dict[str, ShiftFunction]:
    return column_shifts(columns_of(x, {}))


def table(rows: int = 400) -> Tensor:
    """Eight columns of numbers, two flags, of 0 and 1 and of −2 and 5, a constant, and a count."""
    draw = seeded()
    flags = (torch.rand(rows, 2, generator=draw) < torch.tensor([0.5, 0.1])).float()
    flags[:, 1] = 7 * flags[:, 1] - 2
    constant = torch.full((rows, 1), 3.0)
    count = torch.randint(12, (rows, 1), generator=draw).float()
    return torch.cat([5 * normal(rows, 8) + 20, flags, constant, count], 1)


NUMBERS, FLAGS, CONSTANT, COUNT = range(8), (8, 9), 10, 11

TABLES = {
    "numbers": 5 * normal(60, 9) + 20,
    "steps": 5 * normal(60, 7, 9) - 3,
    "double": normal(60, 9).double(),
    "half": normal(60, 9).half(),
    "all kinds": table(),
    "flags": (normal(200, 6) > 0).float(),
    "codes": torch.randint(5, (200, 6), generator=seeded()),
    "bytes": torch.randint(5, (200, 6), generator=seeded()).to(torch.uint8),
    "one": normal(60, 1),
}


def test_kinds_are_guessed_or_given() -> None:
    x = table()
    assert columns_of(x, {}).kinds == (*["continuous"] * 8, "flag", "flag", "constant", "continuous")
    assert columns_of(x, {11: "code", 8: "code"}).kinds[8:] == ("code", "flag", "constant", "code")
    assert columns_of(x.long(), {0: "continuous"}).kinds == ("continuous", *["code"] * 11)
    with pytest.raises(OptionError, match=r'at most two values in column 0, which is to be "flag", got more'):
        columns_of(x, {0: "flag"})
    with pytest.raises(OptionError, match="one value in column 9 of 'more', which is to be \"constant\""):
        columns_of(x, {9: "constant"}, "more")
    with pytest.raises(
        OptionError, match='"flag" or "code" for column 1, which is boolean, got "continuous"'
    ):
        columns_of(x > 0, {1: "continuous"})


def test_measures_of_columns() -> None:
    x = table().double()
    found = columns_of(x, {11: "code"})
    varying = [place for place in range(12) if place != CONSTANT]
    torch.testing.assert_close(found.mean, x.mean(0))
    spread = x.std(0, correction=0)
    torch.testing.assert_close(found.spread[varying], spread[varying])
    assert float(found.spread[CONSTANT]) == pytest.approx(float(spread[varying].median()))
    assert found.whole.tolist() == [False] * 8 + [True] * 4
    assert found.counts[8:].tolist() == [2, 2, 1, 12]
    assert found.values[:2, 9].tolist() == [-2, 5]
    assert found.values[:, 11].tolist() == list(range(12))
    assert found.usual[9] == -2
    assert found.usual[11] == x[:, 11].mode().values
    assert not found.steps
    steps = columns_of(normal(5000, 3, 4), {})
    assert steps.steps
    assert 1000 < len(steps.rows) <= 4000


def test_large_numbers_are_measured_exactly() -> None:
    x = 1.7e9 + 100 * normal(500, 1).double()
    found = columns_of(x, {})
    assert float(found.mean - x.mean()) == pytest.approx(0, abs=1e-3)
    assert float(found.spread) == pytest.approx(float(x.std(correction=0)), rel=1e-3)
    beside = torch.cat([x, torch.ones(500, 1)], 1)
    assert torch.equal(of(beside)["move constants"](beside, seeded())[:, 0], x[:, 0])
    halved = of(x)["scale .5"](x, seeded())
    torch.testing.assert_close(halved, x.mean() + 0.5 * (x - x.mean()), rtol=0, atol=0.01)


@pytest.mark.parametrize("kind", TABLES)
def test_all_shifts_keep_shape_and_type_and_change_something(kind: str) -> None:
    x = TABLES[kind]
    shifts, before = of(x), x.clone()
    assert len(shifts) >= (14 if kind == "one" else 22)
    found = {}
    for name, shift in shifts.items():
        found[name] = shift(x, seeded())
        assert (found[name].shape, found[name].dtype, found[name].device) == (x.shape, x.dtype, x.device), (
            name
        )
        assert bool(found[name].double().isfinite().all()), name
        assert torch.equal(found[name], shift(x, seeded())), name
        assert not torch.equal(found[name], x), name
        one = shift(x[:1], seeded())
        assert one.shape == x[:1].shape, name
        assert torch.equal(x, before), name
    names = list(found)
    for place, name in enumerate(names):
        for other in names[:place]:
            assert not torch.equal(found[name], found[other]), f"{name} is {other}"


def test_the_list() -> None:
    every = set(of(TABLES["steps"])) | set(of(table()))
    assert set(of(TABLES["numbers"])) == every - {"move constants", "reverse", "permute steps"}
    assert set(of(TABLES["flags"])) == set(of(normal(60, 6))) - {"round", "saturate"}
    assert {"permute .1", "permute .3"} <= set(of(normal(60, 8)))
    assert not {"permute .1", "permute .3"} & set(of(normal(60, 7)))
    assert not any(" in " in name or "freeze" in name or "columns" in name for name in of(TABLES["one"]))
    first = [name.split()[0] for name in list(of(TABLES["numbers"]))[:7]]
    assert set(first) == {"noise", "move", "drop", "scale", "freeze", "stretch"}


@pytest.mark.parametrize("name", of(table()))
def test_flags_and_codes_keep_their_values_and_numbers_that_are_whole_stay_whole(name: str) -> None:
    x = table()
    found = of(x)[name](x, seeded())
    for flag in FLAGS:
        assert set(found[:, flag].tolist()) <= set(x[:, flag].tolist())
    assert torch.equal(found[:, COUNT], found[:, COUNT].round())
    codes = (10 * x[:, 8:]).long()
    codes[:, 2] = torch.arange(len(x)) % 7 * 2**60  # which no float could hold
    changed = column_shifts(columns_of(codes, {}))
    if name in changed:
        for before, after in zip(codes.T, changed[name](codes, seeded()).T, strict=True):
            assert set(after.tolist()) <= set(before.tolist())


def test_constants_move_in_some_shifts_by_the_typical_spread() -> None:
    x = table()
    shifts = of(x)
    moving = {
        name for name, f in shifts.items() if not torch.equal(f(x, seeded())[:, CONSTANT], x[:, CONSTANT])
    }
    assert moving == {"move .5", "move 1", "move 2", "move constants"}
    offsets = torch.stack([shifts["move 1"](x, seeded(s))[:, CONSTANT] - 3 for s in range(300)])
    assert float((offsets - offsets[:, :1]).abs().max()) == 0  # the same for all rows
    spread = x.std(0, correction=0)
    typical = float(spread[spread > 0].median())
    assert float(offsets[:, 0].std()) == pytest.approx(typical, rel=0.15)
    alone = shifts["move constants"](x, seeded())
    rest = [place for place in range(12) if place != CONSTANT]
    assert torch.equal(alone[:, rest], x[:, rest])


def test_formulas_of_continuous_columns() -> None:
    x = TABLES["numbers"]
    shifts = of(x)
    mean, spread = x.double().mean(0), x.double().std(0, correction=0)
    z = (x.double() - mean) / spread
    expected = {"scale .5": 0.5 * z, "scale 2": 2 * z, "saturate": z.clamp(-1, 1), "round": z.round()}
    for name, value in expected.items():
        found = shifts[name](x, seeded()).double()
        torch.testing.assert_close(found, mean + value * spread, rtol=1e-4, atol=1e-3)
    dropped = shifts["drop .3"](x, seeded()).double()
    away = (dropped - x).abs() > 1e-4
    assert 0.2 < float(away.double().mean()) < 0.4
    torch.testing.assert_close(dropped[away], mean.expand_as(x)[away], rtol=1e-4, atol=1e-3)
    noise = (shifts["noise .5"](x, seeded()).double() - x) / spread
    assert float(noise.std()) == pytest.approx(0.5, rel=0.15)
    moved = (shifts["move 1"](x, seeded()).double() - x) / spread
    assert float(moved.std(0).max()) < 1e-3  # the same for the whole batch
    stretched = ((shifts["stretch 1"](x, seeded()).double() - mean) / spread / z).log()
    assert float(stretched.std(0).max()) < 1e-2
    assert 0.3 < float(stretched.mean(0).std()) < 2
    after = (shifts["permute .3"](x, seeded()).double() - mean) / spread
    same = [[torch.allclose(a, b, atol=1e-3) for b in z.T] for a in after.T]
    assert all(sum(row) == 1 for row in same)
    assert sum(not row[place] for place, row in enumerate(same)) == 3


def test_flags_are_redrawn_from_their_own_values_or_set_to_one() -> None:
    x = (torch.rand(4000, 2, generator=seeded()) < torch.tensor([0.5, 0.1])).float()
    shifts = of(x)
    redrawn = shifts["drop .6"](x, seeded(1))
    torch.testing.assert_close(redrawn.mean(0), x.mean(0), rtol=0, atol=0.03)
    torch.testing.assert_close(
        (redrawn != x).double().mean(0),
        0.6 * 2 * x.double().mean(0) * (1 - x.double().mean(0)),
        rtol=0,
        atol=0.03,
    )
    shares = set()
    for seed in range(20):
        moved = shifts["move 2"](x, seeded(seed))
        for column in range(2):
            changed = moved[:, column] != x[:, column]
            values = set(moved[changed, column].tolist())
            assert len(values) == 1  # one value for the whole stream
            (value,) = values
            assert float(changed[x[:, column] != value].double().mean()) == pytest.approx(0.5, abs=0.06)
            shares.add((column, value))
    assert len(shares) == 4


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("move 1 in .3", 3),
        ("move 2 in .1", 1),
        ("noise 1 in .3", 3),
        ("noise 2 in .1", 1),
        ("stretch 1 in .3", 3),
        ("freeze .1", 1),
        ("freeze .3", 3),
        ("drop columns .1", 1),
        ("drop columns .3", 3),
    ],
)
def test_some_columns_change(name: str, count: int) -> None:
    x = table()
    hit = torch.zeros(12)
    for seed in range(60):
        found = of(x)[name](x, seeded(seed))
        places = [place for place in range(12) if not torch.equal(found[:, place], x[:, place])]
        hit[places] += 1
        assert count - 1 <= len(places) <= count  # stretched or moved a little, a count is as it was
        for place in places:
            if "freeze" in name:
                assert len(found[:, place].unique()) == 1
                assert bool((found[0, place] == x[:, place]).any())
            if "columns" in name:
                usual = x[:, place].mode().values if place in FLAGS else x[:, place].mean()
                usual = usual.round() if place == COUNT else usual
                torch.testing.assert_close(found[:, place], usual.expand(400), rtol=1e-4, atol=1e-4)
    assert hit[CONSTANT] == 0
    assert int((hit > 0).sum()) == 11


@pytest.mark.parametrize("name", of(TABLES["steps"]))
def test_batches_of_all_sizes_are_of_one_domain(name: str) -> None:
    """What a shift draws for columns does not depend on the rows of the batch."""
    if name.startswith(("noise", "drop .", "permute steps")):
        return
    for x in (TABLES["numbers"], TABLES["steps"]):
        shift = of(x).get(name)
        if shift is not None:
            torch.testing.assert_close(shift(x[:7], seeded()), shift(x, seeded())[:7])


def test_noise_and_set_values_are_in_the_same_columns_in_batches_of_all_sizes() -> None:
    x = table()
    for name in ("noise 1 in .3", "noise 2 in .1", "move 1", "move 2 in .1", "move constants"):
        for seed in range(10):
            large, small = (of(x)[name](part, seeded(seed)) - part for part in (x, x[:37]))
            assert torch.equal((large != 0).any(0)[:8], (small != 0).any(0)[:8])
            for flag in FLAGS:
                both = torch.cat([large[:, flag], small[:, flag]])
                assert name.startswith("noise") or len(both[both != 0].sign().unique()) <= 1


def test_whole_steps_change_places() -> None:
    x = TABLES["steps"]
    assert torch.equal(of(x)["reverse"](x, seeded()), x.flip(1))
    found = of(x)["permute steps"](x, seeded())
    order = [int((x[0] == step).all(1).nonzero()) for step in found[0]]
    assert sorted(order) == list(range(7))
    assert torch.equal(found, x[:, order])


def test_flags_of_sequences_have_one_value_in_all_steps() -> None:
    x = (normal(300, 6, 2) > 0).float()
    found = of(x)["move 2"](x, seeded())
    for column in range(2):
        changed = (found != x)[:, :, column].any(1)
        assert all(len(row.unique()) == 1 for row in found[changed][:, :, column])


def test_whole_numbers_of_small_types_stay_within_their_limits() -> None:
    x = torch.randint(256, (300, 2), generator=seeded()).to(torch.uint8)
    found: TableColumns = columns_of(x, {0: "continuous", 1: "continuous"})
    for name, shift in column_shifts(found).items():
        changed = shift(x, seeded())
        assert changed.dtype == torch.uint8
        away = (changed.double() - x.double()).abs().mean()
        assert float(away) < 140, name
    scaled = column_shifts(found)["scale 2"](x, seeded()).double()
    expected = (x + (x - x.double().mean(0)).round()).clamp(0, 255)
    torch.testing.assert_close(scaled, expected, rtol=0, atol=1)
