"""`make_stream`: a stream by the name of its kind."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from equipoise.data.streams.changing import Changing
from equipoise.data.streams.classes import Correlated, Imbalanced, Sorted
from equipoise.data.streams.domains import Abrupt, Continual, Gradual, Mixed, Recorded, Recurring, Shuffled
from equipoise.data.streams.noisy import Noisy
from equipoise.data.streams.places import Domains, Kind, KindName
from equipoise.data.streams.stream import Stream
from equipoise.errors import OptionError, UnknownOptionError
from equipoise.options import integer, one_of

KINDS: Mapping[KindName, type[Kind]] = MappingProxyType(
    {
        "shuffled": Shuffled,
        "sorted": Sorted,
        "mixed": Mixed,
        "recorded": Recorded,
        "continual": Continual,
        "gradual": Gradual,
        "correlated": Correlated,
        "recurring": Recurring,
        "abrupt": Abrupt,
        "noisy": Noisy,
        "imbalanced": Imbalanced,
        "changing": Changing,
    }
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
            "abrupt", share of "noisy", ratio of "imbalanced"; transition, severity, length and paths of
            "changing".
    """
    one_of("kind", kind, KINDS)
    seed = integer("seed", seed, low=0, high=2**63 - 1)
    order = _configured(kind, options)
    domains = _domains(labels, names, kind)
    places = order.draw(domains, torch.Generator().manual_seed(seed))
    return Stream(
        kind,
        *places,
        sizes=tuple(domains.sizes),
        options=asdict(order),
        seed=seed,
        about=order.drawn(domains, places),
        change=order.change(seed),
    )


def _configured(kind: KindName, options: Mapping[str, Any]) -> Kind:
    known = [field.name for field in fields(KINDS[kind])]
    for name in options:
        if name not in known:
            raise UnknownOptionError(
                f"no option {name!r} of {kind!r} streams; there are {', '.join(known) or 'none'}"
            )
    return KINDS[kind](**options)


def _domains(labels: Sequence[Tensor], names: Sequence[str], kind: KindName) -> Domains:
    fewest, most = KINDS[kind].fewest, KINDS[kind].most
    if not fewest <= len(labels) <= most:
        number = "one domain" if most == 1 else f"at least {fewest} domain{'s' * (fewest > 1)}"
        hint = '; "mixed" and "continual" take several' if len(labels) > most else ""
        raise OptionError(f"expected {number} for the kind {kind!r}, got {len(labels)}{hint}")
    for place, of_domain in enumerate(labels):
        if of_domain.ndim != 1 or of_domain.dtype != torch.int64 or len(of_domain) == 0:
            raise OptionError(
                f"expected labels as int64 tensors (N,) of at least one image, got {of_domain.dtype} "
                f"{tuple(of_domain.shape)} for domain {place + 1}"
            )
    named = list(names) or [f"domain {place + 1}" for place in range(len(labels))]
    if len(named) != len(labels) or len(set(named)) < len(named):
        raise OptionError(f"expected {len(labels)} different names of domains, got {', '.join(named)}")
    return Domains(named, [of_domain.cpu() for of_domain in labels])
