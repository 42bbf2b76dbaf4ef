"""Who gets in: tokens, and without them only programs and pages of this machine."""

from pathlib import Path

import pytest

from equipoise.errors import OptionError
from equipoise.production.server.routes.access import Tokens
from tests.production.server.door import LOCAL, FakeService, client_of

CHANGE, READ = "change-" + "c" * 20, "read-" + "r" * 20
PUBLIC = "http://models.example:8000"
CHANGES = [
    "/v1/predict",
    "/v1/labels",
    "/v1/reset",
    "/v1/release",
    "/v1/rollback",
    "/v1/snapshot",
    "/v1/mode",
]
READS = ["/metrics", "/v1/streams", "/v1/streams/a", "/v1/streams/a/history"]
BODIES = {
    "/v1/predict": {"inputs": [[1, 2]]},
    "/v1/labels": {"request": "a-1", "labels": [1]},
    "/v1/rollback": {"steps": 1},
    "/v1/mode": {"mode": "hold"},
}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("sent", ["", READ, CHANGE[:-1], CHANGE + "c", "ü" * 20])
def test_a_change_needs_its_token(path: str, sent: str) -> None:
    service = FakeService()
    client = client_of(service, PUBLIC, tokens=Tokens(CHANGE, READ))
    headers = {b"Authorization": f"Bearer {sent}".encode()} if sent else {}
    response = client.post(f"{path}?stream=a", json=BODIES.get(path), headers=headers)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert CHANGE not in response.text
    assert not service.state()


def test_the_token_for_changing_is_enough_for_everything() -> None:
    client = client_of(FakeService(), PUBLIC, tokens=Tokens(CHANGE, READ))
    client.headers.update(bearer(CHANGE))
    assert client.post("/v1/predict?stream=a", json=BODIES["/v1/predict"]).status_code == 200
    assert client.post("/v1/snapshot?stream=a").status_code == 200
    assert [client.get(path).status_code for path in READS] == [200] * 4


def test_reading_needs_one_of_the_tokens() -> None:
    service = FakeService()
    client = client_of(service, PUBLIC, tokens=Tokens(CHANGE, READ))
    client.post("/v1/predict?stream=a", json=BODIES["/v1/predict"], headers=bearer(CHANGE))
    for path in READS:
        assert client.get(path).status_code == 401
        assert client.get(path, headers=bearer(READ + "r")).status_code == 401
        assert client.get(path, headers=bearer(READ)).status_code == 200


def test_without_a_token_for_reading_everyone_reads() -> None:
    client = client_of(FakeService(), PUBLIC, tokens=Tokens(CHANGE))
    assert client.get("/v1/streams").status_code == 200
    assert client.post("/v1/reset?stream=a").status_code == 401


def test_health_needs_no_token() -> None:
    client = client_of(FakeService(), PUBLIC, tokens=Tokens(CHANGE, READ))
    assert [client.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]


@pytest.mark.parametrize("token", ["", "short", "with spaces in the middle", "ü" * 20, "line\nline" * 5])
def test_a_token_that_is_easy_to_guess_is_refused(token: str) -> None:
    with pytest.raises(OptionError, match="token_urlsafe"):
        Tokens(token)


def test_two_tokens_differ() -> None:
    with pytest.raises(OptionError, match="two different tokens"):
        Tokens(CHANGE, CHANGE)


def test_tokens_are_read_from_files_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "change").write_text(f"{CHANGE}\n")
    tokens = Tokens.from_files(tmp_path / "change")
    assert tokens == Tokens(CHANGE)
    assert CHANGE not in repr(tokens)
    with pytest.raises(OptionError, match="no token can be read"):
        Tokens.from_files(tmp_path / "missing")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "LOCALHOST"]
)
def test_names_of_this_machine_get_in(host: str) -> None:
    assert client_of(FakeService()).get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8000", "localhost.evil.example", "", "[::1", "10.0.0.1"]
)
@pytest.mark.parametrize("path", ["/v1/streams", "/healthz", "/nothing"])
def test_a_name_bound_to_this_machine_does_not(host: str, path: str) -> None:
    response = client_of(FakeService()).get(path, headers={"Host": host})
    assert response.status_code == 403
    assert set(response.json()) == {"error"}


@pytest.mark.parametrize("path", READS)
def test_a_token_for_changing_alone_does_not_open_reading_to_other_names(path: str) -> None:
    client = client_of(FakeService(), tokens=Tokens(CHANGE), local=True)
    client.post("/v1/predict?stream=a", json=BODIES["/v1/predict"], headers=bearer(CHANGE))
    assert client.get(path).status_code == 200
    assert client.get(path, headers={"Host": "evil.example"}).status_code == 403


def test_where_every_request_needs_a_token_a_proxy_may_pass_its_own_name_on() -> None:
    client = client_of(FakeService(), tokens=Tokens(CHANGE, READ), local=True)
    sent = {"Host": "models.example", **bearer(READ)}
    assert client.get("/v1/streams", headers=sent).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9000", "http://[", ""])
def test_a_page_of_another_origin_cannot_send_requests(origin: str) -> None:
    service = FakeService()
    response = client_of(service).post("/v1/predict", json={"inputs": [[1, 2]]}, headers={"Origin": origin})
    assert response.status_code == 403
    assert not service.state()


def test_a_page_of_the_server_itself_can() -> None:
    response = client_of(FakeService()).post(
        "/v1/predict", json={"inputs": [[1, 2]]}, headers={"Origin": LOCAL}
    )
    assert response.status_code == 200
