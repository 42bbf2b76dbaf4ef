"""Limits on requests, the full queue, and errors that nobody expected."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from equipoise.errors import BatchError, ModelError, OptionError
from equipoise.production.server.app import create_app
from equipoise.production.server.errors import (
    BusyError,
    ReplicaLostError,
    ServiceError,
    StorageError,
    TooManyStreamsError,
)
from equipoise.production.server.limits import DoorLimits
from tests.production.server.door import JSON, LOCAL, NPY, FakeService, client_of, npy

ROW = {"inputs": [[1, 2]]}


def asgi(service: FakeService, limits: DoorLimits | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(service, limits=limits)), base_url=LOCAL
    )


@pytest.mark.parametrize("name", ["request_bytes", "image_pixels", "rows"])
@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_limits_are_checked(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=name):
        DoorLimits(**{name: value})


def test_a_declared_length_above_the_limit_is_refused_unread() -> None:
    service = FakeService()
    client = client_of(service, limits=DoorLimits(request_bytes=1000))
    for rows, status in ((50, 200), (500, 413)):
        response = client.post("/v1/predict", content=npy(np.ones((rows, 2), "f4")), headers=NPY)
        assert response.status_code == status
    assert service.state()["default"].batches == 1


def test_a_body_without_a_length_is_cut_at_the_limit() -> None:
    service, sent = FakeService(), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(10_000):
            sent += 100
            yield b" " * 100

    async def talk() -> httpx.Response:
        async with asgi(service, DoorLimits(request_bytes=1000)) as client:
            return await client.post("/v1/predict", content=endless(), headers=JSON)

    response = asyncio.run(talk())
    assert response.status_code == 413
    assert sent <= 1200
    assert not service.state()


@pytest.mark.parametrize("path", ["/v1/labels", "/v1/mode", "/v1/rollback"])
def test_other_bodies_are_bounded_too(path: str) -> None:
    response = client_of(FakeService()).post(path, content=b" " * (2**20 + 1), headers=JSON)
    assert response.status_code == 413


def test_the_limit_of_rows_is_the_last_number_that_is_taken() -> None:
    client = client_of(FakeService(), limits=DoorLimits(rows=3))
    for rows, status in ((3, 200), (4, 413)):
        assert client.post("/v1/predict", json={"inputs": [[1, 2]] * rows}).status_code == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ServiceError("no"), 400),
        (BusyError("the queue is full"), 429),
        (TooManyStreamsError("too many"), 429),
        (ReplicaLostError("lost"), 503),
        (StorageError("full disk"), 507),
        (BatchError("no batch"), 422),
        (ModelError("not for this model"), 422),
    ],
)
def test_every_refusal_of_a_service_has_its_status(error: Exception, status: int) -> None:
    service = FakeService()
    service.fails = error
    response = client_of(service).post("/v1/predict", json=ROW)
    assert response.status_code == status
    assert response.json() == {"error": str(error)}
    assert ("Retry-After" in response.headers) == (status in (429, 503))


def test_an_error_in_the_future_is_a_refusal_too() -> None:
    service = FakeService()
    service.holds = True

    async def talk() -> httpx.Response:
        async with asgi(service) as client:
            asked = asyncio.create_task(client.post("/v1/predict", json=ROW))
            while not service.held:
                await asyncio.sleep(0.001)
            service.held[0].set_exception(BusyError("later"))
            return await asked

    assert asyncio.run(talk()).status_code == 429


def test_an_unexpected_error_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService()
    service.fails = RuntimeError("the password is 1234")
    with caplog.at_level(logging.ERROR):
        response = client_of(service).post("/v1/predict", json=ROW)
    assert response.status_code == 500
    assert "1234" not in response.text
    incident = response.json()["error"].split()[-1]
    assert incident in caplog.text
    assert "the password is 1234" in caplog.text


def test_200_clients_at_once_each_get_their_own_answer() -> None:
    service = FakeService()

    async def ask(client: httpx.AsyncClient, number: int) -> tuple[str, list[int]]:
        body = {"inputs": [[1 if number & 1 << place else -1, 0] for place in range(8)]}
        answer = (await client.post(f"/v1/predict?stream=client-{number}", json=body)).json()
        return answer["stream"], answer["classes"]

    async def talk() -> list[tuple[str, list[int]]]:
        async with asgi(service) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(200)))

    for number, (stream, classes) in enumerate(asyncio.run(talk())):
        assert stream == f"client-{number}"
        assert classes == [number >> place & 1 for place in range(8)]
    assert len(service.state()) == 200


def test_a_full_queue_refuses_and_goes_on_afterwards() -> None:
    service = FakeService(queue=10)
    service.holds = True

    async def talk() -> tuple[list[int], int]:
        async with asgi(service) as client:
            asked = [asyncio.create_task(client.post("/v1/predict", json=ROW)) for _ in range(30)]
            while sum(task.done() for task in asked) < 20:
                await asyncio.sleep(0.001)
            refused = [task.result() for task in asked if task.done()]
            assert all(response.headers["Retry-After"] == "1" for response in refused)
            service.holds = False
            for future in service.held:
                future.set_result(service._answered("late", np.ones((1, 2))))
            service.held.clear()
            statuses = [response.status_code for response in await asyncio.gather(*asked)]
            return statuses, (await client.post("/v1/predict", json=ROW)).status_code

    statuses, afterwards = asyncio.run(talk())
    assert sorted(statuses) == [200] * 10 + [429] * 20
    assert afterwards == 200


def test_a_client_that_goes_away_leaves_the_request_to_the_service() -> None:
    service = FakeService()
    service.holds = True

    async def talk() -> None:
        async with asgi(service) as client:
            asked = asyncio.create_task(client.post("/v1/predict", json=ROW))
            while not service.held:
                await asyncio.sleep(0.001)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(talk())
    assert not service.held[0].cancelled()
    service.held[0].set_result(service._answered("late", np.ones((1, 2))))


def test_nothing_is_read_of_a_body_that_declares_too_much() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", b"1001"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/predict", "query_string": b"", "headers": headers}
    app = create_app(FakeService(), limits=DoorLimits(request_bytes=1000))
    asyncio.run(app({**scope, "http_version": "1.1", "scheme": "http"}, receive, send))
    assert sent[0]["status"] == 413
