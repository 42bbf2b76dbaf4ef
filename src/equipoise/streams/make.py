"""Streams by the name of their kind: `make_stream`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import DataError, OptionError, UnknownOptionError
from equipoise.options import integer, one_of
from equipoise.streams.kinds import KINDS, Domains, Kind, KindName, Segment


@dataclass(frozen=True, eq=False)
class Stream:
    """An order of the images of one domain or of several, by `make_stream`.

    Attributes:
        kind: of the order.
        rows: int64 (T,), into the domains joined one after another; −1 for an image of no class.
        domains: int64 (T,), the index of the domain of each image.
        segments: named stretches, one after the other; their images add up to T.
        sizes: the number of images of each domain that it was made of.
        options: of the kind, defaults included.
        seed: of the order, and of images that are made.
        about: the order in words.
    """

    kind: str
    rows: Tensor
    domains: Tensor
    segments: tuple[Segment, ...]
    sizes: tuple[int, ...]
    options: Mapping[str, Any]
    seed: int
    about: str

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self) -> str:
        """The stream in one sentence."""
        return f"{len(self):,} images: {self.about} (seed {self.seed})."

    def labels(self, labels: Sequence[Tensor]) -> Tensor:
        """The label of each image of the stream, given those of each domain; −1 for an image of no class."""
        self.check_sizes([len(of_domain) for of_domain in labels])
        joined = torch.cat([of_domain.cpu() for of_domain in labels])
        return torch.where(self.rows < 0, -1, joined[self.rows.clamp(min=0)])

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Raise DataError unless the domains have as many samples as those that the stream was made of."""
        if tuple(sizes) != self.sizes:
            raise DataError(
                f"expected the {' and '.join(map(str, self.sizes))} images of the domains whose labels the "
                f"stream was made from, got {' and '.join(map(str, sizes)) or 'none'}"
            )


def make_stream(
    labels: Sequence[Tensor], kind: KindName, seed: int, *, names: Sequence[str] = (), **options: Any
) -> Stream:
    """A stream of the images with these labels; the same arguments give the same stream.

    Args:
        labels: int64 (N,), of the images of each domain.
        kind: of the order.
        seed: of a generator of its own on the CPU, so that device and global state change nothing.
        names: of the domains, for the segments; "domain 1", "domain 2", … by default.
        options: of the kind: concentration and slots of "correlated", passes of "recurring", stretch of
            "abrupt", share of "noisy", ratio of "imbalanced".
    """
    return draw_stream(configured(KINDS, kind, options), kind, labels, seed, names)


def draw_stream(order: Kind, kind: str, labels: Sequence[Tensor], seed: int, names: Sequence[str]) -> Stream:
    """A stream of a kind with its options, as `make_stream`."""
    seed = integer("seed", seed, low=0, high=2**63 - 1)
    domains = _domains(order, labels, names, kind)
    places = order.draw(domains, torch.Generator().manual_seed(seed))
    return Stream(
        kind,
        *places,
        sizes=tuple(domains.sizes),
        options=asdict(order),
        seed=seed,
        about=order.drawn(domains, places),
    )


def configured(kinds: Mapping[str, type[Kind]], kind: str, options: Mapping[str, Any]) -> Kind:
    """A kind of a name with its options; OptionError or UnknownOptionError that lists the known ones."""
    one_of("kind", kind, kinds)
    known = [field.name for field in fields(kinds[kind])]
    for name in options:
        if name not in known:
            raise UnknownOptionError(
                f"no option {name!r} of {kind!r} streams; there are {', '.join(known) or 'none'}"
            )
    return kinds[kind](**options)


def _domains(order: Kind, labels: Sequence[Tensor], names: Sequence[str], kind: str) -> Domains:
    _check_labels(labels)
    fewest, most = order.fewest, order.most
    if not fewest <= len(labels) <= most:
        number = "one domain" if most == 1 else f"at least {fewest} domain{'s' * (fewest > 1)}"
        hint = '; "mixed" and "continual" take several' if len(labels) > most else ""
        raise OptionError(f"expected {number} for the kind {kind!r}, got {len(labels)}{hint}")
    named = list(names) or [f"domain {place + 1}" for place in range(len(labels))]
    if len(named) != len(labels) or len(set(named)) < len(named):
        raise OptionError(f"expected {len(labels)} different names of domains, got {', '.join(named)}")
    return Domains(named, [of_domain.cpu() for of_domain in labels])


def _check_labels(labels: Any) -> None:
    """OptionError unless there is a list of int64 tensors (N,), none of them empty."""
    expected = "expected labels as a list of int64 tensors (N,) of at least one image, one for each domain"
    if not isinstance(labels, Sequence):
        raise OptionError(f"{expected}, got {_in_words(labels)}")
    for number, given in enumerate(labels, 1):
        fits = isinstance(given, Tensor) and given.ndim == 1 and given.dtype == torch.int64 and len(given) > 0
        if not fits:
            raise OptionError(f"{expected}, got {_in_words(given)} for domain {number}")


def _in_words(value: Any) -> str:
    """The type of a value, with its data type and shape or its length where it has them."""
    name = type(value).__name__
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{name} of {value.dtype} {tuple(value.shape)}"
    return f"{name} of length {len(value)}" if hasattr(value, "__len__") else name
