"""The demo's page as a reader sees it: the story without scrolling, in a window and on a phone."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from playwright.sync_api import Browser

from equipoise.research.report.results import read_results
from equipoise.research.report.story import story_page, tell
from tests.browser.opened import Scheme, opened
from tests.research.report.written import folder, traced_lines

pytestmark = pytest.mark.browser

WINDOW, PHONE = 1200, 390


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("story")
    story = tell(read_results(folder(path, traced_lines())).frame)
    frames = [np.full((32, 32), 12 * place, dtype=np.uint8) for place in range(20)]
    (path / "index.html").write_text(story_page(story, frames, "facts of the run"), encoding="utf-8")
    return path / "index.html"


@pytest.mark.parametrize("scheme", get_args(Scheme))
@pytest.mark.parametrize("width", [WINDOW, PHONE])
def test_the_sentence_and_the_picture_are_seen_without_scrolling(
    browser: Browser, page: Path, width: int, scheme: Scheme
) -> None:
    with opened(browser, page, width, scheme) as made:
        picture = made.page.locator(".wide svg" if width == WINDOW else ".narrow svg")
        for wanted in (made.page.locator("h1"), picture):
            box = wanted.bounding_box()
            assert box is not None
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= 900
            assert box["x"] + box["width"] <= width
        assert made.errors == []
        assert made.requests == []
        assert made.overflow() <= 0
        assert {name: value for name, value in made.contrasts().items() if value < 4.5} == {}


def test_on_a_phone_every_number_of_the_tables_is_seen_without_scrolling(
    browser: Browser, page: Path
) -> None:
    with opened(browser, page, PHONE, "light") as made:
        for table in made.page.locator(".table").all():
            assert table.evaluate("box => box.scrollWidth - box.clientWidth") <= 0


@pytest.mark.parametrize("width", [WINDOW, PHONE])
def test_texts_of_the_pictures_are_readable_and_do_not_overlap(
    browser: Browser, page: Path, width: int
) -> None:
    with opened(browser, page, width, "light") as made:
        hidden = ".narrow" if width == WINDOW else ".wide"
        made.page.evaluate(f"document.querySelectorAll('{hidden}').forEach(each => each.remove())")
        assert made.crowded() == []
