"""Novelty of inputs: distances from source samples, written out sample by sample."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.calibration import novelty
from equipoise.calibration.novelty import Novelty, SourceInputs, numbers_of
from equipoise.errors import SourceError


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def table(rows: int = 600, seed: int = 0) -> Tensor:
    """Rows of five columns: numbers of different spreads, a flag, and a constant."""
    x = drawn(rows, 5, seed=seed) * torch.tensor([1.0, 10.0, 0.1, 1.0, 1.0])
    x[:, 3] = (x[:, 3] > 0).float()
    x[:, 4] = 7.0
    return x


def seen(x: Tensor, classes: int = 3) -> dict[str, Tensor]:
    known = SourceInputs()
    for part in x.split(100):
        known.observe(
            {"0": part}, part[:, :1] * torch.arange(classes) if part.ndim == 2 else drawn(len(part), 3)
        )
    return known.result()


def kept_rows(source: Tensor) -> list[int]:
    """Every so many rows, one in eight and 250 at most, the first and the last among them."""
    count = min(250, len(source) // 8)
    return [int(at * (len(source) - 1) / (count - 1) + 1e-9) for at in range(count)]


def by_hand(x: Tensor, source: Tensor) -> list[float]:
    """ln of the distance from the second nearest of rows kept, in spreads, less the mean of the others."""
    spread = [float(column.std()) for column in source.T]
    typical = float(torch.tensor([s for s in spread if s > 0]).median())
    scale = torch.tensor([max(s if s > 0 else typical, typical / 20) for s in spread], dtype=torch.double)
    places = kept_rows(source)
    kept = [source[at].double() / scale for at in places]

    def far(row: Tensor) -> float:
        apart = sorted(float((row.double() / scale - other).square().sum()) ** 0.5 for other in kept)
        return math.log(max(apart[1], 0.05))

    others = [far(row) for at, row in enumerate(source) if at not in places]
    usual = sum(others) / len(others)
    return [min(max(far(row) - usual, -4.0), 4.0) for row in x]


def test_novelty_is_the_distance_from_the_second_nearest_source_row() -> None:
    source, x = table(), table(20, seed=1)
    x[7] += 100.0
    new = Novelty(seen(source))({"0": x})
    assert new is not None
    assert new.tolist() == pytest.approx(by_hand(x, source), abs=2e-3)
    assert float(new[7]) > 2
    assert abs(float(new[:7].mean())) < 0.3


def test_rows_are_not_new_in_another_order_or_in_other_shares() -> None:
    known = seen(table())
    new = Novelty(known)({"0": table(600, seed=2)})
    assert new is not None
    ordered = new[table(600, seed=2)[:, 1].argsort()]
    assert all(abs(float(part.mean())) < 0.15 for part in (new, ordered[150:450]))
    shifted = Novelty(known)({"0": table(600, seed=2) + torch.tensor([3.0, 0, 0, 0, 0])})
    constant = Novelty(known)({"0": table(600, seed=2) + torch.tensor([0, 0, 0, 0, 5.0])})
    assert shifted is not None
    assert constant is not None
    assert float(shifted.mean()) > 0.5
    assert float(constant.mean()) > 0.5  # a column of one value that moves is new


def test_the_limit_is_what_sorted_source_rows_keep_below() -> None:
    source = table()
    limit = seen(source)["limit"]
    others = torch.tensor([at for at in range(600) if at not in kept_rows(source)])
    rest = source[others]
    new = Novelty(seen(source))({"0": rest})
    assert new is not None
    classes = (rest[:, :1] * torch.arange(3)).argmax(1)
    rows, means = len(rest) // 4, []
    varied = [rest[:, at].argsort(stable=True) for at in range(4)]
    for order in (torch.arange(len(rest)), classes.argsort(stable=True), *varied):
        means += [float(new[order][at : at + rows].mean()) for at in range(0, 4 * rows, rows)]
    assert float(limit) == pytest.approx(max(0.2, float(torch.tensor(means).quantile(0.95))), abs=1e-3)


@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_columns_far_from_zero_are_as_exact_as_others(offset: float) -> None:
    # Failed first: products of matrices lose all digits of distances between such rows.
    source, fresh, moved = (drawn(2000, 5, seed=seed) + offset for seed in (0, 1, 2))
    moved += 3.0
    novelty_of = Novelty(seen(source))
    unmoved, shifted, alone = (novelty_of({"0": x}) for x in (fresh, moved, fresh[:1]))
    assert unmoved is not None
    assert shifted is not None
    assert alone is not None
    assert abs(float(unmoved.mean())) < 0.05
    assert float(shifted.mean()) > 1
    assert float(alone[0]) == pytest.approx(float(unmoved[0]), abs=1e-3)


def test_a_rare_large_column_costs_no_digits() -> None:
    # Rows that are near each other, and far from the mean together: a product in single precision loses .08.
    known = seen(drawn(2000, 201))
    known["kept"] *= 0.01
    known["kept"][:, -1] = 60.0
    known["usual"] = torch.zeros(())
    z = known["kept"][::10] + 1e-3 * drawn(25, 201, seed=1)
    new = Novelty(known)({"0": z * known["scale"] + known["mean"]})
    apart = (z.double().unsqueeze(1) - known["kept"].double()).square().sum(2).sqrt()
    expected = apart.sort(1).values[:, 1].log()
    assert new is not None
    torch.testing.assert_close(new.double(), expected, rtol=0, atol=1e-3)


def test_flags_that_make_equal_rows_are_not_new() -> None:
    # Failed first: rows that equal a kept one had novelties of -4, so that others seemed far.
    flags = (drawn(2000, 8) > 0.8).float()
    new = Novelty(seen(flags))({"0": (drawn(500, 8, seed=1) > 0.8).float()})
    assert new is not None
    assert abs(float(new.mean())) < 0.2


def test_inputs_count_in_the_order_of_their_names() -> None:
    first, second = drawn(60, 2), drawn(60, 3)
    one, other = numbers_of({"a": first, "b": second}), numbers_of({"b": second, "a": first})
    assert one is not None
    assert other is not None
    assert torch.equal(one.values, other.values)


def test_images_are_described_by_a_few_statistics_and_have_no_limit() -> None:
    x = drawn(300, 3, 6, 5)
    found = numbers_of({"0": x})
    assert found is not None
    assert not found.whole
    image = x[4]
    expected = [
        *(float(c.mean()) for c in image),
        *(float(c.std(correction=0)) for c in image),
        *(float((c[:, 1:] - c[:, :-1]).abs().mean()) for c in image),
        *(float((c[1:] - c[:-1]).abs().mean()) for c in image),
    ]
    assert found.values[4].tolist() == pytest.approx(expected, abs=1e-5)
    known = seen(x)
    assert "limit" not in known
    new = Novelty(known)({"0": 3 * drawn(40, 3, 6, 5, seed=1)})
    assert new is not None
    assert float(new.mean()) > 0.5


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8])
def test_large_images_are_described_on_a_grid(kind: torch.dtype) -> None:
    """Every second row and column of 129 by 131 pixels; neighbours stay those beside each other."""
    x = (60 * drawn(2, 3, 129, 131) + 128).clamp(0, 255).to(kind)
    found = numbers_of({"0": x})
    assert found is not None
    image = x[1].double()
    spots = image[:, ::2, ::2]
    across = (image[:, ::2, 1::2] - image[:, ::2, :-1:2]).abs()
    down = (image[:, 1::2, ::2] - image[:, :-1:2, ::2]).abs()
    expected = [spots.mean((1, 2)), spots.std((1, 2), correction=0), across.mean((1, 2)), down.mean((1, 2))]
    torch.testing.assert_close(found.values[1].double(), torch.cat(expected), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "samples",
    [
        {"input_ids": torch.randint(9, (40, 7))},
        {"0": drawn(40, 6, 8)},
        {"0": drawn(40, 9), "1": drawn(40, 9)},
    ],
)
def test_inputs_without_numbers_or_of_another_width_have_no_novelty(samples: dict[str, Tensor]) -> None:
    assert Novelty(seen(table()))(samples) is None


@pytest.mark.parametrize("columns", [(4, 4), (4, 5)])
def test_the_shape_of_a_sample_is_kept_where_all_tensors_have_it(columns: tuple[int, int]) -> None:
    known, (first, second) = SourceInputs(), columns
    known.observe({"a": drawn(600, first), "b": drawn(600, second, seed=1)}, drawn(600, 3))
    shape = known.result().get("shape")
    assert (None if shape is None else shape.tolist()) == ([4] if first == second else None)


def test_codes_beside_floats_are_left_out_and_set_no_limit() -> None:
    samples: dict[str, Any] = {"numbers": drawn(60, 4), "codes": torch.randint(3, (60, 2))}
    found = numbers_of(samples)
    assert found is not None
    assert torch.equal(found.values, samples["numbers"])
    assert not found.whole


def test_rows_that_are_not_finite_are_no_source_rows_and_are_as_new_as_can_be() -> None:
    x = table()
    spoilt = x.clone()
    spoilt[3] = torch.nan
    known = SourceInputs()
    known.observe({"0": spoilt}, drawn(600, 3))
    assert known.result()["kept"].isfinite().all()
    new = Novelty(known.result())({"0": spoilt[:6]})
    assert new is not None
    assert float(new[3]) == novelty.FARTHEST


def test_inputs_that_are_too_wide_or_too_few_have_no_novelty() -> None:
    wide, few = SourceInputs(), SourceInputs()
    wide.observe({"0": torch.zeros(40, 2**20 // 31)}, drawn(40, 3))
    few.observe({"0": drawn(250, 4)}, drawn(250, 3))
    assert wide.result() == few.result() == {}


def test_a_window_of_novelty_forgets() -> None:
    limit, sums = torch.tensor(0.5), novelty.nothing_new(torch.zeros(1))
    total, count = 0.0, 50.0
    for seed in range(5):
        new = 0.6 + 0.2 * drawn(60, seed=seed)
        sums = novelty.novelty_after(sums, new, limit)
        total = total * 2 ** (-60 / 300) + float(new.double().sum()) / 0.5
        count = count * 2 ** (-60 / 300) + 60
        assert float(novelty.share_of_new(sums)) == pytest.approx(min(max(total / count - 1, 0), 1), abs=1e-5)


def table_model() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        x = drawn(2000, 6)
        y = (x[:, :3] + 0.3 * drawn(2000, 3, seed=1)).argmax(1)
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.eval()


def accuracies(adapter: eq.Adapter, model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    adapted = torch.cat([adapter(part) for part in x.split(50)]).argmax(1)
    with torch.no_grad():
        plain = model(x).argmax(1)
    return float((adapted == y).float().mean()), float((plain == y).float().mean())


def test_a_table_that_is_sorted_by_class_moves_no_statistics() -> None:
    # Failed first: batches of one class were taken for a shift, and accuracy fell by more than a half.
    model, x = table_model(), drawn(2000, 6, seed=5)
    y = x[:, :3].argmax(1)
    order = y.argsort(stable=True)
    source = eq.SourceStatistics.measure(model, [drawn(1000, 6)], progress=False)
    adapter = eq.Poise(model, source, tempering="none")
    adapted, plain = accuracies(adapter, model, x[order], y[order])
    assert plain > 0.9
    assert adapted > plain - 0.01
    blind = eq.Poise(model, replaced(source), tempering="none")
    assert accuracies(blind, model, x[order], y[order])[0] < plain - 0.2


def replaced(source: eq.SourceStatistics) -> eq.SourceStatistics:
    """The statistics without novelty."""
    return eq.SourceStatistics.from_parts(
        source.to_json(), {n: t for n, t in source.tensors().items() if not n.startswith("source.inputs.")}
    )


def test_a_table_whose_columns_move_is_followed() -> None:
    model, x = table_model(), drawn(2000, 6, seed=5)
    y, moved = x[:, :3].argmax(1), 1.5 * x + torch.tensor([3.0, -2.0, 1.0, 2.0, 2.0, -2.0])
    source = eq.SourceStatistics.measure(model, [drawn(1000, 6)], progress=False)
    adapter = eq.Poise(model, source, tempering="none")
    adapted, plain = accuracies(adapter, model, moved, y)
    assert adapted > plain + 0.2
    accuracies(adapter, model, x, y)  # where nothing is new any more, statistics return
    again, unmoved = accuracies(adapter, model, x, y)
    own = adapter.state_dict()
    home = eq.Poise(model, source, tempering="none").state_dict()
    assert again > unmoved - 0.01
    names = [name for name in own if name.endswith("running_mean") and isinstance(own[name], Tensor)]
    assert names
    for name in names:
        torch.testing.assert_close(own[name], home[name], atol=0.05, rtol=0.05)


def test_novelty_is_saved_with_the_statistics(tmp_path: Any) -> None:
    model = table_model()
    source = eq.SourceStatistics.measure(model, [drawn(1000, 6)], progress=False)
    source.save(tmp_path / "source.safetensors")
    again = eq.SourceStatistics.load(tmp_path / "source.safetensors")
    assert set(again.inputs) == {"mean", "scale", "kept", "usual", "shape", "limit"}
    for name, tensor in source.inputs.items():
        assert torch.equal(again.inputs[name], tensor)


@pytest.mark.parametrize("spoil", [lambda t: t.pop("mean"), lambda t: t["limit"].fill_(math.nan)])
def test_numbers_that_are_missing_or_not_finite_are_refused(spoil: Any) -> None:
    source = eq.SourceStatistics.measure(table_model(), [drawn(1000, 6)], progress=False)
    inputs = {name: tensor.clone() for name, tensor in source.inputs.items()}
    spoil(inputs)
    with pytest.raises(SourceError, match="source inputs"):
        replace(source, inputs=inputs)
