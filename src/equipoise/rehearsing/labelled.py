"""Labelled samples for a rehearsal, taken from a loader and checked."""

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from tqdm import tqdm

from equipoise.errors import RehearsalError

FEWEST_SAMPLES = 100
"""Samples below which a rehearsal would learn noise."""

Inputs: TypeAlias = Tensor | dict[str, Tensor]
"""Inputs of a model, by position or by keyword, a row for each sample."""


@dataclass(frozen=True)
class Labelled:
    """Samples with labels, on the CPU.

    Attributes:
        inputs: a row for each sample.
        labels: the classes.
    """

    inputs: Inputs
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: Tensor) -> "Labelled":
        """The samples of these rows, in their order."""
        return Labelled(mapped(self.inputs, lambda tensor: tensor[rows]), self.labels[rows])


def mapped(inputs: Inputs, function: Any) -> Inputs:
    """Inputs with a function applied to each tensor."""
    if isinstance(inputs, Tensor):
        changed: Tensor = function(inputs)
        return changed
    return {name: function(tensor) for name, tensor in inputs.items()}


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """The tensors of inputs."""
    return [inputs] if isinstance(inputs, Tensor) else list(inputs.values())


def take(loader: Iterable[Any], samples: int, seed: int, progress: bool) -> Labelled:
    """Up to `samples` labelled samples of a loader, in random order.

    A loader of known length is read to its end and every sample has the same chance (a data set may be sorted
    by class); one without is read until there are enough. A DataLoader that shuffles does so by the seed,
    unless it has a generator of its own.
    """
    if isinstance(loader, (Tensor, Mapping)) or not isinstance(loader, Iterable):
        raise RehearsalError(
            f"expected a loader of (inputs, labels), got {type(loader).__name__} (put a data set into a "
            "DataLoader)"
        )
    draw, taken, seen = torch.Generator().manual_seed(seed), _Reservoir(samples), 0
    ends = _has_length(loader)
    bar = tqdm(loader, desc="reading labelled samples", unit="batch", leave=False) if progress else loader
    with torch.random.fork_rng(devices=[]):  # torch's DataLoader draws from the global random state
        torch.manual_seed(seed)
        for item in bar:
            part = _checked(item)
            seen += len(part)
            taken.add(part, draw)
            if seen >= samples and not ends:
                break
    if seen < FEWEST_SAMPLES:
        raise RehearsalError(
            f"expected at least {FEWEST_SAMPLES} labelled samples, better 1,000 to 2,000, got {seen}"
            + ("" if seen else " (an iterator already used up?)")
        )
    found = taken.result()
    found = found.select(torch.randperm(len(found), generator=draw))
    if len(found.labels.unique()) < 2:
        raise RehearsalError(
            f"expected samples of at least two classes, got class {int(found.labels[0])} alone; is the "
            "loader sorted by class? Use shuffle=True"
        )
    return found


def _has_length(loader: Iterable[Any]) -> bool:
    """Whether a loader knows its length; a DataLoader of a stream has `__len__`, and raises there."""
    try:
        return isinstance(loader, Sized) and len(loader) >= 0
    except TypeError:
        return False


def _checked(item: Any) -> Labelled:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise RehearsalError(
            f"expected the loader to yield (inputs, labels), got {_describe_item(item)}: a rehearsal "
            "needs labels"
        )
    inputs, labels = item
    if isinstance(inputs, Mapping):
        inputs = {str(name): tensor for name, tensor in inputs.items() if isinstance(tensor, Tensor)}
    if not isinstance(inputs, (Tensor, dict)) or not tensors_of(inputs):
        raise RehearsalError(f"expected inputs as a tensor or a dict of tensors, got {type(inputs).__name__}")
    try:
        labels = torch.as_tensor(labels)
    except (RuntimeError, TypeError, ValueError) as error:
        raise RehearsalError(
            f"expected labels as whole numbers of shape (N,), got {type(labels).__name__}: {error}"
        ) from error
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise RehearsalError(
            f"expected labels as whole numbers of shape (N,), got {labels.dtype} {tuple(labels.shape)}"
        )
    for place, tensor in enumerate(tensors_of(inputs)):
        if tensor.ndim < 1 or len(tensor) != len(labels):
            raise RehearsalError(
                f"expected a row of inputs for each of {len(labels)} labels, got shape {tuple(tensor.shape)}"
            )
        # As in a batch for an adapter: attention masks, which come after the input proper, may have -inf.
        fine = tensor.isfinite() if place == 0 else tensor < torch.inf
        if tensor.is_floating_point() and not bool(fine.all()):
            raise RehearsalError("expected finite inputs, got some that are NaN or infinite")
    return Labelled(mapped(inputs, lambda tensor: tensor.detach().cpu()), labels.long().cpu())


def _describe_item(item: Any) -> str:
    return f"{len(item)} of them" if isinstance(item, (tuple, list)) else type(item).__name__


class _Reservoir:
    """A uniform choice of rows that come batch by batch (Vitter's algorithm R), in memory for just those."""

    def __init__(self, most: int) -> None:
        self._most, self._seen, self._alone = most, 0, True
        self._rows: dict[str, Tensor] = {}
        self._labels = torch.zeros(most, dtype=torch.int64)

    def add(self, part: Labelled, draw: torch.Generator) -> None:
        """Choose from a batch."""
        came = _by_name(part.inputs)
        if not self._rows:
            self._alone = isinstance(part.inputs, Tensor)
            self._rows = {
                name: tensor.new_empty(self._most, *tensor.shape[1:]) for name, tensor in came.items()
            }
        kinds = [{name: (t.shape[1:], t.dtype) for name, t in each.items()} for each in (self._rows, came)]
        if kinds[0] != kinds[1]:
            raise RehearsalError(f"expected inputs of one shape in all batches: {kinds[0]}, then {kinds[1]}")
        for row in range(len(part)):
            self._seen += 1
            place = self._seen - 1
            if place >= self._most:
                place = int(torch.randint(self._seen, (), generator=draw))
            if place < self._most:
                self._labels[place] = part.labels[row]
                for name, tensor in came.items():
                    self._rows[name][place] = tensor[row]

    def result(self) -> Labelled:
        """The rows that were chosen."""
        count = min(self._seen, self._most)
        rows = {name: tensor[:count] for name, tensor in self._rows.items()}
        return Labelled(rows[_ALONE] if self._alone else rows, self._labels[:count])


_ALONE = ""


def _by_name(inputs: Inputs) -> dict[str, Tensor]:
    return {_ALONE: inputs} if isinstance(inputs, Tensor) else inputs
