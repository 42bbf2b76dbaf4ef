"""Further answers of a model, under dropout and in other styles, and the estimates from them."""

import math
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import BatchTypeError, ModelError, OptionError
from equipoise.estimators import aetta, dropout_logits, sicl, style_logits
from equipoise.research.models import SmallCNN
from tests.estimators import reference


def answers(samples: int = 20, classes: int = 4, draws: int = 6) -> tuple[Tensor, Tensor]:
    logits, _ = reference.predictions(0, samples, classes)
    noise = torch.randn(
        draws, samples, classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return logits, logits + noise


@pytest.mark.parametrize("before", [None, 0.0, 0.7, 1.0])
@pytest.mark.parametrize(("samples", "classes", "draws"), [(1, 2, 1), (20, 4, 6), (50, 10, 3)])
def test_aetta_is_its_formula(before: float | None, samples: int, classes: int, draws: int) -> None:
    logits, dropped = answers(samples, classes, draws)
    expected = reference.aetta(logits, dropped, before)
    got = aetta(logits=logits, dropout_logits=dropped, previous=before)
    assert float(got) == pytest.approx(expected, rel=1e-10)


def test_aetta_is_low_where_answers_collapse() -> None:
    logits = torch.tensor([[4.0, 0.0, 0.0]]).repeat(10, 1)
    few = logits.repeat(10, 1, 1)
    few[0, 0] = torch.tensor([0.0, 4.0, 0.0])
    other = few.clone()
    other[:, 5:] = torch.tensor([0.0, 0.0, 4.0])
    spread = logits.clone()
    spread[5:] = torch.tensor([0.0, 0.0, 4.0])
    collapsed = aetta(logits=logits, dropout_logits=few, previous=1.0)
    varied = aetta(logits=spread, dropout_logits=other, previous=1.0)  # as many disagree
    assert float(collapsed) < float(varied) < 1


def test_aetta_of_certain_answers() -> None:
    certain = torch.tensor([[0.0, -math.inf, -math.inf]]).repeat(5, 1)
    assert float(aetta(logits=certain, dropout_logits=certain[None])) == 1
    other = certain.roll(1, dims=1)
    worst = aetta(logits=certain, dropout_logits=other[None])
    assert float(worst) == pytest.approx(1 - (0.6 * 1 + 0.4 * 2 / 3))


def test_aetta_averages_over_batches() -> None:
    logits, dropped = answers()
    estimate = aetta(logits=logits, dropout_logits=dropped)
    for _ in range(60):
        estimate = aetta(logits=logits, dropout_logits=dropped, previous=estimate)
    expected = 1 - (1 - reference.aetta(logits, dropped, 1.0)) / 0.4
    assert float(estimate) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("previous", [-0.1, 1.1, math.nan, "none"])
def test_the_previous_estimate_is_an_accuracy(previous: float) -> None:
    logits, dropped = answers()
    with pytest.raises(OptionError, match="previous"):
        aetta(logits=logits, dropout_logits=dropped, previous=previous)


def test_sicl_is_the_share_of_answers_that_agree() -> None:
    logits, styled = answers()
    agree = [
        reference.class_of(row) == reference.class_of(own)
        for draw in styled.tolist()
        for row, own in zip(draw, logits.tolist(), strict=True)
    ]
    assert 0 < sum(agree) < len(agree)
    assert float(sicl(logits=logits, style_logits=styled)) == pytest.approx(sum(agree) / len(agree))


def test_rows_that_are_left_out_are_left_out_of_the_draws() -> None:
    logits, draws = answers()
    whole = (
        aetta(logits=logits[1:], dropout_logits=draws[:, 1:]),
        sicl(logits=logits[1:], style_logits=draws[:, 1:]),
    )
    logits[0] = draws[:, 0] = math.nan
    assert (aetta(logits=logits, dropout_logits=draws), sicl(logits=logits, style_logits=draws)) == whole
    draws[2, 4] = math.nan
    with pytest.raises(OptionError, match="style_logits without NaN where the logits have none, got 1 rows"):
        sicl(logits=logits, style_logits=draws)


def test_draws_have_the_shape_of_the_logits() -> None:
    logits, draws = answers()
    for wrong in (draws[:, 1:], draws[:, :, 1:], draws[0], draws[:0]):
        with pytest.raises(OptionError, match=r"dropout_logits of shape \(K, 20, 4\)"):
            aetta(logits=logits, dropout_logits=wrong)
    a_list: Any = draws.tolist()
    with pytest.raises(BatchTypeError, match="style_logits to be a tensor, got list"):
        sicl(logits=logits, style_logits=a_list)


def small_model() -> nn.Sequential:
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv2d(1, 6, 3),
        "norm": nn.BatchNorm2d(6),
        "relu": nn.ReLU(),
        "flat": nn.Flatten(),
        "hidden": nn.Linear(24, 16),
        "drop": nn.Dropout(0.5),
        "head": nn.Linear(16, 3),
    }
    model = nn.Sequential(OrderedDict(layers)).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


class Partly(nn.Module):
    """With a layer that its forward does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = small_model(), nn.Conv2d(1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.used(x)
        return logits


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(5, 1, 4, 4, generator=seeded(3), dtype=torch.float64)


def test_dropout_in_front_of_the_head_is_its_formula(images: Tensor) -> None:
    model = small_model().eval()
    got = dropout_logits(model, images, generator=seeded(), draws=4, rate=0.3)
    features, draw = model[:-1](images), seeded()
    head = model[-1]
    assert isinstance(head, nn.Linear)
    for answer in got:
        kept = torch.rand(features.shape, generator=draw) >= 0.3
        assert torch.allclose(answer, (features * kept / 0.7) @ head.weight.T + head.bias)
    assert got.shape == (4, 5, 3) and not torch.equal(got[0], got[1]) and not got.requires_grad


def test_dropout_in_named_layers_is_its_formula(images: Tensor) -> None:
    model = small_model().eval()
    got = dropout_logits(model, images, generator=seeded(), draws=2, rate=0.5, layers=["conv", "hidden"])
    draw = seeded()
    for answer in got:
        maps = model[0](images)
        maps = maps * (torch.rand(maps.shape, generator=draw) >= 0.5) * 2
        hidden = model[1:5](maps)
        hidden = hidden * (torch.rand(hidden.shape, generator=draw) >= 0.5) * 2
        assert torch.allclose(answer, model[5:](hidden))


def test_dropout_of_nothing_is_the_answer(images: Tensor) -> None:
    model = small_model().eval()
    for layers in ([], ["hidden"]):
        got = dropout_logits(model, images, generator=seeded(), draws=1, rate=0.0, layers=layers)
        assert torch.allclose(got[0], model(images))


def test_another_style_has_its_formula_and_the_same_content(images: Tensor) -> None:
    model = small_model().eval()
    got = style_logits(model, images, generator=seeded(), draws=3, strength=0.4)
    draw = seeded()
    for answer in got:
        maps, other = model[0](images), torch.zeros(5, 6, 2, 2, dtype=torch.float64)
        noise = torch.randn(2, 5, 6, 1, 1, generator=draw)
        for i in range(5):
            for c in range(6):
                values = maps[i, c]
                mean, spread = values.mean(), values.var(correction=0).sqrt()
                shift, stretch = 0.4 * noise[0, i, c, 0, 0], (0.4 * noise[1, i, c, 0, 0]).exp()
                other[i, c] = (values - mean) / spread * spread * stretch + mean + shift * spread
        assert torch.allclose(answer, model[1:](other), rtol=1e-6)
    assert got.shape == (3, 5, 3) and not got.requires_grad
    same = style_logits(model, images, generator=seeded(), draws=1, strength=0.0)
    assert torch.allclose(same[0], model(images))


@pytest.mark.parametrize("answers", [dropout_logits, style_logits])
def test_a_model_is_as_before(images: Tensor, answers: object) -> None:
    model = small_model().train()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes, state = [m.training for m in model.modules()], torch.get_rng_state()
    assert callable(answers)
    first = answers(model, images, generator=seeded())
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    torch.manual_seed(1)
    assert torch.equal(answers(model, images, generator=seeded()), first)
    assert not torch.equal(answers(model, images, generator=seeded(1)), first)
    with pytest.raises((RuntimeError, ModelError)):
        answers(model, images[:, :, 1:], generator=seeded())
    assert [m.training for m in model.modules()] == modes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_generator_goes_on_from_batch_to_batch(images: Tensor) -> None:
    model, generator = small_model(), seeded()
    first, second = (dropout_logits(model, images, generator=generator) for _ in range(2))
    assert not torch.equal(first, second)


def test_the_network_for_digits() -> None:
    model, digits = SmallCNN(), torch.rand(2, 1, 32, 32, generator=seeded())
    assert dropout_logits(model, digits, generator=seeded()).shape == (10, 2, 10)
    assert style_logits(model, digits, generator=seeded()).shape == (10, 2, 10)
    assert style_logits(model, digits[:1], generator=seeded(), layer="features.4").shape == (10, 1, 10)


def test_layers_are_in_the_model_and_run(images: Tensor) -> None:
    model = small_model()
    with pytest.raises(OptionError, match=r"names of modules .*conv, norm.*got 'stage'"):
        dropout_logits(model, images, generator=seeded(), layers=["stage"])
    with pytest.raises(OptionError, match=r"names of modules .*got conv"):
        dropout_logits(model, images, generator=seeded(), layers="conv")
    with pytest.raises(OptionError, match=r"names of modules .*got 'stage'"):
        style_logits(model, images, generator=seeded(), layer="stage")
    whole = Partly()
    with pytest.raises(ModelError, match="forward to run 'spare'"):
        style_logits(whole, images, generator=seeded(), layer="spare")


def test_a_model_without_a_head_or_a_feature_map(images: Tensor) -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = 2 * self.inner(x)
            return logits

    flat = torch.rand(5, 4, generator=seeded())
    with pytest.raises(ModelError, match="output is that of a linear layer"):
        dropout_logits(Doubled(), flat, generator=seeded())
    assert dropout_logits(Doubled(), flat, generator=seeded(), layers=["inner"]).shape == (10, 5, 3)
    with pytest.raises(ModelError, match="with a convolution"):
        style_logits(Doubled(), flat, generator=seeded())
    with pytest.raises(ModelError, match=r"'inner' as a feature map .*got shape \(5, 3\)"):
        style_logits(Doubled(), flat, generator=seeded(), layer="inner")


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5])
def test_a_rate_leaves_something(images: Tensor, rate: float) -> None:
    with pytest.raises(OptionError, match="rate"):
        dropout_logits(small_model(), images, generator=seeded(), rate=rate)


def test_draws_are_whole_and_strength_positive(images: Tensor) -> None:
    with pytest.raises(OptionError, match="draws"):
        dropout_logits(small_model(), images, generator=seeded(), draws=0)
    with pytest.raises(OptionError, match="strength"):
        style_logits(small_model(), images, generator=seeded(), strength=-1.0)
