"""Methods that break the contract on purpose, each in one way, and one that keeps it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise import Method, SourceStatistics
from equipoise.core.method import Answer, Context, Update
from equipoise.core.student import Student
from equipoise.core.verdict import Check
from equipoise.errors import ModelError, SourceError
from equipoise.functional import at_least_single


@dataclass(frozen=True, kw_only=True)
class Centred(Method):
    """Subtracts a running mean of the logits, and keeps the contract."""

    name = "centred"

    def initial(self, student: Student, source: SourceStatistics | None) -> dict[str, Tensor]:
        like = at_least_single(next(student.model.parameters()).detach())
        return {"mean": like.new_zeros(student.classes or 1)}

    def step(self, context: Context) -> Update:
        logits = context.student.frozen(context.batch)
        mean = self.followed(context.memory["mean"], logits)
        fine = Check(mean.isfinite().all(), "non-finite mean")
        return Update(logits - mean.to(logits), {"mean": mean}, used=len(logits), checks=(fine,))

    @staticmethod
    def followed(mean: Tensor, logits: Tensor) -> Tensor:
        return torch.lerp(mean, logits.mean(0).to(mean), 0.1)


class NotReset(Centred):
    """Keeps its mean outside of the memory."""

    name = "not_reset"
    kept: ClassVar[dict[str, Tensor]] = {}

    def step(self, context: Context) -> Update:
        logits = context.student.frozen(context.batch)
        self.kept["mean"] = self.followed(self.kept.get("mean", torch.zeros(logits.shape[1])), logits)
        return Update(logits - self.kept["mean"].to(logits), used=len(logits))


class GlobalRandom(Centred):
    """Draws from torch's global generator."""

    name = "global_random"

    def step(self, context: Context) -> Update:
        update = super().step(context)
        return update._replace(logits=update.logits + 0.1 * torch.rand(update.logits.shape).to(update.logits))


class InPlace(Centred):
    """Writes into its memory."""

    name = "in_place"

    def step(self, context: Context) -> Update:
        logits = context.student.frozen(context.batch)
        mean = context.memory["mean"]
        mean.copy_(self.followed(mean, logits))
        return Update(logits - mean.to(logits), used=len(logits))


class Undeclared(Centred):
    """Changes a parameter without a word."""

    name = "undeclared"

    def step(self, context: Context) -> Update:
        with torch.no_grad():
            next(context.student.model.parameters()).mul_(1.01)
        return super().step(context)


class NanRow(Centred):
    """Takes a mean of whatever the model answers."""

    name = "nan_row"

    def step(self, context: Context) -> Update:
        return super().step(context)._replace(checks=())


class WrongShape(Centred):
    """Answers with a class too few."""

    name = "wrong_shape"

    def step(self, context: Context) -> Update:
        update = super().step(context)
        return update._replace(logits=update.logits[:, 1:])


class LearnsInPredict(Centred):
    """Moves weights where it should only answer."""

    name = "learns_in_predict"

    def answer(self, context: Context) -> Answer:
        with torch.no_grad():
            next(context.student.model.parameters()).mul_(1.01)
        return super().answer(context)


class Reading(Centred):
    """Decides by a number that it reads."""

    name = "reading"

    def step(self, context: Context) -> Update:
        update = super().step(context)
        return update._replace(used=int(update.logits.argmax(1).max()) + 1)


class OtherOnDevice(Centred):
    """Does something else where the host may not read."""

    name = "other_on_device"

    def step(self, context: Context) -> Update:
        update = super().step(context)
        return update if context.host_looks else update._replace(logits=2 * update.logits)


class Raising(Centred):
    """Raises an error of its own."""

    name = "raising"

    def step(self, context: Context) -> Update:
        raise KeyError("means")


class Nowhere(Centred):
    """Refuses every model."""

    name = "nowhere"

    def check_model(self, student: Student, source: SourceStatistics | None) -> None:
        raise ModelError("expected a transformer")


class Sometimes(Centred):
    """Refuses models without running statistics."""

    name = "sometimes"

    def check_model(self, student: Student, source: SourceStatistics | None) -> None:
        if not student.statistics:
            raise SourceError("expected running statistics, got none")
