"""The base of methods that take steps of an optimiser down a loss of their own answers."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.method import NO_TENSORS, Context, Memory, Method, Update
from equipoise.core.optimizer import OPTIMIZERS, Optimizer, OptimizerName
from equipoise.core.student import Student
from equipoise.core.verdict import Check, all_hold, host_knows
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.parameters import Parameters, checked_parameters
from equipoise.options import checked_by, choice, option

Targets: TypeAlias = Mapping[str, Tensor]
"""Tensors that a loss compares the answers with, by name, such as a teacher's logits."""

OPTIMIZER = "optimizer."
"""Prefix of the names of memory that holds the optimiser's state."""


class Loss(NamedTuple):
    """The loss of a batch.

    Attributes:
        value: the loss, to be differentiated.
        used: the number of samples in it.
        memory: new values of memory, besides the optimiser's state.
        checks: conditions for taking the step.
    """

    value: Tensor
    used: int | Tensor
    memory: Memory = NO_TENSORS
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method):
    """A method that learns by gradients: a subclass with a `loss`, and perhaps options of its own.

    A batch is answered with the logits of the forward whose gradient is taken, before its update (with
    steps > 1 those of the last forward): no second forward.

    Args:
        learning_rate: None: the method's default for the optimiser.
        optimizer: "sgd" or "adam".
        momentum: of "sgd" (never Nesterov), or Adam's β₁; None: .9, or the method's default for "sgd".
        steps: steps for each batch.
        parameters: which parameters learn: "norm", "all", "encoder" (all but those of the last linear layer),
            or a list of name patterns.
        norm_momentum: how fast the running statistics follow the stream, in PyTorch's sense.
    """

    default_rates: ClassVar[Mapping[str, float]] = {"sgd": 2.5e-4, "adam": 1e-3}
    default_momentum: ClassVar[float] = 0.9

    learning_rate: float | None = option(None, low=0)
    optimizer: OptimizerName = choice("sgd", OPTIMIZERS)
    momentum: float | None = option(None, low=0, high=0.9999)
    steps: int = option(1, low=1)
    parameters: Parameters = checked_by(checked_parameters, "norm")
    norm_momentum: float = option(0.1, low=0, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        momentum = 0.9 if self.optimizer == "adam" else self.default_momentum
        for name, value in {"learning_rate": self.default_rate, "momentum": momentum}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def default_rate(self) -> float:
        """The learning rate where none is given."""
        return self.default_rates[self.optimizer]

    def forward(self, targets: Targets, context: Context) -> tuple[Tensor, Targets]:
        """Run the forward of a step; its logits, and the targets with what else of it the loss needs."""
        return context.student.on_batch_statistics(context.batch, self.norm_momentum), targets

    @abstractmethod
    def loss(self, logits: Tensor, targets: Targets, context: Context) -> Loss:
        """The loss of the logits of a batch.

        `targets` are those that `descend_on` was given: none where a method learns from its own answers.
        """

    def descend(
        self, logits: Tensor, loss: Loss, context: Context, checks: tuple[Check, ...]
    ) -> tuple[Loss, tuple[Check, ...]]:
        """Take a step of the optimiser where the checks hold.

        Returns the loss with all memory of the step, and all checks of it.
        """
        student, state = context.student, part(context.memory, OPTIMIZER)
        state, checks = student.descend(
            lambda: student.slope(loss.value), self.descent, state, *checks, allowed=context.allowed
        )
        return loss._replace(memory={**loss.memory, **prefixed(OPTIMIZER, state)}), checks

    @property
    def learns(self) -> Parameters:
        """The parameters that learn."""
        return self.parameters

    @cached_property
    def descent(self) -> Optimizer:
        """The optimiser; its state is in the memory."""
        return Optimizer(self.optimizer, self.learning_rate or 0.0, self.momentum or 0.0)

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        """The optimiser's state."""
        return prefixed(OPTIMIZER, self.descent.start(student.learned))

    def step(self, context: Context) -> Update:
        """Run a forward on the batch's statistics and a step down the loss, `steps` times."""
        return self.descend_on(NO_TENSORS, context)

    def descend_on(self, targets: Targets, context: Context) -> Update:
        """Take the step of a batch with these targets of the loss, one for all its forwards."""
        update = self._one_step(targets, context)
        for _ in range(self.steps - 1):
            if update.idle or (update.checks and host_knows(all_hold(update.checks)) is False):
                return update
            later = context._replace(memory={**context.memory, **update.memory})
            update = self._one_step(targets, later, update)
        return update

    def _one_step(self, targets: Targets, context: Context, before: Update | None = None) -> Update:
        """One step, after another one on the same batch if there was one.

        If a later step finds nothing to learn from, the steps before it are taken all the same.
        """
        student, earlier = context.student, () if before is None else before.checks
        logits, targets = self.forward(targets, context)
        finite = student.finite_statistics()
        if host_knows(finite.holds) is False:
            return Update(logits, checks=(*earlier, finite))
        loss = self.loss(logits, targets, context)
        if isinstance(loss.used, Tensor) and not loss.checks:
            loss = loss._replace(checks=(Check(loss.used > 0, "no sample to learn from", on_failure="skip"),))
        value = loss.value.detach()
        if self.learning_rate == 0:
            checks = (*earlier, *loss.checks)
            return Update(logits, loss.memory, loss.used, value, checks, "the learning rate is 0")
        loss, checks = self.descend(logits, loss, context, (*earlier, finite, *loss.checks))
        memory = {**(before.memory if before else {}), **loss.memory}
        update = Update(logits, memory, loss.used, value, checks)
        if before is None or before.loss is None or not loss.checks:
            return update
        taken = all_hold(loss.checks)
        return update._replace(
            used=torch.where(taken, loss.used, before.used),
            loss=torch.where(taken, value, before.loss),
            checks=(*earlier, *(check for check in checks[len(earlier) :] if check.on_failure == "undo")),
        )
