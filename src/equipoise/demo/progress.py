"""Say what the demo is doing: bars in a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Stages:
    """A run made of named stages, of which one is under way at a time.

    Use it as a context manager; the bars are gone when it ends, so that the results stand alone.
    """

    def __init__(self, console: Console, stages: int) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("whole demo", total=stages)

    def __enter__(self) -> "Stages":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @contextmanager
    def stage(self, description: str, steps: int = 1) -> Iterator[Callable[[], None]]:
        """Show one stage; call what it gives once for every finished step."""
        if not self._console.is_terminal:
            self._console.print(description, highlight=False, markup=False)
        task = self._bars.add_task(description, total=steps)
        yield lambda: self._bars.advance(task)
        self._bars.remove_task(task)
        self._bars.advance(self._all)
