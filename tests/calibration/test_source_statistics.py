"""What is measured of a model on source data, and what its file holds."""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.calibration.source_moments import SampleMoments
from equipoise.core.method import Context, Method, Update
from equipoise.network.modules import fingerprint
from equipoise.network.running_statistics import SIZES
from tests.support.divergence import plain_divergence
from tests.support.models import WithLogits, drifted, images, make, same
from tests.support.rehearsals import rehearsed


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
    model, _ = make()
    plain = eq.SourceStatistics.measure(model, TWO, features=True, progress=False)
    loader = [{"pixel_values": x} for x in TWO]
    wrapped = eq.SourceStatistics.measure(WithLogits(model), loader, features=True, progress=False)
    assert (wrapped.h0, wrapped.kappa) == (plain.h0, plain.kappa)
    assert same(dict(wrapped.features), dict(plain.features))


def test_non_finite_samples_are_left_out_of_everything_with_a_warning() -> None:
    model, _ = make()
    nothing = torch.full((2, 3, 6, 6), torch.nan)
    with pytest.warns(UserWarning, match="2 of 37 source samples"):
        bad = [torch.cat([TWO[0], nothing]), TWO[1]]
        source = eq.SourceStatistics.measure(model, bad, features=True, progress=False)
    clean = eq.SourceStatistics.measure(model, TWO, features=True, progress=False)
    assert source == clean
    assert torch.equal(source.entropies, clean.entropies)
    assert same(dict(source.features), dict(clean.features))
    torch.testing.assert_close(source.norm_limits, clean.norm_limits)
    with pytest.raises(eq.errors.SourceError, match="2 of 2"):
        eq.SourceStatistics.measure(model, [nothing], progress=False)


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


def test_the_fisher_diagonal_of_group_norm_is_measured_with_the_channels_last() -> None:
    # A backward of torch's group norm with the channels last ends the process on a CPU.
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 32, 3), nn.GroupNorm(4, 32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 5)
    model, x = nn.Sequential(*layers).eval(), images(8)
    plain = eq.SourceStatistics.measure(model, [x], fisher=True, progress=False).fisher
    for weight in (layers[0].weight, x):
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        found = eq.SourceStatistics.measure(model, [x], fisher=True, progress=False).fisher
        for name, values in plain.items():
            assert torch.allclose(values, found[name], rtol=1e-4, atol=1e-8)


def test_statistics_of_another_model() -> None:
    _, source = make(seed=0)
    other, _ = make(seed=1)
    with pytest.raises(eq.errors.SourceError, match=r"another model.*measure again with SourceStatistics"):
        eq.DEC(other, source)
    with pytest.raises(eq.errors.SourceError, match=r"another model.*rehearse again: equipoise\.rehearse\("):
        eq.Poise(other, rehearsed())
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


TWO = [images(20, seed=7), images(15, seed=8)]


def answers_to(model: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """Features of the head and probabilities, in double precision."""
    with torch.no_grad():
        features = nn.Sequential(*list(model.children())[:-1])(torch.cat(TWO))
        logits = list(model.children())[-1](features)
    return features.double().numpy(), logits.double().softmax(1).numpy()


def test_quantiles_of_entropies_and_confidences_are_always_measured() -> None:
    model, _ = make()
    source = eq.SourceStatistics.measure(model, TWO, progress=False)
    _, p = answers_to(model)
    levels = np.arange(257) / 256
    np.testing.assert_allclose(source.entropies, np.quantile(-(p * np.log(p)).sum(1), levels), rtol=1e-4)
    np.testing.assert_allclose(source.confidences, np.quantile(p.max(1), levels), rtol=1e-4)
    assert source.features == {}


def test_quantiles_of_one_sample_are_that_sample() -> None:
    model, _ = make()
    source = eq.SourceStatistics.measure(model, [images(1)], progress=False)
    assert source.entropies.shape == (257,)
    assert source.entropies.unique().numel() == 1


def test_features_are_measured_by_predicted_class() -> None:
    model, _ = make("layer_norm")
    source = eq.SourceStatistics.measure(model, TWO, features=True, progress=False)
    features, p = answers_to(model)
    predicted = p.argmax(1)
    assert source.features.keys() == {"mean", "class_means", "class_variances", "class_counts"}
    np.testing.assert_allclose(source.features["mean"], features.mean(0), rtol=1e-4, atol=1e-6)
    for label in range(5):
        of_class = features[predicted == label]
        assert source.features["class_counts"][label] == len(of_class)
        mean, var = (of_class.mean(0), of_class.var(0)) if len(of_class) else (np.zeros(8), np.zeros(8))
        np.testing.assert_allclose(source.features["class_means"][label], mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(source.features["class_variances"][label], var, rtol=1e-3, atol=1e-6)


def test_features_need_a_linear_head() -> None:
    model, _ = make()
    tailed = nn.Sequential(model, nn.Tanh())
    with pytest.raises(eq.errors.ModelError, match="features=True needs a linear head"):
        eq.SourceStatistics.measure(tailed, TWO, features=True, progress=False)
    assert not any(module._forward_hooks for module in tailed.modules())


def test_everything_measured_is_saved_and_loaded(tmp_path: Path) -> None:
    model, _ = make()
    source = eq.SourceStatistics.measure(model, TWO, features=True, fisher=True, progress=False)
    source.save(tmp_path / "s.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]
    loaded = eq.SourceStatistics.load(tmp_path / "s.safetensors")
    assert loaded == source
    assert torch.equal(loaded.entropies, source.entropies)
    assert torch.equal(loaded.confidences, source.confidences)
    assert torch.equal(loaded.norm_limits, source.norm_limits)
    assert source.norm_limits.shape == (2, 6)
    assert same(dict(loaded.features), dict(source.features))
    assert same(dict(loaded.fisher), dict(source.fisher))


def test_files_of_before_still_load(tmp_path: Path) -> None:
    model, source = make()
    nothing = torch.zeros(0)
    replace(source, entropies=nothing, confidences=nothing, features={}).save(tmp_path / "s.safetensors")
    loaded = eq.SourceStatistics.load(tmp_path / "s.safetensors")
    assert loaded == source
    assert loaded.entropies.numel() == loaded.confidences.numel() == len(loaded.features) == 0
    eq.create("tent", model, loaded, tempering="median")(images(4))


@dataclass(frozen=True, kw_only=True)
class Centred(Method):
    """Answers as the source model does, and needs features for it."""

    name = "centred"
    needs_source = True
    needs_features = True
    measuring: ClassVar[str] = "equipoise.SourceStatistics.measure(model, source_loader, features=True)"

    def step(self, context: Context) -> Update:
        return Update(context.student.frozen(context.batch), idle="never learns")


def test_a_method_that_needs_features_says_how_to_measure_them() -> None:
    eq.register(Centred)
    model, source = make()
    for given in (None, replace(source, features={})):
        with pytest.raises(eq.errors.SourceError, match=r"centred needs.*source_loader, features=True\)"):
            eq.create("centred", model, given)
    eq.create("centred", model, source)


def test_a_rehearsal_measures_the_features_that_its_method_needs() -> None:
    eq.register(Centred)
    model, _ = make()
    held_out = [(images(30, seed=s), torch.randint(5, (30,))) for s in range(4)]
    given: dict[str, Any] = {"shifts": 8, "check_held_out": False, "progress": False}
    assert eq.rehearse(model, held_out, method="centred", **given).features
    assert not eq.rehearse(model, held_out, method="source", **given).features


def test_a_tempered_adapter_keeps_the_features_it_learns_with() -> None:
    eq.register(Centred)
    model, source = make()
    bare = replace(source, features={}, entropies=torch.zeros(0))
    tempered = eq.Tempered(eq.create("centred", model, source), bare)
    kept: eq.SourceStatistics | None = tempered.source
    assert kept is not None
    assert same(dict(kept.features), dict(source.features))
    assert torch.equal(kept.entropies, source.entropies)


def test_features_take_no_more_than_one_forward_a_batch() -> None:
    model, _ = make()
    forwards: list[Tensor] = []
    model.register_forward_hook(lambda _, __, logits: forwards.append(logits))
    eq.SourceStatistics.measure(model, TWO, features=True, progress=False)
    assert len(forwards) == 2


class Small(nn.Module):
    """Two batch norms, one of images and one of features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.BatchNorm2d(3), nn.BatchNorm1d(3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.second(self.first(x).amax((2, 3))))
        return logits


def small() -> Small:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Small().eval()


def test_limits_are_those_of_source_samples_sorted_by_class() -> None:
    model, x = small(), torch.randn(64, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    x = x + 3 * torch.eye(3)[torch.arange(64) % 3].view(64, 3, 1, 1)
    source = eq.SourceStatistics.measure(model, list(x.split(20)), progress=False)
    assert source.norm_limits.shape == (2, 6)
    with torch.no_grad():
        order = sorted(range(64), key=lambda row: int(model(x[row : row + 1]).argmax()))
        inner = model.first(x).amax((2, 3))
    assert order != list(range(64))
    for place, (layer, values) in enumerate(((model.first, x), (model.second, inner))):
        for column, size in enumerate(SIZES):
            largest = 0.0
            for start in range(0, 64 // size * size, size):
                rows = values[order[start : start + size]].double()
                flat = rows.transpose(0, 1).reshape(3, -1)
                mean, var = flat.mean(1), flat.var(1, correction=0)
                own = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
                largest = max(largest, plain_divergence(mean, var, *own, layer.eps))
            assert float(source.norm_limits[place, column]) == pytest.approx(3 * largest, rel=1e-3)


def test_only_so_many_samples_are_gathered() -> None:
    moments = SampleMoments(small(), most=10)
    model, count = small(), 0
    moments = SampleMoments(model, most=10)
    while not moments.full:
        with moments.gathering(), torch.no_grad():
            logits = model(torch.randn(4, 3, 4, 4))
        moments.name(logits.argmax(1), torch.ones(4, dtype=torch.bool))
        count += 1
    assert count == 3
    assert not model.first._forward_pre_hooks
    assert SampleMoments(nn.Linear(2, 2)).full
    assert SampleMoments(nn.Linear(2, 2)).limits().shape == (0, 6)


class Folded(nn.Module):
    """Normalises the frames of all samples together, as models of films do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x.flatten(0, 1)).unflatten(0, (len(x), -1)).mean(1))
        return logits


class Spare(nn.Module):
    """Has a batch norm that is not used in eval mode, as auxiliary heads are."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.norm, self.head = nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x.mean(1)))
        return logits


class Twice(Spare):
    """Uses one batch norm twice."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.norm(x.mean(1)).relu()))
        return logits


class Summed(Spare):
    """Normalises one row for the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.mean(1) + self.norm(x.mean((0, 1))[None]))
        return logits


@pytest.mark.parametrize("kind", [Folded, Spare, Twice, Summed])
def test_models_whose_batch_norms_are_used_in_other_ways(kind: type[nn.Module]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind().eval()
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(rows, 4, 6, generator=draw) for rows in (32, 32, 7)]
    with_bad = batches[0].clone()
    with_bad[3] = torch.nan
    if kind is not Summed:
        with pytest.warns(UserWarning, match="1 of 39"):
            eq.SourceStatistics.measure(model, [with_bad, batches[2]], progress=False)
    source = eq.SourceStatistics.measure(model, batches, progress=False)
    assert bool(source.norm_limits.isfinite().all())
    adapter = eq.Poise(model, source, tempering="none")
    for x in batches:
        assert bool(adapter(x).isfinite().all())
    assert adapter.memory["age"] >= 1e6  # it is the source data: no jump
    adapter(100 + 50 * batches[0])
    assert (adapter.memory["age"] <= 32 * 4) or kind is Summed


def test_the_limits_of_folded_samples_are_those_of_their_rows() -> None:
    model, x = Folded().eval(), torch.randn(8, 4, 6, generator=torch.Generator().manual_seed(1))
    limits = eq.SourceStatistics.measure(model, [x], progress=False).norm_limits
    with torch.no_grad():
        order = sorted(range(8), key=lambda row: int(model(x[row : row + 1]).argmax()))
    rows = torch.cat([x[row] for row in order])
    own = model.norm.get_buffer("running_mean"), model.norm.get_buffer("running_var")
    for column, size in ((2, 5), (3, 10)):
        parts = [rows[at : at + size] for at in range(0, 32 // size * size, size)]
        expected = max(plain_divergence(p.mean(0), p.var(0, correction=0), *own, 1e-5) for p in parts)
        assert float(limits[0, column]) == pytest.approx(3 * expected, rel=1e-3)


def test_source_statistics_without_limits_see_no_jump() -> None:
    adapter = eq.Poise(make()[0], eq.SourceStatistics(1.0, 2.0, 5), tempering="none")
    adapter(drifted(8))
    assert "age" not in adapter.memory


@pytest.mark.parametrize("of", [str, Path])
def test_a_path_stands_for_the_statistics_in_it(of: Callable[[Path], str | Path], tmp_path: Path) -> None:
    model, source = make()
    path = of(tmp_path / "model.source.safetensors")
    source.save(path)
    for made in (
        eq.DEC(model, path),
        eq.Poise(model, path, tempering="none"),
        eq.create("eata", model, path),
        eq.Adapter(eq.DEC(model, source).method, model, path),
        eq.Tempered(eq.create("tent", model), path),
    ):
        assert made.source is not None
        assert made.source.to_json() == source.to_json()
    eq.DEC(model, source).save(tmp_path / "state.safetensors")
    assert eq.load(tmp_path / "state.safetensors", model, path).name == "dec"
    held_out = (images(120), torch.arange(120) % 5)
    options: dict[str, Any] = {"source": path, "shifts": 8, "check_held_out": False, "progress": False}
    assert eq.rehearse(model, held_out, **options).kappa == source.kappa
    other = make(seed=1)[0]
    for call in (lambda: eq.DEC(other, path), lambda: eq.rehearse(other, held_out, **options)):
        with pytest.raises(eq.errors.SourceError, match="measured on another model"):
            call()


def test_a_path_that_is_no_file_of_source_statistics(tmp_path: Path) -> None:
    model, source = make()
    with pytest.raises(
        FileNotFoundError, match=r"rehearse\(model, held_out\).save\(path\) writes one.*absent"
    ):
        eq.Poise(model, tmp_path / "absent.safetensors")
    eq.DEC(model, source).save(tmp_path / "state.safetensors")
    with pytest.raises(
        eq.errors.StateError, match=r"'equipoise adapter', which equipoise\.load\(path, model\)"
    ):
        eq.Poise(model, tmp_path / "state.safetensors")
    source.save(tmp_path / "source.safetensors")
    with pytest.raises(eq.errors.StateError, match=r"which equipoise\.SourceStatistics\.load\(path\) reads"):
        eq.load(tmp_path / "source.safetensors", model)
