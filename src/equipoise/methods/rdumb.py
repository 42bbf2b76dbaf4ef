"""RDumb: any method, that starts again after every so many samples."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

from equipoise.core.method import Context, Method, Plan, Update, option_values
from equipoise.errors import OptionError, UnknownOptionError
from equipoise.options import checked_by, option
from equipoise.registry import method_class, register

_SEEN = "seen"


def _checked_mapping(name: str, value: Any) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise OptionError(f"expected {name} as a mapping of names to values, got {value!r}")
    return None if value is None else dict(value)


@register
@dataclass(frozen=True, kw_only=True)
class Rdumb(Method):
    """Resets a method before it can go wrong (Press et al., NeurIPS 2023).

    The method `base` adapts; before a batch that follows `every` samples since the last reset, weights,
    statistics, optimiser and memory go back to their start. Of continual methods none did better on streams
    of millions of samples. The cost is the base's.

    Args:
        base: the name of the method that adapts.
        every: samples between resets. The authors' 1000 batches of 64 are the default.
        options: those of the base; None: its defaults.
        seed: of the base's random numbers, if it draws any and `options` has no seed.

    Deviations: the authors count batches, so that their period depends on the batch size. The temperature
    of `tempering` and random numbers go on over a reset.
    """

    name = "rdumb"

    base: str = "eta"
    every: int = option(64_000, low=1)
    options: Mapping[str, Any] | None = checked_by(_checked_mapping, None)
    seed: int = option(0, low=0, high=2**63 - 1)

    counters: ClassVar[Any] = property(lambda self: {**self.inner.counters, _SEEN: None})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "options", option_values(self.inner))

    def __hash__(self) -> int:
        return hash((self.base, self.every, repr(self.options)))

    @cached_property
    def inner(self) -> Method:
        """The method of the base."""
        kind, given = method_class(self.base), dict(self.options or {})
        if kind is type(self):
            raise OptionError("expected base as the name of another method, got 'rdumb'")
        known = [field.name for field in fields(kind)]
        if unknown := sorted(set(given) - set(known)):
            raise UnknownOptionError(
                f"{self.base} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}"
            )
        return kind(**({"seed": self.seed} if "seed" in known else {}) | given)

    def step(self, context: Context) -> Update:
        """Answer and learn as the base does."""
        return self.inner.step(context)

    def plan(self, context: Context) -> Plan:
        """Start again when it is time, else plan as the base does."""
        seen = int(context.counts[_SEEN])
        if seen >= self.every:
            return Plan(reset_first=True)
        plan = self.inner.plan(context)
        return plan._replace(counts={**plan.counts, _SEEN: seen + context.student.all_rows(context.batch)})


class _OfInner:
    """An attribute of a method that is the inner method's."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, method: Rdumb | None, _owner: type[Rdumb]) -> Any:
        return getattr(Method if method is None else method.inner, self.name)


for _name in vars(Method).keys() - vars(Rdumb).keys():  # what the contract has besides: facts and functions
    if not _name.startswith("_"):
        setattr(Rdumb, _name, _OfInner(_name))
