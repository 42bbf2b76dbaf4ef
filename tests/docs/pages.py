"""Pages with Python examples: reading them, running them, and writing their printed output.

An example is a ```python block. A ```text block right after it is its output, with numbers that may differ by
TOLERANCE from machine to machine. `python -m tests.docs.pages docs/tutorial.md` runs a page and writes the
outputs into it.
"""

import io
import re
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

DOCS = Path(__file__).parents[2] / "docs"
TOLERANCE = 0.06
_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"-?\d*\.?\d+(?:e-?\d+)?")


@dataclass(frozen=True)
class Example:
    """A block of code with its output, if the page has one, and the line where it starts."""

    code: str
    output: str | None
    line: int

    def run(self, page: Path, names: dict[str, Any]) -> str:
        """What the code prints; errors show the line of the page."""
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile("\n" * self.line + self.code, str(page), "exec"), names)
        return printed.getvalue()


def examples(page: Path) -> list[Example]:
    text = page.read_text()
    return [
        Example(found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in _EXAMPLE.finditer(text)
    ]


def alike(printed: str, expected: str) -> bool:
    """Whether two outputs have the same words and nearly the same numbers."""
    if _NUMBER.sub("#", printed).split() != _NUMBER.sub("#", expected).split():
        return False
    pairs = zip(_NUMBER.findall(printed), _NUMBER.findall(expected), strict=True)
    return all(abs(float(ours) - float(theirs)) <= TOLERANCE for ours, theirs in pairs)


def check_page(page: Path, names: dict[str, Any]) -> None:
    """Run the examples of a page in order, in one namespace."""
    found = examples(page)
    assert found, f"{page} has no examples"
    torch.manual_seed(0)
    for example in found:
        printed = example.run(page, names)
        if example.output is not None:
            where = f"{page}:{example.line}"
            assert alike(printed, example.output), f"{where} prints\n{printed}\nnot\n{example.output}"


def write_outputs(page: Path) -> None:
    """Run a page and put what its examples print into the ```text blocks that it has."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text, names = page.read_text(), {"__name__": "page"}
    printed = [example.run(page, names) for example in examples(page)]
    outputs = iter(printed)

    def replaced(found: re.Match[str]) -> str:
        output, block = next(outputs), found[0]
        return block if found[2] is None else block.replace(f"```text\n{found[2]}", f"```text\n{output}")

    page.write_text(_EXAMPLE.sub(replaced, text))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_outputs(Path(name))
