"""RMT against formulas written out here and in `byhand`."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.methods.parts.views import TILE, WEAK_DRAWS, weak_views
from equipoise.methods.rmt import contrastive, nearest
from tests.support import byhand as by
from tests.support.models import drifted, make, same, snapshot, step_of

RATE, DECAY, CONTRAST, SEED = 0.02, 0.8, 0.7, 5
LAYERS = ("first.weight", "first.bias", "second.weight", "second.bias")


def source_batches(model: nn.Sequential) -> list[Tensor]:
    return [x - 1 for x in by.stream(3, rows=40, like=model, seed=20)]


def adapter_of(model: nn.Sequential, **options: Any) -> eq.Adapter:
    source = eq.SourceStatistics.measure(model, source_batches(model), features=True, progress=False)
    given = {"learning_rate": RATE, "decay": DECAY, "contrast": CONTRAST, "seed": SEED}
    return eq.create("rmt", model, source, **{**given, **options})


class Taught:
    """RMT's steps on one of the models of `byhand`: a student, a teacher, means of source features."""

    def __init__(self, model: nn.Sequential, projection: dict[str, Tensor], **options: Any) -> None:
        names = [name for name, _ in model.named_parameters()]
        self.student, self.teacher = by.ByHand(model, names), by.ByHand(model, names)
        self.projection = {name: projection[name].clone() for name in LAYERS}
        self.optimizer, self.steps = options.get("optimizer", "adam"), options.get("steps", 1)
        self.contrast = options.get("contrast", CONTRAST)
        self.descent = by.OPTIMIZERS[self.optimizer](RATE)
        self.random = torch.Generator().manual_seed(SEED)
        x = torch.cat(source_batches(model))
        predicted = by.ByHand(model)
        classes = predicted.predict(x).argmax(1).tolist()
        features = [
            [row for row, one in zip(predicted.features, classes, strict=True) if one == c]
            for c in range(by.CLASSES)
        ]
        # The file of source statistics has them in single precision.
        self.means = [(torch.stack(rows).sum(0) / len(rows)).float().double() for rows in features if rows]

    def step(self, x: Tensor) -> Tensor:
        taught = self.teacher.forward(x).detach()
        for _ in range(self.steps):
            z = self.learn(x, taught)
        for name, weight in self.student.weights.items():
            self.teacher.weights[name] = DECAY * self.teacher.weights[name] + (1 - DECAY) * weight
        return (z + taught) / 2

    def learn(self, x: Tensor, taught: Tensor) -> Tensor:
        student, draws = self.student, torch.rand(len(x), WEAK_DRAWS, generator=self.random)
        views = weak_views(x, draws, tile=torch.rand(*TILE, generator=self.random))
        student.watch()
        projection = {name: weight.detach().requires_grad_() for name, weight in self.projection.items()}
        z, f = student.forward(x), student.features
        z_view, f_view = student.forward(views, momentum=0.0), student.features
        loss = z.new_zeros(())
        p, q, t = by.softmax(z), by.softmax(z_view), by.softmax(taught)
        for i in range(len(x)):
            for answer in (p[i], q[i]):
                loss = loss - ((t[i] * answer.log()).sum() + (answer * t[i].log()).sum()) / 4 / len(x)
        loss = loss + self.contrast * contrast_by_hand(
            [
                [self.projected(projection, row) for row in (self.mean_near(a), a, b)]
                for a, b in zip(f, f_view, strict=True)
            ]
        )
        wanted = [*(student.weights[name] for name in student.learned), *projection.values()]
        names = [*student.learned, *(f"projection.{name}" for name in projection)]
        gradients = dict(zip(names, torch.autograd.grad(loss, wanted), strict=True))
        for name in student.learned:
            moved = self.descent.move(name, gradients[name])
            student.weights[name] = student.weights[name].detach() + moved
        for name, weight in self.projection.items():
            key = f"projection.{name}"
            self.projection[name] = weight + self.descent.move(key, gradients[key])
        return z.detach()

    def mean_near(self, feature: Tensor) -> Tensor:
        feature = feature.detach()
        cosines = [float((feature * m).sum() / (feature.norm() * m.norm())) for m in self.means]
        return self.means[cosines.index(max(cosines))]

    @staticmethod
    def projected(projection: dict[str, Tensor], feature: Tensor) -> Tensor:
        hidden = by.linear(feature, projection["first.weight"], projection["first.bias"]).clamp(min=0)
        out = by.linear(hidden, projection["second.weight"], projection["second.bias"])
        return out / (out**2).sum().sqrt()


def contrast_by_hand(samples: list[list[Tensor]]) -> Tensor:
    """For each vector of each sample, the two others of that sample against all vectors but itself."""
    every = [(i, place, v) for i, vectors in enumerate(samples) for place, v in enumerate(vectors)]
    total = every[0][2].new_zeros(())
    for i, place, a in every:
        others = [(j, (a * b).sum() / 0.1) for j, other, b in every if (j, other) != (i, place)]
        whole = torch.stack([score.exp() for _, score in others]).sum()
        own = [(score.exp() / whole).log() for j, score in others if j == i]
        total = total - torch.stack(own).sum() / len(own)
    return total / len(every)


@pytest.mark.parametrize(
    "options",
    [{}, {"optimizer": "sgd"}, {"contrast": 0.0}, {"contrast": 3.0, "optimizer": "sgd", "steps": 2}],
    ids=["adam", "sgd", "without contrast", "two steps"],
)
def test_weights_teacher_projection_and_answers_are_those_of_the_formulas(options: dict[str, Any]) -> None:
    model = by.conv_model()
    adapter = adapter_of(model, **options)
    first = {name: adapter.memory[f"projection.{name}"] for name in LAYERS}
    hand = Taught(model, first, **options)
    assert len(hand.means) > 1
    for x in by.stream(4, like=model):
        assert by.close(adapter(x), hand.step(x), 1e-7)
        by.assert_alike(adapter, hand.student, 1e-7)
        for name, weight in hand.teacher.weights.items():
            assert by.close(adapter.memory[f"teacher.{name}"], weight, 1e-7), name
        for name, weight in hand.projection.items():
            assert by.close(adapter.memory[f"projection.{name}"], weight, 1e-7), name


def test_predict_and_the_detached_module_answer_by_the_teacher() -> None:
    model = by.conv_model()
    adapter = adapter_of(model)
    hand = Taught(model, {name: adapter.memory[f"projection.{name}"] for name in LAYERS})
    for x in by.stream(2, like=model):
        adapter(x)
        hand.step(x)
    hand.teacher.mean, hand.teacher.var = hand.student.mean, hand.student.var
    (x,) = by.stream(1, like=model, seed=8)
    assert by.close(adapter.predict(x), hand.teacher.predict(x), 1e-7)
    assert by.close(adapter.detach()(x), hand.teacher.predict(x), 1e-7)


def test_the_projection_begins_by_its_seed_in_pytorchs_range_and_learns() -> None:
    model = by.conv_model()
    one, again, other = (adapter_of(model, seed=seed) for seed in (1, 1, 2))
    for name in LAYERS:
        first, inputs = one.memory[f"projection.{name}"], 12 if name.startswith("first") else 128
        assert torch.equal(first, again.memory[f"projection.{name}"])
        assert not torch.equal(first, other.memory[f"projection.{name}"])
        assert 0.9 < float(first.abs().max()) * math.sqrt(inputs) <= 1
    before = one.memory["projection.second.weight"].clone()
    one(by.stream(1, like=model)[0])
    assert not torch.equal(before, one.memory["projection.second.weight"])


def test_a_reset_brings_the_first_projection_and_views_back() -> None:
    model = by.conv_model()
    adapter, batches = adapter_of(model), by.stream(3, like=model)
    first = [adapter(x) for x in batches]
    adapter.reset()
    assert all(torch.equal(adapter(x), answer) for x, answer in zip(batches, first, strict=True))


def test_a_class_that_the_source_never_predicts_is_no_mean() -> None:
    model, source = make()
    counts = source.features["class_counts"].clone()
    counts[1] = 0
    source = replace(source, features={**source.features, "class_counts": counts})
    adapter = eq.create("rmt", model, source)
    kept = source.features["class_means"][counts > 0]
    assert torch.equal(adapter.responder.constants["class_means"], kept)
    assert adapter(drifted(8)).isfinite().all()


def test_the_nearest_mean_is_that_of_the_smallest_angle() -> None:
    means = torch.tensor([[10.0, 0.0], [0.0, 0.1]])
    near = nearest(torch.tensor([[1.0, 2.0], [2.0, 1.0], [0.01, 0.001]]), means)
    assert torch.equal(near, means[[1, 0, 0]])


def test_alike_within_and_unlike_across_samples_is_the_least_contrast() -> None:
    apart = torch.eye(4, dtype=torch.float64)
    least = float(contrastive([apart, apart, apart]))
    assert least == pytest.approx(math.log(2 + 9 * math.exp(-10)))  # two others at 1, nine at 0
    assert least < float(contrastive([apart, apart.roll(1, 0), apart]))
    assert least < float(contrastive([apart[[0, 0, 2, 3]]] * 3))


def test_a_lone_sample_is_answered_by_the_running_statistics_and_learned_from() -> None:
    model, source = make()
    adapter = eq.create("rmt", model, source)
    before = {name: buffer.clone() for name, buffer in adapter.student.named_buffers()}
    assert torch.allclose(adapter(drifted(1)), model(drifted(1)), atol=1e-6)
    assert step_of(adapter).updated
    assert all(torch.equal(buffer, before[name]) for name, buffer in adapter.student.named_buffers())


def test_a_step_that_is_not_finite_is_undone_as_a_whole() -> None:
    model, source = make("layer_norm")
    adapter = eq.create("rmt", model, source, optimizer="sgd", learning_rate=1e38, contrast=100.0)
    before = snapshot(adapter)
    adapter(drifted(8))
    assert not step_of(adapter).updated
    assert same(before, snapshot(adapter))
