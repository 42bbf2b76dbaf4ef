import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.network.modules import fingerprint
from tests.support.models import WithLogits, images, make


def test_measures_mean_entropy_and_lower_middle_norm() -> None:
    model, _ = make()
    x = images(10)
    source = eq.SourceStatistics.measure(model, [x[:4], x[4:]], progress=False)
    with torch.no_grad():
        z = model(x).double().numpy()
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    assert source.h0 == pytest.approx(-(p * np.log2(p)).sum(1).mean(), rel=1e-5)
    norms = np.sort(np.sqrt((z**2).sum(1)))
    assert source.kappa == pytest.approx(norms[4], rel=1e-6)  # of ten the fifth, not the mean of two
    assert (source.num_classes, source.num_samples) == (5, 10)
    assert "torch" in source.library_fingerprint


def test_max_samples_is_exact_and_ends_the_pass() -> None:
    model, _ = make()
    x = images(10)
    drawn = []

    def loader() -> Iterator[torch.Tensor]:
        for start in range(0, 10, 4):
            drawn.append(start)
            yield x[start : start + 4]

    some = eq.SourceStatistics.measure(model, loader(), max_samples=6, progress=False)
    assert some.num_samples == 6
    assert drawn == [0, 4]
    exact = eq.SourceStatistics.measure(model, [x[:6]], progress=False)
    assert (some.h0, some.kappa) == pytest.approx((exact.h0, exact.kappa))


@pytest.mark.parametrize("kind", ["tuple", "list", "dict", "tuple of dict"])
def test_what_a_loader_may_yield(kind: str) -> None:
    model, plain = make()
    x, labels = images(32, seed=7), torch.zeros(32)
    item = {
        "tuple": (x, labels),
        "list": [x, labels],
        "dict": {"input": x},
        "tuple of dict": ({"input": x}, 1),
    }
    assert eq.SourceStatistics.measure(model, [item[kind]], progress=False) == plain


def test_keyword_inputs_and_logits_objects() -> None:
    model, plain = make()
    source = eq.SourceStatistics.measure(
        WithLogits(model), [{"pixel_values": images(32, seed=7)}], progress=False
    )
    assert (source.h0, source.kappa) == (plain.h0, plain.kappa)


@pytest.mark.parametrize("kind", ["batch_norm", "instance_norm"])
def test_leaves_the_model_as_it_was(kind: str) -> None:
    model, _ = make(kind)
    model.train()
    model.get_submodule("1").eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    eq.SourceStatistics.measure(model, [images(7)], progress=False)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_shows_progress(capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = make()
    eq.SourceStatistics.measure(model, [images(4)])
    assert "source statistics" in capsys.readouterr().err


def test_non_finite_samples_are_left_out_with_a_warning() -> None:
    model, plain = make()
    x = torch.cat([images(32, seed=7), torch.full((2, 3, 6, 6), torch.nan)])
    with pytest.warns(UserWarning, match="2 of 34 source samples"):
        assert eq.SourceStatistics.measure(model, [x], progress=False) == plain
    with pytest.raises(eq.errors.SourceError, match="2 of 2"):
        eq.SourceStatistics.measure(model, [x[32:]], progress=False)


def test_a_model_that_ends_in_a_softmax_is_pointed_out() -> None:
    model, _ = make()
    with pytest.warns(UserWarning, match="does it end in a softmax"):
        eq.SourceStatistics.measure(nn.Sequential(model, nn.Softmax(1)), [images(8)], progress=False)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (0.0, "the model's logits are zero for 12 of 12 source samples: .*not trained.*train it or load"),
        (1e-30, "the model's logits are zero for 12 of 12 source samples"),
        (
            1e25,
            r"the model's logits overflow for 12 of 12 source samples \(.*e\+2.*\): .*scaled as in training",
        ),
        (1e60, "12 of 12 source samples gave non-finite logits: .*scaled as in training"),
    ],
)
def test_heads_of_zeros_and_huge_logits(scale: float, message: str) -> None:
    model, _ = make()
    for parameter in list(model.children())[-1].parameters():
        parameter.data.mul_(scale)
    with pytest.raises(eq.errors.SourceError, match=message) as raised:
        eq.SourceStatistics.measure(model, images(12).split(4), progress=False)
    assert "kappa" not in str(raised.value)


def test_save_and_load(tmp_path: Path) -> None:
    _, source = make()
    source.save(tmp_path / "s.safetensors")
    assert eq.SourceStatistics.load(tmp_path / "s.safetensors") == source
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]


def test_load_refuses_other_files(tmp_path: Path) -> None:
    model, source = make()
    path = tmp_path / "s.safetensors"
    source.save(path)
    whole = path.read_bytes()
    for damaged in (whole[:-3], whole[:20], b"", b"not a safetensors file at all"):
        path.write_bytes(damaged)
        with pytest.raises(eq.errors.StateError, match="not a readable safetensors file"):
            eq.SourceStatistics.load(path)
    eq.DEC(model, source).save(path)
    with pytest.raises(eq.errors.StateError, match="expected a file of kind"):
        eq.SourceStatistics.load(path)


def test_empty_loader_and_bad_max_samples() -> None:
    model, _ = make()
    with pytest.raises(eq.errors.BatchError, match="empty loader"):
        eq.SourceStatistics.measure(model, [], progress=False)
    with pytest.raises(eq.errors.OptionError, match="max_samples"):
        eq.SourceStatistics.measure(model, [images(2)], max_samples=0, progress=False)


@pytest.mark.parametrize(
    "numbers", [(-0.1, 1.0, 5), (9.0, 1.0, 5), (0.1, 0.0, 5), (0.1, 1.0, 1), (math.nan, 1.0, 5)]
)
def test_numbers_no_classifier_has(numbers: tuple[float, float, int]) -> None:
    with pytest.raises(eq.errors.SourceError, match="expected"):
        eq.SourceStatistics(*numbers)


def test_fingerprint_follows_the_weights_and_nothing_else() -> None:
    model, source = make()
    first = fingerprint(model)
    assert first == source.model_fingerprint
    assert fingerprint(model.train().double()) == first
    weight = model.float().get_parameter("0.weight")
    weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    assert fingerprint(model) == first
    with torch.no_grad():
        weight[0, 0, 0, 0] += 1e-4
    assert fingerprint(model) != first


def test_statistics_of_another_model() -> None:
    _, source = make(seed=0)
    other, _ = make(seed=1)
    with pytest.raises(eq.errors.SourceError, match="measured on another model"):
        eq.DEC(other, source)
    not_statistics: Any = [images(4)]
    with pytest.raises(eq.errors.SourceError, match="expected source as SourceStatistics"):
        eq.create("dec", other, not_statistics)
    with pytest.raises(eq.errors.SourceError, match="needs source statistics"):
        eq.create("dec", other)


def test_statistics_made_by_hand_are_taken_on_trust() -> None:
    model, _ = make()
    adapter = eq.DEC(model, eq.SourceStatistics(h0=0.2, kappa=3.0, num_classes=5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert adapter(images(4)).shape == (4, 5)


class WithoutGradients(nn.Module):
    """A model that was deployed with no_grad inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make()[0]

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(x)
        return logits


def test_the_fisher_diagonal_of_a_model_without_gradients_is_refused() -> None:
    model = WithoutGradients()
    assert eq.SourceStatistics.measure(model, [images(8)], progress=False).num_samples == 8
    with pytest.raises(eq.errors.ModelError, match=r"the loss depends on no parameter.*no_grad"):
        eq.SourceStatistics.measure(model, [images(8)], fisher=True, progress=False)
