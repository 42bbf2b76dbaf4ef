"""One pass of an adapter over the batches of a stream."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from equipoise.adapter import Adapter
from equipoise.calibration.novelty import Novelty
from equipoise.network.batch import leaves
from equipoise.network.forward import logits_of


class Answers(NamedTuple):
    """Answers to a batch, on the CPU.

    Attributes:
        logits: those of the adapter, (N, C), in its own type.
        source_logits: those of the source model; None where they were not asked for.
        novelty: of the inputs, (N,); None where it is not measured.
    """

    logits: Tensor
    source_logits: Tensor | None = None
    novelty: Tensor | None = None


def evaluate(
    adapter: Adapter,
    stream: Iterable[Any],
    *,
    learn: bool = True,
    ask_source: bool = False,
    novelty: Novelty | None = None,
) -> Iterator[Answers]:
    """Yield the answers of an adapter to one batch after another.

    A batch is read and answered when its answers are asked for, so between two batches the adapter is in the
    state after the first one: a caller may read `adapter.weight_distance` there, reset the adapter or stop.

    Args:
        adapter: the adapter, which goes on from the state that it is in.
        stream: the inputs of each batch, as the adapter takes them.
        learn: whether it adapts to each batch; if not, it answers with `predict`.
        ask_source: whether to ask the source model, too: a forward more.
        novelty: measures the novelty of the inputs.
    """
    answer = adapter if learn else adapter.predict
    for inputs in stream:
        logits = logits_of(answer(inputs)).detach().cpu()
        source = adapter.source_logits(inputs).cpu() if ask_source else None
        new = None if novelty is None else novelty(leaves(inputs))
        yield Answers(logits, source, None if new is None else new.cpu())
