"""A second temper around an adapter that exists already."""

from dataclasses import replace
from typing import Any, TypeVar

from torch import nn

from equipoise.adapter import Adapter
from equipoise.calibration.source_statistics import SourceStatistics, check_source
from equipoise.calibration.temper import Temper, Tempering
from equipoise.core.assembly import check_rehearsed
from equipoise.core.lock import one_at_a_time
from equipoise.core.record import Record, Step
from equipoise.core.step import Responder
from equipoise.errors import OptionError, SourceError

_Self = TypeVar("_Self", bound="Tempered")


class Tempered(Adapter):
    """Divides an adapter's answers by the certainty regulariser, in place of the adapter's own tempering.

    tau comes from the source model's logits for the same batch: a forward more, unless the method makes it
    anyway (source, t3a, dec). The network and the memory are those of the adapter passed in, which learns as
    it would by itself; the order of the answers, and with it the accuracy, stays as it was ("sample" too: it
    divides each row by one number; only in half precision may two answers round to one), unless "rehearsed"
    lets the source model answer in place of a poise that asks it.
    `eq.create(name, model, source, tempering=...)` makes an adapter that does the same.

    Args:
        adapter: the adapter that answers and learns.
        source: the statistics of the model it was made from; SourceError without them.
        tempering: "median" of tau, "mean", "sample" or "agreement" (docs/methods.md has which was better for
            which network); or "rehearsed", where `source` holds a rehearsal of the adapter's method.
        t_min: as in `equipoise.Adapter`; None: the adapter's own. DEC's range is that of its loss, and cannot
            be another here.
        t_max: as in `equipoise.Adapter`; None: the adapter's own.

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
        source: SourceStatistics | None = None,
        tempering: Tempering = "median",
        *,
        t_min: float | None = None,
        t_max: float | None = None,
    ) -> None:
        nn.Module.__init__(self)
        if isinstance(adapter, Tempered):
            raise OptionError("expected an adapter, got one that is already tempered: pass tempered.adapter")
        if not isinstance(adapter, Adapter):
            raise OptionError(f"expected an equipoise adapter, got {type(adapter).__name__}")
        source = check_source(source)
        source.check_fits(adapter.model_fingerprint)
        inner, own = adapter._respond, adapter._respond.temper
        t_min, t_max = own.given[0] if t_min is None else t_min, own.given[1] if t_max is None else t_max
        rehearsal = source.rehearsal_of(adapter.name) if tempering == "rehearsed" else None
        temper = Temper(tempering, source, t_min, t_max, rehearsal, own.compares)
        if inner.asks_source and (temper.t_min, temper.t_max) != (own.t_min, own.t_max):
            raise OptionError(
                f"expected t_min={own.t_min} and t_max={own.t_max}, with which {adapter.name} learns, got "
                f"{temper.t_min} and {temper.t_max}; give them to {adapter.name} itself"
            )
        if inner.asks_source and not (inner.source and inner.source.agrees_with(source)):
            raise SourceError(f"expected the source statistics with which {adapter.name} learns, got others")
        # Without the source model's logits it never answers, nor after a load.
        never = inner.method.compares and not own.compares
        method = replace(inner.method, **({"falls_back": False} if never else {}))
        if inner.source:  # constants of the method are those of the adapter
            names = ["norm_limits", "entropies", "confidences", "fisher", "features"]
            names += ["inputs"] if inner.source.inputs else []
            source = replace(source, **{name: getattr(inner.source, name) for name in names})
        self.adapter, self._shared, self._inputs = adapter, adapter._shared, adapter._inputs
        self._lock = adapter._lock  # they share weights and memory
        state = inner.state.beside(temper.initial())
        self._assemble(Responder(inner.student, method, temper, state, source))
        check_rehearsed(temper, self.name, self.rehearsed_options)

    @property
    def _last(self) -> Record | Step | None:
        """The record of the last batch, of both."""
        return self.adapter._last

    @_last.setter
    def _last(self, last: Record | Step | None) -> None:
        self.adapter._last = last

    @one_at_a_time
    def reset(self) -> None:
        """Go back, bit for bit, to the source model, and forget both temperatures."""
        self.adapter.reset()
        self._respond.state.forget_temperature()

    @one_at_a_time
    def _apply(self: _Self, fn: Any, recurse: bool = True) -> _Self:
        self.adapter._apply(fn, recurse)
        self._respond.state.move_temperature()
        return self
