"""The errors equipoise raises, each also the built-in error that plain Python would have raised.

Every message has what was expected and what came. A batch, an option or a file that is refused has changed
nothing.
"""

import sys


class EquipoiseError(Exception):
    """Anything equipoise refuses to do."""


class OptionError(EquipoiseError, ValueError):
    """An option or argument is out of its range."""


class UnknownOptionError(OptionError, TypeError):
    """An option that the method does not have."""


class UnknownMethodError(OptionError, KeyError):
    """A method name that is not in the registry."""

    def __str__(self) -> str:
        """The message as it is: a KeyError would put it in quotes."""
        return str(self.args[0])


class BatchError(EquipoiseError, ValueError):
    """A batch that cannot be answered: empty, or with no batch dimension."""


class BatchTypeError(BatchError, TypeError):
    """A batch that is not tensors, that comes with labels, or that has no names where a metric needs them."""


class ModelError(EquipoiseError, ValueError):
    """A model that is no classifier, or lacks a part that the method needs."""


class SourceError(EquipoiseError, ValueError):
    """Source statistics that are missing or belong to another model."""


class RehearsalError(EquipoiseError, ValueError):
    """A rehearsal that cannot teach anything: labels, samples or shifts are missing or wrong."""


class RehearsalWarning(UserWarning):
    """A result of a rehearsal is missing, or doubtful for want of samples."""


class StateError(EquipoiseError, ValueError):
    """A state that cannot be read, or is of another method, version or model."""


class DataError(EquipoiseError, ValueError):
    """A data set that is not there, has another layout, or has files that cannot be read."""


class RecipeError(EquipoiseError, ValueError):
    """A recipe that asks for what there is not."""


class ConformanceError(EquipoiseError, AssertionError):
    """A method that breaks a promise of the contract."""


class ForgottenRequestError(EquipoiseError, LookupError):
    """A request that a monitor, or a sample that an adapter, was never given or no longer remembers."""


class MissingExtraError(EquipoiseError, ImportError):
    """An optional package that is not installed."""


class RankError(EquipoiseError, RuntimeError):
    """Processes that adapt as one are one no longer: a rank was lost, fell behind, failed or differs."""


def callers_level() -> int:
    """The `stacklevel` of the first caller outside of this package, whom a warning is for.

    PyTorch, which calls the forward of a module, is not taken for the caller.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("equipoise.", "torch.")
    ):
        level, frame = level + 1, frame.f_back
    return level
