"""The summary of a stream: the numbers of five metrics at once."""

import pytest
import torch

from equipoise.metrics import (
    Accuracy,
    BrierScore,
    Entropy,
    ExpectedCalibrationError,
    NegativeLogLikelihood,
    Summary,
)


@pytest.mark.parametrize("bins", [1, 15])
@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("given", ["logits", "probs"])
def test_it_says_what_the_five_say(bins: int, classes: int, given: str) -> None:
    draw = torch.Generator().manual_seed(classes)
    summary = Summary(bins=bins)
    labelled = [Accuracy(), ExpectedCalibrationError(bins=bins), NegativeLogLikelihood(), BrierScore()]
    entropy = Entropy()
    for rows in (1, 8, 50):
        logits = 3 * torch.randn(rows, classes, generator=draw)
        scores = {given: logits if given == "logits" else logits.softmax(1)}
        target = torch.randint(0, classes, (rows,), generator=draw)
        summary.update(**scores, target=target)
        for metric in labelled:
            metric.update(**scores, target=target)
        entropy.update(**scores)
    expected = [float(each.compute()) for each in (*labelled, entropy)]
    assert [float(value) for value in summary.compute()] == pytest.approx(expected, rel=1e-12)


def test_it_adds_up_over_processes_and_says_nothing_of_no_sample() -> None:
    whole, first, second = Summary(), Summary(), Summary()
    logits, target = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
    whole.update(logits=logits, target=target)
    first.update(logits=logits[:5], target=target[:5])
    second.update(logits=logits[5:], target=target[5:])
    first.merge_state(second)
    assert all(
        float(a) == pytest.approx(float(b)) for a, b in zip(first.compute(), whole.compute(), strict=True)
    )
    first.reset()
    first.update(logits=logits[:0], target=target[:0])
    assert all(bool(value.isnan()) for value in first.compute())
