import re
from html.parser import HTMLParser

import pytest

from equipoise.demo.page import page
from tests.demo.handmade import DOMAINS, method, poise, results

PIXEL = "data:image/png;base64,AAAA"
STRANGE = "<script>x</script> & co"
PAIRS = ("no adaptation", "poise", "poise (median)", "&lt;script&gt;x&lt;/script&gt; &amp; co")
VOID = {"meta", "img", "br", "link", "input"}


class Tags(HTMLParser):
    """Checks that tags close in order, and collects what the page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.references += [value or "" for name, value in attrs if name in {"src", "href", "srcset"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def html() -> str:
    rows = [
        method("no adaptation"),
        method("no adaptation", "median", ece=0.3),
        *poise(),
        method(STRANGE, options={"epsilon": 0.4}),
        method(STRANGE, "median", nll=0.5),
    ]
    return page(results(*rows), dict.fromkeys(DOMAINS, PIXEL))


def test_tags_close_and_nothing_is_fetched(html: str) -> None:
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert tags.references == [PIXEL] * 3
    assert not tags.seen & {"script", "link", "iframe"}
    assert not re.search(r"@import|url\(|https?://", html)


def test_every_method_is_there_and_escaped(html: str) -> None:
    for label in PAIRS:
        assert html.count(f'<th scope="row">{label}</th>') == 1 + len(DOMAINS)
        assert f"</span>{label}</strong>" in html
    assert "<script>" not in html


def test_a_method_is_shown_raw_and_tempered(html: str) -> None:
    assert html.count("<figcaption><strong>raw</strong>") == len(PAIRS)
    assert html.count("<strong>tempered (median)</strong>") == len(PAIRS) - 1
    assert html.count("<strong>tempered (rehearsed)</strong>") == 1
    for mark in ("hollow", "filled"):
        assert html.count(f'<circle class="{mark}"') == len(PAIRS) * len(DOMAINS)
    cell = '<span class="number">0.200</span> <span class="after">→ <span class="number">0.300</span></span>'
    assert f"<td>{cell}</td>" in html


def test_a_method_has_one_colour_everywhere(html: str) -> None:
    for hue, times in (("hue-0", 1), ("hue-1", 2), ("hue-2", 1)):
        assert html.count(f'class="dot {hue}"') == times
        assert html.count(f'<g class="{hue}">') == times * len(DOMAINS)


def test_the_page_says_what_is_divided_by_and_which_options(html: str) -> None:
    assert (
        "Tempered: divided by the median of tau over the batch; poise by the temperature of its rehearsal"
        in html
    )
    assert "co has epsilon=0.4" in html


def test_numbers_are_numbers_and_the_best_is_marked(html: str) -> None:
    assert not re.search(r"\bnan\b", html, flags=re.IGNORECASE)
    assert "None" not in html
    assert "$" not in html
    assert '<span class="number best">0.100</span>' in html
    assert '<span class="number best">0.50</span>' in html
    assert '<span class="number best">1.50</span>' not in html


def test_the_protocol_is_said(html: str) -> None:
    assert "protocol: online" in html


def test_every_diagram_has_a_description(html: str) -> None:
    described = re.findall(r'<svg [^>]*role="img" aria-label="[^"]+"><title>[^<]+</title>', html)
    assert len(described) == html.count("<svg") == 2 * len(PAIRS) + len(DOMAINS)


def test_the_page_tells_of_the_rehearsal_and_shows_the_estimates(html: str) -> None:
    assert "25 training images" in html
    assert "poise was rehearsed before the stream: on 15 labelled source images" in html
    estimate = "<td>0.500</td><td>0.550</td><td>0.450 to 0.650</td>"
    assert html.count(estimate) == 2
    assert '<th scope="row">rendered</th><td>0.500</td><td>0.750</td><td>0.600 to 0.900</td>' in html
    assert "the interval contains the true accuracy on 2 of 3 domains" in html
