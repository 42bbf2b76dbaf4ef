"""RMT: a student that agrees with its teacher under views, with features near those of the source."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import OPTIMIZER, Loss, Targets
from equipoise.core.method import Context, Memory, Update
from equipoise.core.optimizer import OPTIMIZERS, OptimizerName
from equipoise.core.student import Student
from equipoise.core.verdict import Check
from equipoise.functional import at_least_single
from equipoise.methods.parts.linear_head import head_answers, on_student
from equipoise.methods.parts.objectives import symmetric_cross_entropy
from equipoise.methods.parts.teacher import TEACHER, TeacherMethod, moving_average
from equipoise.methods.parts.views import TILE, WEAK_DRAWS, weak_views
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.parameters import Parameters, checked_parameters
from equipoise.options import checked_by, choice, flag, option
from equipoise.registry import register

_WIDTH, _TEMPERATURE = 128, 0.1  # of the projection and of the contrast, the authors'
_MEANS, _PROJECTION, _PROJECTION_STATE = "class_means", "projection.", f"projection_{OPTIMIZER}"
_TAUGHT, _FEATURES, _VIEW, _VIEW_FEATURES = "teacher", "features", "view", "view_features"


@register
@dataclass(frozen=True, kw_only=True)
class Rmt(TeacherMethod):
    """Robust mean teacher (Döbler, Marsden and Yang, CVPR 2023), of models on images.

    With z the student's logits, z̃ those for a view of each image, z' the teacher's logits, and SCE the
    symmetric cross-entropy ½ CE(p, q) + ½ CE(q, p):

        L = mean_i ½ (SCE(z_i, z'_i) + SCE(z̃_i, z'_i)) + contrast · K,
        θ ← optimiser step,   θ' ← decay · θ' + (1 − decay) · θ.

    K draws three vectors of each sample together and away from those of other samples (`contrastive`): the
    features that the linear head gets, those of the view, and the class mean of source features that is
    nearest to the first by the cosine; all after a projection of two layers, which learns too. The answer is
    the mean of z and z'. Three forwards a batch, and a backward through two of them. Needs a model with a
    linear head.

    Args:
        contrast: the weight of K.
        decay: of the teacher.
        mirrored: whether half of the views are mirrored left to right, as the authors' are; not for digits.
        seed: of the views, and of the projection at its start.
        optimizer: "adam", with the authors' `learning_rate` for CIFAR, 1e-3, or "sgd", with that for
            ImageNet, .01.

    Deviations: this is the variant without source data at test time: the authors also train teacher and
    student on 50,000 source samples before the stream, and on a labelled source batch at every step. Class
    means are of predicted classes, in place of labels. The authors answer with the sum of the logits: the
    same classes, but twice as confident as either network. `predict` and a detached module answer by the
    teacher alone, which is one network.
    """

    name = "rmt"
    needs_source = True
    needs_features = True
    needs_images = True
    measuring = "equipoise.SourceStatistics.measure(model, source_loader, features=True)"
    default_rates: ClassVar[Mapping[str, float]] = {"sgd": 0.01, "adam": 1e-3}

    contrast: float = option(1.0, low=0)
    decay: float = option(0.999, low=0, high=1)
    mirrored: bool = flag(False)
    seed: int = option(0, low=0, high=2**63 - 1)
    optimizer: OptimizerName = choice("adam", OPTIMIZERS)
    parameters: Parameters = checked_by(checked_parameters, "all")

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The optimiser's state, the teacher, and a random projection with its optimiser's state."""
        drawn = first_projection(known_means(source).shape[1], torch.Generator().manual_seed(self.seed))
        projection = {name: on_student(weight, student) for name, weight in drawn.items()}
        state = self.descent.start(projection)
        return {
            **super().initial(student, source),
            **prefixed(_PROJECTION, projection),
            **prefixed(_PROJECTION_STATE, state),
        }

    def constants(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The class means of source features."""
        return {_MEANS: on_student(known_means(source), student)}

    def step(self, context: Context) -> Update:
        """Learn from the teacher's logits, and let the teacher follow."""
        student, teacher = context.student, part(context.memory, TEACHER)
        with torch.no_grad(), student.with_values(teacher):
            taught = student.on_batch_statistics(context.batch, momentum=0.0)
        update = self.descend_on({_TAUGHT: taught}, context)
        moved = moving_average(teacher, student.learned, self.decay)
        logits = (update.logits.detach() + taught) / 2
        return update._replace(logits=logits, memory={**update.memory, **prefixed(TEACHER, moved)})

    def forward(self, targets: Targets, context: Context) -> tuple[Tensor, Targets]:
        """Run the student on the batch and on a view of each image; the targets with what that gives."""
        student, draws = context.student, context.rand(WEAK_DRAWS)
        tile = context.rand_like(draws.new_empty(TILE))
        views = context.batch.change(
            lambda images: weak_views(images, draws, tile=tile, mirrored=self.mirrored)
        )
        seen, viewed = (
            head_answers(student, batch, forward=partial(student.on_batch_statistics, momentum=momentum))
            for batch, momentum in ((context.batch, self.norm_momentum), (views, 0.0))
        )
        news = {_FEATURES: seen.features, _VIEW: viewed.logits, _VIEW_FEATURES: viewed.features}
        return seen.logits, {**targets, **news}

    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The distance from the teacher's answers, and the contrast; its memory is the projection."""
        taught = targets[_TAUGHT]
        apart = symmetric_cross_entropy(logits, taught) + symmetric_cross_entropy(targets[_VIEW], taught)
        stored = part(context.memory, _PROJECTION)
        projection = {name: weight.clone().requires_grad_() for name, weight in stored.items()}
        with torch.autocast(logits.device.type, enabled=False):
            near = nearest(targets[_FEATURES].detach(), context.constants[_MEANS])
            groups = (near, targets[_FEATURES], targets[_VIEW_FEATURES])
            contrast = contrastive([projected(projection, group) for group in groups])
        loss = apart.mean() / 2 + self.contrast * contrast
        return Loss(loss, used=len(logits), memory=prefixed(_PROJECTION, projection))

    def descend(
        self, logits: Tensor, loss: Loss, context: Context, checks: tuple[Check, ...]
    ) -> tuple[Loss, tuple[Check, ...]]:
        """Take a step of the weights, and one of the projection, by an optimiser's state of its own."""
        projection = part(loss.memory, _PROJECTION)
        found = torch.autograd.grad(loss.value, list(projection.values()), retain_graph=True)
        loss, checks = super().descend(logits, loss, context, checks)
        gradients, state = dict(zip(projection, found, strict=True)), part(context.memory, _PROJECTION_STATE)
        state, checks = self.descent.step(projection, gradients, state, checks, context.allowed)
        return loss._replace(memory={**loss.memory, **prefixed(_PROJECTION_STATE, state)}), checks


def known_means(source: SourceStatistics | None) -> Tensor:
    """The class means of source features, of the classes that the source has."""
    features = {} if source is None else source.features
    return features["class_means"][features["class_counts"] > 0]


def first_projection(width: int, random: torch.Generator) -> dict[str, Tensor]:
    """The weights and biases of two linear layers, drawn as PyTorch draws them: ± 1 / √inputs."""
    drawn = {}
    for layer, inputs in (("first", width), ("second", _WIDTH)):
        for name, shape in (("weight", (_WIDTH, inputs)), ("bias", (_WIDTH,))):
            drawn[f"{layer}.{name}"] = (2 * torch.rand(shape, generator=random) - 1) / inputs**0.5
    return drawn


def projected(projection: Memory, features: Tensor) -> Tensor:
    """Unit vectors W₂ relu(W₁ f + b₁) + b₂ of features."""
    first, second = ((projection[f"{n}.weight"], projection[f"{n}.bias"]) for n in ("first", "second"))
    hidden = linear(at_least_single(features).to(first[0]), *first).relu()
    return normalize(linear(hidden, *second), dim=1)


def nearest(features: Tensor, means: Tensor) -> Tensor:
    """The mean that is nearest to each of some features, by the cosine."""
    return means[(normalize(features.to(means), dim=1) @ normalize(means, dim=1).T).argmax(1)]


def contrastive(groups: list[Tensor]) -> Tensor:
    """The contrast of unit vectors in groups of equal size: row i of each group is of sample i.

    K = −mean over vectors a, and others p of a's sample, of ln (exp(a·p / τ) / Σ_{b ≠ a} exp(a·b / τ)), with
    τ = .1 and b all vectors of all groups.
    """
    vectors, rows = torch.cat(groups), len(groups[0])
    places = torch.arange(len(vectors), device=vectors.device)
    itself = places == places.unsqueeze(1)
    log_p = (vectors @ vectors.T / _TEMPERATURE).masked_fill(itself, -torch.inf).log_softmax(1)
    others = [(places + rows * shift) % len(vectors) for shift in range(1, len(groups))]
    return -log_p.gather(1, torch.stack(others, 1)).mean()
