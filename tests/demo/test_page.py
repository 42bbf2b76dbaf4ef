import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from equipoise.demo.page import page
from equipoise.demo.svg import Track, nice_limit, reliability_diagram, scatter_diagram, spread
from tests.demo.handmade import DOMAINS, dec, method, reliability, results

PIXEL = "data:image/png;base64,AAAA"
STRANGE = "<script>x</script> & co"
PAIRS = ("no adaptation", "dec", "dec (median)", "&lt;script&gt;x&lt;/script&gt; &amp; co")
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
        *dec(),
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
    assert html.count("<strong>tempered (mean)</strong>") == 1
    for mark in ("hollow", "filled"):
        assert html.count(f'<circle class="{mark}"') == len(PAIRS) * len(DOMAINS)
    cell = '<span class="number">0.200</span> <span class="after">→ <span class="number">0.300</span></span>'
    assert f"<td>{cell}</td>" in html


def test_a_method_has_one_colour_everywhere(html: str) -> None:
    for hue, times in (("hue-0", 1), ("hue-1", 2), ("hue-2", 1)):
        assert html.count(f'class="dot {hue}"') == times
        assert html.count(f'<g class="{hue}">') == times * len(DOMAINS)


def test_the_page_says_what_is_divided_by_and_which_options(html: str) -> None:
    assert "Tempered: divided by the median of tau over the batch; dec by the mean." in html
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


def test_bars_show_accuracy_and_the_gap_to_confidence() -> None:
    diagram = reliability_diagram(reliability([0, 4], [None, 0.9], [None, 0.5]), "dec")
    assert len(re.findall('class="bar"', diagram)) == 1
    assert 'class="bar" x="99.0" y="71.0" width="63.0" height="63.0"' in diagram
    assert 'class="over" x="99.0" y="20.6" width="63.0" height="50.4"' in diagram
    assert 'class="under"' in reliability_diagram(reliability([0, 4], [None, 0.5], [None, 0.9]), "dec")


def test_a_line_goes_from_a_hollow_point_to_a_filled_one() -> None:
    track = Track("tent", "hue-3", raw=(0.0, 0.5), tempered=(1.0, 0.0))
    diagram = scatter_diagram([track], "Held out: mnist", "entropy (bits)", "ECE", (2.0, 0.5))
    assert '<circle class="hollow" cx="40.0" cy="10.0"' in diagram
    assert '<circle class="filled" cx="131.0" cy="240.0"' in diagram
    assert '<line class="joined" x1="40.0" y1="10.0" x2="131.0" y2="240.0"/>' in diagram
    assert "tent from 0.00 / 0.500 to 1.00 / 0.000" in diagram


def test_labels_keep_their_distance() -> None:
    moved = spread([10.0, 10.0, 11.0, 90.0], gap=16, low=5, high=95)
    assert all(after - before >= 16 for before, after in pairwise(moved))
    assert moved[0] >= 5
    assert moved[-1] <= 95
    assert spread([10.0, 50.0], gap=16, low=5, high=95) == [10.0, 50.0]


@pytest.mark.parametrize(("largest", "limit"), [(0.31, 0.4), (2.75, 3.0), (0.0, 1.0)])
def test_axes_end_above_the_largest_value(largest: float, limit: float) -> None:
    assert nice_limit(largest) == pytest.approx(limit)
