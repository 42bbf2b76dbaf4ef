"""GET /metrics: text that Prometheus reads, with the numbers of the service."""

from prometheus_client.parser import text_string_to_metric_families

from equipoise.version import __version__
from tests.production.server.door_client import client_of
from tests.production.server.fake_door_service import FakeService


def sampled(text: str) -> dict[tuple[str, ...], float]:
    """Values by name and labels, sorted by the label's name."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_streams_and_requests_are_counted() -> None:
    client = client_of(FakeService())
    for name in ("a", "a", "asleep"):
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
    assert found["equipoise_streams", "evicted"] == 1
    assert found["equipoise_stream_batches_total", "a"] == 2
    assert found["equipoise_stream_samples_total", "a"] == 4
    assert found["equipoise_accuracy", "a"] == 0.9
    assert found["equipoise_stream_mode", "hold", "a"] == 1
    assert found["equipoise_stream_mode", "adapted", "a"] == 0
    assert found["equipoise_requests_total", "/v1/predict", "200"] == 3
    assert found["equipoise_requests_total", "/v1/predict", "422"] == 1
    assert found["equipoise_requests_total", "/v1/streams/{name}", "200"] == 1
    assert found["equipoise_requests_total", "other", "404"] == 1
    assert found["equipoise_request_seconds_count", "/v1/predict"] == 4
    assert ("equipoise_stream_batches_total", "asleep") not in found


def test_two_doors_count_apart() -> None:
    one, other = client_of(FakeService()), client_of(FakeService())
    one.get("/healthz")
    assert ("equipoise_requests_total", "/healthz", "200") in sampled(one.get("/metrics").text)
    assert ("equipoise_requests_total", "/healthz", "200") not in sampled(other.get("/metrics").text)
