"""The report as a reader sees it: in a window and on a phone, light and dark, and on paper."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from playwright.sync_api import Browser

from equipoise.research.report.page import report_page
from equipoise.research.report.results import Results
from tests.browser.opened import Opened, Scheme, opened
from tests.research.report.written import CORRUPTIONS, line, made, sweep, swept

pytestmark = pytest.mark.browser

WINDOW, PHONE = 1200, 390
CONTRAST = 4.5
"""What WCAG 2 asks for texts of ordinary size (level AA)."""


def report() -> Results:
    """A data set with tiers and one without, some missing, something failed."""
    lines, streams = sweep(seeds=(0, 1))
    some = [each for each in lines if (each["cell"]["label"], each["cell"]["target"]) != ("sotta", "sketch")]
    failed = made(line("sotta", target="sketch", seed=seed, error="out of memory " * 30) for seed in (0, 1))
    tiers = sweep(
        "tiny-imagenet-c",
        "mobilenet_v1",
        CORRUPTIONS,
        tiers=(1, 2, 3, 4, 5),
        seeds=(0,),
        labels=("source", "dec"),
        temperings=("none", "mean", "fixed"),
        epochs=25,
        input_size=256,
    )
    return swept((some, streams), tiers, failures=failed.failures)


def strange() -> Results:
    """A user's own data: many methods and domains with long names, one of them hostile."""
    domains = tuple(f"camera {index} at the end of the very long corridor" for index in range(12))
    longer = (f"dec-with-another-learning-rate-1e-{at}" for at in range(12))
    labels = ("source", "dec", "<script>alert(1)</script>", *longer)
    kinds = ("none", "median")
    mine = sweep("my_own_data_with_a_long_name", "net", domains, (None,), (0,), labels, kinds)
    return swept(mine)


PAGES: dict[str, Callable[[], Results]] = {"report": report, "strange": strange}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(report_page(make()), encoding="utf-8")
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
    assert view.requests == []


def test_the_document_is_no_wider_than_the_window(view: Opened) -> None:
    assert view.overflow() <= 0


def test_every_picture_can_be_seen_and_read(view: Opened) -> None:
    sizes = view.sizes("svg")
    assert len(sizes) > 5
    assert min(width for width, _ in sizes) > 80
    assert min(height for _, height in sizes) > 60
    assert view.crowded() == []


@pytest.mark.parametrize("scheme", get_args(Scheme))
def test_texts_stand_out_from_the_ground(browser: Browser, file: Path, scheme: Scheme) -> None:
    with opened(browser, file, WINDOW, scheme) as made:
        made.unfold()
        contrasts = made.contrasts()
        ground = made.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert len(contrasts) > 10
    assert {name: round(value, 2) for name, value in contrasts.items() if value < CONTRAST} == {}
    assert ground == {"light": "rgb(254, 254, 254)", "dark": "rgb(18, 22, 26)"}[scheme]


@pytest.mark.parametrize("scheme", get_args(Scheme))
@pytest.mark.parametrize("width", [WINDOW, PHONE])
def test_the_first_screen_has_the_numbers(
    browser: Browser, files: dict[str, Path], width: int, scheme: Scheme
) -> None:
    with opened(browser, files["report"], width, scheme) as made:
        overview = made.page.locator("[aria-label=Overview]")
        wanted = [
            made.page.locator("h1"),
            *(overview.locator("tbody tr").first.locator("td").nth(at) for at in (0, 2)),
        ]
        if width == WINDOW:
            wanted.append(overview.locator("tbody .best").first)
        for each in wanted:
            box = each.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= 900
            assert box["x"] + box["width"] <= width


def test_contents_lead_to_their_headings(browser: Browser, files: dict[str, Path]) -> None:
    with opened(browser, files["report"], WINDOW, "light") as made:
        links = made.page.locator("nav a")
        assert links.count() == 1 + 2
        for at in range(links.count()):
            made.page.evaluate("scrollTo(0, 0)")
            links.nth(at).click()
            target = made.page.evaluate("location.hash")
            top = made.page.locator(target).evaluate("each => each.getBoundingClientRect().top")
            assert -2 <= top <= 80


def test_a_wide_table_scrolls_in_its_box_and_its_labels_stay(
    browser: Browser, files: dict[str, Path]
) -> None:
    with opened(browser, files["report"], PHONE, "light") as made:
        box = made.page.locator(".tabled:not(details *) .table").first
        label, number = box.locator("tbody th").first, box.locator("tbody td").first
        before = [each.evaluate("each => each.getBoundingClientRect().left") for each in (label, number)]
        moved = box.evaluate("each => { each.scrollLeft = 80; return each.scrollLeft; }")
        after = [each.evaluate("each => each.getBoundingClientRect().left") for each in (label, number)]
        assert moved > 40
        assert after == pytest.approx([before[0], before[1] - moved], abs=1.5)
        shade = box.evaluate("each => getComputedStyle(each).backgroundImage")
        assert shade.count("linear-gradient") == 2  # a reader sees that there is more
        box.focus()
        made.page.keyboard.press("ArrowRight")
        made.page.wait_for_function("each => each.scrollLeft > 80", arg=box.element_handle())


def test_tables_of_all_temperings_fit_the_window(browser: Browser, files: dict[str, Path]) -> None:
    with opened(browser, files["report"], WINDOW, "light") as made:
        boxes = made.page.locator(".tabled:not(details *) .table").evaluate_all(
            "all => all.map(each => [each.querySelector('tbody tr').children.length,"
            " each.scrollWidth - each.clientWidth])"
        )
    beyond = {columns: over for columns, over in boxes if columns <= 9}  # the paper's tables by tier have 16
    assert 9 in beyond
    assert max(beyond.values()) <= 0


def test_without_a_chromium_the_reader_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.browser.conftest import chromium_path

    monkeypatch.setenv("CHROMIUM", "/nowhere/chromium")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        chromium_path()
    monkeypatch.delenv("CHROMIUM")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.fail.Exception, match=r"none of chromium.* is on the PATH"):
        chromium_path()
