"""The page of `equipoise estimate` as a reader sees it: in a window and on a phone, light and dark."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from playwright.sync_api import Browser

from equipoise.cli.estimate import By, Chunk, EstimatedChunk, EstimatedFile, KnownTruth, Use
from equipoise.cli.estimate_page import estimate_page
from tests.browser.opened import Opened, Scheme, opened
from tests.cli.estimated import report

pytestmark = pytest.mark.browser

WINDOW, PHONE = 1200, 390
CONTRAST = 4.5
"""What WCAG 2 asks for texts of ordinary size (level AA)."""


def estimates(by: By, chunks: list[Chunk], classes: tuple[str, ...], *, labels: int) -> EstimatedFile:
    """Chunks of 100 rows of falling accuracy, with some labels."""
    made = []
    for chunk, accuracy in zip(chunks, np.linspace(0.93, 0.05, len(chunks)).tolist(), strict=True):
        truth = KnownTruth(labels, accuracy / 2, accuracy / 3, accuracy) if labels else None
        told = report([0.5] * 100, accuracy, classes=len(classes))
        made.append(EstimatedChunk(chunk, told, 0.9, truth))
    reference = ("a folder/with the reference.csv", 2000)
    use: Use = "late" if labels else "none"
    return EstimatedFile(
        reference, ("stream.csv", 100 * len(chunks)), by, classes, 0.93, use, tuple(made), ()
    )


def hours() -> EstimatedFile:
    """A week of hours, with a gap of a day, late labels and two classes."""
    starts = [np.datetime64("2026-05-04T00", "h") + at for at in range(24 * 7) if not 30 <= at < 54]
    chunks = [
        Chunk(str(start).replace("T", " ") + ":00", f"{start}:00:00", f"{start + 1}:00:00", slice(0, 100))
        for start in starts
    ]
    return estimates("hour", chunks, ("no", "yes"), labels=12)


def rows() -> EstimatedFile:
    """A few chunks by count of many classes with long names, one of them hostile, and no labels."""
    ends = [0, 200_000, 400_000, 600_000, 612_345]
    chunks = [Chunk(f"{a + 1:,} to {b:,}", a + 1, b, slice(0, 100)) for a, b in pairwise(ends)]
    names = tuple(f"a class with a very long name indeed, number {at}" for at in range(30))
    return estimates(200_000, chunks, ("<script>alert(1)</script>", *names), labels=0)


def single() -> EstimatedFile:
    """One month."""
    chunk = Chunk("2026-05", "2026-05-01T00:00:00", "2026-06-01T00:00:00", slice(0, 100))
    return estimates("month", [chunk], ("a", "b", "c"), labels=100)


PAGES: dict[str, Callable[[], EstimatedFile]] = {"hours": hours, "rows": rows, "single": single}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(estimate_page(make(), 0.8), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.fixture(scope="module", params=PAGES)
def file(request: pytest.FixtureRequest, files: dict[str, Path]) -> Path:
    return files[str(request.param)]


@pytest.fixture(scope="module", params=[WINDOW, PHONE])
def view(request: pytest.FixtureRequest, browser: Browser, file: Path) -> Iterator[Opened]:
    width = int(request.param)
    with opened(browser, file, width, "light") as made:
        hidden = ".narrow" if width == WINDOW else ".wide"
        made.page.evaluate(f"document.querySelectorAll('{hidden}').forEach(each => each.remove())")
        yield made


def test_a_page_is_quiet_and_fetches_nothing(view: Opened) -> None:
    assert view.errors == []
    assert view.requests == []
    assert view.page.locator("script").count() == 0


def test_the_document_is_no_wider_than_the_window(view: Opened) -> None:
    assert view.overflow() <= 0


def test_every_picture_can_be_seen_and_read(view: Opened) -> None:
    sizes = view.sizes("svg")
    assert len(sizes) >= 4
    assert min(width for width, _ in sizes) > 200
    assert min(height for _, height in sizes) > 100
    assert view.crowded() == []


@pytest.mark.parametrize("scheme", get_args(Scheme))
@pytest.mark.parametrize("width", [WINDOW, PHONE])
def test_the_estimate_and_its_picture_are_on_the_first_screen(
    browser: Browser, file: Path, width: int, scheme: Scheme
) -> None:
    with opened(browser, file, width, scheme) as made:
        picture = made.page.locator(f"{'.wide' if width == WINDOW else '.narrow'} svg").first
        for wanted in (made.page.locator("h1"), picture):
            box = wanted.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= 900
            assert box["x"] + box["width"] <= width
        contrasts = made.contrasts()
    assert len(contrasts) > 10
    assert {name: round(value, 2) for name, value in contrasts.items() if value < CONTRAST} == {}


def test_a_time_without_rows_is_a_gap_in_the_curve(browser: Browser, files: dict[str, Path]) -> None:
    # The curve is a path of one move for each piece: the one before the gap, and the one after it.
    with opened(browser, files["hours"], WINDOW, "light") as made:
        assert made.page.locator("details").get_attribute("open") is None  # 144 chunks
        moves = made.page.locator(".wide svg").first.evaluate(
            "svg => [...svg.querySelectorAll('path')].filter(path => path.style.fill === 'none' &&"
            " path.style.strokeWidth === '2').map(path => path.getAttribute('d').match(/M/g).length)"
        )
    assert max(moves) == 2
