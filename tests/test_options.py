"""Options: whole numbers of any size, limits in full, true and false, and errors that say what came."""

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.errors import OptionError
from equipoise.network.parameters import checked_parameters
from equipoise.options import integer, number
from tests.support.models import drifted, make

LARGEST = 2**63 - 1


@pytest.mark.parametrize("value", [2**53 + 1, LARGEST, np.int64(2**53 + 1), torch.tensor(2**53 + 1)])
def test_a_large_whole_number_is_kept_exactly(value: Any) -> None:
    came = integer("seed", value, low=0, high=LARGEST)
    assert type(came) is int
    assert came == int(value)


@pytest.mark.parametrize("value", [3, 3.0, np.int32(3), np.float32(3), torch.tensor(3), torch.tensor(3.0)])
def test_a_whole_number_of_any_type_is_an_int(value: Any) -> None:
    came = integer("steps", value, low=1)
    assert type(came) is int
    assert came == 3


@pytest.mark.parametrize("value", [True, "3", None, [3, 4], float("nan"), float("inf"), 0, 0.0])
def test_other_values_are_no_whole_number_of_at_least_one(value: Any) -> None:
    with pytest.raises(OptionError, match="expected steps >= 1, got"):
        integer("steps", value, low=1)


@pytest.mark.parametrize("value", [2**63, 2.0**63, -1])
def test_whole_limits_are_shown_in_full(value: Any) -> None:
    with pytest.raises(OptionError, match=f"expected seed >= 0 and <= {LARGEST}, got"):
        integer("seed", value, low=0, high=LARGEST)


def test_a_whole_number_that_is_no_float_is_out_of_range() -> None:
    with pytest.raises(OptionError, match="expected rate >= 0, got 1000"):
        number("rate", 10**400, low=0)


def test_the_largest_seed_draws_and_its_neighbour_draws_others() -> None:
    one, other = (eq.create("memo", make()[0], views=2, learning_rate=0.5, seed=LARGEST - n) for n in (0, 1))
    assert one.options["seed"] == LARGEST
    assert not one(drifted(4)).equal(other(drifted(4)))


@pytest.mark.parametrize("value", [True, np.True_, 1, np.int64(1), torch.tensor(True)])
def test_a_flag_is_a_bool(value: Any) -> None:
    options = eq.create("roid", make()[0], prior_correction=value).options
    assert options["prior_correction"] is True


@pytest.mark.parametrize("value", ["false", "true", "", None, 2, 0.5, [False], torch.zeros(2)])
def test_a_flag_that_is_neither_true_nor_false_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match="expected prior_correction as True or False, got"):
        eq.create("roid", make()[0], prior_correction=value)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *((method, name) for method in ("rotta", "petta", "sotta") for name in ("capacity", "every")),
        *((method, "views") for method in ("cotta", "memo")),
    ],
)
def test_a_size_that_no_machine_has_is_refused(method: str, name: str) -> None:
    model, source = make()
    with pytest.raises(OptionError, match=rf"expected {name} >= 1 and <= \d+, got {2**70}"):
        eq.create(method, model, source, **{name: 2**70})


@pytest.mark.parametrize("which", [torch.tensor(1.0), np.array(1.0), 1, None, {}, torch.ones(2)])
def test_parameters_that_are_no_names_are_refused(which: Any) -> None:
    with pytest.raises(OptionError, match='expected parameters="all", "encoder", "norm" or a list of'):
        checked_parameters("parameters", which)
