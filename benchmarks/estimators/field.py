"""The estimators of the literature, fitted on held-out answers and evaluated on windows of a stream."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipoise.estimators import (
    ATC,
    CBPE,
    COT,
    NuclearNorm,
    TemperatureScaledConfidence,
    aetta,
    dropout_logits,
    fit_temperature,
    mean_confidence,
    sicl,
    style_logits,
)
from equipoise.rehearsal.shifts import chosen_shifts

BATCH = 50
WINDOW = 500
CHUNK = 2500
SHIFTED_ROWS = 1000
"""The held-out rows that are shifted for the nuclear norm."""

Ask = Callable[[Tensor], Tensor]
"""A batch of inputs to its logits."""


class Spans(NamedTuple):
    """The rows that estimates and accuracies are of.

    Attributes:
        batches: every whole batch.
        moments: the last 500 rows at the end of each batch, from the 500th row on.
        chunks: rows 0 to 2,500, 2,500 to 5,000 and so on; the whole stream if it is shorter.
    """

    batches: list[slice]
    moments: list[slice]
    chunks: list[slice]

    @classmethod
    def of(cls, rows: int) -> "Spans":
        """The spans of a stream of so many rows; rows after the last whole batch or chunk are left out."""
        ends = range(BATCH, rows + 1, BATCH)
        chunk = min(CHUNK, rows // BATCH * BATCH)
        return cls(
            [slice(end - BATCH, end) for end in ends],
            [slice(end - WINDOW, end) for end in ends if end >= WINDOW],
            [slice(end - chunk, end) for end in range(chunk, rows + 1, chunk)],
        )


class Estimates(NamedTuple):
    """Estimated accuracies.

    Attributes:
        moments: one for each of `Spans.moments`.
        chunks: one for each of `Spans.chunks`.
    """

    moments: Tensor
    chunks: Tensor


def means(values: Tensor, spans: Sequence[slice]) -> Tensor:
    """The mean of values, one for each row, in each span."""
    return torch.stack([values[span].double().mean() for span in spans])


def of_batches(values: Sequence[float], spans: Spans) -> Estimates:
    """Estimates that come with each batch: the newest at a moment, their mean over a chunk."""
    each = torch.tensor(values, dtype=torch.float64)
    of_chunks = [each[span.start // BATCH : span.stop // BATCH].mean() for span in spans.chunks]
    return Estimates(each[-len(spans.moments) :], torch.stack(of_chunks))


class HeldOut(NamedTuple):
    """Answers to labelled held-out rows, which estimators are fitted on.

    Attributes:
        logits: of the rows as they are.
        labels: of them.
        shifted: logits of the first rows under each made-up shift.
        shifted_labels: of these rows.
    """

    logits: Tensor
    labels: Tensor
    shifted: Sequence[Tensor]
    shifted_labels: Tensor


def from_logits(held_out: HeldOut, spans: Spans, stream: Tensor) -> dict[str, Estimates]:
    """What needs the logits of the stream alone, by name."""
    logits, labels, shifted, shifted_labels = held_out
    degree = float(fit_temperature(logits=logits, target=labels))
    sets = [part for answered in shifted for part in answered.split(WINDOW)]
    targets = [part for _ in shifted for part in shifted_labels.split(WINDOW)]
    atc = ATC.fit(logits=logits / degree, target=labels)
    cot = COT.fit(logits=logits, target=labels)
    scaled = TemperatureScaledConfidence(degree)
    nuclear = NuclearNorm.fit(logits=sets, target=targets)
    cbpe = CBPE.fit(logits=logits, target=labels)
    last_known = (logits.argmax(1) == labels).double().mean()
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "last known accuracy": lambda _: last_known,
        "mean confidence": lambda z: mean_confidence(logits=z),
        "temperature-scaled confidence": lambda z: scaled.accuracy(logits=z),
        "ATC": lambda z: atc.accuracy(logits=z / degree),
        "COT": lambda z: cot.accuracy(logits=z / degree),
        "nuclear norm": lambda z: nuclear.accuracy(logits=z),
        "CBPE": lambda z: cbpe.accuracy(logits=z),
    }
    return {
        name: Estimates(
            *(torch.stack([function(stream[span]).double() for span in own]) for own in spans[1:])
        )
        for name, function in functions.items()
    }


def from_forwards(
    model: nn.Module, inputs: Tensor, logits: Tensor, spans: Spans, seed: int
) -> dict[str, Estimates]:
    """What needs further answers of the model, by name; no styles where there is no convolution."""
    draw = torch.Generator().manual_seed(seed)
    known: list[float] = []
    for span in spans.batches:
        drawn = dropout_logits(model, inputs[span], generator=draw).cpu()
        before = known[-1] if known else None
        known.append(float(aetta(logits=logits[span], dropout_logits=drawn, previous=before)))
    found = {"AETTA": of_batches(known, spans)}
    if any(isinstance(module, nn.Conv2d) for module in model.modules()):
        styled = [style_logits(model, inputs[span], generator=draw).cpu() for span in spans.batches]
        pairs = zip(styled, spans.batches, strict=True)
        agreed = [float(sicl(logits=logits[span], style_logits=style)) for style, span in pairs]
        rows = torch.tensor(agreed).repeat_interleave(BATCH)  # batches are of one size
        found["SICL"] = Estimates(means(rows, spans.moments), means(rows, spans.chunks))
    return found


def answers_under_shifts(
    ask: Ask, restart: Callable[[], None], inputs: Tensor, shifts: int | None, seed: int
) -> list[Tensor]:
    """Logits of held-out rows under each built-in shift of a rehearsal, one stream after a restart each."""
    found = []
    for shift in chosen_shifts(shifts, inputs).values():
        restart()
        # The same random numbers for each batch, as in a rehearsal, so that a stream is one domain.
        batches = inputs[:SHIFTED_ROWS].split(BATCH)
        found.append(answers(ask, (shift(b, torch.Generator().manual_seed(seed)) for b in batches)))
    return found


def answers(ask: Ask, batches: Iterable[Tensor]) -> Tensor:
    """The logits of batches, one after the other."""
    with torch.no_grad():
        return torch.cat([ask(batch).detach().float().cpu() for batch in batches])
