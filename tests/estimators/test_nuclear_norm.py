import math
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.errors import OptionError
from equipoise.estimators import NuclearNorm, nuclear_norm
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
