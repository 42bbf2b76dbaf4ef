"""The nuclear norm, against eigenvalues, and the transport to labels, against scipy's assignment."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from equipoise.errors import OptionError
from equipoise.estimators import COT, NuclearNorm, mean_confidence, nuclear_norm
from equipoise.estimators.probability_matrix import matched, whole_numbers
from tests.estimators import reference


@pytest.mark.parametrize(("samples", "classes"), [(1, 2), (3, 5), (5, 5), (60, 4)])
def test_is_its_formula(samples: int, classes: int) -> None:
    logits, _ = reference.predictions(0, samples, classes)
    table = np.array(reference.rows_of(logits))
    # Singular values are square roots of the eigenvalues of P Pᵀ.
    roots = np.sqrt(np.maximum(np.linalg.eigvalsh(table @ table.T), 0))
    norm = np.sort(roots)[-min(samples, classes) :].sum()
    expected = norm / math.sqrt(min(samples, classes) * samples)
    assert float(nuclear_norm(logits=logits)) == pytest.approx(expected, rel=1e-9)


def test_falls_where_classes_go_unused() -> None:
    sure = 50 * torch.eye(4).repeat(5, 1)
    assert float(nuclear_norm(logits=sure)) == pytest.approx(1)
    assert float(nuclear_norm(logits=sure[:, [0, 0, 0, 3]] * torch.tensor([1, 0, 0, 1]))) < 0.8
    assert float(nuclear_norm(logits=50 * torch.eye(4)[[0] * 20])) == pytest.approx(0.5)
    assert float(nuclear_norm(logits=torch.zeros(20, 4))) == pytest.approx(0.25)


def test_the_line_is_the_least_squares_fit() -> None:
    sets = [reference.predictions(seed, 50, 3, scale) for seed, scale in enumerate((0.5, 2.0, 5.0, 9.0))]
    fitted = NuclearNorm.fit(logits=[z for z, _ in sets], target=[y for _, y in sets])
    norms = [float(nuclear_norm(logits=z)) for z, _ in sets]
    rates = [float((z.argmax(1) == y).double().mean()) for z, y in sets]
    slope, intercept = np.polyfit(norms, rates, 1)
    assert (fitted.slope, fitted.intercept) == pytest.approx((slope, intercept), rel=1e-9)
    assert float(fitted.accuracy(logits=sets[1][0])) == pytest.approx(slope * norms[1] + intercept)


def test_the_line_is_held_in_the_range_of_accuracies() -> None:
    assert float(NuclearNorm(3.0, -1.0).accuracy(logits=50 * torch.eye(3))) == 1
    assert float(NuclearNorm(1.0, -1.0).accuracy(logits=torch.zeros(3, 3))) == 0


def test_a_line_needs_two_sets_that_differ() -> None:
    logits, labels = reference.predictions(0, 20, 3)
    for sets in (0, 1, 2):
        with pytest.raises(OptionError, match="at least two labelled sets"):
            NuclearNorm.fit(logits=[logits] * sets, target=[labels] * sets)
    with pytest.raises(OptionError, match="lists of as many tensors"):
        NuclearNorm.fit(logits=[logits], target=[labels, labels])
    one_set: dict[str, Any] = {"logits": logits, "target": labels}
    with pytest.raises(OptionError, match="lists of as many tensors"):
        NuclearNorm.fit(**one_set)


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
