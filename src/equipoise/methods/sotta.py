"""SoTTA: learn from a balanced memory of confident samples, towards flat minima."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.gradient import GradientMethod, Loss
from equipoise.core.method import SAMPLES, Context, Counts, Memory, Plan, Update
from equipoise.functional import at_least_single
from equipoise.methods import _stored_samples as slots
from equipoise.methods._confident_memory import default_confidence, offer
from equipoise.methods._memory_updates import learn_from_memory, memory_step
from equipoise.network.batch import Batch
from equipoise.network.optimizer import OPTIMIZERS, OptimizerName, sharpness_aware_slope
from equipoise.network.student import Student
from equipoise.options import choice, option
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class Sotta(GradientMethod):
    """Screening-out test-time adaptation (Gong et al., NeurIPS 2023): robust to samples of no class at all.

    A batch is answered in eval mode. A sample whose confidence is at least C₀ enters a memory under the class
    predicted; if that is full, in the place of a random sample of the classes that have most
    (`_confident_memory.replaced_slots`). After every `every` samples the memory is learned from:

        L(θ) = mean over the memory of −Σ_c p_c log(p_c + 1e-6),
        θ ← optimiser step with the gradient of L at θ + rho · g / ‖g‖,  g = ∂L/∂θ  (sharpness-aware),

    normalised by the memory's statistics. A forward a batch; two and two backwards of it at every update.

    Args:
        capacity: samples in the memory.
        confidence: C₀; by default `_confident_memory.default_confidence`.
        rho: the length of the sharpness-aware step uphill.
        every: samples between updates.
        seed: of the memory's random choices.

    Deviations: the authors leave out layers by parts of their names, and decay weights on CIFAR; here every
    normalisation layer adapts, and nothing decays. They neither answer nor use the samples after the last
    full window. An update that goes wrong is undone and the memory emptied.
    """

    name = "sotta"
    stores_samples = True
    counters = slots.STORING_COUNTERS
    arrives = (f"{SAMPLES}*",)

    capacity: int = option(64, low=1, high=slots.MOST)
    confidence: float | None = option(None, low=0, high=1)
    rho: float = option(0.05, low=0)
    every: int = option(64, low=1, high=2**63 - 1)
    seed: int = option(0, low=0, high=2**63 - 1)
    optimizer: OptimizerName = choice("adam", OPTIMIZERS)
    norm_momentum: float = option(0.2, low=0, high=1)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The optimiser's state, and a free memory."""
        return {**super().initial(student, source), **slots.free(self.capacity, student.device)}

    def plan(self, context: Context) -> Plan:
        """Decide after which samples an update is due; not captured before the memory is full."""
        return slots.plan_updates(context, self.every)

    def step(self, context: Context) -> Update:
        """Answer, then offer the samples to the memory, with an update after each `every`."""
        student, batch = context.student, context.batch
        samples, logits = slots.storable(context.memory, batch, student.gather), student.frozen(batch)
        certainty, classes = at_least_single(logits).softmax(1).max(1)
        width = logits.shape[1]
        sure = certainty >= (default_confidence(width) if self.confidence is None else self.confidence)
        draws = student.gather(context.rand(width + self.capacity), "draws")

        def join(memory: Memory, inside: Tensor) -> dict[str, Tensor]:
            return offer(memory, samples, classes, sure & inside, draws)

        return memory_step(context, logits, self.every, join, self._update)

    def _update(self, context: Context, stored: Batch, logits: Tensor) -> Update:
        """Learn from the memory, towards a flat minimum."""
        student = context.student

        def loss_at() -> Tensor:
            return self.loss(student.on_batch_statistics(stored, self.norm_momentum), context).value

        slope_of = partial(sharpness_aware_slope, loss_at, student.learned, self.rho)
        return learn_from_memory(context, stored, logits, slope_of, self.descent, self.steps)

    def loss(self, logits: Tensor, context: Context) -> Loss:
        """The mean entropy of the memory."""
        p = at_least_single(logits).softmax(1)
        return Loss(-(p * (p + 1e-6).log()).sum(1).mean(), used=len(logits))

    def check_memory(self, student: Student, memory: Memory, counts: Counts) -> None:
        """Refuse a memory of another size or other classes, and a count of an update long due."""
        slots.check_stored(memory, counts, self.capacity, self.every, student.classes)
