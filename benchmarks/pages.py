"""Pages of the documentation: numbers and tables in Markdown, and the regions of a page that programs fill.

A page is written by hand, except for its regions. A region stands between two comments:

    <!-- goals, by benchmarks.results.page -->

    | goal | reached | missed at |

    <!-- end of goals -->

Numbers in sentences are checked by tests/benchmarks/test_pages.py.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import indent

from equipoise.files import whole_file

DOCS = Path(__file__).parents[1] / "docs"
_REGION = re.compile(
    r"^(?P<begin>(?P<margin> *)<!-- (?P<name>\w+), by benchmarks\.[\w.]+ -->\n)"
    r".*?^(?P<end> *<!-- end of (?P=name) -->)$",
    re.MULTILINE | re.DOTALL,
)


def told(value: float | None, digits: int = 3) -> str:
    """Write a number without the leading zero of a share: ".031"; a dash for None and NaN."""
    if value is None or value != value:
        return "-"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def signed(value: float) -> str:
    """Write a difference with its sign: "+.014"."""
    text = told(abs(value))
    return f"{'-' if value < 0 and float(text) else '+'}{text}"


def percent(share: float) -> str:
    """Write a share as a whole percentage: "73 %"."""
    return f"{100 * share:.0f} %"


def ends(values: Sequence[float], digits: int = 3) -> str:
    """Write the least and the largest number: ".069 to .073"; one number where both are written alike."""
    return " to ".join(dict.fromkeys(told(end, digits) for end in (min(values), max(values))))


def plain(name: object) -> str:
    """Write the name of a domain or a shift in words: "gaussian noise, tier 3"."""
    return str(name).replace("_", " ").replace("/", ", tier ")


def mark(reached: bool) -> str:
    """The sign of a goal that is reached or missed."""
    return "✓" if reached else "✗"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, narrow: bool = False) -> str:
    """A table; the rule under the head of a narrow one has no blanks."""
    rule = f"|{'---|' * len(head)}" if narrow else f"| {' | '.join(['---'] * len(head))} |"
    return "\n".join([_row(head), rule, *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def filled(text: str, parts: Mapping[str, str]) -> str:
    """A page with the content of its regions, each indented as its comments are.

    Raises:
        ValueError: the page lacks a region, or has one that is not among the parts.
    """
    regions = sorted(found["name"] for found in _REGION.finditer(text))
    if regions != sorted(parts):
        raise ValueError(f"expected the page to have the regions {sorted(parts)}, got {regions}")

    def region(found: re.Match[str]) -> str:
        content = indent(parts[found["name"]], found["margin"])
        return f"{found['begin']}\n{content}\n\n{found['end']}"

    return _REGION.sub(region, text)


def fill(page: str, parts: Mapping[str, str]) -> None:
    """Fill the regions of a page of docs/."""
    write(DOCS / page, filled((DOCS / page).read_text(encoding="utf-8"), parts))


def write(path: Path, text: str) -> None:
    """Write a file, or leave it as it was."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")
