"""An examination says what can adapt in a model, whether held-out samples fit it, and what a step costs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.rehearsal.examination import Cost, Examination, HeldOutAnswers, examine

CLASSES = 4


class Model(nn.Module):
    """Class k where column k is the largest, told through layers that change nothing but with a factor."""

    def __init__(self, *before: nn.Module, factor: float = 4.0) -> None:
        super().__init__()
        self.before = nn.Sequential(*before)
        self.head = nn.Linear(CLASSES, CLASSES, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(factor * torch.eye(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.before(x))
        return out


def held_out(count: int = 1200, noise: float = 0.4) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (count,), generator=made)
    clean = nn.functional.one_hot(labels, CLASSES).float()
    return clean + noise * torch.randn(count, CLASSES, generator=made), labels


def test_a_model_with_batch_norm_can_expect_more_right_answers() -> None:
    model = Model(nn.BatchNorm1d(CLASSES), nn.LayerNorm(CLASSES), nn.BatchNorm1d(CLASSES))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = examine(model, held_out(), batch_size=40)
    assert (found.method, found.following, found.to_mend, found.doubts) == ("poise", 2, (), ())
    assert found.normalisation == {"BatchNorm1d": 2, "LayerNorm": 1}
    assert found.answers is not None
    x, labels = held_out()
    model.eval()
    right = (model(x).argmax(1) == labels).double().mean()
    assert found.answers.accuracy == pytest.approx(float(right), abs=0.02)  # of a thousand of them
    assert found.answers.head == "on the linear head 'head', 4 features to 4 classes"
    assert found.cost is not None
    assert found.cost.samples == 40
    assert 0 < found.cost.forward < found.cost.step
    text = str(found)
    assert (
        "running statistics of 2 normalisation layers can follow a stream (2 BatchNorm1d, 1 LayerNorm)"
        in text
    )
    assert "more right answers where inputs drift" in text
    assert text.splitlines()[-1] == "take        poise, rehearsed"
    assert len(text.splitlines()) <= 10
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_without_batch_norm_hardly_more_right_answers_are_promised() -> None:
    found = examine(Model(nn.Linear(CLASSES, CLASSES), nn.Tanh()))
    text = str(found)
    assert (found.method, found.following) == ("poise", 0)
    assert "statistics  none: no normalisation layer\n" in text
    assert "hardly more right answers, for want of batch norm" in text
    layered = str(examine(Model(nn.LayerNorm(CLASSES)), held_out()))
    assert "none: 1 LayerNorm have none that could follow a stream" in layered


def test_a_model_with_nothing_to_adapt_is_told_to_stay_as_it_is() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 4 * x

    found = examine(Fixed(), held_out())
    assert found.method == "source"
    assert found.cost is not None
    assert "a step of source" in str(found.cost)
    assert "prototypes  none: the logits are not the output of an nn.Linear" in str(found)
    assert "take        source, rehearsed" in str(found)


def test_a_linear_layer_whose_output_is_changed_is_no_head() -> None:
    class Scaled(Model):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    assert examine(Scaled()).method == "poise"  # for all that is known without samples
    assert examine(Scaled(), held_out()).method == "source"


@pytest.mark.parametrize(
    ("mistaken", "said"),
    [
        (lambda x, y: (x, y + 1), "got 1 to 4; labels start at 1: subtract 1"),
        (lambda x, y: (x, (y + 1) % CLASSES), "labels start at 1: subtract 1 (accuracy 0.9"),
        (lambda x, y: (x, y.flip(0)), "no relabelling fits"),
    ],
)
def test_labels_that_do_not_fit_are_to_be_mended(
    mistaken: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], said: str
) -> None:
    found = examine(Model(), mistaken(*held_out()))
    assert len(found.to_mend) == 1
    assert said in found.to_mend[0]
    assert f"mend first  {found.to_mend[0]}" in str(found)
    assert "take  " not in str(found)
    assert "expect  " not in str(found)


def test_a_softmax_at_the_end_is_to_be_mended() -> None:
    found = examine(nn.Sequential(Model(), nn.Softmax(1)), held_out())
    assert len(found.to_mend) == 1
    assert "leave the softmax at its end out" in found.to_mend[0]
    assert found.cost is None
    assert found.answers is not None
    assert found.answers.confidence is None


def test_answers_that_are_not_finite_are_to_be_mended() -> None:
    found = examine(Model(factor=float("nan")), held_out())
    assert len(found.to_mend) == 1
    assert "non-finite" in found.to_mend[0]


def test_few_samples_and_missing_classes_are_doubts() -> None:
    x, labels = held_out(400)
    found = examine(Model(), (x[labels < 3], labels[labels < 3]))
    assert found.to_mend == ()
    assert len(found.doubts) == 2
    assert "held-out samples are few" in found.doubts[0]
    assert "1 of 4 classes are missing (3)" in found.doubts[1]


@pytest.mark.parametrize(
    ("confidence", "said"),
    [
        (0.79, "mean confidence 0.790: under-confident; a rehearsal makes it more confident"),
        (0.99, "mean confidence 0.990: over-confident; a rehearsal makes it less confident"),
        (0.90, "mean confidence 0.900"),
        (None, "right in 0.900"),
    ],
)
def test_confidence_is_compared_with_accuracy(confidence: float | None, said: str) -> None:
    assert str(HeldOutAnswers(1000, 10, "", 0.9, confidence)).endswith(said)


def test_a_difference_within_the_noise_of_few_samples_is_none() -> None:
    assert "over-confident" not in str(HeldOutAnswers(100, 10, "", 0.9, 0.97))


def test_a_step_is_told_in_milliseconds_and_forwards() -> None:
    said = "a forward of 50 samples 10.0 ms here, a step of {} 25.0 ms (2.5 forwards)"
    assert str(Cost(50, 0.010, 0.025, "source")) == said.format("source")
    assert str(Cost(50, 0.010, 0.025, "poise")) == f"{said.format('poise')}; rehearsed, a forward more"


@pytest.mark.parametrize("outputs", [None, lambda out: 2 * out.logits])
def test_a_model_may_return_an_object_with_logits(outputs: Callable[[Any], Tensor] | None) -> None:
    class Wrapped(Model):
        def forward(self, x: Tensor) -> Any:
            return SimpleNamespace(logits=super().forward(x))

    found = examine(Wrapped(nn.BatchNorm1d(CLASSES)), held_out(), outputs=outputs)
    assert (found.method, found.to_mend) == ("poise", ())
    assert found.cost is not None
    assert 0 < found.cost.forward < found.cost.step


def test_without_samples_the_model_alone_is_examined() -> None:
    found = examine(Model(nn.BatchNorm1d(CLASSES)))
    assert (found.method, found.answers, found.cost, found.to_mend) == ("poise", None, None, ())
    assert isinstance(found, Examination)
    assert "on the last linear layer, if the logits are its output" in str(found)
    assert examine(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten())).method == "source"
