"""SoTTA's memory: high-confidence uniform sampling, for all the samples of a batch at once."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.batch import Batch
from equipoise.errors import BatchError
from equipoise.keeping import SAMPLES, part

Array: TypeAlias = npt.NDArray[Any]


def offer(
    kept: Mapping[str, Tensor], samples: Mapping[str, Tensor], classes: Tensor, num_classes: int
) -> dict[str, Tensor]:
    """The memory after it was offered samples of some classes, in order.

    A memory is "classes", the class in each slot or -1, "samples.*", a row for each slot, and "random", the
    state of the generator that its choices are drawn from. Free slots are taken first, from the front.
    """
    memory, came = kept["classes"].cpu().numpy().copy(), classes.cpu().numpy()
    filled = int((memory >= 0).sum())
    room = min(len(memory) - filled, len(came))
    slots = np.arange(filled, filled + room)
    memory[slots] = came[:room]
    generator = torch.Generator()
    generator.set_state(kept["random"].cpu())
    if room < len(came):
        draws = torch.rand(len(came) - room, num_classes + len(memory), generator=generator).numpy()
        slots = np.concatenate([slots, replaced_slots(memory, came[room:], draws, num_classes)])
    taker = np.full(len(memory), -1)
    taker[slots] = np.arange(len(slots))  # of the samples that took the same slot, the last stays
    taken = torch.from_numpy(taker >= 0)
    last = torch.from_numpy(taker)[taken]
    memory[slots] = came
    news = {"classes": torch.from_numpy(memory), "random": generator.get_state()}
    for name, rows in samples.items():
        old = kept.get(SAMPLES + name)
        store = rows.new_zeros(len(memory), *rows.shape[1:]) if old is None else old.clone()
        store[taken.to(store.device)] = rows[last.to(rows.device)]
        news[SAMPLES + name] = store
    return news


def replaced_slots(memory: Array, classes: Array, draws: Array, num_classes: int) -> Array:
    """Which slot of a full memory each sample takes, in order; `memory` has the class in each slot.

    Let L be the classes with the most slots. A sample whose class is in L takes a random slot of its own
    class, another one a random slot of a random class in L (Gong et al., NeurIPS 2023). `draws` has a row of
    uniform numbers for each sample, one for each class and one for each slot: "a random one of" is the one
    with the smallest number.

    A sample whose class is in L leaves the classes in the slots, and so all later choices, as they are. So
    the choices of all samples up to and with the next whose class is not in L are made at once: a round for
    each of those, none for the others.
    """
    memory, slots = memory.copy(), np.empty(len(classes), dtype=np.int64)
    start = 0
    while start < len(classes):
        counts = np.bincount(memory, minlength=num_classes)
        largest = counts == counts.max()
        others = np.flatnonzero(~largest[classes[start:]])
        run = slice(start, start + int(others[0]) + 1 if len(others) else len(classes))
        victims = classes[run].copy()
        if len(others):
            victims[-1] = np.where(largest, draws[run.stop - 1, :num_classes], 2.0).argmin()
        own = memory == victims[:, None]
        slots[run] = np.where(own, draws[run, num_classes:], 2.0).argmin(1)
        memory[slots[run]] = classes[run]
        start = run.stop
    return slots


def storable(kept: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """The tensors of a batch that the memory stores; BatchError if they are not of the shapes it stores."""
    samples, stores = batch.samples(), part(kept, SAMPLES)
    for name, store in stores.items():
        came = samples.get(name)
        expected = f"sotta stores samples in one memory: expected input {name} as {store.dtype} "
        expected += f"{tuple(store.shape[1:])} a sample"
        if came is None:
            raise BatchError(f"{expected}, as in the first batch, got none with a row for each sample")
        if came.shape[1:] != store.shape[1:] or came.dtype != store.dtype:
            hint = "; pad them to one shape" if came.dtype == store.dtype else ""
            raise BatchError(f"{expected}, got {came.dtype} {tuple(came.shape[1:])}{hint}")
    return {name: tensor for name, tensor in samples.items() if not stores or name in stores}


def remembered(kept: Mapping[str, Tensor], like: Batch) -> Batch | None:
    """The samples in the memory as a batch; what belongs to all samples is that of `like`."""
    filled = kept["classes"] >= 0
    if not bool(filled.any()):
        return None
    return like.with_samples({n: t[filled.to(t.device)] for n, t in part(kept, SAMPLES).items()})
