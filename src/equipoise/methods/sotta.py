"""SoTTA: learn from a balanced memory of confident samples, towards flat minima."""

import math
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics, device_of
from equipoise.errors import StateError
from equipoise.functional import at_least_single
from equipoise.methods._confident_memory import drawn, offer, remembered, storable
from equipoise.methods._gradient import GradientAdapter, Objective
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import SAMPLES, chosen, part
from equipoise.network.normalisation import batch_statistics
from equipoise.network.optimizer import OptimizerName, sharpness_aware_slope
from equipoise.network.outcome import Check, Outcome, SourceView, all_hold
from equipoise.options import integer, number
from equipoise.registry import register

FULL = "full"
"""Whether the host has seen the memory full, which it then stays unless an update goes wrong."""

_EPSILON = 1e-6  # the authors', inside the logarithm


@register
class SoTTA(GradientAdapter):
    """Screening-out test-time adaptation (Gong et al., NeurIPS 2023): robust to samples of no class at all.

    A batch is answered in eval mode by the student as it stands. Its samples, in order, are offered to a
    memory: one whose confidence is at least C₀ enters under the class predicted, and out of a full memory
    takes the place of a random sample of the classes that have most (`hus.replaced_slots`). After every
    `every` samples, in the middle of a batch too, the memory is learned from:

        L(θ) = mean over the memory of −Σ_c p_c log(p_c + 1e-6),
        θ ← optimiser step with the gradient of L at θ + rho · g / ‖g‖,  g = ∂L/∂θ  (sharpness-aware),

    normalised by the memory's statistics, towards which each of the two forwards moves the running ones. One
    forward a batch, and two forwards and two backwards of the memory at every update.

    Args:
        model: a classifier that returns (N, C) logits, or an object with `.logits`.
        source: its statistics on the source domain; only tempering needs them.
        capacity: samples in the memory.
        confidence: C₀; by default the authors' values, .99 for 10 classes, .66 for 100 and .33 for 1,000, and
            on the line through them, linear in log C, between.
        rho: how far the sharpness-aware step looks.
        every: samples between updates.
        seed: of the memory's random choices.
        optimizer: "adam" (the authors) or "sgd".
        norm_momentum: how fast the running statistics follow the memory's, in PyTorch's sense.
        learning_rate: 1e-3 by default for "adam" (the authors) and 2.5e-4 for "sgd".
        shared: `momentum`, `steps` (of an update) and `parameters` as in TENT, and `tempering`, `t_min`,
            `t_max`, `teacher`, `engine`,
            `precision`, `memory_format`, `distributed`, as in every method.

    Deviations: the authors leave out layers by parts of their names; here every normalisation layer adapts.
    Their CIFAR runs decay the weights by accident; here nothing does. They neither answer nor use the samples
    after the last full window; here every sample is answered at once and counts for the next update. A memory
    of one sample is normalised by the running statistics. An update that goes wrong is undone and the memory
    emptied: what spoilt it would stay in it.
    """

    name = "sotta"
    stores_observations = True
    arriving = ("samples.*", FULL)

    def __init__(
        self,
        model: nn.Module,
        source: SourceStatistics | None = None,
        *,
        capacity: int = 64,
        confidence: float | None = None,
        rho: float = 0.05,
        every: int = 64,
        seed: int = 0,
        optimizer: OptimizerName = "adam",
        norm_momentum: float = 0.2,
        **shared: Any,
    ) -> None:
        super().__init__(model, source, optimizer=optimizer, norm_momentum=norm_momentum, **shared)
        self.capacity, self.every = integer("capacity", capacity, low=1), integer("every", every, low=1)
        self.confidence = None if confidence is None else number("confidence", confidence, low=0, high=1)
        self.rho, self.seed = number("rho", rho, low=0), integer("seed", seed, low=0, high=2**63 - 1)
        self._width, self._due = 0, [False]
        self.resolve(
            capacity=self.capacity, confidence=self.confidence, rho=self.rho, every=self.every, seed=self.seed
        )

    @property
    def rewrites(self) -> bool:
        """A batch may be longer than `every`, and so bring several updates."""
        return True

    @property
    def steps_often(self) -> bool:
        """An update that goes wrong is undone by itself."""
        return False

    def initial(self) -> dict[str, Tensor]:
        """The optimiser's state, the class in each slot (-1: free), samples since the update, randomness."""
        return {
            **super().initial(),
            "classes": torch.full((self.capacity,), -1, device=device_of(self.student)),
            "waiting": torch.zeros((), dtype=torch.long),
            FULL: torch.tensor(False),
            "random": torch.Generator().manual_seed(self.seed).get_state(),
        }

    def check_kept(self, kept: Mapping[str, Tensor]) -> None:
        """Refuse a memory of another size, and a random state that is none."""
        sizes = {len(tensor) for tensor in part(kept, SAMPLES).values()}
        if sizes - {self.capacity} or (bool((kept["classes"] >= 0).any()) and not sizes):
            raise StateError(f"expected a memory of {self.capacity} samples, got {sorted(sizes)}")
        if not 0 <= int(kept["waiting"]) < self.every:
            raise StateError(
                f"expected fewer than every={self.every} samples waiting, got {int(kept['waiting'])}"
            )
        if int(kept["classes"].min()) < -1 or int(kept["classes"].max()) >= (self._classes or math.inf):
            raise StateError("the memory has samples of classes that the model does not have")
        try:
            torch.Generator().set_state(kept["random"].cpu())
        except RuntimeError as error:
            raise StateError(f"the random state is damaged: {error}") from error

    def objective(self, logits: Tensor, source: SourceView | None) -> Objective:
        """The mean entropy of the memory."""
        p = at_least_single(logits).softmax(1)
        return Objective(-(p * (p + _EPSILON).log()).sum(1).mean(), used=len(logits))

    def course(self, batch: Batch) -> Hashable | None:
        """How many updates are due; not for a graph before the memory is full, as it grows until then."""
        waiting = int(self.kept["waiting"]) + batch.rows
        full = FULL in self.kept and bool(self.kept[FULL])
        return (waiting // self.every, waiting % self.every > 0) if full else None

    def feed(self, batch: Batch) -> dict[str, Tensor]:
        """Before which of the updates of the batch each sample comes, and the random numbers of its own."""
        waiting, rows = int(self.kept["waiting"]), batch.rows if self.ranks.alone else sum(self.counts)
        draws, random = drawn(self.kept["random"], rows, self._width + self.capacity)
        windows = torch.arange(waiting, waiting + rows) // self.every
        self._due = [waiting + rows >= self.every * (window + 1) for window in range(int(windows[-1]) + 1)]
        self.kept.update(random=random, waiting=torch.tensor((waiting + rows) % self.every))
        return {"draws": draws, "window": windows}

    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        """Answer, then offer the samples to the memory, with an update after each `every`."""
        samples = {name: self.everyones(t, "samples") for name, t in storable(self.kept, batch).items()}
        logits = self.steady_logits(batch)
        certainty, classes = at_least_single(self.everyones(logits)).softmax(1).max(1)
        self._width = logits.shape[1]
        sure = certainty >= (default_confidence(self._width) if self.confidence is None else self.confidence)
        fed = self.fed or {name: tensor.to(logits.device) for name, tensor in self.feed(batch).items()}
        done = Outcome(logits)
        for window, due in enumerate(self._due):
            offered = sure & (fed["window"] == window)
            self.kept.update(offer(self.kept, samples, classes, offered, fed["draws"]))
            if due:
                done = self._update(batch, logits)
        if self.permitted is None:
            self.kept[FULL] = torch.tensor(bool((self.kept["classes"] >= 0).all()))
        if done.loss is None and not done.reason:
            left = "some" if self.permitted is not None else self.every - int(self.kept["waiting"])
            return done._replace(reason=f"{left} samples until the next update")
        return done

    def _update(self, batch: Batch, logits: Tensor) -> Outcome:
        """Learn from the memory; if that goes wrong, undo it and empty the memory."""
        guard = self._guard()
        memory = remembered(self.kept, batch, whole=bool(guard))
        if memory is None:
            return Outcome(logits, reason="the memory is empty: no sample was confident enough")
        before, kept = self.snapshot(weights=True)
        emptied = {**kept, "classes": torch.full_like(kept["classes"], -1)}

        def loss_at() -> Tensor:
            with batch_statistics(self.student, self.norm_momentum, memory.rows):
                return self.objective(self.logits(memory), None).loss

        checks = guard
        for _ in range(self.steps):
            loss, found = sharpness_aware_slope(loss_at, self.learned, self.rho)
            failure, checks = self.descend(found, (*checks, self.unspoilt()))
            if failure := failure or self._looked(checks):
                self.restore(before, emptied)
                return Outcome(logits, loss, reason=f"{failure}: the memory was emptied")
        if guard:
            self.settle(all_hold(checks), before)
            emptied["classes"] = torch.where(all_hold(guard), emptied["classes"], kept["classes"])
            self._kept = chosen(all_hold(checks), self.kept, emptied)
        known = [id(check.holds) for check in guard]
        fatal = [
            check._replace(otherwise=f"{check.otherwise}: the memory was emptied")
            for check in checks
            if id(check.holds) not in known
        ]
        told = tuple(check._replace(undoes=False, alarms=True) for check in (*guard, *fatal))
        return Outcome(logits, loss, used=memory.rows, checks=told)

    def _guard(self) -> tuple[Check, ...]:
        """What an update stands on where the host cannot look: it may write, and the memory is full."""
        if self.permitted is None:
            return ()
        full = Check((self.kept["classes"] >= 0).all(), "the memory is not full")
        return (Check(self.permitted, ""), full)

    def _looked(self, checks: tuple[Check, ...]) -> str:
        """Why an update failed, as far as the host may look."""
        if self.permitted is None:
            return next((check.otherwise for check in checks if not bool(check.holds)), "")
        return ""


def default_confidence(classes: int) -> float:
    """The authors' .99 for 10 classes, .66 for 100, .33 for 1,000; linear in log C between, level outside."""
    return min(0.99, max(0.33, 0.33 * (4 - math.log10(classes))))
