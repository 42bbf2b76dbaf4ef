"""Reads what `run.py` wrote."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.cases import METHODS
from benchmarks.speed.flat_csv import read_lines

BASES = ("plain", "reference", "tent")
MIB = 2**20
Row = Sequence[str]


class Lines:
    """The measured cells of one machine."""

    def __init__(self, path: Path) -> None:
        found = read_lines(path)
        self.machines = [line for line in found if line.get("kind") == "machine"]
        # Of a cell that was measured again, the last.
        self.cells = list({str(line["cell"]): line for line in found if "cell" in line}.values())

    def of(self, kind: str, **where: Any) -> list[dict[str, Any]]:
        """Cells of a kind that were measured, and match."""
        return [line for line in self.asked(kind, **where) if not {"skipped", "failed"} & line.keys()]

    def asked(self, kind: str, **where: Any) -> list[dict[str, Any]]:
        """Cells of a kind that match, measured or not."""
        return [
            line
            for line in self.cells
            if line["cell"]["kind"] == kind and all(line["cell"][key] == each for key, each in where.items())
        ]

    def one(self, kind: str, **where: Any) -> dict[str, Any] | None:
        """The cell that matches, if it was measured."""
        return next(iter(self.of(kind, **where)), None)

    @property
    def device(self) -> str:
        """What it ran on, in words."""
        last = self.machines[-1]
        where = f"{last['threads']} CPU cores ({last['name']})" if last["device"] == "cpu" else last["name"]
        return f"{where}, torch {last['torch']}, Python {last['python']}"

    @property
    def engine(self) -> str:
        """The engine that the goals are about: what a user gets on this device, in float32."""
        return "graph" if self.machines[-1]["device"] == "cuda" else "auto"

    @property
    def commands(self) -> str:
        """The commands that made the lines, each once."""
        return "\n".join(f"    {each}" for each in dict.fromkeys(line["command"] for line in self.machines))


def variant(line: dict[str, Any], name: str) -> dict[str, Any] | None:
    """What a cell has of a variant that ran."""
    found: dict[str, Any] = line["variants"].get(name, {})
    return found if "ms" in found else None


def over(line: dict[str, Any] | None, name: str, base: str = "reference") -> float | None:
    """How much longer a variant takes than another of the same rounds."""
    found = None if line is None else variant(line, name)
    return None if found is None or base not in found["over"] else float(found["over"][base][0])


def label(cell: dict[str, Any]) -> str:
    """A cell in words."""
    return f"{cell['method']}, {cell['backbone']}, batch {cell['batch']}"


def ordered(names: Iterable[str]) -> list[str]:
    """Methods in the order of the tables."""
    wanted = set(names)
    return [name for name in METHODS if name in wanted]


def table(head: Row, rows: Iterable[Row]) -> str:
    """A table in Markdown; empty where it has no rows."""
    listed = list(rows)
    if not listed:
        return ""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in listed])
