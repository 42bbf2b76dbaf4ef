"""A client of the HTTP door in the same process, and bodies to send."""

import io
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from equipoise.production.server.app import create_app
from tests.production.server.fake_door_service import FakeService

LOCAL = "http://127.0.0.1:8000"
NPY = {"Content-Type": "application/x-npy"}
JSON = {"Content-Type": "application/json"}


def client_of(service: FakeService, url: str = LOCAL, **options: Any) -> TestClient:
    return TestClient(create_app(service, **options), base_url=url)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def picture(kind: str = "PNG", size: tuple[int, int] = (4, 4), mode: str = "RGB", colour: Any = 0) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, kind)
    return file.getvalue()
