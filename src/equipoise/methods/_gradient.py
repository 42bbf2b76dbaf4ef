"""Methods that take steps of an optimiser down a loss of their own answers."""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from equipoise.adapter import Adapter
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.network.batch import Batch
from equipoise.network.named_tensors import OPTIMIZER, part, prefixed
from equipoise.network.normalisation import Parameters, checked_choice
from equipoise.network.optimizer import Optimizer, OptimizerName, Slope, slope
from equipoise.network.outcome import Check, Outcome, SourceView, all_hold, first_broken, known
from equipoise.network.pooled_batch_norm import pooled_statistics
from equipoise.options import integer, number, one_of


class Objective(NamedTuple):
    """What a batch is learned from.

    Attributes:
        loss: the loss, with a graph to differentiate.
        used: how many samples are in it; 0: there is nothing to learn.
        reason: why that is so, if it is.
    """

    loss: Tensor
    used: int | Tensor
    reason: str = ""


class GradientAdapter(Adapter):
    """A method that learns by gradients: a subclass with an `objective`, and perhaps options of its own.

    A batch is answered with the logits of the forward whose gradient is taken, before its update (with
    steps > 1 those of the last forward): no second forward.

    Attributes:
        default_rates: the learning rate for each optimiser.
        default_momentum: the momentum of "sgd".
    """

    default_rates: ClassVar[dict[str, float]] = {"sgd": 2.5e-4, "adam": 1e-3}
    default_momentum: ClassVar[float] = 0.9

    def __init__(
        self,
        model: nn.Module,
        source: SourceStatistics | None = None,
        *,
        learning_rate: float | None = None,
        optimizer: OptimizerName = "sgd",
        momentum: float | None = None,
        steps: int = 1,
        parameters: Parameters = "norm",
        norm_momentum: float = 0.1,
        **shared: Any,
    ) -> None:
        """Check the options of all methods that learn by gradients.

        Args:
            model: the classifier to adapt.
            source: its statistics on the source domain, where they are needed.
            learning_rate: the optimiser's; None: the method's default for this optimiser.
            optimizer: "sgd" or "adam".
            momentum: of "sgd", or Adam's β₁; None: the method's default for "sgd", .9 for "adam".
            steps: how many steps a batch.
            parameters: which parameters learn, as in `layers.Parameters`.
            norm_momentum: how fast the running statistics follow the stream, in PyTorch's sense.
            shared: the options of every adapter.
        """
        choice = checked_choice(parameters)
        one_of("optimizer", optimizer, self.default_rates)
        super().__init__(model, source, choice, **shared)
        if momentum is None:
            momentum = 0.9 if optimizer == "adam" else self.default_momentum
        if learning_rate is None:
            learning_rate = self.default_rates[optimizer]
        self.optimizer = Optimizer(optimizer, learning_rate, momentum)
        self.steps = integer("steps", steps, low=1)
        self.norm_momentum = number("norm_momentum", norm_momentum, low=0, high=1)
        self.resolve(
            learning_rate=self.optimizer.rate,
            momentum=self.optimizer.momentum,
            steps=self.steps,
            parameters=choice,
            norm_momentum=self.norm_momentum,
        )

    @abstractmethod
    def objective(self, logits: Tensor, source: SourceView | None) -> Objective:
        """What to learn from the logits of a batch."""

    @property
    def rewrites(self) -> bool:
        """With more than one step, a later one may go wrong after an earlier one was taken.

        And an interrupt may come between the weights and what follows them. A copy of a few weights costs
        nothing; one of all of them in every batch is too much for that alone.
        """
        return self.steps_often or self.options["parameters"] != "all"

    @property
    def steps_often(self) -> bool:
        """With more than one step a batch."""
        return self.steps > 1

    def initial(self) -> dict[str, Tensor]:
        """The optimiser's state."""
        return prefixed(OPTIMIZER, self.optimizer.start(self.learned))

    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        """A forward on the batch's statistics and a step down the objective, `steps` times."""
        outcome = self._one_step(batch, source, ())
        for _ in range(self.steps - 1):
            if outcome.reason:
                return outcome
            again = self._one_step(batch, source, outcome.checks)
            outcome = _joined(outcome, again)
        return outcome

    def _one_step(self, batch: Batch, source: SourceView | None, before: tuple[Check, ...]) -> Outcome:
        with pooled_statistics(self.student, self.norm_momentum, self.ranks, self.counts_of(batch)):
            logits = self.logits(batch)
        checks = (*before, self.unspoilt())
        if broken := first_broken(checks):
            return Outcome(logits, reason=broken.otherwise, failed=True)
        loss, used, reason = self.objective(self.everyones(logits), source)
        if isinstance(used, Tensor):
            checks = (*checks, Check(used > 0, reason, undoes=False))
        if used == 0 if isinstance(used, int) else known(used > 0) is False:
            return Outcome(logits, reason=reason)
        if self.optimizer.rate == 0:
            return Outcome(logits, loss.detach(), reason="the learning rate is 0", checks=checks)
        failure, more = self.descend(self._averaged(slope(loss, self.learned)), checks)
        return Outcome(logits, loss.detach(), used, reason=failure, failed=bool(failure), checks=more)

    def _averaged(self, found: Slope) -> Slope:
        """The slope by the samples of all processes: each has scaled that by its own accordingly."""
        averages = self.ranks.average(list(found.gradients.values())) if found.gradients else []
        return found._replace(gradients=dict(zip(found.gradients, averages, strict=True)))

    def descend(self, found: Slope, checks: tuple[Check, ...] = ()) -> tuple[str, tuple[Check, ...]]:
        """One step of the optimiser if all checks hold; returns why there was none, and all checks."""
        if found.failure:
            return found.failure, checks
        state = part(self.kept, OPTIMIZER)
        permission = () if self.permitted is None else (Check(self.permitted, ""),)
        allowed = (*permission, *checks, *found.checks)
        # A guarded step is the only one, and the last to write: nothing is left that could undo it.
        in_place = self.permitted is not None and self.steps == 1
        state, checks = self.optimizer.step(self.learned, found.gradients, state, allowed, in_place=in_place)
        if broken := first_broken(checks):
            return broken.otherwise, checks
        self.kept.update(prefixed(OPTIMIZER, state))
        return "", checks


def _joined(first: Outcome, again: Outcome) -> Outcome:
    """What two steps on one batch come to.

    If the later one found nothing to learn from, the one before it was taken all the same.
    """
    if again.reason or again.loss is None or first.loss is None:
        return again if again.failed else first._replace(logits=again.logits)
    old = [id(check) for check in first.checks]
    later = [check for check in again.checks if not check.undoes and id(check) not in old]
    if not later:
        return again
    taken = all_hold(later)
    return again._replace(
        used=torch.where(taken, again.used, first.used),
        loss=torch.where(taken, again.loss, first.loss),
        checks=tuple(check for check in again.checks if check.undoes or id(check) in old),
    )
