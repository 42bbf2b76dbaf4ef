"""Prototypes of the stream that help a linear head, against the formula written out here."""

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.methods.poise import blend, learn
from equipoise.network.head import FoundHead


def plain_blend(head: nn.Linear, batches: list[Tensor], last: Tensor, new: float = 1.0) -> Tensor:
    """`blend` written out sample by sample."""
    weight, bias = head.weight.detach().double(), head.bias.detach().double()
    classes = len(weight)
    sums = torch.zeros_like(weight)
    for row in weight:
        sums[int((weight @ row + bias).argmax())] += row / row.norm()
    ours = theirs = count = 0.0
    for features in batches:
        for f in features.double():
            sums[int((weight @ f + bias).argmax())] += f / f.norm()
        units = torch.stack([s / s.norm() if s.norm() > 0 else s for s in sums])
        for f in features.double():
            ours += float((weight @ f + bias).std())
            theirs += float((units @ f).std())
            count += 1
    share = new * 0.5 * count / (count + 100 * classes)
    return torch.stack(
        [(1 - share) * (weight @ f + bias) + share * ours / theirs * (units @ f) for f in last.double()]
    )


def watched(head: nn.Linear, features: Tensor) -> tuple[FoundHead, Tensor]:
    """The head in a forward of it, and its logits."""
    with torch.no_grad():
        return FoundHead("", head, features, is_output=True), head(features)


def test_prototypes_help_the_head_by_the_formula() -> None:
    draw = torch.Generator().manual_seed(3)
    head = nn.Linear(6, 4)
    batches = [torch.randn(n, 6, generator=draw).abs() for n in (20, 50, 1)]
    memory: dict[str, Tensor] = {}
    for features in batches:
        memory = learn(memory, *watched(head, features))
    found = blend(memory, *watched(head, batches[0]))
    torch.testing.assert_close(found.double(), plain_blend(head, batches, batches[0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("new", [0.0, 0.35, 1.0])
def test_prototypes_have_the_weight_of_what_is_new(new: float) -> None:
    draw = torch.Generator().manual_seed(3)
    head = nn.Linear(6, 4)
    batches = [torch.randn(n, 6, generator=draw).abs() for n in (200, 50)]
    memory: dict[str, Tensor] = {}
    for features in batches:
        memory = learn(memory, *watched(head, features))
    seen, logits = watched(head, batches[1])
    found = blend(memory, seen, logits, torch.tensor(new))
    expected = plain_blend(head, batches, batches[1], new)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    if new == 0:
        torch.testing.assert_close(found, logits)


def test_an_exported_head_answers_by_the_formula() -> None:
    draw = torch.Generator().manual_seed(3)
    head = nn.Linear(6, 4)
    batches = [torch.randn(n, 6, generator=draw).abs() for n in (20, 50, 1)]
    adapter = eq.Poise(head, eq.SourceStatistics(1.0, 2.0, 4), tempering="none")
    for features in batches:
        adapter(features)
    expected = plain_blend(head, batches, batches[0])
    for answer in (adapter.predict(batches[0]), adapter.detach()(batches[0])):
        torch.testing.assert_close(answer.double(), expected, rtol=1e-4, atol=1e-4)


def test_features_that_are_not_finite_leave_the_prototypes_alone() -> None:
    head, features = nn.Linear(6, 4), torch.randn(9, 6, generator=torch.Generator().manual_seed(3))
    clean = learn({}, *watched(head, features))
    found = learn({}, *watched(head, torch.cat([features, torch.full((2, 6), torch.nan)])))
    for name, tensor in clean.items():
        assert torch.equal(found[name], tensor)
