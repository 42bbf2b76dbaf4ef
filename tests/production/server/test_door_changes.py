"""Labels, reset, release, rollback, snapshot and mode; streams, history, health and metrics."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from equipoise.production.server.errors import InputError
from equipoise.production.server.inputs import check_name
from equipoise.production.server.interface import LabelsTaken
from equipoise.production.server.routes.access import Tokens
from equipoise.production.server.routes.endpoints import (
    ChangeResponse,
    HistoryRow,
    SnapshotResponse,
    StreamResponse,
)
from equipoise.version import __version__
from tests.production.server.door import FakeService, client_of


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> TestClient:
    """A client that has sent two batches to the stream a."""
    made = client_of(service)
    for _ in range(2):
        made.post("/v1/predict?stream=a", json={"inputs": [[1, 2], [3, 4]]})
    return made


def test_labels_reach_the_service(service: FakeService, client: TestClient) -> None:
    response = client.post("/v1/labels?stream=a", json={"request": "a-2", "labels": [1, 0]})
    assert LabelsTaken(**response.json()) == LabelsTaken("a-2", 2, 0)
    assert service.state()["a"].labels == {"a-2": [1, 0]}


def test_snapshots_are_named_and_gone_back_to(service: FakeService, client: TestClient) -> None:
    client.post("/v1/snapshot?stream=a")
    client.post("/v1/predict?stream=a", json={"inputs": [[1, 2]]})
    response = client.post("/v1/snapshot?stream=a")
    assert response.json() == {"stream": "a", "snapshot": "batch-3"}
    SnapshotResponse.model_validate(response.json())
    assert client.post("/v1/rollback?stream=a").json()["snapshot"] == "batch-3"
    assert client.post("/v1/rollback?stream=a", json={"steps": 2}).json()["snapshot"] == "batch-2"


def test_a_stream_is_reset(service: FakeService, client: TestClient) -> None:
    client.post("/v1/snapshot?stream=a")
    response = client.post("/v1/reset?stream=a")
    ChangeResponse.model_validate(response.json())
    assert service.state()["a"].snapshots == []


def test_a_held_stream_is_released(service: FakeService, client: TestClient) -> None:
    service.held_streams["a"].guard_holds = True
    response = client.post("/v1/release?stream=a")
    assert (response.status_code, response.json()) == (200, {"stream": "a", "done": "release"})
    ChangeResponse.model_validate(response.json())
    assert not service.state()["a"].guard_holds


@pytest.mark.parametrize("mode", ["adapted", "shadow", "hold"])
def test_the_mode_is_changed(service: FakeService, client: TestClient, mode: str) -> None:
    response = client.post("/v1/mode?stream=a", json={"mode": mode})
    assert response.json() == {"stream": "a", "done": mode}
    assert service.state()["a"].mode == mode


REFUSED: dict[str, tuple[str, Any, int]] = {
    "labels of an unknown stream": ("/v1/labels?stream=b", {"request": "a-1", "labels": [1, 1]}, 404),
    "labels of an unknown request": ("/v1/labels?stream=a", {"request": "a-9", "labels": [1, 1]}, 404),
    "too few labels": ("/v1/labels?stream=a", {"request": "a-1", "labels": [1]}, 422),
    "no labels": ("/v1/labels?stream=a", {"request": "a-1", "labels": []}, 422),
    "negative labels": ("/v1/labels?stream=a", {"request": "a-1", "labels": [-1, 1]}, 422),
    "fractions as labels": ("/v1/labels?stream=a", {"request": "a-1", "labels": [0.5, 1]}, 422),
    "text as labels": ("/v1/labels?stream=a", {"request": "a-1", "labels": ["1", "1"]}, 422),
    "truth values as labels": ("/v1/labels?stream=a", {"request": "a-1", "labels": [True, True]}, 422),
    "huge labels": ("/v1/labels?stream=a", {"request": "a-1", "labels": [10**30, 1]}, 422),
    "a long request id": ("/v1/labels?stream=a", {"request": "a" * 200, "labels": [1, 1]}, 422),
    "a misspelt name": ("/v1/labels?stream=a", {"request": "a-1", "label": [1, 1]}, 422),
    "no body": ("/v1/labels?stream=a", None, 422),
    "release of an unknown stream": ("/v1/release?stream=b", None, 404),
    "reset of an unknown stream": ("/v1/reset?stream=b", None, 404),
    "more snapshots than there are": ("/v1/rollback?stream=a", {"steps": 3}, 409),
    "no step back": ("/v1/rollback?stream=a", {"steps": 0}, 422),
    "a step of text": ("/v1/rollback?stream=a", {"steps": "1"}, 422),
    "an unknown mode": ("/v1/mode?stream=a", {"mode": "off"}, 422),
    "a name with a slash": ("/v1/reset?stream=../a", None, 422),
    "a name with a space": ("/v1/reset?stream=a%20b", None, 422),
    "a name with a newline": ("/v1/reset?stream=a%0A", None, 422),
    "a name of nothing": ("/v1/reset?stream=", None, 422),
    "a hidden name": ("/v1/reset?stream=.a", None, 422),
    "a long name": (f"/v1/reset?stream={'a' * 65}", None, 422),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_change_changes_nothing(service: FakeService, client: TestClient, name: str) -> None:
    path, body, status = REFUSED[name]
    before = service.state()
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    assert service.state() == before


@pytest.mark.parametrize(
    ("name", "taken"),
    [("a", True), ("x" * 64, True), ("A.b_c-9", True)]
    + [(name, False) for name in ("", "x" * 65, "a b", "a\n", "../a", ".a", "-a", "ä", "a\0b")],
)
def test_the_service_takes_the_names_that_the_door_takes(client: TestClient, name: str, taken: bool) -> None:
    response = client.post("/v1/predict", params={"stream": name}, json={"inputs": [[1, 2]]})
    assert response.status_code == (200 if taken else 422)
    if taken:
        assert check_name(name) == name
    else:
        with pytest.raises(InputError, match="expected the name of a stream"):
            check_name(name)


MANY_ERRORS: dict[str, Any] = {
    "bad labels": {"request": "a-1", "labels": [-1] * 250_000},
    "names that are not expected": {f"x{place}": 0 for place in range(50_000)},
    "one long text": {"request": "a-1", "labels": "x" * 900_000},
    "one long name": {"request": "a-1", "x" * 900_000: 0},
}


def seconds_of_work(call: Callable[[], object]) -> float:
    """The time of this process, the least of three."""
    found = []
    for _ in range(3):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


@pytest.mark.parametrize("name", MANY_ERRORS)
def test_a_megabyte_of_errors_is_refused_in_a_few_words(client: TestClient, name: str) -> None:
    post = partial(client.post, "/v1/labels?stream=a")
    response = post(json=MANY_ERRORS[name])
    assert response.status_code == 422
    assert "body.labels" in response.json()["error"]
    assert len(response.content) < 3000
    good = {"request": "a-1", "labels": [1] * 250_000}
    least = seconds_of_work(partial(post, json=good))
    assert seconds_of_work(partial(post, json=MANY_ERRORS[name])) < 50 * least


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/labels?stream=a", '{"request": "a-1", "labels": [1, 1]}'),
        ("/v1/mode?stream=a", '{"mode": "hold"}'),
        ("/v1/rollback?stream=a", '{"steps": 1}'),
    ],
)
def test_json_under_another_content_type_is_told_the_one_expected(
    service: FakeService, client: TestClient, path: str, body: str
) -> None:
    before = service.state()
    kind = "application/x-www-form-urlencoded"  # that of curl --data
    response = client.post(path, content=body, headers={"Content-Type": kind})
    assert response.status_code == 415
    assert response.json() == {"error": f"expected Content-Type: application/json, got {kind}"}
    assert service.state() == before


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_can_be_asked_for_without_a_body(service: FakeService, client: TestClient, path: str) -> None:
    assert client.head(path).status_code == 200
    service.ready = False
    assert client.head("/readyz").status_code == 503


def test_streams_are_listed_and_shown(client: TestClient) -> None:
    (listed,) = client.get("/v1/streams").json()
    assert listed == client.get("/v1/streams/a").json()
    StreamResponse.model_validate(listed)
    assert (listed["name"], listed["batches"], listed["samples"]) == ("a", 2, 4)
    assert listed["gauges"] == {"accuracy": 0.9, "accuracy_low": None}
    assert client.get("/v1/streams/b").status_code == 404


def test_history_goes_on_from_an_index(client: TestClient) -> None:
    rows = client.get("/v1/streams/a/history").json()
    assert [row["index"] for row in rows] == [1, 2]
    assert rows[0]["accuracy"] is None
    HistoryRow.model_validate(rows[0])
    assert [row["index"] for row in client.get("/v1/streams/a/history?since=1").json()] == [2]
    assert client.get("/v1/streams/a/history?since=-1").status_code == 422
    assert client.get("/v1/streams/b/history").status_code == 404


def test_readiness_follows_the_service(service: FakeService, client: TestClient) -> None:
    assert client.get("/readyz").json() == {"status": "ready"}
    service.ready = False
    response = client.get("/readyz")
    assert (response.status_code, response.json()) == (503, {"status": "not ready"})
    assert client.get("/healthz").status_code == 200


def test_a_service_that_stops_refuses_predictions(service: FakeService, client: TestClient) -> None:
    service.ready = False
    response = client.post("/v1/predict", json={"inputs": [[1, 2]]})
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "1"


def test_the_live_page_is_at_the_root_and_needs_no_token() -> None:
    client = client_of(FakeService(), "http://models.example", tokens=Tokens("c" * 20, "r" * 20))
    response = client.get("/")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/html")
    assert "POST v1/release?stream=NAME" in response.text
    assert client.get("/page/page.js").status_code == 200
    assert client.get("/v1/streams").status_code == 401


def sampled(text: str) -> dict[tuple[str, ...], float]:
    """Values by name and labels, sorted by the label's name."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_streams_and_requests_are_counted() -> None:
    client = client_of(FakeService())
    for name in ("a", "a", "asleep", "forgotten"):
        client.post(f"/v1/predict?stream={name}", json={"inputs": [[1, 2], [3, 4]]})
    client.post("/v1/predict?stream=a", json={"inputs": []})
    client.post("/v1/mode?stream=a", json={"mode": "hold"})
    client.get("/v1/streams/a")
    client.get("/no/such/page")
    response = client.get("/metrics")
    assert response.headers["Content-Type"].startswith("text/plain")
    found = sampled(response.text)
    assert found["equipoise_service_info", "poise", __version__] == 1
    assert found["equipoise_streams", "resident"] == 1
    assert found["equipoise_streams", "evicted"] == 2
    assert found["equipoise_stream_batches_total", "a"] == 2
    assert found["equipoise_stream_samples_total", "a"] == 4
    assert found["equipoise_accuracy", "a"] == 0.9
    assert found["equipoise_stream_mode", "hold", "a"] == 1
    assert found["equipoise_stream_mode", "adapted", "a"] == 0
    assert found["equipoise_requests_total", "/v1/predict", "200"] == 4
    assert found["equipoise_requests_total", "/v1/predict", "422"] == 1
    assert found["equipoise_requests_total", "/v1/streams/{name}", "200"] == 1
    assert found["equipoise_requests_total", "other", "404"] == 1
    assert found["equipoise_request_seconds_count", "/v1/predict"] == 5
    for name, known in (("asleep", True), ("forgotten", False)):  # on disk: remembered, or one of too many
        assert (("equipoise_stream_batches_total", name) in found) == known
        assert (("equipoise_accuracy", name) in found) == known


def test_two_doors_count_apart() -> None:
    one, other = client_of(FakeService()), client_of(FakeService())
    one.get("/healthz")
    assert ("equipoise_requests_total", "/healthz", "200") in sampled(one.get("/metrics").text)
    assert ("equipoise_requests_total", "/healthz", "200") not in sampled(other.get("/metrics").text)
