"""The page and its Markdown: everything is there, nothing is fetched, nothing is run."""

import re
from html.parser import HTMLParser

import pytest

from equipoise.research.report.page import failures, report_markdown, report_page
from equipoise.research.report.results import Results
from tests.research.report.written import line, made, sweep, swept

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Checked(HTMLParser):
    """Checks that tags close in the order in which they open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def results() -> Results:
    hostile = "<script>alert(1)</script>"
    labels = ("source", "tent", "dec", "poise", hostile)
    lines, streams = sweep(seeds=(0, 1), labels=labels, targets=("photo", "sketch"))
    failed = made([line("sotta", error=f"{hostile} no memory", seed=seed) for seed in (0, 1)]).failures
    return swept((lines, streams), failures=failed, damaged=1)


@pytest.fixture(scope="module")
def page(results: Results) -> str:
    return report_page(results)


def test_the_page_is_sound_and_fetches_nothing(page: str) -> None:
    tags = Checked(page).tags
    assert "script" not in tags
    assert "link" not in tags
    assert not re.findall(r'(?:src|href)="(?!#)', page.replace("xlink:href", ""))
    assert "&lt;script&gt;" in page


def test_every_figure_and_table_is_there(page: str) -> None:
    for words in (
        "figure 1)",
        "figure 2)",
        "figure 3)",
        "Right as often as they say?",
        "beside the paper",
        "Paired tests",
        "Each domain and tier",
        "Variance from run to run",
        "the number of cases that improve",
        "Methods, batch sizes and options",
        "2 cells failed",
        "1 line that could not be read",
        "Without adaptation",
    ):
        assert words in page, words
    described = re.findall(r'<svg[^>]*aria-label="([^"]*)"', page)
    assert sum(each.startswith("reliability of") for each in described) == 5 * 6 + 1
    for tempering in ("mean of τ", "median of τ", "each image", "agreement", "rehearsed", "fixed τ"):
        assert any(each.startswith(f"entropy against ECE, {tempering}") for each in described), tempering


def test_the_overview_has_no_adaptation_and_the_best(page: str) -> None:
    overview = page[page.index('aria-label="Overview"') : page.index("<nav")]
    assert "PACS, EfficientNetB0, online" in overview
    assert "No adaptation" in overview
    assert overview.count('class="best"') == 2


def test_markdown_has_everything_in_words_and_tables(results: Results) -> None:
    text = report_markdown(results)
    assert text.startswith(
        "# Results\n\n- PACS with EfficientNetB0 is not complete: 2 of 4 domains, 2 of 3 seeds."
    )
    assert "2 cells failed, the first is sotta (raw) on pacs" in text
    assert "### PACS, EfficientNetB0, online: dec against the best of the others" in text
    assert "<script>" not in text


def test_failures_alone_are_a_page() -> None:
    results = made([line(error="x")])
    assert "There is no result yet" in report_page(results)
    assert "1 cell failed" in report_markdown(results)
    assert list(failures(results.failures)) == [
        "1 cell failed, the first is source (raw) on pacs, efficientnet_b0, photo, online, seed 0: x"
    ]
