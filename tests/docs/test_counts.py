"""The number of methods: a page that tells it says what the registry says.

"26 methods" and "all 26", on a line about methods, are claims about the library. Where a page means others,
it says so in other words: "nine of the methods", "28 methods and variants", "11 methods that learn".
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import equipoise as eq
from tests.docs.pages import DOCS

UNITS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEENS = (
    "ten",
    "eleven",
    "twelve",
    *(f"{unit}teen" for unit in ("thir", "four", "fif", "six", "seven", "eigh", "nine")),
)
TENS = {"twenty": 20, "thirty": 30}
NUMBERS = {
    **{word: at for at, word in enumerate((*UNITS, *TEENS), start=1)},
    **TENS,
    **{f"{ten}-{unit}": value + at for ten, value in TENS.items() for at, unit in enumerate(UNITS, start=1)},
}
NUMBER = "|".join([r"\d+", *sorted(NUMBERS, key=len, reverse=True)])
COUNTED = re.compile(rf"(?<![\w.,-])({NUMBER})\s+methods\b(?!\s+and\s+variants|\s+that)", re.IGNORECASE)
ALL = re.compile(rf"\ball\s+({NUMBER})\b(?!\s+of\b|[.,]\d)", re.IGNORECASE)
FEW = 4
"""A comparison of so many methods claims nothing: "two methods are compared"."""
ROOT = DOCS.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])


def claims(text: str) -> Iterator[tuple[str, int]]:
    """What a text says of the number of methods, and the number; "26 methods" may go over two lines."""
    found = list(COUNTED.finditer(text))
    for line in text.splitlines():
        found += ALL.finditer(line) if "method" in line.lower() else ()
    for claim in found:
        word = claim[1].lower()
        number = int(word) if word.isdigit() else NUMBERS[word]
        if number > FEW:
            yield claim[0], number


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_the_number_of_methods_of_the_registry(page: Path) -> None:
    count = len(eq.list_methods())
    wrong = [words for words, number in claims(page.read_text(encoding="utf-8")) if number != count]
    assert not wrong, f"there are {count} methods; where {page.name} means others, say so: {wrong}"


def test_claims_are_found_in_words_digits_and_over_lines() -> None:
    page = (
        "Nine methods keep it. Here are 25\nmethods.\nThe methods: all twenty-six, and all 25 side by side.\n"
        "Nine of the methods, 28 methods and variants, 11 methods that learn, two methods.\n"
        "In all 9 of 60 runs of a method.\nIt takes all five.\nA method, for all 9,991."
    )
    assert [number for _, number in claims(page)] == [9, 25, 26, 25]
