"""The one contract of every method: answer a batch, learn from it, and never break."""

import inspect
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from equipoise.batch import Batch, batches, checked_logits
from equipoise.copying import frozen_copy
from equipoise.detached import with_temperature
from equipoise.errors import OptionError, SourceError, UnknownOptionError
from equipoise.files import write_tensors
from equipoise.functional import certainty_regularizer, check_range
from equipoise.layers import running_statistics, select_parameters, steady_statistics
from equipoise.options import number
from equipoise.outcome import Outcome, SourceView
from equipoise.record import Step, record_step
from equipoise.source import SourceStatistics, device_of, fingerprint
from equipoise.state import check_state
from equipoise.teacher import Residence, make_teacher
from equipoise.tempering import Temperature, Tempering, divide

STATE_KIND, STATE_VERSION = "equipoise adapter", 1
_Self = TypeVar("_Self", bound="Adapter")


class Adapter(nn.Module, ABC):
    """A classifier that adapts to its inputs: `adapter(x)` stands where `model(x)` stood, and returns logits.

    A method is a subclass with a `name`, keyword options in its constructor, and `step`. Everything else is
    here: checks of the input, setting bad samples aside, one forward of the source model where it is needed,
    tempering, undoing a failed step, reset, state and files. The model passed in is copied, never changed;
    the adapter stays on its device and moves with `.to()`. `train()` and `eval()` change nothing: the
    adapter sets the modes of its own layers. One thread at a time: an adapter learns as it answers.
    """

    name: ClassVar[str]
    needs_source: ClassVar[bool] = False
    options: dict[str, Any]

    def __new__(cls: type[_Self], *_args: Any, **options: Any) -> _Self:
        """Note the options as given, so that a state file can make the same adapter again."""
        known = cls.known_options()
        unknown = sorted(set(options) - set(known) - {"model", "source"})
        if unknown:
            raise UnknownOptionError(
                f"{cls.name} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}"
            )
        self = super().__new__(cls)
        given = {name: value for name, value in options.items() if name in known}
        object.__setattr__(self, "options", {**known, **given})
        return self

    @classmethod
    def known_options(cls) -> dict[str, Any]:
        """The options of the method with their defaults."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def resolve(self, **values: Any) -> None:
        """Note what the options came to, as plain numbers, names and lists, for the state file."""
        self.options.update({name: value for name, value in values.items() if name in self.options})

    def __init__(
        self,
        model: nn.Module,
        source: SourceStatistics | None = None,
        *,
        parameters: str | list[str] | None = None,
        tempering: Tempering = "none",
        t_min: float = 1.0,
        t_max: float = 3.0,
        teacher: Residence = "swapped",
    ) -> None:
        """Copy the model and check what all methods share.

        Args:
            model: the classifier to adapt.
            source: its statistics on the source domain, where the method or its tempering needs them.
            parameters: what adapts, as `checked_choice` gives it; None where nothing does.
            tempering: how the logits are divided by the certainty regulariser.
            t_min: lower end of the regulariser's range of t.
            t_max: its upper end.
            teacher: where the source model is kept.
        """
        super().__init__()
        self.model_fingerprint = fingerprint(model)
        self.temperature = Temperature(tempering)
        self._asks_source = self.needs_source or tempering != "none"
        self.source = self._checked_source(source)
        self.t_min, self.t_max = number("t_min", t_min), number("t_max", t_max)
        check_range(self.t_min, self.t_max)
        self.resolve(t_min=self.t_min, t_max=self.t_max)
        with torch.inference_mode(False):
            self.student = frozen_copy(model)
            chosen = {} if parameters is None else select_parameters(self.student, parameters)
            self._learned_names = list(chosen)
            self._bind()
            self.teacher = make_teacher(teacher, self.student, self.adapting)
        self._last: Step | None = None

    def _checked_source(self, source: Any) -> SourceStatistics | None:
        if source is None:
            if self._asks_source:
                raise SourceError(
                    f"{self.name} with tempering={self.temperature.kind!r} needs source statistics: "
                    "SourceStatistics.measure(model, source_loader)"
                )
            return None
        if not isinstance(source, SourceStatistics):
            raise SourceError(f"expected source as SourceStatistics, got {type(source).__name__}")
        source.check_fits(self.model_fingerprint)
        return source

    def _bind(self) -> None:
        """Find the tensors that adapt: the learned parameters and the normalisation layers' statistics."""
        parameters = dict(self.student.named_parameters())
        self.learned = {name: parameters[name] for name in self._learned_names}
        self._statistics = running_statistics(self.student) if self.learned else {}
        self.adapting: dict[str, Tensor] = {**self.learned, **self._statistics}

    # ------------------------------------------------------------------ what a method writes

    @abstractmethod
    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        """Answer a batch of good samples and learn from it.

        `source` is what the source model says of the same samples: given where the method `needs_source` or
        wears a tempering. If it raises, or says that it failed, the normalisation statistics go back.
        """

    # ------------------------------------------------------------------ what a user calls

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Calibrated logits of a batch; the adapter learns from it as it answers.

        Takes what the model takes: one batch of inputs, keyword inputs, or both; never labels. A sample with
        non-finite values is set aside (its logits come back NaN) and the others learn as if it had not been
        there; -inf is allowed in all inputs but the first, as attention masks use it. If the model raises,
        the error passes through and the adapter is as it was.
        """
        batch = Batch.of(args, kwargs)
        with torch.inference_mode(False), torch.enable_grad(), _fresh_autocast_cache():
            for parameter in self.learned.values():
                parameter.requires_grad_()
            answer, self._last = self._respond(batch.learnable())
        return answer

    def predict(self, *args: Any, **kwargs: Any) -> Tensor:
        """Calibrated logits of a batch with the adapter as it stands; nothing is learned.

        The student in eval mode with its running statistics, divided by the temperature of everything seen
        since the last reset (T = 1 before the first batch). One forward, and one more of the source model
        for tempering="sample".
        """
        batch = Batch.of(args, kwargs)
        logits = self.steady_logits(batch)
        if self.temperature.kind == "sample":
            return divide(logits, self._view(batch).tau.unsqueeze(1))
        return divide(logits, self.temperature.running())

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
        """What was done with the last batch; None before the first and after a reset."""
        return self._last

    def reset(self) -> None:
        """Go back, bit for bit, to the source model."""
        self._restore(self.teacher.tensors(list(self.adapting)))
        self.temperature.reset()
        self._last = None

    def detach(self) -> nn.Module:
        """A plain module with the adapted weights and temperature, free of the adapter, for export.

        It is of the model's own class, takes what the model takes, returns a tensor of logits and answers as
        `predict` does. tempering="sample" has no single temperature and is refused.
        """
        if self.temperature.kind == "sample":
            raise OptionError(
                'tempering="sample" asks the source model about each input and cannot be detached; '
                'use "mean", "median" or "none"'
            )
        return with_temperature(self.student, self.temperature.running())

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """A copy of everything that adaptation changes: a flat dict of tensors, detached from the adapter."""
        state = {} if destination is None else destination
        root = f"{prefix}{self.name}."
        for name, tensor in self.adapting.items():
            state[f"{root}model.{name}"] = tensor if keep_vars else tensor.detach().clone()
        state.update({f"{root}temperature.{name}": t for name, t in self.temperature.state().items()})
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
        check_state(self.name, self.state_dict(), state_dict)
        root, heat = f"{self.name}.model.", f"{self.name}.temperature."
        self._restore({name: state_dict[root + name] for name in self.adapting})
        self.temperature.load({name: state_dict[heat + name] for name in self.temperature.state()})
        self._last = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write method, options, source statistics and state to a safetensors file, atomically."""
        text = {
            "method": self.name,
            "options": json.dumps(self.options),
            "source": json.dumps(asdict(self.source)) if self.source else "",
            "model_fingerprint": self.model_fingerprint,
        }
        write_tensors(path, STATE_KIND, STATE_VERSION, self.state_dict(), text)

    def train(self: _Self, mode: bool = True) -> _Self:
        """Change nothing: the adapter sets the modes of its own layers, in training loops and outside."""
        return self

    # ------------------------------------------------------------------ how a batch goes through

    def logits(self, batch: Batch) -> Tensor:
        """The student's logits in the mode it is in."""
        output = self.student(*batch.args, **batch.kwargs)
        return checked_logits(output, batch.rows, self.source.num_classes if self.source else None)

    def steady_logits(self, batch: Batch) -> Tensor:
        """The student's logits in eval mode; nothing is learned, by gradients or otherwise."""
        with torch.no_grad(), steady_statistics(self.student):
            return self.logits(batch)

    def _view(self, batch: Batch) -> SourceView:
        """One forward of the source model, and the certainty regulariser of its logits."""
        if self.source is None:
            raise SourceError(f"{self.name} was made without source statistics")
        with torch.no_grad():
            logits = checked_logits(self.teacher(batch), batch.rows, self.source.num_classes)
            t, tau = certainty_regularizer(logits, self.source.h0, self.source.kappa, self.t_min, self.t_max)
        return SourceView(logits, t, tau)

    def _respond(self, batch: Batch) -> tuple[Tensor, Step]:
        good = batch.finite()
        fill = torch.full(good.shape, torch.nan, device=good.device)
        rest = batch.select(good)
        aside = {"non-finite": batch.rows - rest.rows}
        view = self._view(rest) if rest.rows and self._asks_source else None
        if view is not None:
            usable = view.tau.isfinite()
            silent = view.tau == torch.inf  # the logits have norm zero: the source says nothing
            fill[good] = torch.where(silent, 0.0, torch.nan)
            good[good.clone()] = usable
            rest, view = rest.select(usable), SourceView(*(values[usable] for values in view))
            aside["zero source logits"] = int(silent.sum())
            aside["non-finite"] = batch.rows - rest.rows - aside["zero source logits"]
        apart = [f"{count} of {batch.rows} set aside: {why}" for why, count in aside.items() if count]
        if rest.rows == 0:
            answer = self._unanswered(batch, fill)
            return answer, record_step(batch.rows, answer, set_aside=batch.rows, reason="; ".join(apart))

        outcome = self._undoable_step(rest, view)
        logits, tau, temperature = outcome.logits.detach(), None, None
        if view is not None:
            tau, temperature = view.tau, self.temperature.of_batch(view.tau)
            logits = divide(logits, temperature)
            if not outcome.failed:
                self.temperature.observe(tau)
        answer = logits
        if apart:
            answer = fill.to(logits.dtype).unsqueeze(1).repeat(1, logits.shape[1])
            answer[good] = logits
        step = record_step(
            batch.rows,
            answer,
            used=0 if outcome.reason else outcome.used,
            set_aside=batch.rows - rest.rows,
            reason="; ".join(filter(None, (outcome.reason, *apart))),
            loss=outcome.loss,
            tau=tau,
            temperature=temperature,
        )
        return answer, step

    def _unanswered(self, batch: Batch, fill: Tensor) -> Tensor:
        """The answer to a batch without a usable sample; the model never sees any of its values."""
        if self.source is not None:
            classes = self.source.num_classes
        else:
            classes = self.steady_logits(batch.map(torch.zeros_like)).shape[1]
        like = next((p for p in self.student.parameters() if p.is_floating_point()), fill)
        return fill.to(like.dtype).unsqueeze(1).repeat(1, classes)

    def _undoable_step(self, batch: Batch, view: SourceView | None) -> Outcome:
        before = {name: tensor.clone() for name, tensor in self._statistics.items()}
        try:
            outcome = self.step(batch, view)
        except BaseException:
            self._restore(before)
            raise
        if outcome.failed:
            self._restore(before)
        return outcome

    def _restore(self, values: Mapping[str, Tensor]) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for name, value in values.items():
                self.adapting[name].copy_(value)

    def _apply(self: _Self, fn: Any, recurse: bool = True) -> _Self:
        nn.Module._apply(self, fn, recurse)
        self._bind()  # moving a module replaces its buffers
        return self


@contextmanager
def _fresh_autocast_cache() -> Iterator[None]:
    """Under autocast, cast the weights anew: its cache would answer with those of before the update."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()
