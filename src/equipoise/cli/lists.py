"""Options that take several values: `--seeds 0 1 2`, `--seeds 0,1,2` or the option given again."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperOption


class TakesLists(TyperCommand):
    """A command whose repeatable options take all the values that follow, until the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write every value of a list after its own option, as click wants it."""
        lists = {
            name
            for option in self.params
            if isinstance(option, TyperOption) and option.multiple
            for name in option.opts
        }
        spread: list[str] = []
        current = None
        for at, token in enumerate(args):
            if token.startswith("-") and not token[1:].isdigit():
                name, _, value = token.partition("=")
                current = name if name in lists else None
                if current is None:
                    spread.append(token)
                elif value:
                    spread += _after(name, value)
                elif at + 1 == len(args) or args[at + 1].startswith("--"):
                    raise typer.BadParameter("expected at least one value", param_hint=token)
            elif current is not None:
                spread += _after(current, token)
            else:
                spread.append(token)
        return super().parse_args(ctx, spread)


def _after(option: str, values: str) -> list[Any]:
    split = [value for value in values.split(",") if value]
    if not split:
        raise typer.BadParameter("expected at least one value", param_hint=option)
    return [word for value in split for word in (option, value)]
