"""Made-up streams: the order of make_stream, each sample under its own shift, samples of no class."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from equipoise.errors import OptionError, RehearsalError
from equipoise.recommendation.candidates import StreamKind
from equipoise.recommendation.made_up_stream import MadeUpStream, make_up_stream, of_no_class
from equipoise.rehearsal.labelled import Labelled
from equipoise.streams import make_stream

CPU = torch.device("cpu")
SHIFTS = {name: (lambda x, _, add=add: x + add) for name, add in (("none", 0), ("up", 100), ("down", -100))}


def labelled(rows: int = 60) -> Labelled:
    """Samples whose first feature is their own number, of three classes."""
    numbers = torch.arange(rows)
    return Labelled(torch.stack([numbers.float(), torch.zeros(rows)], 1), numbers % 3)


def made(kind: StreamKind, length: int = 90, **options: Any) -> MadeUpStream:
    return make_up_stream(labelled(), SHIFTS, kind, options, length=length, batch_size=7, seed=3)


def gathered(stream: MadeUpStream) -> Tensor:
    found = [inputs for _, inputs in stream.batches(CPU)]
    assert all(isinstance(inputs, Tensor) for inputs in found)
    return torch.cat([inputs for inputs in found if isinstance(inputs, Tensor)])


@pytest.mark.parametrize("kind", get_args(StreamKind))
def test_every_sample_of_every_kind_is_under_its_own_shift(kind: StreamKind) -> None:
    stream = made(kind)
    x, known = gathered(stream), stream.rows >= 0
    adds = torch.tensor([0.0, 100.0, -100.0])[stream.domains]
    assert len(x) == len(stream) == sum(stream.lengths)
    assert torch.equal((x[:, 0] - adds)[known], stream.rows[known].float())
    assert torch.equal(stream.labels[known], stream.rows[known] % 3)
    assert set(stream.domains.tolist()) == {0, 1, 2}


def test_the_order_is_that_of_make_stream() -> None:
    stream = made("correlated", concentration=0.05)
    draw = torch.Generator().manual_seed(3)
    chosen = [torch.randperm(60, generator=draw)[:30] for _ in SHIFTS]
    theirs = make_stream(
        [rows % 3 for rows in chosen], "correlated", 3, names=list(SHIFTS), concentration=0.05
    )
    assert torch.equal(stream.rows, torch.cat(chosen)[theirs.rows])
    assert torch.equal(stream.domains, theirs.domains)


@pytest.mark.parametrize(
    ("kind", "streams"), [("shuffled", 3), ("sorted", 3), ("continual", 1), ("mixed", 1)]
)
def test_a_method_starts_anew_at_each_shift_where_a_kind_has_one_domain(
    kind: StreamKind, streams: int
) -> None:
    parts = made(kind).parts()
    assert sum(part.fresh for part in parts) == streams
    assert parts[0].fresh
    assert torch.equal(torch.cat([part.places for part in parts]), torch.arange(len(made(kind))))


def test_sorted_is_by_class_within_each_shift() -> None:
    stream = made("sorted")
    for domain in range(3):
        labels = stream.labels[stream.domains == domain]
        assert torch.equal(labels, labels.sort().values)


def test_noisy_has_a_fifth_of_no_class_and_says_how_they_are_made() -> None:
    stream = made("noisy")
    none = stream.rows < 0
    assert abs(float(none.double().mean()) - 0.2) < 0.02
    assert set(stream.labels[none].tolist()) == {-1}
    assert "each of their values comes from another sample" in stream.about


def test_values_of_no_class_come_from_samples_at_the_same_place() -> None:
    x = torch.stack([torch.arange(50.0), 1000 + torch.arange(50.0)], 1)
    found = of_no_class(x, 40, torch.Generator().manual_seed(0))
    assert isinstance(found, Tensor)
    assert set(found[:, 0].tolist()) <= set(x[:, 0].tolist())
    assert set(found[:, 1].tolist()) <= set(x[:, 1].tolist())
    assert int((found[:, 1] - 1000 == found[:, 0]).sum()) < 10  # the two are no longer of one sample


def test_recurring_is_as_long_as_asked_for_with_fewer_samples_in_a_visit() -> None:
    assert len(made("recurring", length=300, passes=5)) == 300
    assert len(made("recurring", length=300, passes=2)) == 300


def test_an_option_that_the_kind_does_not_have_is_refused() -> None:
    with pytest.raises(OptionError, match="no option 'passes' of 'continual' streams"):
        made("continual", passes=3)


def test_an_error_of_a_shift_names_it() -> None:
    broken = {**SHIFTS, "broken": lambda x, _: x[:1]}
    stream = make_up_stream(labelled(), broken, "continual", {}, length=40, batch_size=7, seed=3)
    with pytest.raises(RehearsalError, match="the shift 'broken' failed"):
        gathered(stream)


def test_inputs_by_name_are_gathered_together() -> None:
    numbers = torch.arange(60)
    several = Labelled({"x": numbers.float()[:, None], "ids": numbers[:, None] % 7}, numbers % 3)
    shifts = {"none": lambda inputs, _: inputs, "up": lambda inputs, _: {**inputs, "x": inputs["x"] + 100}}
    stream = make_up_stream(several, shifts, "noisy", {}, length=80, batch_size=9, seed=0)
    for part, inputs in stream.batches(CPU):
        assert isinstance(inputs, dict)
        rows, domains = stream.rows[part.places], stream.domains[part.places]
        known = rows >= 0
        assert torch.equal(inputs["x"][known, 0], (rows + 100 * domains)[known].float())
        assert torch.equal(inputs["ids"][known, 0], rows[known] % 7)
