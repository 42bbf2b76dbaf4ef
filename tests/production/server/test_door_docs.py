"""docs/serving.md has every route, metric, limit and option of the door, with their defaults."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from equipoise.cli.app import app as cli
from equipoise.production.server.app import CONNECTIONS, create_app
from equipoise.production.server.limits import CONTROL_BYTES, DoorLimits, Limits
from equipoise.production.server.routes.endpoints import DECODED_AT_ONCE
from equipoise.production.server.stream_cache import WINDOW
from tests.production.server.door import FakeService, client_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def test_every_route_is_on_the_page() -> None:
    paths = create_app(FakeService()).openapi()["paths"]
    for path, methods in paths.items():
        for method in methods:
            assert f"{method.upper()} {path.replace('{name}', 'NAME')}" in PAGE


def test_every_metric_of_the_door_is_on_the_page() -> None:
    client = client_of(FakeService())
    client.post("/v1/predict", json={"inputs": [[1, 2]]})
    names = re.findall(r"^# TYPE (equipoise_\S+) ", client.get("/metrics").text, re.MULTILINE)
    gauges = {"equipoise_accuracy_low"}  # the monitor's, which has a page of its own
    assert len(names) > 5
    for name in {name for name in names if not name.endswith("_created")} - gauges:
        assert f"`{name}`" in PAGE


def test_the_limits_are_those_of_the_code() -> None:
    limits, door = Limits(), DoorLimits()
    rows = {
        "request": f"{door.request_bytes // 2**20} MiB",
        "request without inputs": f"{CONTROL_BYTES // 2**20} MiB",
        "image": f"{door.image_pixels:,} pixels (4096 × 4096)",  # noqa: RUF001
        "samples in a request": f"{limits.rows:,}",
        "requests that wait": f"{limits.waiting:,}",
        "time until the source model answers in place of the adapter": f"{limits.latency_ms:,.0f} ms",
        "streams, in memory and on disk": f"{limits.streams:,}",
        "streams in memory": f"{limits.resident:,}",
        "samples that wait": f"{limits.waiting_bytes // 2**30} GiB",
        "batches of a stream between two states on disk": f"{limits.save_every}",
        "time without a request until a stream goes to disk": f"{limits.idle_seconds:g} s",
        "batches of a stream in a row without learning, under load": f"{limits.unlearned}",
        "answers kept for labels, of all streams": f"{limits.remembered_bytes // 2**20} MiB",
        "samples in the window of the gauges, a stream": f"{WINDOW}",
        "connections": f"{CONNECTIONS:,}",
        "images and arrays decoded at once": f"{DECODED_AT_ONCE}",
    }
    for name, value in rows.items():
        assert f"| {name} | {value} |" in PAGE
    assert limits.rows == door.rows


def test_the_options_of_the_command_have_the_defaults_of_the_limits() -> None:
    command = typer.main.get_group(cli).commands["serve"]
    defaults: dict[str | None, Any] = {each.name: each.default for each in command.params}
    limits, door = Limits(), DoorLimits()
    for name in ("rows", "waiting", "latency_ms", "streams", "resident"):
        assert defaults[name] == getattr(limits, name)
    assert defaults["image_pixels"] == door.image_pixels
    assert defaults["request_mib"] * 2**20 == door.request_bytes
    for option in re.findall(r"`(--[a-z-]+)", PAGE):
        assert option[2:].replace("-", "_") in {*defaults, "help"}


def test_every_limit_of_the_service_that_is_no_option_is_named() -> None:
    options = {"rows", "waiting", "latency_ms", "streams", "resident"}
    for field in fields(Limits):
        if field.name not in options:
            assert f"`Limits.{field.name}`" in PAGE


def test_a_clone_is_installed_as_the_readme_says() -> None:
    for page in (PAGE, (ROOT / "docs" / "serving-ray.md").read_text(encoding="utf-8")):
        installs = re.findall(r"pip install (.*)", page)
        assert installs
        assert all(each.startswith("'path/to/the/clone[") for each in installs)
