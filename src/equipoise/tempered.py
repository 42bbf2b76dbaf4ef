"""A temperature that an adapter already made can wear."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor, nn

from equipoise.adapter import Adapter
from equipoise.batch import Batch, batches
from equipoise.errors import OptionError, SourceError
from equipoise.footprint import Footprint, measure_footprint
from equipoise.record import Step
from equipoise.source import SourceStatistics, device_of
from equipoise.tempering import Temper, Tempering

_Self = TypeVar("_Self", bound="Tempered")


class Tempered(nn.Module):
    """Divides an adapter's answers by the certainty regulariser, in place of the adapter's own tempering.

    tau comes from the source model's logits for the same batch: a forward more, unless the method makes it
    anyway (source, t3a, dec). It calls the adapter passed in, which learns as it would by itself; the
    answers' order, and with it the accuracy, stays as it was ("sample" too: it divides each row by one
    number). `eq.create(name, model, source, tempering=...)` makes an adapter that does the same.

    Args:
        adapter: the adapter that answers and learns.
        source: the statistics of the model it was made from.
        tempering: "median" of tau, "mean" or "sample".
        t_min: lower end of the regulariser's range of t.
        t_max: its upper end.

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
        *,
        tempering: Tempering = "median",
        t_min: float = 1.0,
        t_max: float = 3.0,
    ) -> None:
        super().__init__()
        if not isinstance(adapter, Adapter):
            raise OptionError(f"expected an equipoise adapter, got {type(adapter).__name__}")
        if not isinstance(source, SourceStatistics):
            raise SourceError(f"expected source as SourceStatistics, got {type(source).__name__}")
        source.check_fits(adapter.model_fingerprint)
        self.adapter, self.source = adapter, source
        self.temper = Temper(tempering, source, t_min, t_max)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Calibrated logits of a batch; the adapter learns from it as it answers."""
        return self.adapter.respond(Batch.of(args, kwargs), self.temper)

    def predict(self, *args: Any, **kwargs: Any) -> Tensor:
        """Calibrated logits of a batch with the adapter as it stands; nothing is learned."""
        return self.adapter.foretell(Batch.of(args, kwargs), self.temper)

    def adapt(self: _Self, loader: Iterable[Any], *, progress: bool = True) -> _Self:
        """Learn from one pass over a loader, as `Adapter.adapt`."""
        title = f"adapting with {self.adapter.name}" if progress else None
        for batch in batches(loader, device_of(self.adapter.student), progress=title):
            self(*batch.args, **batch.kwargs)
        return self

    @property
    def last(self) -> Step | None:
        """What was done with the last batch."""
        return self.adapter.last

    def reset(self) -> None:
        """Go back, bit for bit, to the source model, and forget the temperature."""
        self.adapter.reset()
        self.temper.temperature.reset()

    def footprint(self) -> Footprint:
        """What the adapter and this temperature hold in memory."""
        return measure_footprint(self.adapter, self.temper.temperature.state().values())

    def detach(self) -> nn.Module:
        """A plain module with the adapted weights and this temperature, as `Adapter.detach`."""
        return self.adapter.detach_with(self.temper)

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """The adapter's state with this temperature in place of its own."""
        state = {} if destination is None else destination
        return self.adapter.state_with(self.temper, state, prefix, keep_vars=keep_vars)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> None:
        """Take over a state that `state_dict` gave, as `Adapter.load_state_dict`."""
        if not strict or assign:
            raise OptionError("expected strict=True and assign=False: an adapter's state is taken whole")
        self.adapter.load_state_with(self.temper, state_dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `eq.load` turns into the same method with this tempering as its own."""
        temper, own = self.temper, self.adapter.source
        options = {
            **self.adapter.options,
            "tempering": temper.kind,
            "t_min": temper.t_min,
            "t_max": temper.t_max,
        }
        source = replace(self.source, fisher=own.fisher) if own else self.source
        self.adapter.save_as(path, options, source, self.state_dict())

    def train(self: _Self, mode: bool = True) -> _Self:
        """Change nothing, as `Adapter.train`."""
        return self
