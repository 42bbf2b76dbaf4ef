"""Held-out samples that do not fit the model are refused, and few of them are warned of."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.errors import ModelError, RehearsalError, RehearsalWarning
from equipoise.rehearsal.held_out_check import (
    CleanAnswers,
    better_relabelling,
    check_answers,
    clean_answers,
    mistakes,
)
from equipoise.rehearsal.labelled import Labelled
from tests.support.rehearsals import held_out, samples, trained


class Told(nn.Module):
    """Answers the class in the first column of a sample, with the probability in the second."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        rest = (1 - x[:, 1:]) / (self.classes - 1)
        told = nn.functional.one_hot(x[:, 0].long(), self.classes)
        return self.scale * torch.where(told == 1, x[:, 1:], rest).log()


def told(accuracy: float, confidence: float, classes: int, rows: int = 1000) -> tuple[Tensor, Tensor]:
    """Samples for `Told`, as often right as said, and their true classes."""
    draw = torch.Generator().manual_seed(0)
    labels = (torch.arange(rows) % classes)[torch.randperm(rows, generator=draw)]
    other = (labels + torch.randint(1, classes, (rows,), generator=draw)) % classes
    answers = torch.where(torch.rand(rows, generator=draw) < accuracy, labels, other)
    x = torch.stack([answers.float(), torch.full((rows,), confidence)], 1)
    return x, labels


def check(x: Tensor, labels: Tensor, classes: int, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RehearsalWarning)
        check_answers(options.get("model", Told(classes)), Labelled(x, labels), 64, options.get("outputs"))


@pytest.mark.parametrize(
    ("accuracy", "confidence", "classes", "rows"),
    [
        (0.7, 0.93, 10, 1000),  # over-fitted
        (0.5, 0.95, 100, 1000),
        (0.84, 0.64, 10, 1000),  # under-confident
        (0.55, 0.55, 2, 2000),
        (0.9, 0.9, 3, 100),
        (0.6, 0.9, 1000, 1000),  # a sample for each class
        (1.0, 1 - 1e-6, 2, 100),
    ],
)
def test_labels_of_honest_models_fit(accuracy: float, confidence: float, classes: int, rows: int) -> None:
    check(*told(accuracy, confidence, classes, rows), classes)


def test_a_model_that_mostly_answers_the_common_class_is_no_mistake() -> None:
    labels = (torch.rand(1000, generator=torch.Generator().manual_seed(0)) > 0.95).long()
    check(torch.tensor([[0.0, 0.93]]).expand(1000, 2), labels, 2)


def as_text(names: list[str]) -> list[int]:
    """The number behind each place of names sorted as text."""
    return [int(name) for name in sorted(names)]


TEXT = as_text([str(number) for number in range(12)])
RELABELLED = {
    "one too high": (12, [(k + 1) % 12 for k in range(12)], "labels start at 1: subtract 1"),
    "one too low": (12, [(k - 1) % 12 for k in range(12)], "labels are one too low: add 1"),
    "sorted as text": (
        12,
        [TEXT.index(k) for k in range(12)],
        r"names sorted as text \(0, 1, 10, 11, 2, …\), the model's",
    ),
    "trained as text": (12, TEXT, r"the model's classes are .* \(0, 1, 10, 11, 2, …\)"),
    "sorted as text from one": (
        12,
        [as_text([str(n) for n in range(1, 13)]).index(k + 1) for k in range(12)],
        r"sorted as text \(1, 10, 11, 12, 2, …\), the model's",
    ),
    "swapped": (2, [1, 0], "two classes are swapped: take 1 - labels"),
    "two of four": (4, [0, 2, 1, 3], "other classes for 2 labels fit: 1 → 2, 2 → 1 "),
    "two of ten": (10, [0, 1, 2, 3, 4, 5, 6, 7, 9, 8], "other classes for 2 labels fit: 8 → 9, 9 → 8 "),
    "backwards": (9, list(range(9))[::-1], "8 labels fit: 0 → 8, 1 → 7, 2 → 6, 3 → 5, 5 → 3, 6 → 2, … "),
}


@pytest.mark.parametrize("confidence", [0.3, 0.95])
@pytest.mark.parametrize("name", RELABELLED)
def test_labels_with_another_meaning_are_refused_with_the_relabelling(name: str, confidence: float) -> None:
    classes, meaning, cure = RELABELLED[name]
    x, labels = told(0.9, max(confidence, 1.2 / classes), classes)
    right = float((x[:, 0] == labels).double().mean())
    given = torch.tensor(meaning)[labels]
    accuracy = float((x[:, 0] == given).double().mean())
    said = rf"an accuracy of {accuracy:.3f} at a mean confidence of .*{cure}.*check_held_out=False"
    with pytest.raises(RehearsalError, match=said) as caught:
        check(x, given, classes)
    promised = float(str(caught.value).split("(accuracy ")[1].split()[0])
    assert promised == pytest.approx(right, abs=0.01)


def test_a_thousand_classes_with_one_sample_each_are_recognised_as_shifted() -> None:
    x, labels = told(0.8, 0.9, 1000)
    with pytest.raises(RehearsalError, match="labels start at 1: subtract 1"):
        check(x, (labels + 1) % 1000, 1000)


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("confidence", [0.6, 0.95])
def test_labels_of_other_rows_are_refused_without_a_relabelling(classes: int, confidence: float) -> None:
    x, labels = told(0.9, confidence, classes)
    shuffled = labels[torch.randperm(1000, generator=torch.Generator().manual_seed(1))]
    with pytest.raises(RehearsalError, match=r"no relabelling fits: .*in the same order.*weights loaded"):
        check(x, shuffled, classes)


def test_far_less_accurate_than_confident_is_refused() -> None:
    with pytest.raises(
        RehearsalError, match=r"accuracy of 0\.3\d\d at a mean confidence of 0\.900.*prepared"
    ):
        check(*told(0.35, 0.9, 10), 10)
    check(*told(0.55, 0.9, 10), 10)


def test_samples_without_a_finite_answer_do_not_count() -> None:
    predicted, labels = torch.tensor([0, 1] * 200), torch.tensor([0, 1] * 200)
    finite = torch.arange(400) < 300
    labels[300:] = 1 - labels[300:]
    for answered in (finite, finite & False):
        assert not mistakes(CleanAnswers(predicted, torch.full((400,), 0.9), answered, 2, False), labels)


def test_a_relabelling_is_one_to_one() -> None:
    """A model that has collapsed to one class is not mended by calling all labels that class."""
    answers = torch.ones(300, dtype=torch.long)
    assert better_relabelling(answers, torch.arange(300) % 3, 3) is None
    labels = torch.tensor([0, 1, 0, 2, 0, 3, 1, 0, 1, 0]).repeat(30)
    found = better_relabelling(answers, labels, 4)
    assert found is not None
    assert found.accuracy == 0.5
    assert found.classes[0] == 1
    assert 1 not in found.classes[1:]


def test_answers_are_those_of_the_model_in_eval_mode_which_is_left_as_it_was() -> None:
    model, (x, y) = trained(), samples(130)
    expected = model(x).detach().softmax(1)
    model.train()
    model[1].eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = clean_answers(model, Labelled(x, y), 50, None)
    assert torch.equal(found.predicted, expected.argmax(1))
    torch.testing.assert_close(found.confidences, expected.amax(1))
    assert (found.classes, found.normalised, bool(found.finite.all())) == (4, False, True)
    assert model.training
    assert not model[1].training
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_probabilities_are_refused_with_both_cures() -> None:
    x, y = told(0.9, 0.9, 4)
    model = nn.Sequential(Told(4), nn.Softmax(1))
    source = eq.SourceStatistics(h0=0.5, kappa=2.0, num_classes=4)
    unchecked: dict[str, Any] = {"check_held_out": False}
    for options in ({}, unchecked, {**unchecked, "source": source}):
        with pytest.raises(eq.EquipoiseError, match=r"leave the softmax.*outputs=lambda p: .*log\(\)"):
            eq.rehearse(model, (x, y), shifts=8, progress=False, **options)
    for options in ({}, unchecked):
        with pytest.raises(ModelError, match="leave the softmax"):
            eq.recommend(model, (x, y), progress=False, **options)
    check(x, y, 4, model=model, outputs=lambda p: p.clamp(min=1e-12).log())
    with pytest.raises(ModelError, match="leave the softmax"):
        check(x, y, 4, model=model, outputs=lambda p: p)


def test_a_rehearsal_and_a_recommendation_refuse_and_can_be_told_not_to() -> None:
    wrong = [(x, (y + 1) % 4) for x, y in held_out()]
    source = eq.SourceStatistics.measure(trained(), [held_out()[0][0]], progress=False)
    for given in (None, source):
        with pytest.raises(RehearsalError, match="labels start at 1"):
            eq.rehearse(trained(), wrong, source=given, shifts=8, progress=False)
        with pytest.raises(RehearsalError, match="labels start at 1"):
            eq.recommend(trained(), wrong, source=given, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = eq.rehearse(trained(), wrong, method="source", shifts=8, check_held_out=False, progress=False)
    assert found.rehearsal.runs[0].accuracy < 0.2


def test_labels_from_one_to_the_number_of_classes() -> None:
    x, y = samples(200, seed=1)
    with pytest.raises(RehearsalError, match=r"from 0 to 3.* got 1 to 4; labels start at 1: subtract 1"):
        eq.rehearse(trained(), (x, y + 1), shifts=8, progress=False)


def warned(x: Tensor, labels: Tensor, classes: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_answers(Told(classes), Labelled(x, labels), 64, None)
    assert all(each.category is RehearsalWarning and each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


def test_few_samples_and_missing_classes_are_warned_of() -> None:
    x, labels = told(0.9, 0.9, 10)
    assert not warned(x, labels, 10)
    (few,) = warned(x[:999], labels[:999], 10)
    assert few.startswith("999 held-out samples are few")
    assert "1,000 to 2,000" in few
    assert "check_held_out=False" in few
    known = (labels != 3) & (labels != 7)
    few, missing = warned(x[known], labels[known], 10)
    assert few.startswith("800 held-out samples are few")
    assert missing.startswith("held-out samples of 2 of 10 classes are missing (3, 7)")
    (missing,) = warned(*told(0.9, 0.9, 20), 27)
    assert "7 of 27 classes are missing (20, 21, 22, 23, 24, …)" in missing
