"""A copy of a model that changes batch by batch, and can always go back."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from equipoise.batch import Batch, checked_logits
from equipoise.configured import Configured
from equipoise.copying import frozen_copy
from equipoise.errors import SourceError
from equipoise.keeping import SAMPLES
from equipoise.layers import running_statistics, select_parameters, steady_statistics
from equipoise.outcome import Outcome, SourceView
from equipoise.source import SourceStatistics, fingerprint
from equipoise.teacher import Residence, make_teacher

_Self = TypeVar("_Self", bound="Learner")


class Learner(Configured, nn.Module, ABC):
    """What a method writes, and what it stands on: the student, the source model, and undoing.

    Attributes:
        needs_source: whether the method needs source statistics, tempered or not.
        asks_source: whether `step` needs the source model's view of each batch.
        moves_statistics: whether the normalisation layers' running statistics follow the stream.
        stores_observations: whether the method keeps samples as they came.
        arriving: patterns of the names in `kept` that come with the first batch and are not there before it.
        student: the copy of the model that adapts.
        learned: its parameters that learn, by name.
        statistics: its running statistics, by name, where they move.
        adapting: both.
    """

    needs_source: ClassVar[bool] = False
    asks_source: ClassVar[bool] = False
    moves_statistics: ClassVar[bool] = True
    stores_observations: ClassVar[bool] = False
    arriving: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        model: nn.Module,
        source: SourceStatistics | None,
        choice: str | list[str] | None,
        teacher: Residence,
    ) -> None:
        super().__init__()
        self.model_fingerprint = fingerprint(model)
        if source is not None and not isinstance(source, SourceStatistics):
            raise SourceError(f"expected source as SourceStatistics, got {type(source).__name__}")
        if source is not None:
            source.check_fits(self.model_fingerprint)
        self.source = source
        with torch.inference_mode(False):
            self.student = frozen_copy(model)
            chosen = {} if choice is None else select_parameters(self.student, choice)
            self._learned_names = list(chosen)
            self._bind()
            self.teacher = make_teacher(teacher, self.student, self.adapting)
        self._kept: dict[str, Tensor] | None = None

    def _bind(self) -> None:
        parameters = dict(self.student.named_parameters())
        self.learned = {name: parameters[name] for name in self._learned_names}
        self.statistics = running_statistics(self.student) if self.moves_statistics else {}
        self.adapting: dict[str, Tensor] = {**self.learned, **self.statistics}

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
        return checked_logits(self.teacher(batch), batch.rows, self._classes), None

    def detached_model(self) -> nn.Module:
        """A copy of the adapted model."""
        return frozen_copy(self.student)

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
        return checked_logits(self.student(*batch.args, **batch.kwargs), batch.rows, self._classes)

    def steady_logits(self, batch: Batch) -> Tensor:
        """The student's logits in eval mode; nothing is learned, by gradients or otherwise."""
        with torch.no_grad(), steady_statistics(self.student):
            return self.logits(batch)

    @property
    def _classes(self) -> int | None:
        return self.source.num_classes if self.source else None

    def undoable_step(self, batch: Batch, view: SourceView | None) -> Outcome:
        """`step`, undone if it raises or says that it failed."""
        before = self.snapshot(weights=self.rewrites)
        try:
            outcome = self.step(batch, view)
        except BaseException:
            self.restore(*before)
            raise
        if outcome.failed:
            self.restore(*before)
        return outcome

    def snapshot(self, *, weights: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A copy of the running statistics, and of the weights if asked for, and of what is kept."""
        fragile = self.adapting if weights else self.statistics
        return {name: tensor.detach().clone() for name, tensor in fragile.items()}, dict(self.kept)

    def spoilt(self) -> str:
        """Why what a batch has done to the running statistics must be undone, or an empty string.

        A sample may be finite and still too large for their squares.
        """
        moving = [tensor for tensor in self.statistics.values() if tensor.is_floating_point()]
        if moving and not bool(torch.nn.utils.get_total_norm(moving, torch.inf).isfinite()):
            return "non-finite statistics"
        return ""

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
        if self._kept is not None:
            self._kept = {name: _moved(name, tensor, fn) for name, tensor in self._kept.items()}
        return self


def _moved(name: str, tensor: Tensor, fn: Any) -> Tensor:
    """What is kept follows a module's moves; samples stay as they came, and nothing gets half precision."""
    moved: Tensor = fn(tensor)
    narrowed = moved.dtype in (torch.float16, torch.bfloat16)
    return tensor.to(moved.device) if narrowed or name.startswith(SAMPLES) else moved
