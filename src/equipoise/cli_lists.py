"""Options that take several values: `--seeds 0 1 2`, `--seeds 0,1,2` or the option given again."""

from typing import Any

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
                elif at + 1 == len(args) or args[at + 1].startswith("-"):
                    spread.append(token)  # no value: click says so
            elif current is not None:
                spread += _after(current, token)
            else:
                spread.append(token)
        return super().parse_args(ctx, spread)


def _after(option: str, values: str) -> list[Any]:
    return [word for value in values.split(",") if value for word in (option, value)]
