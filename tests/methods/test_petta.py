"""PeTTA against formulas written out here, on top of RoTTA's in tests/support/robust_teacher.py."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.methods.parts.linear_head import HeadAnswers
from equipoise.methods.petta import feature_divergence, first_means, followed_means, joined_sums
from tests.support.models import images, make, same, snapshot, step_of
from tests.support.robust_teacher import LEARNED, LIVELY, ByHand, assert_stream_is_exact, small_model, stream

SOURCE = [x - 1 for x in stream([40, 30], seed=20)]


def measured_source(model: nn.Module) -> eq.SourceStatistics:
    return eq.SourceStatistics.measure(model, SOURCE, features=True, progress=False)


class PettaByHand(ByHand):
    """The divergence, its two weights, and the two terms of the loss that RoTTA has not."""

    def __init__(self, model: nn.Module, penalty: float = 10.0, **options: Any) -> None:
        super().__init__(model, **options)
        self.penalty, self.far = penalty, math.nan
        self.before = {name: value.clone() for name, value in self.w.items()}
        features = self.features(self.w, torch.cat(SOURCE))
        predicted = self.network(self.w, torch.cat(SOURCE)).argmax(1)
        self.source: dict[int, tuple[Tensor, Tensor]] = {}
        for label in predicted.unique().tolist():
            own = features[predicted == label]
            self.source[label] = own.mean(0), own.var(0, correction=0)
        floor = 0.01 * torch.stack([var for _, var in self.source.values()]).mean()
        self.source = {label: (mean, var.clamp(min=floor)) for label, (mean, var) in self.source.items()}
        zero = torch.zeros(64, dtype=torch.float64)
        self.means = {label: self.source.get(label, (zero, zero))[0] for label in range(5)}

        self.since: dict[int, list[Tensor]] = {}

    def weight(self, age: int) -> float:
        return 1.0

    def step(self, x: Tensor) -> Tensor:
        weights = {name: value.clone() for name, value in {**self.w, **self.teacher}.items()}
        self.answering = weights  # those of before the batch, for all of its samples
        return super().step(x)

    def came(self, sample: Tensor, label: int) -> None:
        self.since.setdefault(label, []).append(self.features(self.answering, sample[None])[0])

    def shares(self) -> float:
        distances = []
        for label, features in self.since.items():
            if label in self.source:
                mean, var = self.source[label]
                distances += ((self.means[label] - mean) ** 2 / var).tolist()
            self.means[label] = 0.95 * self.means[label] + 0.05 * torch.stack(features).mean(0)
        self.since = {}
        self.far = 1 - math.exp(-sum(distances) / len(distances)) if distances else 0.0
        return (1 - self.far) * (1 - self.decay)

    def extra_loss(
        self, weights: dict[str, Tensor], z: Tensor, x: Tensor, before: dict[str, Tensor]
    ) -> Tensor:
        now = torch.cat([weights[name] for name in LEARNED])
        start = torch.cat([self.before[name] for name in LEARNED])
        cosine = (now * start).sum() / (now.norm() * start.norm())
        anchor = {**before, **{name: self.before[name] for name in LEARNED}}
        targets = self.network(anchor, x).softmax(1)
        source = -(targets * z.log_softmax(1)).sum(1).mean()
        loss: Tensor = self.penalty * self.far * (1 - cosine) + source
        return loss


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ([64, 64, 64], {}),
        ([4] * 6, LIVELY),
        ([10] * 4, {**LIVELY, "penalty": 1000.0, "seed": 7}),
        ([1, 5, 13, 2, 1], {**LIVELY, "every": 3, "capacity": 20}),
    ],
)
def test_a_stream_is_exact(sizes: list[int], options: dict[str, Any]) -> None:
    model = small_model()
    adapter = eq.create("petta", model, measured_source(model), **options)
    expected = PettaByHand(model, **options)
    assert_stream_is_exact(adapter, expected, sizes, rtol=1e-5, atol=1e-6)
    assert 0 < expected.far < 1
    for label, mean in expected.means.items():
        assert torch.allclose(adapter.memory["class_means"][label], mean, rtol=1e-5, atol=1e-6)


def test_far_from_the_source_the_teacher_hardly_follows() -> None:
    model = small_model()
    near, far = (eq.create("petta", model, measured_source(model), **LIVELY) for _ in range(2))
    moved = []
    for adapter, factor in ((near, 1.0), (far, 40.0)):
        for x in stream([4, 4]):
            adapter(factor * (x - 1))
        start = model.get_parameter("1.weight").detach()
        moved.append(float((adapter.memory["teacher.1.weight"] - start).abs().max()))
    assert moved[1] < 0.5 * moved[0]


def test_a_class_that_the_source_never_predicts_and_features_that_never_vary_are_harmless() -> None:
    model = small_model()
    source = measured_source(model)
    counts, variances = source.features["class_counts"].clone(), source.features["class_variances"].clone()
    counts[0], variances[:, :10] = 0, 0
    features = {**source.features, "class_counts": counts, "class_variances": variances}
    adapter = eq.create("petta", model, replace(source, features=features), **LIVELY)
    for x in stream([8, 8]):
        adapter(x)
    assert step_of(adapter).updated
    assert all(tensor.isfinite().all() for tensor in snapshot(adapter).values())


def test_a_class_that_the_source_never_predicts_is_not_part_of_the_divergence() -> None:
    means = torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    constants = {"source_means": means, "variances": torch.ones(2, 2), "known": torch.tensor([True, False])}
    memory = {**first_means(constants), "class_means": torch.tensor([[1.0, 0.0], [99.0, 0.0]])}
    head, every = nn.Linear(2, 2), torch.ones(2) > 0
    seen = HeadAnswers(torch.eye(2), torch.tensor([[20.0, 0.0], [500.0, 0.0]]), head, every)
    assert float(feature_divergence(memory, constants)) == 0.0  # none has come
    memory |= joined_sums(memory, seen, every)
    assert float(feature_divergence(memory, constants)) == pytest.approx(1 - math.exp(-0.5))
    assert torch.allclose(followed_means(memory)["class_means"], torch.tensor([[1.95, 0.0], [119.05, 0.0]]))


@pytest.mark.parametrize("method", ["rotta", "petta"])
def test_an_update_that_goes_wrong_is_undone_and_the_memory_emptied(method: str) -> None:
    model = small_model().float()
    source = eq.SourceStatistics.measure(model, [x.float() for x in SOURCE], features=True, progress=False)
    adapter = eq.create(method, model, source, **LIVELY)
    adapter(stream([3])[0].float())
    before = snapshot(adapter)
    adapter(torch.full((1, 3, 6, 6), 1e25))
    assert not step_of(adapter).updated
    assert "the memory was emptied" in step_of(adapter).reason
    after = snapshot(adapter)
    assert (adapter.memory["classes"] == -1).all()
    parts = ("student.", *(f"{method}.memory.{part}" for part in ("teacher", "optimizer", "class_means")))
    kept = [name for name in before if name.startswith(parts)]
    assert len(kept) > 6
    assert same({name: before[name] for name in kept}, {name: after[name] for name in kept})


def test_a_rehearsal_measures_what_it_needs() -> None:
    model, _ = make()
    held_out = [(images(30, seed=s), torch.randint(5, (30,))) for s in range(4)]
    source = eq.rehearse(model, held_out, method="petta", shifts=8, check_held_out=False, progress=False)
    assert eq.create("petta", model, source, tempering="rehearsed").accuracy is not None
