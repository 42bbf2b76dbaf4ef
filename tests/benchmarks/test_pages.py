"""Pages of the documentation: tables are what programs write, sentences have the numbers of the results."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pytest

from benchmarks.decisions import decisions_page
from benchmarks.estimators import estimates_page
from benchmarks.guard import guard_page
from benchmarks.methods import methods_page
from benchmarks.monitoring import monitoring_page
from benchmarks.pages import DOCS, ends, filled, signed, table, told
from benchmarks.readme import readme_page
from benchmarks.rehearsal import rehearsal_page
from benchmarks.results import choosing
from benchmarks.results import page as results_page
from benchmarks.serving import load_table
from benchmarks.speed import performance
from benchmarks.streams import streams_page, which_method
from benchmarks.tables import tables_page
from tests.benchmarks import sentences_of_pages, sentences_of_results, sentences_of_streams

REGIONS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "../README.md": readme_page.parts,
    "concepts/choosing.md": which_method.parts,
    tables_page.PAGE: tables_page.parts,
    "decisions.md": decisions_page.parts,
    "methods.md": methods_page.parts,
    "serving.md": load_table.parts,
    **{page: partial(choosing.parts, page) for page in choosing.PAGES},
    **{page: partial(estimates_page.parts, page) for page in estimates_page.PAGES},
    **{page: partial(guard_page.parts, page) for page in guard_page.PAGES},
    **{page: partial(monitoring_page.parts, page) for page in monitoring_page.PAGES},
    **{page: partial(results_page.parts, page) for page in results_page.PAGES},
    **{page: partial(rehearsal_page.parts, page) for page in rehearsal_page.PAGES},
    **{page: partial(performance.parts, page) for page in performance.PAGES},
    **{page: partial(streams_page.parts, page) for page in streams_page.PAGES},
}
SENTENCES: Mapping[str, Callable[[], Iterator[str]]] = {
    "../README.md": sentences_of_pages.readme,
    "choosing-poise.md": sentences_of_pages.choosing_poise,
    "concepts/choosing.md": sentences_of_pages.choosing,
    "concepts/limits.md": sentences_of_pages.limits,
    "decisions.md": sentences_of_pages.decisions,
    "estimates.md": sentences_of_pages.estimates,
    "guard.md": sentences_of_pages.guard,
    "how-to/tables.md": sentences_of_pages.tables,
    "monitoring.md": sentences_of_pages.monitoring,
    "performance.md": sentences_of_pages.performance,
    "rehearsal.md": sentences_of_pages.rehearsal,
    "serving.md": sentences_of_pages.serving,
    "tables/estimates.md": sentences_of_pages.all_estimates,
    "tables/monitoring-alarms.md": sentences_of_pages.alarms,
    **{page: partial(sentences_of_results.sentences, page) for page in sentences_of_results.SENTENCES},
    **{page: partial(sentences_of_streams.sentences, page) for page in sentences_of_streams.SENTENCES},
}


@pytest.mark.parametrize("page", REGIONS)
def test_the_regions_of_a_page_are_what_its_program_writes(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert filled(text, REGIONS[page]()) == text, f"run the program that the comments of {page} name"


@pytest.mark.parametrize("page", SENTENCES)
def test_the_sentences_of_a_page_have_the_numbers_of_the_results(page: str) -> None:
    """Three dots stand for any words without a digit; a number at an end is a whole number."""
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    patterns = {each: re.escape(each).replace("…", "[^0-9]*?") for each in SENTENCES[page]()}
    whole = r"(?<![0-9.]){}(?!\.?[0-9])"
    stale = [each for each, pattern in patterns.items() if not re.search(whole.format(pattern), text)]
    assert not stale, "correct the page; the results say:\n" + "\n".join(stale)


@pytest.mark.parametrize(
    ("value", "words"), [(0.0312, "+.031"), (-0.0204, "-.020"), (-0.0001, "+.000"), (1.5, "+1.500")]
)
def test_differences_have_a_sign(value: float, words: str) -> None:
    assert signed(value) == words


def test_shares_have_no_leading_zero() -> None:
    written = [told(each) for each in (0.5, 10.5, -0.25, None, float("nan"))]
    assert written == [".500", "10.500", "-.250", "-", "-"]
    assert (ends([0.2, 0.1]), ends([0.1, 0.1001]), ends([8.06], 1)) == (".100 to .200", ".100", "8.1")


def test_a_region_is_filled_and_indented_as_its_comments() -> None:
    page = "a\n\n    <!-- costs, by benchmarks.methods.page -->\nold\n    <!-- end of costs -->\n\nb\n"
    made = filled(page, {"costs": table(["x"], [["1"]])})
    assert made == page.replace("old", "\n    | x |\n    | --- |\n    | 1 |\n")
    for parts in ({}, {"costs": "", "options": ""}):
        with pytest.raises(ValueError, match="expected the page to have the regions"):
            filled(page, parts)
