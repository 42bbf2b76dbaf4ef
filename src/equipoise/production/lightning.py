"""A callback of Lightning: the classifier of a LightningModule adapts while a Trainer tests or predicts."""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from equipoise.adapter import Adapter
from equipoise.errors import OptionError


class Adaptation(Callback):
    """Lets the classifier inside of a LightningModule adapt to the stream of `trainer.test` or `predict`.

    From the start of a run to its end an adapter is in the classifier's place, so the module's own steps need
    no change. Afterwards the classifier is back, with the weights that it had; the next run starts from them.
    After each batch the trainer's loggers get `estimated_accuracy` and the ends of its 90 % interval, `_low`
    and `_high`, where the adapter has an estimate; `trainer.test` returns the last ones. Nothing adapts in
    `fit` and `validate`.

    Attributes:
        adapter: of the latest run; None before the first.

    Args:
        part: the name of the classifier in the LightningModule: "network" for `self.network`.
        make: makes an adapter of the classifier.
    """

    def __init__(self, part: str, make: Callable[[nn.Module], Adapter]) -> None:
        self.adapter: Adapter | None = None
        self._part, self._make = part, make
        self._classifier: nn.Module | None = None
        self._batches = 0

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put an adapter in the classifier's place."""
        self._begin(pl_module)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put an adapter in the classifier's place."""
        self._begin(pl_module)

    def on_test_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Log the estimate."""
        self._log(trainer)

    def on_predict_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Log the estimate; `LightningModule.log` cannot be called while a trainer predicts."""
        self._log(trainer)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the last estimate as a result of the test."""
        pl_module.log_dict(self._estimate())

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the classifier back."""
        self._end(pl_module)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the classifier back."""
        self._end(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put the classifier back."""
        self._end(pl_module)

    def _begin(self, module: LightningModule) -> None:
        parts = dict(module.named_modules())
        classifier = parts.get(self._part)
        if not self._part or classifier is None:
            names = ", ".join(name for name in parts if name and name.count(".") < 2)
            raise OptionError(
                f"expected the name of a part of {type(module).__name__}, such as {names}, got {self._part!r}"
            )
        self._batches, self.adapter = 0, self._make(classifier)
        _replace(module, self._part, self.adapter)
        self._classifier = classifier

    def _end(self, module: LightningModule) -> None:
        if self._classifier is not None:
            _replace(module, self._part, self._classifier)
            self._classifier = None

    def _estimate(self) -> dict[str, float]:
        """The estimated accuracy and its interval; empty where there is none."""
        found = None if self.adapter is None else self.adapter.accuracy
        if found is None:
            return {}
        name = "estimated_accuracy"
        return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}

    def _log(self, trainer: Trainer) -> None:
        self._batches += 1
        if estimate := self._estimate():
            for logger in trainer.loggers:
                logger.log_metrics(estimate, self._batches)


def _replace(module: nn.Module, part: str, other: nn.Module) -> None:
    """Put another module in the place of a part."""
    parent, _, name = part.rpartition(".")
    module.get_submodule(parent).register_module(name, other)
