"""Progress of a run: live bars in a terminal, a line now and then elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

SECONDS_BETWEEN_LINES = 10.0


class RunProgress:
    """A bar for all cells of a run and one for the current stage; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rate]}"),  # of `made`; stages have none
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._cells = self._bars.add_task("cells", total=None, visible=False, rate="")
        self._stage = self._bars.add_task("", total=None, rate="")
        self._done, self._total, self._made = 0, 0, 0
        self._started = self._printed = time.monotonic()

    def __enter__(self) -> "RunProgress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._bars.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stage(self, description: str, total: int) -> None:
        """Start a stage of so many steps."""
        self._bars.reset(self._stage, total=total, description=description)
        if not self._console.is_terminal:
            self.say(description)

    def step(self, done: int, total: int) -> None:
        """Update the steps of the stage."""
        self._bars.update(self._stage, completed=done, total=total)

    def cells(self, done: int, total: int) -> None:
        """Set the number of all cells, and of those done before."""
        self._done, self._total, self._started = done, total, time.monotonic()
        self._bars.update(self._cells, total=total, completed=done, visible=True)

    def made(self, cells: int) -> None:
        """Add finished cells."""
        self._done, self._made = self._done + cells, self._made + cells
        self._bars.update(self._cells, completed=self._done, rate=self.rate())
        now = time.monotonic()
        if not self._console.is_terminal and now - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = now
            self.say(f"{self._done} of {self._total} cells, {self.rate()}")

    def rate(self) -> str:
        """Cells a minute in this run, trainings included, and the time left at that rate."""
        speed = self._made / max(time.monotonic() - self._started, 1e-9)
        left = int((self._total - self._done) / max(speed, 1e-9))
        return f"{speed * 60:.0f}/min, {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
