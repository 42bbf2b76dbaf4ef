"""POST /v1/predict: every content type, and the answer in JSON."""

from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.production.server.interface import Asked
from equipoise.production.server.routes.endpoints import PredictionResponse
from tests.production.server.door import JSON, NPY, FakeService, client_of, npy, picture


@pytest.fixture
def service() -> FakeService:
    return FakeService()


def red_and_size(image: Image.Image) -> torch.Tensor:
    assert image.mode == "RGB"
    return torch.tensor([float(np.asarray(image)[0, 0, 0]), -100.0])


def test_json_rows_are_answered_in_their_order(service: FakeService) -> None:
    response = client_of(service).post("/v1/predict?stream=camera-1", json={"inputs": [[1, 2], [-3.5, 1]]})
    assert response.status_code == 200
    assert response.json() == {
        "request": "camera-1-1",
        "stream": "camera-1",
        "classes": [1, 0],
        "probabilities": [[0.25, 0.75], [0.75, 0.25]],
        "temperature": 1.5,
        "estimated_accuracy": {"value": 0.9, "low": 0.8, "high": 0.95, "inside": True},
        "answered_by": "student",
        "mode": "adapted",
        "learned": True,
        "reason": "",
    }
    PredictionResponse.model_validate_json(response.text, strict=True)


def test_sets_and_decision_are_answered_where_they_are_asked_for_and_only_there(service: FakeService) -> None:
    client, rows = client_of(service), {"inputs": [[1, 2], [-3.5, 1]]}
    sets, decision = [[1], [0]], {"act": [True, True], "answered_share": 0.8, "reached": True}
    for query, expected in (
        ("coverage=.9", {"sets": sets}),
        ("accuracy=.95", {"decision": decision}),
        ("coverage=.9&accuracy=.95", {"sets": sets, "decision": decision}),
        ("", {}),
    ):
        response = client.post(f"/v1/predict?stream=a&{query}", json=rows)
        answer = response.json()
        assert {name: answer[name] for name in ("sets", "decision") if name in answer} == expected
        PredictionResponse.model_validate_json(response.text, strict=True)
    assert service.asked[:3] == [Asked(0.9), Asked(None, 0.95), Asked(0.9, 0.95)]


@pytest.mark.parametrize("value", [".49", ".991", "0", "1", "-1", "nan", "inf", "ninety", ""])
def test_a_coverage_that_no_sets_can_have_is_refused(service: FakeService, value: str) -> None:
    response = client_of(service).post(f"/v1/predict?coverage={value}", json={"inputs": [[1, 2]]})
    assert response.status_code == 422
    assert response.json()["error"].startswith("query.coverage: ")
    assert not service.state()


@pytest.mark.parametrize("value", [".49", "1", "2", "nan", "x"])
def test_an_accuracy_that_no_answers_can_have_is_refused(service: FakeService, value: str) -> None:
    response = client_of(service).post(f"/v1/predict?accuracy={value}", json={"inputs": [[1, 2]]})
    assert response.status_code == 422
    assert response.json()["error"].startswith("query.accuracy: ")
    assert not service.state()


def test_a_row_of_nan_comes_back_as_null(service: FakeService) -> None:
    response = client_of(service).post("/v1/predict", content=b'{"inputs": [[NaN, 1], [1, 1]]}', headers=JSON)
    assert response.json()["classes"] == [-1, 1]
    assert response.json()["probabilities"] == [[None, None], [0.25, 0.75]]
    assert "NaN" not in response.text
    PredictionResponse.model_validate(response.json())


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "int64", "uint8", ">f4", ">i2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_arrays_of_any_type_and_order_are_read(
    service: FakeService, kind: str, order: Literal["C", "F"]
) -> None:
    rows = np.array([[1, 2], [0, 0], [5, 1]], np.dtype(kind), order=order)
    response = client_of(service).post("/v1/predict", content=npy(rows), headers=NPY)
    assert response.json()["classes"] == [1, 0, 1]


@pytest.mark.parametrize(("kind", "name"), [("PNG", "image/png"), ("JPEG", "image/jpeg")])
def test_an_image_goes_through_the_transform(service: FakeService, kind: str, name: str) -> None:
    client = client_of(service, transform=red_and_size)
    for red, expected in ((250, 1), (10, 0)):
        body = picture(kind, (8, 8), colour=(red, 0, 0))
        response = client.post("/v1/predict", content=body, headers={"Content-Type": name})
        assert response.json()["classes"] == [expected]


def test_transparent_parts_of_a_png_are_white(service: FakeService) -> None:
    body = picture("PNG", (8, 8), "RGBA", (0, 0, 0, 0))
    client = client_of(service, transform=red_and_size)
    response = client.post("/v1/predict", content=body, headers={"Content-Type": "image/png"})
    assert response.json()["classes"] == [1]


def test_a_content_type_may_have_parameters_and_capitals(service: FakeService) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    response = client_of(service).post("/v1/predict", content=b'{"inputs": [[1, 2]]}', headers=headers)
    assert response.status_code == 200


def test_without_a_name_the_stream_is_default(service: FakeService) -> None:
    assert client_of(service).post("/v1/predict", json={"inputs": [[1, 2]]}).json()["stream"] == "default"


def test_streams_are_kept_apart(service: FakeService) -> None:
    client = client_of(service)
    for name in ("a", "b", "a"):
        client.post(f"/v1/predict?stream={name}", json={"inputs": [[1, 2]]})
    assert {name: held.batches for name, held in service.state().items()} == {"a": 2, "b": 1}
