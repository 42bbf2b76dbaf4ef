"""The streams of a recipe: the shifts that are joined, and the options of their order."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from equipoise.errors import RecipeError
from equipoise.research.data.cache import Stored
from equipoise.research.data.dataset import Shift
from equipoise.research.data.image_stream import IMAGE_KINDS, ImageKindName
from equipoise.research.experiment.keys import content_key
from equipoise.research.experiment.provenance import order_digest

_PERMUTED: tuple[ImageKindName, ...] = ("shuffled", "sorted", "recorded", "mixed")
"""The orders that were there before others: their keys are as they were."""


@dataclass(frozen=True)
class StreamPlan:
    """The stream of a run: that of one shift, or those of several shifts joined."""

    target: str
    tier: int | None
    sources: tuple[str, ...]
    streams: tuple[str, ...]
    domains: tuple[str, ...]
    """The names of the streams that are joined."""


def joined_shifts(shifts: Sequence[Shift], order: ImageKindName, targets: int) -> list[StreamPlan]:
    """The streams of the models: each shift by itself, or all shifts of a model at once.

    Joined are the targets of a model and tier or, for "gradual", the tiers of a model and target, or of each
    of its corruptions. Joined targets are named "all" if they are all `targets` of the data set, else by
    their names.
    """
    corrupted = any(shift.corruption for shift in shifts)
    if order == "changing":  # corrupts images by itself
        if not corrupted and any(shift.tier is not None for shift in shifts):
            raise RecipeError(
                "order: 'changing' corrupts images as they are, and the streams of this data set have none"
            )
        shifts = list({s.stream: replace(s, tier=None) for s in shifts if not s.corruption}.values())
    if order == "gradual" and corrupted:  # an image as it is has no tiers
        shifts = [shift for shift in shifts if shift.corruption]
    if IMAGE_KINDS[order].alone:
        return [StreamPlan(s.domain, s.tier, s.sources, (s.stream,), (s.domain,)) for s in shifts]
    groups: dict[tuple[tuple[str, ...], int | str | None], list[Shift]] = {}
    for shift in shifts:
        groups.setdefault((shift.sources, shift.domain if order == "gradual" else shift.tier), []).append(
            shift
        )
    if IMAGE_KINDS[order].joins and any(len(group) < 2 for group in groups.values()):
        if order == "gradual":
            raise RecipeError(
                "order: 'gradual' joins all tiers of one target, and here a target has only one: name at "
                "least two `tiers` of a data set that has them"
            )
        raise RecipeError(
            f"order: {order!r} joins all targets of one model, and here a model has only one: "
            "leave-one-out data sets train a model for each target; use 'shuffled' or 'sorted'"
        )
    return [_joined(group, order, targets) for group in groups.values()]


def _joined(group: Sequence[Shift], order: ImageKindName, targets: int) -> StreamPlan:
    streams, first = tuple(shift.stream for shift in group), group[0]
    if order == "gradual":
        tiers = tuple(f"tier {shift.tier}" for shift in group)
        return StreamPlan(first.domain, None, first.sources, streams, tiers)
    several = list(dict.fromkeys(shift.target for shift in group))
    target = "all" if len(several) == targets > 1 else "+".join(several)
    corrupted = len(several) == 1 and len(group) > 1
    names = tuple((shift.corruption or "as it is") if corrupted else shift.domain for shift in group)
    return StreamPlan(target, first.tier, first.sources, streams, names)


def resolved_order_options(order: ImageKindName, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a kind of stream, defaults included; RecipeError for one that it does not have."""
    known = [field.name for field in fields(IMAGE_KINDS[order])]
    if unknown := [name for name in given if name not in known]:
        raise RecipeError(
            f"order_options: no {', '.join(unknown)} of {order!r} streams; there are "
            f"{', '.join(known) or 'none'}"
        )
    return asdict(IMAGE_KINDS[order](**given))


def stream_digest(order: ImageKindName, streams: Sequence[Stored]) -> str:
    """A hash of the images of a stream and, for orders that are no plain permutation, of their code."""
    code = {} if order in _PERMUTED else {"order": order_digest()}
    return content_key({"parts": [part.digest for part in streams], **code})
