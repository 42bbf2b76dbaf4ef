"""One pass of an adapter over a stream: the answers that it would give by itself, batch by batch."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.calibration.novelty import Novelty, SourceInputs
from equipoise.evaluation import evaluate


def classifier() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def tent() -> eq.Adapter:
    return eq.create("tent", classifier(), learning_rate=0.05)


def test_answers_are_those_of_the_adapter_its_source_model_and_the_novelty_of_the_inputs() -> None:
    stream = torch.randn(4, 16, 6).unbind()
    seen = SourceInputs()
    seen.observe({"": torch.randn(400, 6)}, torch.zeros(400, 3))
    novelty, alone = Novelty(seen.result()), tent()
    found = list(evaluate(tent(), stream, ask_source=True, novelty=novelty))
    for answers, x in zip(found, stream, strict=True):
        assert answers.logits.equal(alone(x).detach())
        assert not answers.logits.requires_grad
        assert answers.source_logits is not None
        assert answers.source_logits.equal(alone.source_logits(x))
        assert answers.novelty is not None
        new = novelty({"": x})
        assert new is not None
        assert answers.novelty.equal(new)


def test_without_learning_the_adapter_stays_as_it_is() -> None:
    adapter, x = tent().adapt(torch.randn(3, 16, 6).unbind(), progress=False), torch.randn(16, 6)
    far = adapter.weight_distance
    (answers,) = evaluate(adapter, [x], learn=False)
    assert answers.logits.equal(adapter.predict(x))
    assert answers.source_logits is None
    assert answers.novelty is None
    assert adapter.weight_distance == far > 0


def test_a_batch_is_read_when_its_answers_are_asked_for() -> None:
    adapter, x, read = tent(), torch.randn(16, 6), list[int]()

    def stream() -> Iterator[Tensor]:
        for place in range(3):
            read.append(place)
            yield x

    answers = evaluate(adapter, stream())
    assert not read
    first = next(answers).logits
    assert read == [0]
    assert not next(answers).logits.equal(first)
    adapter.reset()
    assert next(answers).logits.equal(first)
