"""The documentation site in a real browser: nothing from elsewhere, nothing too wide, a picture at once."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
PAGES = ("", "tutorial/", "methods/", "reference/adapters/")


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Print nothing about a request."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def opened(
    browser: Browser, address: str, width: int, scheme: Literal["light", "dark"]
) -> tuple[Page, list[str]]:
    """A page, and the addresses that it asked for."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address, wait_until="networkidle")
    return page, asked


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_and_asks_nobody_else(browser: Browser, site: str, path: str, width: int) -> None:
    page, asked = opened(browser, site + path, width, "light")
    assert not [address for address in asked if not address.startswith((site, "data:", "blob:"))]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_is_on_the_first_screen(
    browser: Browser, site: str, scheme: Literal["light", "dark"]
) -> None:
    page, _ = opened(browser, site, 1200, scheme)
    seen = [image for image in page.locator(".side-by-side img").all() if image.is_visible()]
    assert [image.get_attribute("src") for image in seen] == [
        f"assets/{name}-{scheme}.svg#only-{scheme}" for name in ("plain", "poise")
    ]
    for image in seen:
        assert image.evaluate("image => image.naturalWidth > 0 && image.getBoundingClientRect().bottom < 800")
    page.close()


def test_the_search_finds_a_name(browser: Browser, site: str) -> None:
    page, _ = opened(browser, site, 1200, "light")
    page.locator("input[name=query]").click()
    page.locator("input[name=query]").press_sequentially("rehearse")
    page.locator(".md-search-result__item a").first.wait_for()
    assert page.locator(".md-search-result__item a[href*=reference]").count() > 0
    page.close()
