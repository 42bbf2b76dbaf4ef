"""SHOT-IM against formulas written out here and in `byhand`."""

import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support import byhand as by
from tests.support.models import drifted, make, same, snapshot, step_of

ENCODER = ("first.weight", "first.bias", "norm.weight", "norm.bias")


class Informed(by.Learner):
    """The mean entropy less the entropy of the mean, and pseudo-labels of the confident samples."""

    weight = 0.0

    def loss(self, z: Tensor, x: Tensor) -> tuple[Tensor, int]:
        p = by.softmax(z)
        mean = p.sum(0) / len(z)
        labelled = [-row.max().log() for row in p if row.max() > 0.9]
        loss = by.entropy(z).sum() / len(z) + (mean * mean.log()).sum()
        return loss + self.weight * sum(labelled, torch.zeros(())) / max(len(labelled), 1), len(z)


class Labelled(Informed):
    weight = 0.3


def test_the_head_stays_and_all_else_learns() -> None:
    model = by.flat_model()
    adapter = eq.create("shot_im", model, learning_rate=0.05)
    assert tuple(adapter.learned) == ENCODER
    for x in by.stream(4):
        adapter(x)
    assert torch.equal(adapter.student.get_parameter("head.weight"), model.get_parameter("head.weight"))
    assert torch.equal(adapter.student.get_parameter("head.bias"), model.get_parameter("head.bias"))
    assert "first, norm" in adapter.describe()


def test_diversity_keeps_answers_from_becoming_one_class() -> None:
    """What TENT does to a model at a large rate, and SHOT-IM does not."""
    shares = {}
    for method in ("tent", "shot_im"):
        options: dict[str, Any] = {"parameters": "norm", "optimizer": "sgd", "learning_rate": 0.5}
        adapter = eq.create(method, by.flat_model(), **options)
        for x in by.stream(40, rows=40):
            answers = adapter(x).argmax(1)
        shares[method] = float(answers.bincount(minlength=4).max()) / len(answers)
    assert shares["shot_im"] < 0.5 < shares["tent"]


class TestSmallBatches:
    def test_are_learned_from_with_a_warning_that_names_both_numbers(self) -> None:
        adapter = eq.create("shot_im", by.flat_model())
        with pytest.warns(UserWarning, match="batches of 3 samples for 4 classes") as found:
            adapter(by.stream(1, rows=3)[0])
        assert found[0].filename == __file__
        assert step_of(adapter).used == 3

    def test_as_many_as_classes_are_enough(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            eq.create("shot_im", by.flat_model())(by.stream(1, rows=4)[0])

    def test_of_one_sample_nothing_is_learned_and_the_momentum_stays(self) -> None:
        model, _ = make("layer_norm")
        adapter = eq.create("shot_im", model, learning_rate=0.1)
        adapter(drifted(8))
        before = snapshot(adapter)
        assert adapter(drifted(1)).isfinite().all()
        assert same(before, snapshot(adapter))
        assert (step_of(adapter).used, step_of(adapter).reason) == (0, "a single sample has no diversity")


def test_equal_samples_have_a_gradient_of_zero() -> None:
    model, _ = make("layer_norm")
    adapter = eq.create("shot_im", model, learning_rate=1.0)
    adapter(drifted(1).repeat(8, 1, 1, 1))
    for name, parameter in adapter.student.named_parameters():
        assert torch.allclose(parameter, model.get_parameter(name), atol=1e-5), name


def test_masked_classes_and_sure_answers_have_finite_gradients() -> None:
    x = torch.tensor([[900.0, 0.0, -3e38], [0.0, 900.0, -3e38], [1.0, 2.0, -3e38]])
    adapter = eq.create("shot_im", by.Scale(3).float(), parameters="all", learning_rate=0.1)
    assert adapter(x).isfinite().all()
    assert step_of(adapter).used == 3
    assert adapter.student.get_parameter("weight").isfinite().all()


def test_without_a_confident_sample_information_is_maximised_alone() -> None:
    plain, labelling = (
        eq.create("shot_im", by.flat_model(), pseudo_weight=weight, confidence=1.0) for weight in (0.0, 5.0)
    )
    for x in by.stream(2):
        assert torch.equal(plain(x), labelling(x))
    assert same(plain.student.state_dict(), labelling.student.state_dict())


class HeadFirst(nn.Module):
    """A model whose head is not the last linear layer in the order of registration."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(8, 3), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


class TestTheHead:
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))

    def test_that_is_not_the_last_layer_is_an_error_before_anything_changes(self) -> None:
        adapter = eq.create("shot_im", HeadFirst())
        before = snapshot(adapter)
        for _ in range(2):
            with pytest.raises(eq.errors.ModelError, match=r"'head' does; choose .*by name"):
                adapter(self.x)
        assert same(before, snapshot(adapter))

    def test_by_name_any_model_can_learn(self) -> None:
        adapter = eq.create("shot_im", HeadFirst(), parameters=["body"])
        adapter(self.x)
        assert tuple(adapter.learned) == ("body.weight", "body.bias")
        assert step_of(adapter).updated

    def test_whose_output_is_not_the_models_is_an_error(self) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3), nn.Softplus())
        with pytest.raises(eq.errors.ModelError, match=r"no nn\.Linear that returns the logits"):
            eq.create("shot_im", model)(self.x)

    @pytest.mark.parametrize(
        ("model", "lacks"),
        [
            (nn.Sequential(nn.Conv1d(6, 3, 1), nn.Flatten()), "no linear layer"),
            (nn.Sequential(OrderedDict(only=nn.Linear(6, 3))), "nothing else"),
            (nn.Linear(6, 3), "nothing else"),
        ],
    )
    def test_models_without_one_or_without_more_are_refused(self, model: nn.Module, lacks: str) -> None:
        with pytest.raises(eq.errors.ModelError, match=f'parameters="encoder" .* has {lacks}'):
            eq.create("shot_im", model)

    def test_other_methods_can_spare_it_too(self) -> None:
        assert tuple(eq.create("tent", by.flat_model(), parameters="encoder").learned) == ENCODER
        with pytest.raises(eq.errors.OptionError, match='"all", "encoder", "norm" or a list'):
            eq.create("shot_im", by.flat_model(), parameters="head")
