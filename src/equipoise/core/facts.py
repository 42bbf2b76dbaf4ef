"""The facts of an adapter: its parts, its options, and what it has learned so far."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from equipoise.calibration.rehearsal import Estimate, Rehearsal
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.calibration.temper import Temper
from equipoise.core.footprint import Footprint, measure_footprint
from equipoise.core.lock import CallLock, one_at_a_time
from equipoise.core.method import Method, option_values
from equipoise.core.record import Record, Step
from equipoise.core.step import Responder
from equipoise.network.modules import LearningModule

_Self = TypeVar("_Self", bound="AdapterFacts")


class AdapterFacts(LearningModule):
    """The read-only side of an adapter."""

    _respond: Responder
    _shared: dict[str, Any]
    _lock: CallLock
    _last: Record | Step | None

    def __deepcopy__(self: _Self, memo: dict[int, Any]) -> _Self:
        """A copy with networks, state and lock of its own, of a moment at which no batch is learned."""
        with self._lock:
            copy = self.__class__.__new__(self.__class__)
            memo[id(self)] = copy
            nn.Module.__setstate__(copy, deepcopy(nn.Module.__getstate__(self), memo))
        return copy

    @property
    def method(self) -> Method:
        """The method with its options."""
        return self._respond.method

    @property
    def temper(self) -> Temper:
        """The divisor of the answers."""
        return self._respond.temper

    @property
    def name(self) -> str:
        """The name of the method."""
        return self._respond.method.name

    @property
    def source(self) -> SourceStatistics | None:
        """The statistics of the source domain."""
        return self._respond.source

    @property
    def rehearsal(self) -> Rehearsal | None:
        """The rehearsal that temperature and estimates are from; None unless tempering="rehearsed"."""
        rehearsed = self._respond.temper.rehearsed
        return None if rehearsed is None else rehearsed.rehearsal

    @property
    @one_at_a_time
    def memory(self) -> Mapping[str, Tensor]:
        """The tensors that the method keeps between batches, by name."""
        return dict(self._respond.state.memory)

    @property
    def learned(self) -> dict[str, nn.Parameter]:
        """The parameters that learn, by name."""
        return self._respond.student.learned

    @property
    @one_at_a_time
    def weight_distance(self) -> float:
        """The distance of the parameters that learn from the source model's, ‖θ − θ₀‖ / ‖θ₀‖."""
        return float(self._respond.student.weight_distance())

    @property
    def model_fingerprint(self) -> str:
        """A hash of the source model's weights."""
        return self._respond.student.fingerprint

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self._respond.student.device

    @property
    @one_at_a_time
    def temperature(self) -> float:
        """The temperature of the stream so far, as `predict` uses it."""
        return float(self._respond.temper.level(self._respond.state.temperature))

    @property
    @one_at_a_time
    def source_temperature(self) -> float | None:
        """The temperature for the source model's logits, by the rehearsal; None where it is not asked."""
        rehearsed = self._respond.temper.rehearsed
        level = None if rehearsed is None else rehearsed.source_level(self._respond.state.temperature)
        return None if level is None else float(level)

    @property
    def options(self) -> dict[str, Any]:
        """All options with their values, as plain numbers, names and lists."""
        student, temper = self._respond.student, self._respond.temper
        options = option_values(self.method)
        if options.get("head", "") is None:
            options["head"] = student.head  # as a forward has found it
        t_min, t_max = temper.given
        tempered = {"tempering": temper.kind, "t_min": t_min, "t_max": t_max}
        return {**options, **tempered, **self._shared}

    @property
    @one_at_a_time
    def last(self) -> Step | None:
        """The record of the last batch; None before the first and after a reset.

        Reading it waits, on a GPU, for the batch to be done.
        """
        if isinstance(self._last, Record):
            self._last = self._last.read()
        return self._last

    @property
    @one_at_a_time
    def accuracy(self) -> Estimate | None:
        """The accuracy of the answers, estimated without labels over the recent stream.

        Before the first batch it is that of the source data. None unless tempering="rehearsed".
        """
        return self._estimates[1 if self._respond.source_answers else 0]

    @property
    @one_at_a_time
    def source_accuracy(self) -> Estimate | None:
        """The accuracy of the source model, likewise; None where it is not asked about each batch."""
        return self._estimates[1]

    @property
    def _estimates(self) -> tuple[Estimate | None, Estimate | None]:
        rehearsed = self._respond.temper.rehearsed
        if rehearsed is None:
            return None, None
        far = float(self._respond.student.weight_distance())
        return rehearsed.estimates(self._respond.state.temperature, far)

    @one_at_a_time
    def footprint(self) -> Footprint:
        """The memory that the adapter takes now, in elements and bytes, and whether it stores samples."""
        return measure_footprint(self._respond)
