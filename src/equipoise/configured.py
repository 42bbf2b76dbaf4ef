"""Objects that remember the options they were made with, so that a file can make them again."""

import inspect
from typing import Any, ClassVar, TypeVar

from equipoise.errors import UnknownOptionError

_Self = TypeVar("_Self", bound="Configured")


class Configured:
    """A class whose options are the keyword-only arguments of its constructor.

    A constructor that takes `**shared` has the options of its base class too; `help` and notebooks show them
    all in one signature.
    """

    name: ClassVar[str]
    options: dict[str, Any]
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show every option in the signature of the class."""
        super().__init_subclass__(**kwargs)
        _, *own = inspect.signature(cls.__init__).parameters.values()
        positional = [parameter for parameter in own if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        cls.__signature__ = inspect.Signature([*positional, *cls._option_parameters().values()])

    def __new__(cls: type[_Self], *_args: Any, **options: Any) -> _Self:
        """Note the options as given."""
        known = cls.known_options()
        unknown = sorted(set(options) - set(cls.__signature__.parameters))
        if unknown:
            raise UnknownOptionError(
                f"{cls.name} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}"
            )
        self = super().__new__(cls)
        given = {name: value for name, value in options.items() if name in known}
        object.__setattr__(self, "options", {**known, **given})
        return self

    @classmethod
    def known_options(cls) -> dict[str, Any]:
        """The options of the class with their defaults, its own before those of its bases."""
        return {name: parameter.default for name, parameter in cls._option_parameters().items()}

    @classmethod
    def _option_parameters(cls) -> dict[str, inspect.Parameter]:
        options: dict[str, inspect.Parameter] = {}
        for base in cls.__mro__:
            if "__init__" not in vars(base):
                continue
            parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())
            for parameter in parameters:
                if parameter.kind is parameter.KEYWORD_ONLY:
                    options.setdefault(parameter.name, parameter)
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
                break
        return options

    def resolve(self, **values: Any) -> None:
        """Note what the options came to, as plain numbers, names and lists, for the state file."""
        self.options.update({name: value for name, value in values.items() if name in self.options})
