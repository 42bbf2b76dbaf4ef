"""Nested measurements in a CSV file: a row for each, a column for each number, named by its path."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from equipoise.files import whole_file

Line = dict[str, Any]


def write_lines(path: Path, lines: Sequence[Line]) -> None:
    """Write all lines: {"ms": {"step": [1.5, 2.0]}} has the columns ms.step.0 and ms.step.1."""
    rows = [{".".join(place): _text(value) for place, value in _leaves(line)} for line in lines]
    with whole_file(path) as partial:
        pd.DataFrame(rows).to_csv(partial, index=False)


def read_lines(path: Path) -> list[Line]:
    """The lines that `write_lines` wrote, none if there is no file; an empty cell is left out of its line."""
    if not path.exists():
        return []
    rows = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    return [_nested({str(name): text for name, text in row.items() if text}) for row in rows]


def _leaves(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, (dict, list)) and value:
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(each, (*place, str(name)))
    else:
        yield place, value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _nested(flat: dict[str, str]) -> Line:
    tree: Line = {}
    for name, text in flat.items():
        *above, last = name.split(".")
        inner = tree
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = _value(text)
    return {name: _with_lists(value) for name, value in tree.items()}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_lists(value: Any) -> Any:
    """Dictionaries with the keys 0, 1, … as lists."""
    if not isinstance(value, dict):
        return value
    made = {name: _with_lists(each) for name, each in value.items()}
    return list(made.values()) if made and all(name.isdigit() for name in made) else made
