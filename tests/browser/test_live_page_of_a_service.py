"""The live page on the real door and a real service: requests come, rows and curves follow."""

import re
import socket
import time
from collections.abc import Iterator
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


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A small rehearsed model behind a service."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
    ).eval()
    labelled = [(torch.rand(120, 1, 8, 8), torch.arange(120) % 4)]
    source = eq.rehearse(model, labelled, samples=120, shifts=8, check_held_out=False, progress=False)
    made = Service(eq.Poise(model, source), tmp_path / "state")
    yield made
    made.close()


@pytest.fixture
def address(service: Service) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(create_app(service), log_level="warning", ws="none"))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        thread.join(10)


def test_rows_follow_requests_to_a_real_service(browser: Browser, service: Service, address: str) -> None:
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
