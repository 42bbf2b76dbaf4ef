"""The state of a guard in words."""

from collections.abc import Sequence

from equipoise.production.guard.decider import Watch
from equipoise.production.guard.events import Event


def status_text(watch: Watch, snapshots: Sequence[str], events: Sequence[Event], troubles: list[str]) -> str:
    """The state of a guard in a few lines of text.

    Args:
        watch: of the guard.
        snapshots: their names, oldest first.
        events: oldest first.
        troubles: of the disk, in words; empty ones are left out.
    """
    if not watch.held:
        mode = "learning"
    elif watch.until is None:
        mode = f"held until `release`: {watch.held}"
    else:
        mode = f"held until batch {watch.until}: {watch.held}"
    evidence = ", ".join(f"{name} {max(p.evidence, 0.0):.0%}" for name, p in watch.processes.items())
    count = len(snapshots)
    lines = [
        f"batch {watch.batch}: {mode}",
        f"evidence against the adapted model, of what an alarm takes: {evidence}",
        f"{count} snapshot{'' if count == 1 else 's'}"
        + (f", the newest {snapshots[-1]}" if snapshots else ""),
    ]
    lines += [f"last action: {events[-1]}"] if events else []
    return "\n".join([*lines, *filter(None, troubles)])
