"""The pages as a reader sees them: in a window and on a phone, light and dark, and on paper."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from equipoise.report.numbers.results import RunResults
from equipoise.report.page.page import report_page
from playwright.sync_api import Browser

from equipoise.demo.page import page as demo_page
from tests.browser.opened import Opened, Scheme, opened
from tests.demo import handmade
from tests.report import plausible
from tests.report.writer import line

pytestmark = pytest.mark.browser

WINDOW, PHONE = 1280, 390
CONTRAST = 4.5
"""What WCAG 2 asks for texts of ordinary size (level AA)."""


def report() -> RunResults:
    """A data set with tiers and one without, some missing, something failed."""
    lines, streams = plausible.sweep(seeds=(0, 1))
    some = [each for each in lines if (each["cell"]["label"], each["cell"]["target"]) != ("sotta", "sketch")]
    failed = tuple(line("sotta", target="sketch", seed=seed, error="out of memory " * 30) for seed in (0, 1))
    tiers = plausible.sweep(
        "tiny-imagenet-c",
        "mobilenet_v1",
        plausible.CORRUPTIONS,
        tiers=(1, 2, 3, 4, 5),
        seeds=(0,),
        labels=("source", "tent", "dec"),
        protocols=("online",),
        epochs=25,
        input_size=256,
    )
    return plausible.results((some, streams), tiers, failures=failed)


def strange() -> RunResults:
    """A user's own data: many methods and domains with long names, one of them hostile."""
    domains = tuple(
        f"camera {index} at the end of the very long corridor in the old building" for index in range(12)
    )
    labels = (
        "source",
        "dec",
        "<script>alert(1)</script>",
        *(f"dec-with-another-learning-rate-1e-{at}" for at in range(15)),
    )
    return plausible.results(
        plausible.sweep("my_own_data_set_with_a_long_name", "net", domains, (None,), (0,), labels)
    )


def demo() -> str:
    rows = [
        handmade.method("no adaptation"),
        handmade.method("no adaptation", "median", ece=0.3),
        *handmade.poise(),
    ]
    pixel = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
    return demo_page(handmade.results(*rows), dict.fromkeys(handmade.DOMAINS, pixel))


PAGES: dict[str, Callable[[], str]] = {
    "report": lambda: report_page(report()),
    "strange": lambda: report_page(strange()),
    "demo": demo,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(make(), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.fixture(scope="module", params=PAGES)
def file(request: pytest.FixtureRequest, files: dict[str, Path]) -> Path:
    return files[str(request.param)]


@pytest.fixture(scope="module", params=[WINDOW, PHONE])
def view(request: pytest.FixtureRequest, browser: Browser, file: Path) -> Iterator[Opened]:
    """Every page at both widths, everything unfolded."""
    with opened(browser, file, int(request.param), "light") as made:
        made.unfold()
        yield made


def test_a_page_is_quiet_and_fetches_nothing(view: Opened) -> None:
    assert view.errors == []
    assert [address for address in view.requests if not address.startswith("data:")] == []


def test_the_document_is_no_wider_than_the_window(view: Opened) -> None:
    assert view.overflow() <= 0


def test_every_picture_can_be_seen(view: Opened) -> None:
    sizes = view.sizes("svg")
    assert len(sizes) > 5
    assert min(width for width, _ in sizes) > 80
    assert min(height for _, height in sizes) > 60


def test_texts_in_pictures_can_be_read(view: Opened) -> None:
    assert view.crowded() == []
    smallest = view.page.locator("svg text").evaluate_all(
        "all => Math.min(...all.map(each => 11 * each.getScreenCTM().a || 99).filter(size => size > 1))"
    )
    assert smallest > 8.5


@pytest.mark.parametrize("scheme", get_args(Scheme))
def test_texts_stand_out_from_what_is_behind_them(browser: Browser, file: Path, scheme: Scheme) -> None:
    with opened(browser, file, WINDOW, scheme) as made:
        made.unfold()
        contrasts = made.contrasts()
    assert len(contrasts) > 10
    assert {name: round(value, 2) for name, value in contrasts.items() if value < CONTRAST} == {}


def test_dark_is_dark(browser: Browser, file: Path) -> None:
    grounds = []
    for scheme in get_args(Scheme):
        with opened(browser, file, PHONE, scheme) as made:
            grounds.append(made.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] == "rgb(255, 255, 255)"
    assert grounds[1] != grounds[0]


@pytest.fixture(scope="module", params=[WINDOW, PHONE])
def report_view(request: pytest.FixtureRequest, browser: Browser, files: dict[str, Path]) -> Iterator[Opened]:
    with opened(browser, files["report"], int(request.param), "light") as made:
        yield made


def test_contents_lead_to_their_headings(report_view: Opened) -> None:
    page = report_view.page
    links = page.locator("nav a")
    assert links.count() == 3 + 2 + 2
    for at in range(links.count()):
        page.evaluate("scrollTo(0, 0)")
        links.nth(at).click()
        target = page.evaluate("location.hash")
        top = page.locator(target).evaluate("each => each.getBoundingClientRect().top")
        at_end = page.evaluate("scrollY + innerHeight >= document.documentElement.scrollHeight - 2")
        assert at_end or -2 <= top <= 80


def test_row_labels_stay_while_a_table_scrolls(browser: Browser, files: dict[str, Path]) -> None:
    with opened(browser, files["report"], PHONE, "light") as made:
        box = made.page.locator(".wide:has(th[scope=colgroup])").first
        label, number = box.locator("tbody th").first, box.locator("tbody td").first
        title = box.locator("caption > div")
        parts = (label, number, title)
        before = [each.evaluate("each => each.getBoundingClientRect().left") for each in parts]
        moved = box.evaluate("each => { each.scrollLeft = 120; return each.scrollLeft; }")
        after = [each.evaluate("each => each.getBoundingClientRect().left") for each in parts]
        assert moved > 40
        assert after == pytest.approx([before[0], before[1] - moved, before[2]], abs=1)
        assert title.evaluate("each => each.getBoundingClientRect().right") <= PHONE


def test_a_wide_table_scrolls_by_keyboard(browser: Browser, files: dict[str, Path]) -> None:
    with opened(browser, files["report"], PHONE, "light") as made:
        box = made.page.locator(".wide:has(table.compared):has(th[scope=colgroup])").first
        box.focus()
        made.page.keyboard.press("ArrowRight")
        made.page.wait_for_function("each => each.scrollLeft > 0", arg=box.element_handle())


def beyond(made: Opened, columns: int, kind: str) -> list[float]:
    """By how many pixels tables of so many columns, not folded, are wider than their boxes."""
    boxes = made.page.locator(f".wide:not(details *):has({kind})").evaluate_all(
        "all => all.map(each => [each.querySelector('tbody tr').querySelectorAll('td').length,"
        " each.scrollWidth - each.clientWidth])"
    )
    return [over for cells, over in boxes if cells == columns]


def test_the_averages_fit_a_window_and_the_papers_a_phone(browser: Browser, files: dict[str, Path]) -> None:
    with opened(browser, files["report"], WINDOW, "light") as made:
        averages = beyond(made, 16, "table:not(.compared)")
        assert averages
        assert max(averages) <= 0
    with opened(browser, files["report"], PHONE, "light") as made:
        papers = beyond(made, 4, "table.compared")
        assert papers
        assert max(papers) <= 0


@pytest.mark.parametrize("scheme", get_args(Scheme))
def test_on_paper_everything_is_there_in_black_on_white(
    browser: Browser, files: dict[str, Path], scheme: Scheme
) -> None:
    with opened(browser, files["report"], 700, scheme) as made:  # about the width of A4 without its margins
        page = made.page
        assert not page.locator("details svg").first.evaluate("each => each.checkVisibility()")
        page.emulate_media(media="print", color_scheme=scheme)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
        assert not page.locator("nav").is_visible()
        folded = page.locator("details svg, details table")
        assert folded.count() > 10
        assert folded.evaluate_all("all => all.every(each => each.checkVisibility())")  # without a click
        widest = max(width for width, _ in made.sizes("table"))
        assert widest <= 700
        assert page.pdf(format="A4").startswith(b"%PDF")


def test_without_a_chromium_the_reader_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.browser.conftest import chromium_path

    monkeypatch.setenv("CHROMIUM", "/nowhere/chromium")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        chromium_path()
    monkeypatch.delenv("CHROMIUM")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.fail.Exception, match=r"none of chromium.* is on the PATH"):
        chromium_path()
