"""The door under schemathesis: no request crashes it, and a refused one leaves no trace."""

from typing import Any

import numpy as np
import schemathesis
import torch
from hypothesis import HealthCheck, Phase, settings, strategies
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.specs.openapi.checks import positive_data_acceptance

from equipoise.production.server.app import create_app
from equipoise.production.server.limits import DoorLimits
from equipoise.production.server.routes.access import Tokens
from tests.production.server.door import LOCAL, FakeService, npy

load_all_checks()
LIMITS = DoorLimits(request_bytes=20_000, image_pixels=10_000)
CONFIG = SchemathesisConfig(
    projects=ProjectsConfig(
        default=ProjectConfig(generation=GenerationConfig(modes=list(GenerationMode)))  # valid and invalid
    )
)
BOUNDED = settings(
    max_examples=20,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@strategies.composite
def npy_files(draw: strategies.DrawFn) -> bytes:
    """Files of numpy with a byte changed, or cut, or as they should be."""
    rows = draw(strategies.integers(0, 3))
    whole = npy(np.ones((rows, 2), draw(strategies.sampled_from(["f4", "<i8", "c8", "U2", "?"]))))
    place = draw(strategies.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([draw(strategies.integers(0, 255))]) + whole[place + 1 :]
    return draw(strategies.sampled_from([whole, changed, whole[:place]]))


schemathesis.openapi.media_type("application/x-npy", npy_files())

service = FakeService()
service.submit("default", np.ones((1, 2)))
service.snapshot("default")
app = create_app(service, limits=LIMITS, transform=lambda image: torch.ones(2))
schema = schemathesis.openapi.from_asgi("/openapi.json", app, config=CONFIG, headers={"Host": "localhost"})

locked_service = FakeService()
locked_app = create_app(locked_service, limits=LIMITS, tokens=Tokens("change-" * 5, "read-" * 5))
locked_schema = schemathesis.openapi.from_asgi("/openapi.json", locked_app, config=CONFIG)


@schema.parametrize()
@BOUNDED
def test_no_request_crashes_the_door_and_a_refused_one_leaves_no_trace(case: Any) -> None:
    before = service.state()
    response = case.call(base_url=LOCAL)
    assert response.status_code < 500
    # Valid by the schema is not yet valid: only the model knows the shape of its inputs.
    case.validate_response(response, excluded_checks=[positive_data_acceptance])
    if response.status_code >= 400:
        assert set(response.json()) == {"error"}
        assert service.state() == before


@locked_schema.include(path_regex="/v1/|/metrics").parametrize()
@BOUNDED
def test_no_generated_request_gets_past_the_tokens(case: Any) -> None:
    response = case.call(base_url="http://models.example")
    assert 400 <= response.status_code < 500
    assert not locked_service.state()
