"""The made-up shifts: what they keep, and that they change something."""

import pytest
import torch
from torch import Tensor

from equipoise.rehearsal.image_shifts import ShiftFunction, image_shifts, scale_of
from equipoise.rehearsal.table_shifts import column_shifts, columns_of
from equipoise.research.data.corruptions import CORRUPTIONS


def images(rows: int = 6, channels: int = 3, height: int = 12, width: int = 10) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    smooth = torch.rand(rows, channels, 3, 3, generator=draw)
    big = torch.nn.functional.interpolate(smooth, (height, width), mode="bilinear")
    return (big + 0.3 * torch.rand(rows, channels, height, width, generator=draw)) / 1.3


def normalised(x: Tensor) -> Tensor:
    """As models get them: each channel has its own range, with negative values."""
    return (x - torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1)) / torch.tensor([0.2, 0.3, 0.1]).view(
        1, 3, 1, 1
    )


KINDS = {
    "unit": images(),
    "normalised": normalised(images()),
    "bytes": (images() * 255).round().to(torch.uint8),
    "grey": images(channels=1),
    "double": normalised(images()).double(),
    "half": normalised(images()).half(),
    "small": normalised(images(height=8, width=8)),
    "odd": normalised(images(height=9, width=11)),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def of(x: Tensor) -> dict[str, ShiftFunction]:
    return image_shifts(scale_of(x), x.shape[1])


NAMES = sorted(of(KINDS["unit"]))
COLOURS = {"grey", "permute channels", "convolve 1"}


def test_none_of_them_is_a_benchmark_corruption() -> None:
    assert len(CORRUPTIONS) == 15

    def plain(name: str) -> str:
        return name.lower().replace("_", " ").strip(" .0123456789x")

    ours = {*NAMES, *column_shifts(columns_of(torch.randn(5, 3, 9), {}))}
    kept = {plain(name) for name in CORRUPTIONS}
    assert not {plain(name) for name in ours} & kept
    for word in ("blur", "fog", "frost", "snow", "contrast", "brightness", "jpeg", "pixel", "elastic"):
        assert not [name for name in ours if word in name]


@pytest.mark.parametrize("kind", KINDS)
def test_images_keep_shape_type_and_range(kind: str) -> None:
    x = KINDS[kind]
    shifts = of(x)
    assert set(shifts) == set(NAMES) - (COLOURS if x.shape[1] == 1 else set())
    low, high = x.double().amin((0, 2, 3)), x.double().amax((0, 2, 3))
    slack = 1e-3 * (high - low) if x.dtype == torch.float16 else 1e-5 * (high - low)
    before = x.clone()
    for name, shift in shifts.items():
        found = shift(x, seeded())
        assert (found.shape, found.dtype, found.device) == (x.shape, x.dtype, x.device), name
        assert bool((found.double().amin((0, 2, 3)) >= low - slack).all()), name
        assert bool((found.double().amax((0, 2, 3)) <= high + slack).all()), name
        assert bool(found.double().isfinite().all()), name
        assert torch.equal(x, before), name


@pytest.mark.parametrize("name", NAMES)
def test_every_image_shift_changes_something_and_depends_on_the_generator_alone(name: str) -> None:
    for kind in ("unit", "normalised", "bytes"):
        x = KINDS[kind]
        shift = of(x)[name]
        torch.manual_seed(1)
        found = shift(x, seeded())
        state = torch.get_rng_state()
        torch.manual_seed(2)
        assert torch.equal(shift(x, seeded()), found)
        torch.manual_seed(1)
        assert torch.equal(torch.get_rng_state(), state)
        changed = (found.float() - x.float()).abs() / (x.float().amax() - x.float().amin())
        assert float(changed.mean()) > 0.005


def test_another_generator_gives_another_shift_where_chance_plays_a_part() -> None:
    x = KINDS["unit"]
    different = {
        name for name, shift in of(x).items() if not torch.equal(shift(x, seeded(3)), shift(x, seeded(8)))
    }
    chance = ("rotate", "cut", "mix", "convolve", "fourier", "shuffle", "shear", "grain")
    assert different == {name for name in NAMES if name.startswith(chance)}


def test_formulas_of_some_images_shifts() -> None:
    x, shifts = KINDS["normalised"].double(), of(KINDS["normalised"])
    low, high = x.amin((0, 2, 3), keepdim=True), x.amax((0, 2, 3), keepdim=True)
    unit = (x - low) / (high - low)
    expected = {
        "invert": 1 - unit,
        "posterise": (unit * 3).round() / 3,
        "gamma 2.5": unit**2.5,
        "gamma .4": unit**0.4,
        "solarise": torch.where(unit > 0.5, 1 - unit, unit),
        "grey": unit.mean(1, keepdim=True).expand_as(unit),
        "permute channels": unit[:, [2, 0, 1]],
    }
    for name, value in expected.items():
        found = shifts[name](KINDS["normalised"], seeded()).double()
        away = ((found - (low + value * (high - low))) / (high - low)).abs()
        assert float(away.quantile(0.99)) < 1e-4, name  # a value at an edge may round to either side


@pytest.mark.parametrize("kind", ["normalised", "bytes", "grey"])
def test_single_images(kind: str) -> None:
    x = KINDS[kind][:1]
    for name, shift in of(KINDS[kind]).items():
        found = shift(x, seeded())
        assert found.shape == x.shape, name
        assert bool(found.double().isfinite().all()), name


def test_constant_channels_and_values_beyond_the_scale() -> None:
    x = images()
    x[:, 1] = 0.25
    for wide in (x, torch.zeros(6, 3, 12, 10)):
        scale = scale_of(wide)
        assert bool((scale.high > scale.low).all())
        for name, shift in image_shifts(scale, 3).items():
            found = shift(3 * wide - 1, seeded())
            assert bool(found.isfinite().all()), name
            assert bool((found >= scale.low - 1e-5).all() & (found <= scale.high + 1e-5).all()), name


def test_the_scale_of_images() -> None:
    x = KINDS["normalised"]
    scale = scale_of(x)
    for channel in range(3):
        values = x[:, channel].flatten().double()
        assert float(scale.low[0, channel, 0, 0]) == pytest.approx(float(values.min()))
        assert float(scale.high[0, channel, 0, 0]) == pytest.approx(float(values.max()))
