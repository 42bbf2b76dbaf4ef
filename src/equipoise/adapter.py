"""The one contract of every method: answer a batch, learn from it, and never break."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar, get_args

import torch
from torch import Tensor, nn

from equipoise.calibration.rehearsal import Estimate
from equipoise.calibration.source_statistics import SourceStatistics, check_module, device_of
from equipoise.calibration.temper import Temper, Tempering, divide
from equipoise.core.export import with_temperature
from equipoise.core.footprint import Footprint, measure_footprint
from equipoise.core.record import Record, Step
from equipoise.core.responder import Responder
from equipoise.core.state import check_state
from equipoise.distributed.group import Ranks
from equipoise.engine.captured import StepGraphs
from equipoise.errors import OptionError, SourceError
from equipoise.files import write_tensors
from equipoise.network.batch import Batch, batches
from equipoise.network.layout import RUN_BY, Engine, Execution, MemoryFormat, Precision
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.teacher import Residence
from equipoise.options import one_of

HERE = ("engine", "distributed")
"""Options that belong to a machine and not to the state."""

UNREHEARSED = (*RUN_BY, "tempering", "teacher", "falls_back", "seed", "head")
"""Options that a rehearsal does not depend on."""

STATE_KIND, STATE_VERSION = "equipoise adapter", 1
_Self = TypeVar("_Self", bound="Adapter")
_Answer = TypeVar("_Answer")


class Adapter(Responder):
    """A classifier that adapts to its inputs: `adapter(x)` stands where `model(x)` stood, and returns logits.

    A method is a subclass with a `name`, keyword options in its constructor, and `step`. Everything else is
    here: checks of the input, setting bad samples aside, one forward of the source model where it is needed,
    tempering, undoing a failed step, reset, state and files. The model passed in is copied, never changed;
    the adapter stays on its device and moves with `.to()`. `train()` and `eval()` change nothing: the
    adapter sets the modes of its own layers. One thread at a time: an adapter learns as it answers.

    Attributes:
        measuring: how to measure the source statistics that the method needs.
    """

    measuring: ClassVar[str] = "SourceStatistics.measure(model, source_loader)"

    def __init__(
        self,
        model: nn.Module,
        source: SourceStatistics | None = None,
        choice: str | list[str] | None = None,
        *,
        tempering: Tempering = "none",
        t_min: float = 1.0,
        t_max: float = 3.0,
        teacher: Residence = "swapped",
        engine: Engine = "auto",
        precision: Precision = "fp32",
        memory_format: MemoryFormat | None = None,
        distributed: bool = True,
    ) -> None:
        """Copy the model and check what all methods share.

        Args:
            model: the classifier to adapt.
            source: its statistics on the source domain, where the method or its tempering needs them.
            choice: which parameters learn, as `checked_choice` gives it; None where none does.
            tempering: what the logits are divided by: the "mean" of the certainty regulariser tau over the
                batch (over all samples since the last reset in `predict`), its "median", each "sample"'s own,
                by "agreement" with the source model (`tempering.agreement_temperature`), by what a rehearsal
                of the method gives for the recent stream, "rehearsed" (`equipoise.rehearse`), or nothing,
                "none".
            t_min: lower end of the regulariser's range of t.
            t_max: its upper end.
            teacher: where the source model is kept: "resident" (a second copy) or "swapped" (in the host's
                memory, and only what adapts); no difference where nothing adapts.
            engine: what runs a step: "eager", "graph" (the whole step as one CUDA graph), "compile", or the
                fastest that is safe, "auto" (`execution.Execution`); `execution` says which. It changes no
                decision and is not part of the state.
            precision: "fp32", or "bf16" for the convolutions and matrix products where the device has it.
            memory_format: "contiguous", "channels_last", or None for what is fastest by measurement.
            distributed: where torch.distributed is initialised with several processes, adapt as one with
                them: all call at once, each with its part of a batch.
        """
        check_module(model)
        one_of("tempering", tempering, get_args(Tempering))
        if source is None and (self.needs_source or tempering != "none"):
            asker = self.name if self.needs_source else f"tempering={tempering!r}"
            raise SourceError(f"{asker} needs source statistics: {self.measuring}")
        rehearsal = source.rehearsal_of(self.name) if source and tempering == "rehearsed" else None
        temper = Temper(tempering, source, t_min, t_max, rehearsal, self.compares and self.asks_source)
        execution = Execution.checked(engine, precision, memory_format, device_of(model))
        super().__init__(temper, model, source, choice, teacher, execution, Ranks.found(bool(distributed)))
        self.resolve(t_min=temper.t_min, t_max=temper.t_max, memory_format=execution.memory_format)
        self._graphs = StepGraphs()
        self._last: Record | Step | None = None
        self._fitting: Temper | None = None  # the one whose rehearsal is known to be of these options

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Calibrated logits of a batch; the adapter learns from it as it answers.

        Takes what the model takes: one batch of inputs, keyword inputs, or both; never labels. A sample with
        non-finite values is set aside (its logits come back NaN) and the others learn as if it had not been
        there; -inf is allowed in all inputs but the first, as attention masks use it. If the model raises,
        the error passes through and the adapter is as it was. A step that runs as a CUDA graph learns nothing
        from a batch with such a sample, and the next ones are looked at again (`graphs.StepGraphs`).
        """
        with (
            self.ranks.together(),
            torch.inference_mode(False),
            torch.enable_grad(),
            _fresh_autocast_cache(),
        ):
            batch = Batch.of(args, kwargs).learnable()
            self._check_rehearsed()
            for parameter in self.learned.values():
                parameter.requires_grad_()
            run = self._graphs.run if self._captures else Adapter.respond
            answer, self._last = self._laid_out(lambda: run(self, batch))
        return answer

    def _laid_out(self, answer: Callable[[], _Answer]) -> _Answer:
        """An answer, by contiguous tensors if the model cannot do with the layout that was picked."""
        try:
            return answer()
        except RuntimeError as error:
            plainer = self._execution.plainer(self.student, self.device, error)
            if plainer is None:
                raise
        self._execution = plainer
        self._arrange()
        self._graphs = StepGraphs()
        return answer()

    @property
    def _captures(self) -> bool:
        return self._execution.engine != "eager" and self.device.type == "cuda" and self.ranks.alone

    @property
    def execution(self) -> str:
        """What runs the steps, in words: the engine that was picked and why, precision and layout."""
        engine = "eager" if self.ranks.alone else "eager, as processes adapt as one"
        if self._captures:
            sizes = ", ".join(str(size) for size in self._graphs.sizes)
            engine = f"CUDA graphs (batches of {sizes})" if sizes else "CUDA graphs, none captured yet"
        if self._graphs.refusal:
            engine = f"eager, as the step cannot be captured: {self._graphs.refusal}"
        if self.compiler.wanted:
            engine = f"{engine}, {self.compiler.told}"
        told = self._execution.told(self.student, self.device, self.learned.values())
        return ", ".join(filter(None, (engine, told)))

    def predict(self, *args: Any, **kwargs: Any) -> Tensor:
        """Calibrated logits of a batch with the adapter as it stands; nothing is learned.

        The student in eval mode with its running statistics, divided by the temperature of everything seen
        since the last reset (T = 1 before the first batch), or with tempering="rehearsed" of the recent
        stream; or the source model, where that answers now. One forward, and for tempering="sample" one more
        of the source model, unless the method uses just that.
        """
        batch = Batch.of(args, kwargs)
        with torch.no_grad():
            return self._laid_out(lambda: self._wide(self._predict(batch)))

    def _predict(self, batch: Batch) -> Tensor:
        self._check_rehearsed()
        if self.temper.kind != "sample":
            logits = self.ask_source(batch)[0] if self._source_answers else self.answer(batch, None)
            return divide(logits, self.temper.temperature.level().to(logits.device))
        view = self.view(batch)
        logits = self.answer(batch, view)
        if self.asks_source:
            return divide(logits, view.tau.unsqueeze(1))
        return self.temper.divide(logits, view).logits

    @property
    def _source_answers(self) -> bool:
        return self.temper.rehearsed is not None and self.temper.rehearsed.trusts_source

    @property
    def accuracy(self) -> Estimate | None:
        """The accuracy of the answers, estimated without labels over the recent stream.

        Before the first batch it is that of the source data. None unless tempering="rehearsed".
        """
        own, theirs = self._estimates
        return theirs if self._source_answers else own

    @property
    def source_accuracy(self) -> Estimate | None:
        """The accuracy of the source model, likewise; None where it is not asked about each batch."""
        return self._estimates[1]

    @property
    def _estimates(self) -> tuple[Estimate | None, Estimate | None]:
        return (None, None) if self.temper.rehearsed is None else self.temper.rehearsed.estimates()

    @property
    def rehearsed_options(self) -> dict[str, Any]:
        """The options that a rehearsal depends on, as they came out."""
        tau = () if type(self).asks_source else ("t_min", "t_max")  # else the method learns by it
        return {name: v for name, v in self.options.items() if name not in (*UNREHEARSED, *tau)}

    def _check_rehearsed(self) -> None:
        """SourceError if a rehearsal was made with other options than these."""
        if self.temper.rehearsed is None or self.temper is self._fitting:
            return
        rehearsal, own = self.temper.rehearsed.rehearsal, self.rehearsed_options
        if json.dumps(rehearsal.options, sort_keys=True) != json.dumps(own, sort_keys=True):
            given = ", ".join(f"{name}={value!r}" for name, value in own.items())
            raise SourceError(
                f"{self.name} was rehearsed with {rehearsal.options}, and has {own}: rehearse it as it runs, "
                f"equipoise.rehearse(model, held_out_loader, method={self.name!r}, {given})"
            )
        self._fitting = self.temper

    def adapt(self: _Self, loader: Iterable[Any], *, progress: bool = True) -> _Self:
        """Learn from one pass over a loader; follow it by `predict` for the paper's evaluation.

        A tuple or list yields its first element as the input and the rest is ignored; a dict is keyword
        inputs. Batches are moved to the adapter's device.
        """
        title = f"adapting with {self.name}" if progress else None
        for batch in batches(loader, device_of(self.student), progress=title):
            self(*batch.args, **batch.kwargs)
        return self

    @property
    def last(self) -> Step | None:
        """What was done with the last batch; None before the first and after a reset.

        It is made when asked for, which on a GPU waits for the batch to be done.
        """
        if isinstance(self._last, Record):
            self._last = self._last.read()
        return self._last

    def reset(self) -> None:
        """Go back, bit for bit, to the source model."""
        self.restore(self.teacher.tensors(list(self.adapting)), kept=None)
        self.temper.temperature.reset()
        self._last = None

    def _apply(self: _Self, fn: Any, recurse: bool = True) -> _Self:
        super()._apply(fn, recurse)
        self._graphs = StepGraphs()  # those of before read and write where nothing is any more
        return self

    def footprint(self) -> Footprint:
        """What the adapter holds in memory now, in numbers and bytes, and whether it stores observations."""
        return measure_footprint(self, self.temper.temperature.state().values())

    def detach(self) -> nn.Module:
        """A plain module with the adapted weights and temperature, free of the adapter, for export.

        It is of the model's own class, takes what the model takes, returns a tensor of logits and answers as
        `predict` does. tempering="sample" has no single temperature and is refused.
        """
        if self.temper.kind == "sample":
            raise OptionError(
                'tempering="sample" asks the source model about each input and cannot be detached; '
                "use another one"
            )
        adapted = self.source_model() if self._source_answers else self.detached_model()
        return with_temperature(adapted, self.temper.temperature.running())

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """A copy of everything that adaptation changes: a flat dict of tensors, detached from the adapter."""
        state = {} if destination is None else destination
        root = f"{prefix}{self.name}."
        for name, tensor in self.adapting.items():
            state[f"{root}model.{name}"] = tensor if keep_vars else tensor.detach().clone()
        state.update({f"{root}kept.{name}": tensor.clone() for name, tensor in self.kept.items()})
        state.update(prefixed(f"{root}temperature.", self.temper.temperature.state()))
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> None:
        """Take over a state that `state_dict` gave; checked as a whole before anything changes.

        StateError names what does not fit. A partial state would be a model that nobody has tested, so
        `strict=False` and `assign=True` are refused.
        """
        if not strict or assign:
            raise OptionError("expected strict=True and assign=False: an adapter's state is taken whole")
        arriving = tuple(f"{self.name}.kept.{pattern}" for pattern in self.arriving)
        check_state(self.name, self.state_dict(), state_dict, arriving)
        model, kept, heat = (part(state_dict, f"{self.name}.{p}.") for p in ("model", "kept", "temperature"))
        self.check_kept(kept)
        device, places = device_of(self.student), {name: t.device for name, t in self.kept.items()}
        with torch.inference_mode(False):
            copies = {n: t.detach().to(places.get(n, device), copy=True) for n, t in kept.items()}
            self.restore(model, copies)
        self.temper.temperature.load(heat)
        self._last = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write method, options, source statistics and state to a safetensors file, atomically.

        The state of a method that stores samples has them in it.
        """
        text = {
            "method": self.name,
            "options": json.dumps({n: value for n, value in self.options.items() if n not in HERE}),
            "source": self.source.to_json() if self.source else "",
            "model_fingerprint": self.model_fingerprint,
        }
        tensors = {**self.state_dict(), **(self.source.tensors() if self.source else {})}
        write_tensors(path, STATE_KIND, STATE_VERSION, tensors, text)


@contextmanager
def _fresh_autocast_cache() -> Iterator[None]:
    """Under autocast, cast the weights anew: its cache would answer with those of before the update."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()
