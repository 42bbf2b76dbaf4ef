"""Labelled samples for a rehearsal, taken from a loader, a pair or a data set, and checked."""

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from numbers import Number
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate
from tqdm import tqdm

from equipoise.errors import BatchError, RehearsalError
from equipoise.network.batch import (
    LABELS,
    InputsFunction,
    is_array,
    leaves,
    loaded_batch,
    map_leaves,
    tensor_cure,
    without_labels,
)

_READ_AT_ONCE = 64


def labelled_batches(held_out: Any, samples: int, seed: int) -> Iterable[Any]:
    """Batches of labelled samples: those of a loader, one of a pair (x, y), or some of a data set.

    A data set of known length is read in `samples` places at most, drawn by the seed. Two items are a pair if
    the second is labels and no batch itself: a tensor, an array, or a list of numbers.
    """
    if isinstance(held_out, Dataset) and isinstance(held_out, Sized) and not isinstance(held_out, Iterable):
        order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(seed))
        places = order[:samples].tolist()
        return DataLoader(held_out, batch_size=_READ_AT_ONCE, sampler=places, collate_fn=_collated)
    if is_pair(held_out):
        return [tuple(held_out)]
    unfit = isinstance(held_out, (Tensor, Mapping, str)) or is_array(held_out)
    if unfit or not isinstance(held_out, Iterable):
        raise RehearsalError(
            "expected a loader of (inputs, labels), a pair (x, y) of tensors or a data set of such items, "
            f"got {type(held_out).__name__}{tensor_cure(held_out)}"
        )
    return held_out


def is_pair(held_out: Any) -> bool:
    """Whether all inputs and all labels came as they are, instead of batch by batch."""
    if not isinstance(held_out, (tuple, list)) or len(held_out) != 2:
        return False
    inputs, labels = held_out
    if isinstance(labels, (tuple, list)):  # a batch (inputs, labels), or one label after the other
        return bool(labels) and all(isinstance(label, (Number, str)) for label in labels)
    if not isinstance(labels, Tensor) and not is_array(labels):
        return False
    shapes = [tuple(getattr(each, "shape", ())) for each in (inputs, labels)]
    return len(shapes[1]) < 2 or shapes[0][1:] != shapes[1][1:]  # else two batches without labels


def _collated(items: list[Any]) -> Any:
    """A batch of the items of a data set."""
    try:
        return default_collate(items)
    except (RuntimeError, TypeError) as error:
        raise RehearsalError(
            "expected a data set of (inputs, label) with tensors of one shape, got items that make no batch "
            f"({str(error).splitlines()[0]}): give it a transform to tensors, or pass a DataLoader with a "
            "collate_fn"
        ) from error


FEWEST_SAMPLES = 100
"""Samples below which a rehearsal would learn noise."""

Inputs: TypeAlias = Tensor | tuple[Any, ...] | dict[str, Any]
"""Inputs of a model, a row for each sample: a tensor, several by position, or a dict by keyword."""


@dataclass(frozen=True)
class Labelled:
    """Samples with labels.

    Attributes:
        inputs: a row for each sample.
        labels: the classes, on the CPU.
    """

    inputs: Inputs
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: Tensor) -> "Labelled":
        """The samples of these rows, in their order."""
        return Labelled(mapped(self.inputs, lambda tensor: tensor[rows]), self.labels[rows])

    def batches(self, size: int) -> Iterator["Labelled"]:
        """The samples in batches, as they are ordered."""
        for rows in torch.arange(len(self)).split(size):
            yield self.select(rows)

    def near(self, device: torch.device) -> "Labelled":
        """The samples on a GPU, where every stream needs them, if an eighth of its free memory is enough.

        Otherwise, and on other devices, the samples as they are.
        """
        needed = sum(tensor.nbytes for tensor in tensors_of(self.inputs))
        if device.type != "cuda" or needed > torch.cuda.mem_get_info(device)[0] / 8:
            return self
        return Labelled(mapped(self.inputs, lambda tensor: tensor.to(device)), self.labels)


def mapped(inputs: Inputs, function: Any) -> Inputs:
    """Inputs with a function applied to each tensor."""
    changed: Inputs = map_leaves(inputs, lambda _, tensor: function(tensor))
    return changed


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """The tensors of inputs."""
    return list(leaves(inputs).values())


def take(
    loader: Iterable[Any] | Dataset[Any],
    samples: int,
    seed: int,
    progress: bool,
    model: nn.Module | None = None,
    inputs: InputsFunction | None = None,
) -> Labelled:
    """Up to `samples` labelled samples of a loader, in random order, as the arguments of a model.

    A pair (x, y) is one batch; of a data set of known length, as many items as are needed are read.
    A loader of known length is read to its end and every sample has the same chance (a data set may be sorted
    by class); one without is read until there are enough. A DataLoader that shuffles does so by the seed,
    unless it has a generator of its own. Batches without samples are left out.
    """
    loader = labelled_batches(loader, samples, seed)
    draw, taken, seen = torch.Generator().manual_seed(seed), _Reservoir(samples), 0
    ends = _has_length(loader)
    bar = tqdm(loader, desc="reading labelled samples", unit="batch", leave=False) if progress else loader
    with torch.random.fork_rng(devices=[]):  # torch's DataLoader draws from the global random state
        torch.manual_seed(seed)
        for item in bar:
            own, labels = _split(item)
            if _is_empty(own, labels):
                continue
            part = _checked(own, labels, model, inputs)
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


def _is_empty(own: Any, labels: Any) -> bool:
    """Whether a batch has neither labels nor rows of inputs."""
    try:
        rows = [len(labels), *(len(leaf) for leaf in leaves(own).values() if isinstance(leaf, Tensor))]
    except TypeError:  # no rows at all: refused with a reason later
        return False
    return not any(rows)


def _checked(own: Any, labels: Any, model: nn.Module | None, function: InputsFunction | None) -> Labelled:
    inputs = _arguments(own, model, function)
    if not tensors_of(inputs) or not all(isinstance(tensor, Tensor) for tensor in tensors_of(inputs)):
        raise _no_tensors(own)
    try:
        labels = torch.as_tensor(np.array(labels) if hasattr(labels, "to_numpy") else labels)
    except (RuntimeError, TypeError, ValueError) as error:
        names = any(isinstance(label, str) for label in labels) if isinstance(labels, Iterable) else False
        raise RehearsalError(
            f"expected labels as whole numbers of shape (N,), got {type(labels).__name__}: {error}"
            f"{_NAMES_CURE if names else ''}"
        ) from error
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise RehearsalError(
            f"expected labels as whole numbers of shape (N,), got {labels.dtype} {tuple(labels.shape)}"
            f"{_labels_cure(labels)}"
        )
    for place, tensor in enumerate(tensors_of(inputs)):
        if tensor.ndim < 1 or len(tensor) != len(labels):
            raise RehearsalError(
                f"expected a row of inputs for each of {len(labels)} labels, got shape {tuple(tensor.shape)}"
            )
        # As in a batch for an adapter: attention masks, which come after the input proper, may have -inf.
        fine = tensor.isfinite() if place == 0 else tensor < torch.inf
        if tensor.is_floating_point() and not bool(fine.all()):
            raise RehearsalError(
                "expected finite inputs, got some that are NaN or infinite: fill in missing values as in "
                "production, with the mean of the training data for example; an adapter sets rows with NaN "
                "aside"
            )
    return Labelled(mapped(inputs, lambda tensor: tensor.detach().cpu()), labels.long().cpu())


_NAMES_CURE = (
    "; [classes.index(name) for name in labels] makes numbers of names, where `classes` has all names in the "
    "order of the model's outputs"
)


def _labels_cure(labels: Tensor) -> str:
    """The cure of labels that are not of shape (N,), in words; some are not those of a classifier."""
    whole = not labels.is_complex() and bool(
        (labels == labels.round()).all() if labels.is_floating_point() else True
    )
    if labels.ndim == 0:
        return "; a loader yields batches: put a data set into a DataLoader"
    if labels.ndim == 1 and whole:
        return ": labels.long() makes whole numbers of them"
    if labels.ndim == 2 and labels.shape[1] == 1 and whole:
        return ": labels.squeeze(1).long() makes such labels of them"
    if (
        labels.ndim == 2
        and whole
        and bool(((labels == 0) | (labels == 1)).all() & (labels.sum(1) == 1).all())
    ):
        return ": rows of one 1 are labels.argmax(1)"
    return "; equipoise is for classifiers with one class for a sample, not for several labels or regression"


def _no_tensors(own: Any) -> RehearsalError:
    """The error of inputs that are no tensors, with the cure of arrays."""
    cure = next(filter(None, map(tensor_cure, _leaves(own))), "")
    return RehearsalError(
        f"expected inputs as a tensor, or a tuple or dict of tensors, got {type(own).__name__}{cure}"
    )


def _leaves(own: Any) -> Iterable[Any]:
    """The values in the inputs of a batch, as a loader yields them."""
    same = tuple(own) if isinstance(own, list) else dict(own) if isinstance(own, Mapping) else own
    return leaves(same).values()


def _split(item: Any) -> tuple[Any, Any]:
    """The inputs and the labels of an item of a loader: a pair, or a dict with an entry for labels."""
    if isinstance(item, Mapping):
        named = [name for name in LABELS if name in item]
        if len(named) != 1:
            came = ", ".join(map(str, item))
            raise RehearsalError(
                f"expected labels under one of 'labels' and 'label', got a dict with {came}: a rehearsal "
                "needs labels; yield (inputs, labels), or name the entry so"
            )
        return without_labels(item), item[named[0]]
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        several = isinstance(item, (tuple, list))
        came = f"{len(item)} of them" if several else type(item).__name__
        cure = "; several inputs as ((first, second), labels)" if several and len(item) > 2 else ""
        if not several:
            cure = "; all samples at once are (x, y), with a class for each row of x in y"
        raise RehearsalError(
            f"expected the loader to yield (inputs, labels), got {came}: a rehearsal needs labels{cure}"
        )
    return item[0], item[1]


def _arguments(own: Any, model: nn.Module | None, function: InputsFunction | None) -> Inputs:
    """The model's arguments; text and other entries of a dict that are no tensors are left out."""
    if isinstance(own, Mapping) and function is None:
        own = {str(name): tensor for name, tensor in own.items() if isinstance(tensor, Tensor)}
    if model is None or (isinstance(own, Mapping) and not own):
        return tuple(own) if isinstance(own, list) else own
    if function is None and any(map(is_array, _leaves(own))):
        raise _no_tensors(own)
    try:
        batch = loaded_batch(model, (own, None), function)
    except BatchError as error:
        raise RehearsalError(str(error)) from error
    if batch.kwargs:
        return batch.kwargs
    return batch.args[0] if len(batch.args) == 1 and isinstance(batch.args[0], Tensor) else batch.args


class _Reservoir:
    """A uniform choice of rows that come batch by batch (Vitter's algorithm R).

    Memory grows with the rows that come, to twice as much each time, and never beyond `most`.
    """

    def __init__(self, most: int) -> None:
        self._most, self._seen = most, 0
        self._like: Inputs = ()
        self._rows: dict[str, Tensor] = {}
        self._labels = torch.zeros(0, dtype=torch.int64)

    def add(self, part: Labelled, draw: torch.Generator) -> None:
        """Choose from a batch."""
        came = leaves(part.inputs)
        if not self._rows:
            self._like = part.inputs
            self._rows = {name: tensor[:0] for name, tensor in came.items()}
        kinds = [{name: (t.shape[1:], t.dtype) for name, t in each.items()} for each in (self._rows, came)]
        if kinds[0] != kinds[1]:
            raise RehearsalError(f"expected inputs of one shape in all batches: {kinds[0]}, then {kinds[1]}")
        self._make_room(self._seen + len(part))
        for row in range(len(part)):
            self._seen += 1
            place = self._seen - 1
            if place >= self._most:
                place = int(torch.randint(self._seen, (), generator=draw))
            if place < self._most:
                self._labels[place] = part.labels[row]
                for name, tensor in came.items():
                    self._rows[name][place] = tensor[row]

    def _make_room(self, rows: int) -> None:
        if (needed := min(rows, self._most)) > len(self._labels):
            room = min(max(needed, 2 * len(self._labels)), self._most)
            self._labels = _enlarged(self._labels, room)
            self._rows = {name: _enlarged(tensor, room) for name, tensor in self._rows.items()}

    def result(self) -> Labelled:
        """The rows that were chosen."""
        count = min(self._seen, self._most)
        inputs = map_leaves(self._like, lambda name, _: self._rows[name][:count])
        return Labelled(inputs, self._labels[:count])


def _enlarged(tensor: Tensor, rows: int) -> Tensor:
    """A tensor with more rows, the first of which are as they were."""
    larger = tensor.new_empty(rows, *tensor.shape[1:])
    larger[: len(tensor)] = tensor
    return larger
