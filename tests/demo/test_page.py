import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from equipoise.demo.page import page
from equipoise.demo.svg import nice_limit, reliability_diagram, spread
from tests.demo.handmade import DOMAINS, method, reliability, results

PIXEL = "data:image/png;base64,AAAA"
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
    rows = [method("no adaptation"), method("dec", ece=0.1), method("<script>x</script> & co", nll=0.5)]
    return page(results(*rows), dict.fromkeys(DOMAINS, PIXEL))


def test_tags_close_and_nothing_is_fetched(html: str) -> None:
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert tags.references == [PIXEL] * 3
    assert not tags.seen & {"script", "link", "iframe"}
    assert not re.search(r"@import|url\(|https?://", html)


def test_every_method_is_there_and_escaped(html: str) -> None:
    for label in ("no adaptation", "dec", "&lt;script&gt;x&lt;/script&gt; &amp; co"):
        assert f'<th scope="row">{label}</th>' in html
        assert f"<strong>{label}</strong>" in html
    assert "<script>" not in html


def test_numbers_are_numbers_and_the_best_is_marked(html: str) -> None:
    assert not re.search(r"\bnan\b", html, flags=re.IGNORECASE)
    assert "None" not in html
    assert "$" not in html
    assert '<td class="best">0.100</td>' in html
    assert '<td class="best">0.50</td>' in html


def test_the_protocol_is_said(html: str) -> None:
    assert "protocol: online" in html


def test_every_diagram_has_a_description(html: str) -> None:
    described = re.findall(r'<svg [^>]*role="img" aria-label="[^"]+"><title>[^<]+</title>', html)
    assert len(described) == html.count("<svg") == 3 + len(DOMAINS)


def test_bars_show_accuracy_and_the_gap_to_confidence() -> None:
    diagram = reliability_diagram(reliability([0, 4], [None, 0.9], [None, 0.5]), "dec")
    assert len(re.findall('class="bar"', diagram)) == 1
    assert 'class="bar" x="144.0" y="106.0" width="98.0" height="98.0"' in diagram
    assert 'class="over" x="144.0" y="27.6" width="98.0" height="78.4"' in diagram
    assert 'class="under"' in reliability_diagram(reliability([0, 4], [None, 0.5], [None, 0.9]), "dec")


def test_labels_keep_their_distance() -> None:
    moved = spread([10.0, 10.0, 11.0, 90.0], gap=16, low=5, high=95)
    assert all(after - before >= 16 for before, after in pairwise(moved))
    assert moved[0] >= 5
    assert moved[-1] <= 95
    assert spread([10.0, 50.0], gap=16, low=5, high=95) == [10.0, 50.0]


@pytest.mark.parametrize(("largest", "limit"), [(0.31, 0.4), (2.75, 3.0), (0.0, 1.0)])
def test_axes_end_above_the_largest_value(largest: float, limit: float) -> None:
    assert nice_limit(largest) == pytest.approx(limit)
