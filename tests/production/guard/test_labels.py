"""Labels that come late: their evidence, and the labels that do not count."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.errors import BatchError
from tests.production.guard.streams import run_to, small
from tests.support.rehearsals import CLASSES


def reversed_logits(rows: int, right: int) -> Tensor:
    """Logits of which the first `right` rows say class 0, the others class 1."""
    logits = torch.zeros(rows, CLASSES)
    logits[:right, 0], logits[right:, 1] = 1.0, 1.0
    return logits


def test_labels_that_say_the_adapted_model_is_worse_lead_to_an_action() -> None:
    guarded = eq.Guarded(small(), every=2)
    run_to(guarded, 5)
    target = torch.zeros(50, dtype=torch.long)
    for _ in range(20):
        guarded.label(target, logits=reversed_logits(50, 20), source_logits=reversed_logits(50, 45))
    (event,) = guarded.events
    assert event.trigger == "labels"
    assert guarded.holding


def test_labels_of_a_better_model_and_rows_without_an_answer_lead_to_none() -> None:
    guarded = eq.Guarded(small())
    target, lost = torch.zeros(50, dtype=torch.long), torch.full((50, CLASSES), torch.nan)
    for _ in range(50):
        guarded.label(target, logits=reversed_logits(50, 45), source_logits=reversed_logits(50, 20))
        guarded.label(target, logits=lost, source_logits=reversed_logits(50, 50))
    assert not guarded.events


def test_a_backlog_of_labels_in_one_call_is_evidence(tmp_path: Path) -> None:
    guarded = eq.Guarded(small(), log=tmp_path / "log")
    run_to(guarded, 1)
    target = torch.zeros(1000, dtype=torch.long)
    guarded.label(target, logits=reversed_logits(1000, 0), source_logits=reversed_logits(1000, 1000))
    assert [event.trigger for event in guarded.events] == ["labels"]
    assert eq.replay(tmp_path / "log") == list(guarded.events)


def test_late_labels_of_the_model_that_was_left_do_not_count_against_the_one_gone_back_to() -> None:
    guarded = eq.Guarded(small(), cool_down=3)
    run_to(guarded, 2)
    at, target = guarded.batch, torch.zeros(400, dtype=torch.long)
    late = {"logits": reversed_logits(400, 0), "source_logits": reversed_logits(400, 400)}
    guarded.label(target, **late, batch=at)
    run_to(guarded, 4)
    assert [event.action for event in guarded.events] == ["reset", "release"]
    guarded.label(target, **late, batch=at)
    assert len(guarded.events) == 2
    guarded.label(target, **late, batch=guarded.batch)
    assert len(guarded.events) == 3


def test_labels_of_other_shapes_are_refused() -> None:
    with pytest.raises(BatchError, match=r"\(3,\), \(4, 4\), \(4, 4\)"):
        eq.Guarded(small()).label(torch.zeros(3), logits=torch.zeros(4, 4), source_logits=torch.zeros(4, 4))
