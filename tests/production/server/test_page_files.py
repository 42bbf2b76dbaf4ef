"""The files of the live page: served as they are, with headers that allow nothing from elsewhere."""

import hashlib
import re
from importlib.resources import files

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from equipoise.production.server import page
from equipoise.production.server.page import ADDRESSES, page_routes

UPLOT = {
    "uplot/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot/LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""SHA-256 of the files of uPlot 1.6.32."""


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(Starlette(routes=page_routes()))


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_file_comes_with_its_type_and_a_strict_policy(client: TestClient, address: str) -> None:
    response = client.get(address)
    assert response.status_code == 200
    assert response.content == files(page).joinpath(ADDRESSES[address]).read_bytes()
    kind = {"/": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert response.headers["content-type"].startswith(kind[address.rpartition(".")[2]])
    policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert response.headers["x-content-type-options"] == "nosniff"


def test_other_files_of_the_package_are_not_served(client: TestClient) -> None:
    for address in (
        "/page/__init__.py",
        "/page/LICENSE",
        "/page/../interface.py",
        "/page/%2e%2e/interface.py",
    ):
        assert client.get(address).status_code == 404


def test_uplot_is_the_published_file() -> None:
    for name, digest in UPLOT.items():
        assert hashlib.sha256(files(page).joinpath(name).read_bytes()).hexdigest() == digest, name
    assert "1.6.32" in files(page).joinpath("uplot/README.md").read_text()


def test_the_page_asks_for_nothing_that_is_not_served() -> None:
    index = files(page).joinpath("index.html").read_text()
    asked = re.findall(r'(?:src|href)="([^"]*)"', index)
    scripts = [name for name in ADDRESSES.values() if name.endswith(".js") and "/" not in name]
    for name in scripts:
        imported = re.findall(r'from "\./([^"]*)"', files(page).joinpath(name).read_text())
        asked += [f"page/{each}" for each in imported]
    assert asked
    assert {f"/{each}" for each in asked} | {"/"} == set(ADDRESSES)


def test_texts_are_never_parsed_as_html() -> None:
    for name in ("page.js", "stream.js", "curves.js", "words.js"):
        text = files(page).joinpath(name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), name
