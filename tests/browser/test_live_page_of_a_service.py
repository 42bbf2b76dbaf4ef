"""The live page on the real door and a real service: requests come, rows and curves follow."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
import uvicorn
from playwright.sync_api import Browser, expect
from torch import nn

import equipoise as eq
from equipoise.production.server.app import create_app
from equipoise.production.server.service import Service
from tests.browser.live import Live, visited

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def rehearsed() -> tuple[nn.Module, eq.SourceStatistics]:
    """A small model, rehearsed."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
    ).eval()
    labelled = [(torch.rand(120, 1, 8, 8), torch.arange(120) % 4)]
    return model, eq.rehearse(model, labelled, samples=120, shifts=8, check_held_out=False, progress=False)


@contextmanager
def running(rehearsed: tuple[nn.Module, eq.SourceStatistics], state: Path) -> Iterator[tuple[Service, str]]:
    """A service on a folder, and the address of its door; both end with the block."""
    with Service(eq.Poise(*rehearsed), state) as service, socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(create_app(service), log_level="warning", ws="none"))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield service, f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def served(rehearsed: tuple[nn.Module, eq.SourceStatistics], tmp_path: Path) -> Iterator[tuple[Service, str]]:
    with running(rehearsed, tmp_path / "state") as found:
        yield found


def test_rows_follow_requests_to_a_real_service(browser: Browser, served: tuple[Service, str]) -> None:
    service, address = served
    inputs = np.random.default_rng(0).random((20, 1, 8, 8), dtype=np.float32)
    with visited(browser, Live(address=address)) as made:
        expect(made.page.locator("#empty")).to_be_visible()
        for batches in (3, 5):
            for _ in range(batches):
                service.submit("camera-1", inputs).result(60)
            shown = made.page.locator("li.stream")
            expect(shown.locator('[data-field="batches"]')).to_have_text(
                str(service.status("camera-1").batches)
            )
        expect(shown.locator('[data-field="name"]')).to_have_text("camera-1")
        expect(shown.locator('[data-field="accuracy"]')).to_have_text(
            re.compile(r"\d+\.\d % \(\d+\.\d to \d+\.\d\)")
        )
        expect(shown.locator('[data-field="histogram"] .column')).to_have_count(4)
        expect(shown.locator('[data-field="guard"]')).to_have_text("batch 8: learning")
        service.reset("camera-1")
        expect(shown.locator('[data-field="events"]')).to_contain_text("reset")
        assert (made.errors, made.requests) == ([], [])


def test_after_a_restart_rows_are_as_they_were(
    browser: Browser, rehearsed: tuple[nn.Module, eq.SourceStatistics], tmp_path: Path
) -> None:
    fields = ("accuracy", "guard", "evidence", "event", "events", "mode", "batches")
    inputs = np.random.default_rng(0).random((20, 1, 8, 8), dtype=np.float32)
    shown: list[dict[str, str]] = []
    for restarted in (False, True):
        with running(rehearsed, tmp_path / "state") as (service, address):
            if not restarted:
                for _ in range(12):
                    service.submit("camera-1", inputs).result(60)
                service.reset("camera-1")
                service.submit("camera-1", inputs).result(60)
            with visited(browser, Live(address=address)) as made:
                row = made.page.locator("li.stream")
                where = "on disk until the next request" if restarted else "in memory"
                expect(row.locator('[data-field="facts"]')).to_contain_text(
                    f"1 snapshot to go back to · {where}"
                )
                expect(row.locator('[data-field="histogram"] .column')).to_have_count(
                    4
                )  # the curves are there
                found = {name: row.locator(f'[data-field="{name}"]').inner_text() for name in fields}
                shown.append({**found, "class": str(row.get_attribute("class"))})
                assert (made.errors, made.requests) == ([], [])
    assert shown[0] == shown[1]
    assert "%" in shown[0]["accuracy"]
    assert "reset" in shown[0]["events"]
