"""The network that adapts: its forwards, its gradient steps, and the source model that it started from."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from equipoise.core.optimizer import Optimizer, OptimizerState, Slope, slope
from equipoise.core.verdict import Check, all_hold, host_knows, reads_are_free
from equipoise.distributed.ranks import Ranks
from equipoise.functional import at_least_single
from equipoise.network.batch import Batch
from equipoise.network.forward import (
    AnswerForm,
    Compiler,
    Layout,
    OutputsFunction,
    check_no_probabilities,
    checked_logits,
    convolution_strides,
    form_of,
    logits_alone,
    needs_contiguous,
    with_strides,
)
from equipoise.network.head import FoundHead, HeadFinder, watch_head
from equipoise.network.modules import fingerprint, frozen_copy
from equipoise.network.named_tensors import copies, copy_unless, named_tensors
from equipoise.network.normalisation import (
    Measure,
    batch_statistics,
    blended_statistics,
    frozen_statistics,
    moments,
    pooled_batch,
    pooled_moments,
    running_statistics,
)
from equipoise.network.parameters import Parameters, select_parameters
from equipoise.network.running_statistics import Jumps, Return, following_statistics
from equipoise.network.source_copy import Residence, ResidentCopy, make_source_copy


class Student:
    """The adapting copy of a model, and the source model beside it.

    Every forward takes a `Batch` and returns (N, C) logits. Where several processes adapt as one, N counts
    the samples of all of them during a step: a method computes as if it had the whole batch. Precision,
    memory format and torch.compile are applied inside the forwards.

    Attributes:
        model: the network that adapts.
        learned: its parameters that learn, by name.
        statistics: its running statistics, by name, where they follow the stream.
        adapting: `learned` and `statistics` together.
        source_copy: the source model.
        classes: the number of classes, where it is known before the first forward.
        outputs: picks the logits out of the model's output, where a user gives it.
        form: that of the model's output, which answers have, too; None before the first forward. Where a user
            gives `outputs`, it is a tensor.
        fingerprint: a hash of the source model's weights.
        head: the name of the linear head, once a watched forward has found it.
        head_is_output: whether its output is the model's.
        head_refusal: why the linear layer that returned the logits is no head (`network.head`).
        generation: a number that changes when tensors move to other addresses.
    """

    def __init__(
        self,
        model: nn.Module,
        choice: Parameters | None,
        *,
        moves_statistics: bool,
        source_copy: Residence,
        layout: Layout,
        compiled: bool,
        ranks: Ranks,
        classes: int | None,
        outputs: OutputsFunction | None = None,
    ) -> None:
        self.layout, self.ranks, self.classes, self.outputs = layout, ranks, classes, outputs
        self.form: AnswerForm | None = None if outputs is None else logits_alone
        self.compiler = Compiler(compiled)
        self.fingerprint = fingerprint(model)
        self.head: str | None = None
        self.head_is_output: bool | None = None
        self.head_refusal = ""
        self.generation = 0
        self._first_outputs = True
        self._rows_per_process: list[int] | None = None
        self._seen_head: HeadFinder | None = None
        self._other_values: dict[str, Tensor] | None = None
        self._moves_statistics = moves_statistics
        self._in_given_format = False
        with torch.inference_mode(False):
            self.model = frozen_copy(model)
            exact = layout.memory_format is None and layout.precision == "fp32" and not compiled
            self._given_strides = convolution_strides(self.model) if exact else {}
            self._learned_names = [] if choice is None else list(select_parameters(self.model, choice))
            self._bind()
            self.source_copy = make_source_copy(source_copy, self.model, self.adapting)
            self.lay_out(layout)

    def _bind(self) -> None:
        parameters = dict(self.model.named_parameters())
        self.learned = {name: parameters[name] for name in self._learned_names}
        self.statistics = running_statistics(self.model) if self._moves_statistics else {}
        self.adapting: dict[str, Tensor] = {**self.learned, **self.statistics}
        self._any_tensor = next(chain(parameters.values(), self.model.buffers()), torch.empty(0))

    def lay_out(self, layout: Layout) -> None:
        """Bring the weights of both networks into a layout."""
        self.layout = layout
        layout.apply(self.model, self.device, self.learned.values())
        self.source_copy.lay_out(layout, self.device)
        self._plain_inputs = bool(self.learned) and needs_contiguous(self.model, self.device)
        self.generation += 1

    def moved(self) -> None:
        """Bind the tensors again after `nn.Module._apply` has replaced them."""
        self._bind()
        self.compiler = Compiler(self.compiler.wanted)
        self.lay_out(self.layout)

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self._any_tensor.device

    # ------------------------------------------------------------------ forwards

    def frozen(self, batch: Batch) -> Tensor:
        """Logits in eval mode, without gradients; nothing moves."""
        with torch.no_grad(), frozen_statistics(self.model):
            return self._forward(batch)

    def on_batch_statistics(self, batch: Batch, momentum: float) -> Tensor:
        """Logits normalised by the batch's statistics; the running ones move towards them by `momentum`.

        A batch of one sample is normalised by the running statistics, which stay.
        """
        with batch_statistics(self.model, momentum, self.all_rows(batch)), self._pooled(batch):
            return self._forward(batch)

    def on_running_statistics(
        self,
        batch: Batch,
        momentum: float | Tensor,
        limits: Tensor | None = None,
        age: Tensor | None = None,
        back: Return | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Update the running statistics by the batch, then normalise by them (`running_statistics`).

        Args:
            batch: the inputs.
            momentum: the share that 50 samples have in the statistics; a 0-d tensor for one that changes.
            limits: divergences of source batches; a batch beyond them starts the statistics again.
            age: the samples since that happened last.
            back: the source's statistics, which have a share where not all of a batch is new.

        Returns:
            The logits, and the new age; None without limits.
        """
        jumps = None if limits is None or age is None else Jumps(limits, age)
        following = following_statistics(self.model, momentum, self._measure(batch), jumps, back)
        with following as followed, self._pooled(batch):
            logits = self._forward(batch, hooked=True)
        return logits, followed.age

    def on_blended_statistics(self, batch: Batch, prior: float, momentum: float) -> Tensor:
        """Logits normalised by a blend of the source's statistics, worth `prior` samples, and the batch's."""
        source = self.source_values(self.statistics)
        blended = blended_statistics(self.model, source, prior, momentum, self._measure(batch))
        with blended, self._pooled(batch):
            return self._forward(batch, hooked=True)

    def _measure(self, batch: Batch) -> Measure:
        """The moments of a layer's inputs, over the rows of all processes."""
        if self.ranks.alone:
            return moments
        return partial(pooled_moments, ranks=self.ranks, counted=self._rows(batch)[self.ranks.rank] > 0)

    def _pooled(self, batch: Batch) -> AbstractContextManager[None]:
        """The context of a forward by the statistics of a batch, which are those of all processes' rows."""
        return nullcontext() if self.ranks.alone else pooled_batch(self.model, self.ranks, self._rows(batch))

    def source_logits(self, batch: Batch) -> Tensor:
        """Logits of the source model, without gradients."""
        # Without autograd's bookkeeping a forward is quicker. Not where it is the student's own module that
        # runs, which may keep tensors it made (masks, tables) for the next forward.
        quick = torch.inference_mode() if isinstance(self.source_copy, ResidentCopy) else torch.no_grad()
        torch.clear_autocast_cache()  # it would answer with the student's weights
        with quick, self.layout.casting(self.device):
            logits = self._logits(self.source_copy(batch, self.compiler), batch)
        with torch.no_grad():
            return self.gather(logits.clone(), "the source model's logits")

    def source_values(self, names: Mapping[str, Any]) -> dict[str, Tensor]:
        """The source model's values of adapting tensors, by name."""
        return self.source_copy.tensors(list(names))

    def weight_distance(self) -> Tensor:
        """The distance of weights that learn from the source model's, ‖θ − θ₀‖ / ‖θ₀‖; 0 without any."""
        source = self.source_values(self.learned)
        pairs = [
            (value.detach().float(), source[name].to(value.device, non_blocking=True).float())
            for name, value in self.learned.items()
        ]
        if not pairs:
            return torch.zeros((), device=self.device)
        apart = torch.stack([(value - start).square().sum() for value, start in pairs]).sum()
        length = torch.stack([start.square().sum() for _, start in pairs]).sum()
        return torch.where(length > 0, apart / length, apart).sqrt()

    def values(self) -> dict[str, Tensor]:
        """Copies of the adapting weights and statistics, at least in single precision, to average."""
        floats = {name: t.detach() for name, t in self.adapting.items() if t.is_floating_point()}
        return {name: at_least_single(tensor).clone() for name, tensor in floats.items()}

    def with_values(self, values: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Run the forwards of the block with other weights and statistics, by name; the others stay."""
        own = self.adapting
        with torch.no_grad():  # in the layout of the weights that they stand for
            others = {name: torch.empty_like(own[name]).copy_(value) for name, value in values.items()}
        return self._having(_other_values=others)

    def export(self, values: Mapping[str, Tensor] | None = None) -> nn.Module:
        """A frozen copy of the network, with other weights and statistics where they are given, by name."""
        copy = frozen_copy(self.model)
        named = named_tensors(copy)
        with torch.no_grad():
            for name, value in (values or {}).items():
                named[name].copy_(value)
        return copy

    def as_source(self) -> AbstractContextManager[None]:
        """Let the logits of the block be the passed model's, bit for bit, if nothing has been learned.

        While weights and statistics are the source's, forwards of the block run in the memory format of the
        model that was passed, with copies of the weights of 2-d convolutions; in another one sums are rounded
        in another way. Where a `memory_format` was asked for, bf16 or torch.compile, nothing is done.
        """
        source = self.source_values(self.adapting) if self._given_strides else {}
        same = all(torch.equal(self.adapting[name], value.to(self.device)) for name, value in source.items())
        return self._having(_in_given_format=bool(self._given_strides) and same)

    def to_given_format(self, copy: nn.Module) -> nn.Module:
        """Change a copy of the network to the memory format of the model that was passed, and return it."""
        named = dict(copy.named_parameters())  # a method's own export may have other names
        strides = {name: each for name, each in self._given_strides.items() if name in named}
        for name, laid_out in with_strides(named, strides).items():
            named[name].data = laid_out
        return copy

    @contextmanager
    def watched(self, head: str | None = None, *, required: bool = False) -> Iterator[FoundHead]:
        """Note the linear head in the forwards of the block, and the features that it gets.

        `head` is its name, if known; `required` raises ModelError where the model has none.
        """
        with watch_head(self.model, head, required) as self._seen_head:
            try:
                yield self._seen_head.watched
            finally:
                self._seen_head = None

    def _forward(self, batch: Batch, *, hooked: bool = False) -> Tensor:
        """The network's logits in the mode it is in, of the samples of all processes."""
        if self._plain_inputs and not self._in_given_format:
            batch = batch.map(torch.Tensor.contiguous)
        torch.clear_autocast_cache()  # it would answer with the weights of before an update
        with self.layout.casting(self.device):
            values = self._other_values or {}
            if self._in_given_format:
                named = {**dict(self.model.named_parameters()), **values}
                values = {**values, **with_strides(named, self._given_strides)}
            if values:
                output = functional_call(self.model, values, batch.args, batch.kwargs)
            elif hooked or self._seen_head is not None or not self.ranks.alone:
                output = self.model(*batch.args, **batch.kwargs)  # hooks and exchanges are not for a compiler
            else:
                output = self.compiler.run(self.model, batch)
        logits = self._logits(output, batch)
        if self._seen_head is not None:
            watched = self._seen_head.note(logits)
            self.head, self.head_is_output = watched.name, watched.is_output
            self.head_refusal = watched.refusal
            if watched.features is not None:
                watched.features = self.gather(watched.features, "features")
        return self.gather(logits)

    def _logits(self, output: Any, batch: Batch) -> Tensor:
        logits = checked_logits(output, batch.rows, self.classes, self.outputs)
        if self._first_outputs and _may_be_read(logits):
            self._first_outputs = not check_no_probabilities(logits)
        self.form = self.form or form_of(output)
        return logits

    def answer(self, logits: Tensor) -> Any:
        """Logits in the form of the model's output."""
        return logits if self.form is None else self.form(logits=logits)

    # ------------------------------------------------------------------ gradient steps

    def slope(self, loss: Tensor) -> Slope:
        """Gradients of a loss by the parameters that learn, averaged over processes."""
        found = slope(loss, self.learned)
        if self.ranks.alone or not found.gradients:
            return found
        averages = self.ranks.average(list(found.gradients.values()))
        return found._replace(gradients=dict(zip(found.gradients, averages, strict=True)))

    def descend(
        self,
        gradients: Callable[[], Slope],
        optimizer: Optimizer,
        state: Mapping[str, Tensor],
        *checks: Check,
        allowed: Tensor | None = None,
    ) -> tuple[OptimizerState, tuple[Check, ...]]:
        """Take one step of an optimiser if that is allowed and every check holds.

        Args:
            gradients: computes the gradients: `lambda: student.slope(loss)`. Not called where the host knows
                already that there is no step to take.
            optimizer: `Optimizer("sgd" or "adam", rate, momentum)`.
            state: the optimiser's, at first `optimizer.start(student.learned)`.
            checks: conditions for the step.
            allowed: `Context.allowed`; None: in any case.

        Returns:
            The new state, and the checks with those of the step: weights and state move together or not at
            all.
        """
        if (checks or allowed is not None) and host_knows(all_hold(checks, allowed)) is False:
            return dict(state), checks
        found = gradients()
        if found.failure:
            return dict(state), (*checks, Check(torch.zeros_like(self._true), found.failure))
        return optimizer.step(self.learned, found.gradients, state, (*checks, *found.checks), allowed)

    @contextmanager
    def undo_unless(self) -> Iterator[Callable[[Tensor], None]]:
        """Yield a function that, where its flag is false, restores the weights and statistics of now."""
        before = copies(self.adapting)
        yield lambda keep: copy_unless(keep, self.adapting, before)

    def finite_statistics(self) -> Check:
        """Whether the running statistics are finite: a finite sample may be too large for their squares."""
        moving = [tensor for tensor in self.statistics.values() if tensor.is_floating_point()]
        finite = torch.nn.utils.get_total_norm(moving, torch.inf).isfinite() if moving else self._true
        return Check(finite, "non-finite statistics")

    @property
    def _true(self) -> Tensor:
        return torch.ones((), dtype=torch.bool, device=self.device)

    # ------------------------------------------------------------------ processes

    def step_of(self, rows_per_process: list[int]) -> AbstractContextManager[None]:
        """Let forwards gather the samples of all processes in the block, which is a step of all of them."""
        return self._having(_rows_per_process=rows_per_process)

    def replicated(self) -> AbstractContextManager[None]:
        """Run the forwards of the block on batches that every process has as a whole: nothing is gathered."""
        return self._having(ranks=Ranks())

    def with_views(self, each: int) -> AbstractContextManager[None]:
        """Run the forwards of the block on batches that have `each` rows for every sample of the step."""
        counts = self._rows_per_process
        return self._having(_rows_per_process=None if counts is None else [each * rows for rows in counts])

    @contextmanager
    def _having(self, **attributes: Any) -> Iterator[None]:
        """Give attributes other values for the block."""
        before = {name: getattr(self, name) for name in attributes}
        vars(self).update(attributes)
        try:
            yield
        finally:
            vars(self).update(before)

    def gather(self, rows: Tensor, what: str = "logits") -> Tensor:
        """Concatenate the rows of all processes of a step; a process without samples contributes none."""
        if self._rows_per_process is None or self.ranks.alone:
            return rows
        return self.ranks.gather(rows[: self.own_rows], self._rows_per_process, what)

    def local(self, *gathered: Tensor) -> tuple[Tensor, ...]:
        """This process's part of gathered rows."""
        counts = self._rows_per_process
        if counts is None or self.ranks.alone:
            return gathered
        return tuple(self.ranks.own(rows, counts) for rows in gathered)

    def agree(self, flag: Tensor) -> Tensor:
        """Whether a flag is true on every process of a step; also shows that all of them got this far."""
        if self._rows_per_process is None or self.ranks.alone:
            return flag
        return torch.full_like(flag, self.ranks.agree(bool(flag)))

    @property
    def own_rows(self) -> int:
        """The number of this process's samples in a step of several processes."""
        return 0 if self._rows_per_process is None else self._rows_per_process[self.ranks.rank]

    def all_rows(self, batch: Batch) -> int:
        """The number of samples of all processes in a step."""
        return sum(self._rows(batch))

    def _rows(self, batch: Batch) -> list[int]:
        alone = self._rows_per_process is None or self.ranks.alone
        return [batch.rows] if alone or self._rows_per_process is None else self._rows_per_process


def _may_be_read(logits: Tensor) -> bool:
    """Whether the host may look at logits: on a GPU it waits for them, but not while a graph is captured."""
    if logits.is_cuda:
        return not torch.cuda.is_current_stream_capturing()
    return reads_are_free(logits.device)
