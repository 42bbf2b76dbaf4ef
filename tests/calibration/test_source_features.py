"""What source statistics hold for methods that compare the stream with the source: quantiles and features."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.method import Context, Method, Update
from tests.support.models import WithLogits, images, make, same

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


def test_non_finite_samples_are_in_no_quantile_and_no_mean() -> None:
    model, _ = make()
    bad = [torch.cat([TWO[0], torch.full((2, 3, 6, 6), torch.nan)]), TWO[1]]
    with pytest.warns(UserWarning, match="2 of 37"):
        source = eq.SourceStatistics.measure(model, bad, features=True, progress=False)
    clean = eq.SourceStatistics.measure(model, TWO, features=True, progress=False)
    assert torch.equal(source.entropies, clean.entropies)
    assert same(dict(source.features), dict(clean.features))


def test_features_of_a_model_that_returns_an_object() -> None:
    model, _ = make()
    plain = eq.SourceStatistics.measure(model, TWO, features=True, progress=False)
    loader = [{"pixel_values": x} for x in TWO]
    wrapped = eq.SourceStatistics.measure(WithLogits(model), loader, features=True, progress=False)
    assert same(dict(wrapped.features), dict(plain.features))


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
    loaded = eq.SourceStatistics.load(tmp_path / "s.safetensors")
    assert torch.equal(loaded.entropies, source.entropies)
    assert torch.equal(loaded.confidences, source.confidences)
    assert torch.equal(loaded.norm_limits, source.norm_limits)
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
