"""A copy of a model that changes batch by batch, and can always go back."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from equipoise.calibration.source_statistics import SourceStatistics, device_of, fingerprint
from equipoise.configured import Configured
from equipoise.distributed.group import Ranks
from equipoise.errors import SourceError
from equipoise.network.batch import Batch, checked_logits
from equipoise.network.compiled import Compiler
from equipoise.network.copying import frozen_copy
from equipoise.network.layout import Execution, needs_contiguous
from equipoise.network.named_tensors import SAMPLES, chosen, copies, put_back
from equipoise.network.normalisation import running_statistics, select_parameters, steady_statistics
from equipoise.network.outcome import Check, Outcome, SourceView, all_hold
from equipoise.network.teacher import Residence, ResidentTeacher, make_teacher, named_tensors

_Self = TypeVar("_Self", bound="Learner")


class Learner(Configured, nn.Module, ABC):
    """What a method writes, and what it stands on: the student, the source model, and undoing.

    Attributes:
        needs_source: whether the method needs source statistics, tempered or not.
        asks_source: whether the source model is asked about each batch, for `step` or to compare with it.
        needs_fisher: whether the source statistics must have the Fisher diagonal.
        compares: whether a rehearsal compares the method with the source model, which may then answer.
        moves_statistics: whether the normalisation layers' running statistics follow the stream.
        stores_observations: whether the method keeps samples as they came.
        arriving: patterns of the names in `kept` that come with the first batch and are not there before it.
        student: the copy of the model that adapts.
        learned: its parameters that learn, by name.
        statistics: its running statistics, by name, where they move.
        adapting: both.
        ranks: the processes that adapt as one; mostly just this one.
        counts: in a step, how many good samples each of them has.
    """

    needs_source: ClassVar[bool] = False
    asks_source: bool = False
    compares: ClassVar[bool] = False
    needs_fisher: ClassVar[bool] = False
    moves_statistics: ClassVar[bool] = True
    stores_observations: ClassVar[bool] = False
    arriving: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        model: nn.Module,
        source: SourceStatistics | None,
        choice: str | list[str] | None,
        teacher: Residence,
        execution: Execution,
        ranks: Ranks,
    ) -> None:
        super().__init__()
        self._execution, self.ranks = execution, ranks
        self.compiler = Compiler(execution.engine == "compile")
        self.counts = [0]
        self.model_fingerprint = fingerprint(model)
        if source is not None and not isinstance(source, SourceStatistics):
            raise SourceError(f"expected source as SourceStatistics, got {type(source).__name__}")
        if source is not None:
            source.check_fits(self.model_fingerprint)
        self.source = source
        with torch.inference_mode(False):
            self.student = frozen_copy(model)
            learning = {} if choice is None else select_parameters(self.student, choice)
            self._learned_names = list(learning)
            self._bind()
            self.teacher = make_teacher(teacher, self.student, self.adapting)
            self._arrange()
        self._kept: dict[str, Tensor] | None = None
        self.permitted: Tensor | None = None  # in a guarded step: whether it may write
        self.fed: dict[str, Tensor] = {}

    def _bind(self) -> None:
        parameters = dict(self.student.named_parameters())
        self.learned = {name: parameters[name] for name in self._learned_names}
        self.statistics = running_statistics(self.student) if self.moves_statistics else {}
        self.adapting: dict[str, Tensor] = {**self.learned, **self.statistics}

    def _arrange(self) -> None:
        """Lay out the weights; before any state is made in their likeness."""
        device = device_of(self.student)
        self._execution.arrange(self.student, device, self.learned.values())
        self.teacher.arrange(self._execution, device)
        self._plain_inputs = bool(self.learned) and needs_contiguous(self.student, device)

    # ------------------------------------------------------------------ what a method writes

    @abstractmethod
    def step(self, batch: Batch, source: SourceView | None) -> Outcome:
        """Answer a batch of good samples and learn from it.

        `source` is what the source model says of the same samples: given where the method `asks_source` or a
        tempering does. If `step` raises, or says that it failed, the statistics and `kept` go back, and so do
        the weights of a method that `rewrites` them.
        """

    @property
    def rewrites(self) -> bool:
        """Whether `step` may still go wrong after it wrote weights; not if it writes them once, and last."""
        return False

    @property
    def hooked(self) -> bool:
        """Whether `step` looks into the student's forward by hooks on its layers."""
        return False

    @property
    def steps_often(self) -> bool:
        """Whether a step may go wrong, or not be permitted, after it wrote weights.

        Not if it writes them once, last, and by an optimiser that heeds `permitted`.
        """
        return bool(self.learned)

    def course(self, batch: Batch) -> Hashable | None:
        """What the host knows that decides how `step` runs on a batch, besides the shapes of its inputs.

        Batches of one shape and course run the same kernels on the same state, so that a CUDA graph of one
        stands for all. None: this batch is not for a graph.
        """
        return 0

    def feed(self, batch: Batch) -> dict[str, Tensor]:
        """What the host brings to `step` on a batch, counted and drawn anew for each, as tensors on the CPU.

        In a CUDA graph it comes in from outside, and so `step` finds it in `fed`, on the device.
        """
        return {}

    def initial(self) -> dict[str, Tensor]:
        """What is `kept` before the first batch."""
        return {}

    def check_kept(self, kept: Mapping[str, Tensor]) -> None:
        """Raise StateError if a state's entries for `kept` do not fit each other or the options."""

    def answer(self, batch: Batch, source: SourceView | None) -> Tensor:
        """The logits, before tempering, of the adapter as it stands; `source` as in `step`."""
        return self.steady_logits(batch)

    def ask_source(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The source model's logits, and the features of its head where the method uses them."""
        # Its numbers are constants: without autograd's bookkeeping a forward is quicker. Not where it is the
        # student's own module that runs, which may keep what it made (masks, tables) for the next forward.
        quick = torch.inference_mode() if isinstance(self.teacher, ResidentTeacher) else torch.no_grad()
        with quick, self._casting():
            logits = checked_logits(self.teacher(batch, self.compiler), batch.rows, self._classes)
        return logits.clone(), None

    def detached_model(self) -> nn.Module:
        """A copy of the adapted model."""
        return frozen_copy(self.student)

    def source_model(self) -> nn.Module:
        """A copy of the source model."""
        copy = frozen_copy(self.student)
        named = named_tensors(copy)
        with torch.no_grad():
            for name, value in self.teacher.tensors(list(self.adapting)).items():
                named[name].copy_(value)
        return copy

    # ------------------------------------------------------------------ what it stands on

    @property
    def kept(self) -> dict[str, Tensor]:
        """What else is kept between batches: moving averages, an optimiser's state, a memory.

        Tensors by name, replaced and never written into, so that the contract can undo, save and reset them.
        Names that start with "samples." are observations as they came.
        """
        if self._kept is None:
            with torch.inference_mode(False):
                self._kept = self.initial()
        return self._kept

    def logits(self, batch: Batch) -> Tensor:
        """The student's logits in the mode it is in."""
        if self._plain_inputs:
            batch = batch.map(torch.Tensor.contiguous)
        torch.clear_autocast_cache()  # it would answer with the weights of before an update
        with self._casting():
            if self.hooked or not self.ranks.alone:  # hooks on layers and exchanges are not for a compiler
                output = self.student(*batch.args, **batch.kwargs)
            else:
                output = self.compiler.run(self.student, batch)
        return checked_logits(output, batch.rows, self._classes)

    def _casting(self) -> AbstractContextManager[Any]:
        return self._execution.casting(device_of(self.student))

    def everyones(self, rows: Tensor, what: str = "logits") -> Tensor:
        """In a step: what all processes have, a row for each good sample of theirs; alone, one's own."""
        return self.ranks.gather(self.mine(rows), self.counts, what)

    def counts_of(self, batch: Batch) -> list[int]:
        """In a step: how many samples of a batch each process has."""
        return [batch.rows] if self.ranks.alone else self.counts

    def mine(self, rows: Tensor) -> Tensor:
        """In a step: the rows of this process's good samples; not of the one that stands in for none."""
        return rows if self.ranks.alone else rows[: self.counts[self.ranks.rank]]

    def own(self, everyones: Tensor) -> Tensor:
        """In a step: of the rows of all processes, this one's."""
        return self.ranks.own(everyones, self.counts)

    def steady_logits(self, batch: Batch) -> Tensor:
        """The student's logits in eval mode; nothing is learned, by gradients or otherwise."""
        with torch.no_grad(), steady_statistics(self.student):
            return self.logits(batch)

    @property
    def _classes(self) -> int | None:
        return self.source.num_classes if self.source else None

    def undoable_step(self, batch: Batch, view: SourceView | None) -> Outcome:
        """`step`, undone if it raises or failed."""
        before = self.snapshot(weights=self.rewrites or not self.ranks.alone)
        try:
            outcome = self.step(batch, view)
            undoing = [check for check in outcome.checks if check.undoes]
            failed = outcome.failed or (bool(undoing) and not bool(all_hold(undoing)))
            failed = not self.ranks.agree(not failed)  # an exchange that also shows that all got this far
        except BaseException:
            self.restore(*before)
            raise
        if failed:
            self.restore(*before)
        return outcome._replace(failed=failed)

    def guarded_step(
        self, batch: Batch, view: SourceView | None, permitted: Tensor
    ) -> tuple[Outcome, Tensor]:
        """`step`, undone on the device if a check does not hold there, or it is not permitted.

        The host never looks, so that a CUDA graph can hold it: also returns whether the step stands.
        """
        values, kept = self.snapshot(weights=self.steps_often)
        self.permitted = permitted
        try:
            outcome = self.step(batch, view)
        finally:
            self.permitted = None
        undoing = [check for check in outcome.checks if check.undoes]
        stands = all_hold([Check(permitted, ""), *undoing]) & (not outcome.failed)
        self.settle(stands, values)
        self._kept = chosen(stands, self.kept, kept)
        return outcome, stands

    def settle(self, stands: Tensor, before: Mapping[str, Tensor]) -> None:
        """Put adapting tensors back to what they were before unless a flag on the device is true."""
        put_back({name: self.adapting[name] for name in before}, before, unless=stands)

    def snapshot(self, *, weights: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A copy of the running statistics, and of the weights if asked for, and of what is kept."""
        fragile = self.adapting if weights else self.statistics
        return copies(fragile), dict(self.kept)

    def unspoilt(self) -> Check:
        """Whether what a batch has done to the running statistics may stay.

        A sample may be finite and still too large for their squares.
        """
        moving = [tensor for tensor in self.statistics.values() if tensor.is_floating_point()]
        if not moving:
            return Check(torch.ones((), dtype=torch.bool, device=device_of(self.student)), "")
        norm = torch.nn.utils.get_total_norm(moving, torch.inf)
        return Check(norm.isfinite(), "non-finite statistics")

    def restore(self, adapting: Mapping[str, Tensor], kept: dict[str, Tensor] | None) -> None:
        """Give adapting tensors the values passed, and take over what is kept; None: as before any batch."""
        with torch.inference_mode(False), torch.no_grad():
            for name, value in adapting.items():
                self.adapting[name].copy_(value)
        self._kept = kept

    def train(self: _Self, mode: bool = True) -> _Self:
        """Change nothing: the adapter sets the modes of its own layers, in training loops and outside."""
        return self

    def _apply(self: _Self, fn: Any, recurse: bool = True) -> _Self:
        nn.Module._apply(self, fn, recurse)
        self._bind()  # moving a module replaces its buffers
        self.compiler = Compiler(self.compiler.wanted)
        self._arrange()
        if self._kept is not None:
            self._kept = {name: _moved(name, tensor, fn) for name, tensor in self._kept.items()}
        return self


def _moved(name: str, tensor: Tensor, fn: Any) -> Tensor:
    """What is kept follows a module's moves; samples stay as they came, and nothing gets half precision."""
    moved: Tensor = fn(tensor)
    narrowed = moved.dtype in (torch.float16, torch.bfloat16)
    return tensor.to(moved.device) if narrowed or name.startswith(SAMPLES) else moved
