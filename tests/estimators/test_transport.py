import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from equipoise.errors import OptionError
from equipoise.estimators import COT, mean_confidence
from equipoise.estimators.probability_matrix import matched, whole_numbers
from tests.estimators import reference


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("places", [[2, 2, 3], [7, 0, 0], [0, 1, 6]])
def test_is_the_best_of_all_ways_to_give_labels(seed: int, places: list[int]) -> None:
    logits, _ = reference.predictions(seed, 7, 3)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(places))
    fitted = COT.fit(logits=torch.zeros(7, 3), target=labels)
    expected = reference.best_match(reference.rows_of(logits), places)
    assert float(fitted.accuracy(logits=logits)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("samples", "classes", "scale"), [(300, 2, 3.0), (400, 10, 8.0), (200, 60, 30.0)])
def test_matching_is_as_good_as_the_assignment_of_scipy(samples: int, classes: int, scale: float) -> None:
    logits, _ = reference.predictions(11, samples, classes, scale)
    logits[:, 0] += scale  # most predictions are of one class
    probs = logits.softmax(1).numpy()
    places = whole_numbers(np.full(classes, 1 / classes), samples)
    chosen = matched(probs, places)
    assert (np.bincount(chosen, minlength=classes) == places).all()
    columns = np.repeat(np.arange(classes), places)
    rows, best = linear_sum_assignment(-probs[:, columns])
    assert probs[np.arange(samples), chosen].sum() == pytest.approx(
        probs[rows, columns[best]].sum(), rel=1e-10
    )


def test_matching_ends_where_most_differences_are_those_of_rounding() -> None:
    logits, _ = reference.predictions(5, 1000, 200, scale=8.0)
    logits[:, 0] += 30.0  # all other probabilities are tiny
    places = whole_numbers(np.full(200, 1 / 200), 1000)
    assert (np.bincount(matched(logits.softmax(1).numpy(), places), minlength=200) == places).all()


def test_matching_of_equal_rows() -> None:
    probs = np.full((6, 3), 1 / 3)
    assert np.bincount(matched(probs, np.array([1, 2, 3])), minlength=3).tolist() == [1, 2, 3]


def test_answers_in_the_shares_of_the_source_keep_their_confidence() -> None:
    logits, _ = reference.predictions(12, 100, 4)
    fitted = COT.fit(logits=logits, target=logits.argmax(1))
    assert float(fitted.accuracy(logits=logits)) == pytest.approx(float(mean_confidence(logits=logits)))
    collapsed = torch.zeros(100, 4).index_fill_(1, torch.tensor([2]), 50.0)
    share = float((logits.argmax(1) == 2).double().mean())
    assert float(fitted.accuracy(logits=collapsed)) == pytest.approx(share, abs=1e-6)


def test_shares_are_of_the_labels_and_of_unseen_classes_zero() -> None:
    logits, _ = reference.predictions(0, 4, 3)
    assert COT.fit(logits=logits, target=torch.tensor([0, 0, 0, 2])).shares.tolist() == [0.75, 0, 0.25]


def test_places_are_whole_and_add_up() -> None:
    assert whole_numbers(np.array([0.5, 0.3, 0.2]), 3).tolist() == [1, 1, 1]
    assert whole_numbers(np.array([0.5, 0.5]), 1).tolist() == [1, 0]
    for total in range(40):
        counts = whole_numbers(np.array([0.41, 0.29, 0.17, 0.13]), total)
        assert counts.sum() == total and (abs(counts - total * np.array([0.41, 0.29, 0.17, 0.13])) < 1).all()


def test_one_sample() -> None:
    fitted = COT.fit(logits=torch.zeros(3, 2), target=torch.tensor([1, 1, 0]))
    assert float(fitted.accuracy(logits=torch.tensor([[0.9, 0.1]]).log())) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "shares", [torch.tensor([0.5, 0.6]), torch.tensor([1.5, -0.5]), torch.tensor([1, 0]), [0.5, 0.5]]
)
def test_shares_are_a_distribution(shares: torch.Tensor) -> None:
    with pytest.raises(OptionError, match="shares of the classes"):
        COT(shares)
