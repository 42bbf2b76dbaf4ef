"""A temperature that an adapter already made can wear."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor, nn

from equipoise.adapter import Adapter
from equipoise.calibration.rehearsal import Estimate
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.calibration.temper import Temper, Tempering
from equipoise.core.footprint import Footprint
from equipoise.core.record import Step
from equipoise.errors import OptionError, SourceError

_Self = TypeVar("_Self", bound="Tempered")


class Tempered(nn.Module):
    """Divides an adapter's answers by the certainty regulariser, in place of the adapter's own tempering.

    tau comes from the source model's logits for the same batch: a forward more, unless the method makes it
    anyway (source, t3a, dec). It calls the adapter passed in, which learns as it would by itself; the
    answers' order, and with it the accuracy, stays as it was ("sample" too: it divides each row by one
    number; only in half precision may two answers round to one), unless "rehearsed" lets the source model
    answer in place of a poise that asks it.
    `eq.create(name, model, source, tempering=...)` makes an adapter that does the same.

    Args:
        adapter: the adapter that answers and learns.
        source: the statistics of the model it was made from.
        tempering: "median" of tau, "mean", "sample" or "agreement"; or "rehearsed", where `source` holds a
            rehearsal of the adapter's method.
        t_min: lower end of the regulariser's range of t; None: the adapter's own.
        t_max: its upper end; likewise. DEC's range is that of its loss, and cannot be another here.

    >>> import equipoise as eq
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    >>> source = SourceStatistics.measure(model, [torch.randn(16, 3, 4)], progress=False)
    >>> adapter = Tempered(eq.create("tent", model), source)
    >>> adapter(torch.randn(8, 3, 4)).shape
    torch.Size([8, 3])
    """

    def __init__(
        self,
        adapter: Adapter,
        source: SourceStatistics,
        tempering: Tempering = "median",
        *,
        t_min: float | None = None,
        t_max: float | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(adapter, Adapter):
            raise OptionError(f"expected an equipoise adapter, got {type(adapter).__name__}")
        if not isinstance(source, SourceStatistics):
            raise SourceError(f"expected source as SourceStatistics, got {type(source).__name__}")
        source.check_fits(adapter.model_fingerprint)
        own = adapter.temper
        t_min, t_max = own.t_min if t_min is None else t_min, own.t_max if t_max is None else t_max
        rehearsal = source.rehearsal_of(adapter.name) if tempering == "rehearsed" else None
        compares = adapter.compares and adapter.asks_source
        self.adapter = adapter
        self.temper = Temper(tempering, source, t_min, t_max, rehearsal, compares)
        if adapter.asks_source and (t_min, t_max) != (own.t_min, own.t_max):
            raise OptionError(
                f"expected t_min={own.t_min} and t_max={own.t_max}, with which {adapter.name} learns, got "
                f"{t_min} and {t_max}; give them to {adapter.name} itself"
            )
        if adapter.asks_source and not (adapter.source and adapter.source.agrees_with(source)):
            raise SourceError(f"expected the source statistics with which {adapter.name} learns, got others")
        fisher = adapter.source.fisher if adapter.source else source.fisher
        self._source = replace(source, fisher=fisher)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Calibrated logits of a batch; the adapter learns from it as it answers."""
        with self._worn() as adapter:
            answer: Tensor = adapter(*args, **kwargs)
        return answer

    def predict(self, *args: Any, **kwargs: Any) -> Tensor:
        """Calibrated logits of a batch with the adapter as it stands; nothing is learned."""
        with self._worn() as adapter:
            return adapter.predict(*args, **kwargs)

    def adapt(self: _Self, loader: Iterable[Any], *, progress: bool = True) -> _Self:
        """Learn from one pass over a loader, as `Adapter.adapt`."""
        with self._worn() as adapter:
            adapter.adapt(loader, progress=progress)
        return self

    @property
    def last(self) -> Step | None:
        """What was done with the last batch."""
        return self.adapter.last

    @property
    def accuracy(self) -> Estimate | None:
        """The accuracy of the answers, estimated without labels, as `Adapter.accuracy`."""
        with self._worn() as adapter:
            return adapter.accuracy

    @property
    def source_accuracy(self) -> Estimate | None:
        """The accuracy of the source model, as `Adapter.source_accuracy`."""
        with self._worn() as adapter:
            return adapter.source_accuracy

    def reset(self) -> None:
        """Go back, bit for bit, to the source model, and forget both temperatures."""
        self.adapter.reset()
        self.temper.temperature.reset()

    def footprint(self) -> Footprint:
        """What the adapter and this temperature hold in memory."""
        with self._worn() as adapter:
            return adapter.footprint()

    def detach(self) -> nn.Module:
        """A plain module with the adapted weights and this temperature, as `Adapter.detach`."""
        with self._worn() as adapter:
            return adapter.detach()

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """The adapter's state with this temperature in place of its own."""
        with self._worn() as adapter:
            return adapter.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> None:
        """Take over a state that `state_dict` gave, as `Adapter.load_state_dict`."""
        with self._worn() as adapter:
            adapter.load_state_dict(state_dict, strict=strict, assign=assign)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `eq.load` turns into the same method with this tempering as its own."""
        with self._worn() as adapter:
            adapter.save(path)

    def train(self: _Self, mode: bool = True) -> _Self:
        """Change nothing, as `Adapter.train`."""
        return self

    @contextmanager
    def _worn(self) -> Iterator[Adapter]:
        """The adapter, for as long as the block lasts with this temper, its options and its statistics."""
        adapter, temper = self.adapter, self.temper
        own = (adapter.temper, adapter.options, adapter.source)
        worn = {"tempering": temper.kind, "t_min": temper.t_min, "t_max": temper.t_max}
        if adapter.compares:  # without the source model's logits it never answers, nor after a load
            worn["falls_back"] = adapter.asks_source
        adapter.temper, adapter.source = temper, self._source
        adapter.options = {**adapter.options, **worn}
        try:
            yield adapter
        finally:
            found = {name: adapter.options[name] for name in own[1] if name not in worn}
            adapter.temper, adapter.options, adapter.source = own
            adapter.options.update(found)  # T3A notes there which layer is the head
