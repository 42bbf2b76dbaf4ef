"""Rehearsals of models that take or return more than one tensor, and loaders of dicts with labels."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.rehearsals import plain_model, rows_of_features

X, Y = rows_of_features()


def rehearsed(model: nn.Module, loader: list[Any], **options: Any) -> eq.SourceStatistics:
    return eq.rehearse(model, loader, shifts=8, progress=False, **options)


class ByName(nn.Module):
    """A model of Hugging Face's kind: inputs by keyword, and a dict of answers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain_model()

    def forward(self, values: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        return {"scores": self.net(values if mask is None else values * mask[:, :1])}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = plain_model()

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.net(values * mask[:, :1])
        return logits


def scores(out: Any) -> Tensor:
    found: Tensor = out["scores"]
    return found


ONES = torch.ones(len(Y), 6, dtype=torch.int64)
"""A mask: codes beside numbers, which have no limit of what is new."""


def without_limit() -> eq.SourceStatistics:
    """The rehearsal of the model of one table, as if that was not all of its inputs."""
    once = rehearsed(plain_model(), [(X, Y)])
    assert not once.inputs  # of so few rows nothing is known
    return rehearsed(plain_model(), [(X, Y)], source=replace(once, rehearsals={}))


def equal(left: eq.SourceStatistics, right: eq.SourceStatistics) -> bool:
    ours, theirs = left.rehearsal.tensors(), right.rehearsal.tensors()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("form", ["pairs", "labels", "label", "function"])
def test_dicts_with_labels(form: str) -> None:
    batch: Any = {"values": X, "mask": ONES}
    items: dict[str, Any] = {
        "pairs": (batch, Y),
        "labels": {**batch, "labels": Y},
        "label": {**batch, "label": Y},
        "function": {"x": X, "more": ONES, "labels": Y},
    }
    loader = [items[form]]
    options: dict[str, Any] = {"outputs": scores}
    if form == "function":
        options["inputs"] = lambda batch: {"values": batch["x"], "mask": batch["more"]}
    found = rehearsed(ByName(), loader, **options)
    assert equal(found, without_limit())
    adapter = eq.Poise(ByName(), found, outputs=scores)
    assert adapter({**batch, "labels": Y}).shape == (len(Y), 3)
    assert "novelty" not in adapter.memory


@pytest.mark.parametrize("form", ["by position", "function"])
def test_several_tensors_by_position(form: str) -> None:
    if form == "function":
        loader: list[Any] = [{"values": X, "mask": ONES, "labels": Y}]
        found = rehearsed(TwoInputs(), loader, inputs=lambda batch: (batch["values"], batch["mask"]))
    else:
        found = rehearsed(TwoInputs(), [((X, ONES), Y)])
    assert equal(found, without_limit())


def test_an_image_beside_other_numbers_is_the_one_to_shift() -> None:
    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3 * 64, 3)

        def forward(self, beside: Tensor, image: Tensor) -> Tensor:
            logits: Tensor = self.head(image.flatten(1)) + beside
            return logits

    generator = torch.Generator().manual_seed(0)
    images = torch.rand(120, 3, 8, 8, generator=generator)
    loader = [((torch.zeros(120, 3), images), torch.arange(120) % 3)]
    found = rehearsed(Image(), loader, check_held_out=False)
    assert {run.shift for run in found.rehearsal.runs} >= {"rotate 25", "cut .4"}


def test_shifts_of_ones_own_get_what_the_model_takes() -> None:
    def moved(inputs: tuple[Tensor, Tensor], _: torch.Generator, by: float) -> tuple[Tensor, Tensor]:
        values, mask = inputs
        return values + by, mask

    shifts = {str(n): lambda inputs, g, by=n / 10: moved(inputs, g, by) for n in range(8)}
    found = eq.rehearse(TwoInputs(), [((X, ONES), Y)], shifts=shifts, progress=False)
    assert {run.shift for run in found.rehearsal.runs} == {"none", *shifts}


def test_words_are_no_inputs() -> None:
    with pytest.raises(eq.errors.RehearsalError, match="got str"):
        rehearsed(TwoInputs(), [((X, "words"), Y)])
