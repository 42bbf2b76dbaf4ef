"""A stream of labelled samples under made-up shifts, each of which is a domain of the stream."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.network.batch import leaves, map_leaves
from equipoise.options import integer
from equipoise.recommendation.candidates import StreamKind
from equipoise.rehearsal.labelled import Inputs, Labelled, mapped
from equipoise.rehearsal.shifts import FEWEST_SHIFTS, Shifts, named_errors, shifted_inputs
from equipoise.streams import make_stream

ALONE: tuple[StreamKind, ...] = ("shuffled", "sorted")
"""The kinds of one domain: every shift is a stream of its own, before which a method starts again."""

OPTIONS: Mapping[StreamKind, Mapping[str, Any]] = {"recurring": {"passes": 5}, "abrupt": {"stretch": 200}}
"""Options of streams that are short, in place of the defaults of `make_stream`."""


@dataclass(frozen=True)
class StreamPart:
    """A batch: its places in the stream, and whether a method starts again before it."""

    places: Tensor
    fresh: bool


@dataclass(frozen=True, eq=False)
class MadeUpStream:
    """Places of a stream, whose samples are gathered and shifted batch by batch.

    Attributes:
        labelled: the samples that all shifts are made of.
        shifts: the domains, by name.
        rows: of the samples, (T,); −1 for a sample of no class.
        domains: the index of the shift of each, (T,).
        lengths: of the streams, one after the other; more than one for kinds of one domain.
        batch_size: of all batches but the last of a stream.
        seed: of everything random.
        about: the stream in words.
    """

    labelled: Labelled
    shifts: Shifts
    rows: Tensor
    domains: Tensor
    lengths: Sequence[int]
    batch_size: int
    seed: int
    about: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> Tensor:
        """The label of each sample; −1 for those of no class."""
        return torch.where(self.rows < 0, -1, self.labelled.labels[self.rows.clamp(min=0)])

    def parts(self) -> list[StreamPart]:
        """The batches as places."""
        found = []
        for places in torch.arange(len(self)).split(list(self.lengths)):
            found += [
                StreamPart(part, number == 0) for number, part in enumerate(places.split(self.batch_size))
            ]
        return found

    def batches(self, device: torch.device) -> Iterator[tuple[StreamPart, Inputs]]:
        """The inputs of each batch on a device, shift by shift, in the order of the stream."""
        named = list(self.shifts.items())
        for part in self.parts():
            inputs = mapped(self._gathered(part.places), lambda tensor: tensor.to(device))
            domains = self.domains[part.places]
            for domain in domains.unique().tolist():
                name, shift = named[domain]
                here = (domains == domain).nonzero().flatten().to(device)
                with named_errors(name):
                    changed = shifted_inputs(_selected(inputs, here), shift, self.seed)
                inputs = _replaced(inputs, here, changed)
            yield part, inputs

    def _gathered(self, places: Tensor) -> Inputs:
        rows = self.rows[places]
        inputs = self.labelled.select(rows.clamp(min=0)).inputs
        none = (rows < 0).nonzero().flatten()
        if not len(none):
            return inputs
        draw = torch.Generator().manual_seed(self.seed + int(places[0]))
        return _replaced(inputs, none, of_no_class(self.labelled.inputs, len(none), draw))


def _selected(inputs: Inputs, rows: Tensor) -> Inputs:
    return mapped(inputs, lambda tensor: tensor[rows])


def _replaced(inputs: Inputs, rows: Tensor, by: Inputs) -> Inputs:
    """Inputs with other values in some rows."""
    news = leaves(by)
    replaced: Inputs = map_leaves(
        inputs, lambda name, old: old.index_copy(0, rows.to(old.device), news[name])
    )
    return replaced


def of_no_class(inputs: Inputs, count: int, generator: torch.Generator) -> Inputs:
    """Samples of no class: every value is that of a sample drawn for it alone, at the same place.

    Each value is as frequent as it is in the inputs, and nothing is left of shapes and other relations.
    """

    def drawn(tensor: Tensor) -> Tensor:
        rows = torch.randint(len(tensor), (count, *tensor.shape[1:]), generator=generator)
        return tensor.gather(0, rows.to(tensor.device))

    return mapped(inputs, drawn)


def check_stream(kind: StreamKind, options: Mapping[str, Any], *, length: int, batch_size: int) -> None:
    """Raise the errors of `make_up_stream` before anything is measured: a stream of zeros of two classes."""
    labels = torch.arange(max(length, batch_size)) % 2
    zeros = Labelled(torch.zeros(len(labels), 1), labels)
    shifts: Shifts = {f"shift {place}": lambda x, _: x for place in range(FEWEST_SHIFTS - 1)}
    make_up_stream(zeros, shifts, kind, options, length=length, batch_size=batch_size, seed=0)


def make_up_stream(
    labelled: Labelled,
    shifts: Shifts,
    kind: StreamKind,
    options: Mapping[str, Any],
    *,
    length: int,
    batch_size: int,
    seed: int,
) -> MadeUpStream:
    """Put labelled samples under shifts into the order of a kind of stream, about `length` samples in all.

    Every shift has a random choice of the samples, of equal size. OptionError for options that the kind does
    not have.
    """
    options = {**OPTIONS.get(kind, {}), **options}
    passes = integer("passes", options.get("passes", 2 if kind == "gradual" else 1), low=1)
    size = min(len(labelled), max(batch_size, length // (len(shifts) * passes)))
    draw = torch.Generator().manual_seed(seed)
    chosen = [torch.randperm(len(labelled), generator=draw)[:size] for _ in shifts]
    labels, names = [labelled.labels[rows] for rows in chosen], list(shifts)
    if kind in ALONE:
        made = [
            make_stream([labels[place]], kind, seed + place, names=[name], **options)
            for place, name in enumerate(names)
        ]
        rows = torch.cat([chosen[place][stream.rows] for place, stream in enumerate(made)])
        domains = torch.arange(len(made)).repeat_interleave(torch.tensor([len(stream) for stream in made]))
    else:
        made = [make_stream(labels, kind, seed, names=names, **options)]
        joined = torch.cat(chosen)
        rows = torch.where(made[0].rows < 0, -1, joined[made[0].rows.clamp(min=0)])
        domains = made[0].domains
    about = f"{len(rows):,} samples under {len(shifts)} made-up shifts: {made[0].about}"
    if kind in ALONE:
        about += ", each shift by itself"
    if kind == "noisy":
        about = about.partition(": uniform noise")[0] + ": each of their values comes from another sample"
    lengths = [len(stream) for stream in made]
    return MadeUpStream(labelled, shifts, rows, domains, lengths, batch_size, seed, about)
