"""An extension of griffe, which reads signatures: options of methods with their default alone."""

from typing import Any

import griffe

PLACE = {"option": 0, "choice": 0, "flag": 0, "checked_by": 1}
"""Where the functions of equipoise.options take the default."""


class OptionDefaults(griffe.Extension):
    """Shows `norm_momentum: float = 0.1` for a field `option(0.1, low=0, high=1)`."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Replace the call that makes a field by its default."""
        call = attr.value
        if isinstance(call, griffe.ExprCall) and str(call.function) in PLACE:
            attr.value = call.arguments[PLACE[str(call.function)]]
