"""The examples of clients against a real server, and the files for Docker, Prometheus and Grafana."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch
import yaml
from PIL import Image

import house_numbers
import serving_client
from tests.support.waiting import HANG

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DOCKER = EXAMPLES / "docker"
NAME = re.compile(r"equipoise_[a-z0-9_]+")


def shell(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_the_factory_gives_the_model_and_a_transform(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house_numbers, "FOLDER", trained)
    model, transform = house_numbers.factory()
    inputs, labels = house_numbers.images("house numbers", 100)
    assert house_numbers.right(model(inputs), labels) > 0.8
    image = Image.fromarray((inputs[0, 0] * 255).byte().numpy()).convert("RGB")
    assert transform is house_numbers.transform
    torch.testing.assert_close(house_numbers.transform(image), inputs[0], atol=1 / 254, rtol=0)


def test_the_python_client_gets_right_answers_and_sends_labels(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serving_client.main(server) > 0.7
    said = capsys.readouterr().out
    assert re.search(r"batch 15: classes \[.*estimated accuracy 0\.\d\d \(0\.\d\d to [01]\.\d\d\)", said)


def test_every_line_of_the_curl_script_is_answered(server: str, tmp_path: Path) -> None:
    inputs, _ = house_numbers.images("house numbers", 1)
    Image.fromarray((inputs[0, 0] * 255).byte().numpy()).save(tmp_path / "3.png")
    answers = shell(str(EXAMPLES / "serving_curl.sh"), str(tmp_path / "3.png"), server, "curled")
    prediction = json.loads(answers.splitlines()[1])
    assert (prediction["stream"], len(prediction["classes"])) == ("curled", 1)
    assert '"done":"reset"' in answers
    assert re.search(r'equipoise_stream_batches_total\{stream="curled"\} 1\.0', answers)
    assert re.search(r'equipoise_confidence\{stream="curled"\} 0\.\d', answers)


def metrics(server: str) -> set[str]:
    """The names in /metrics."""
    with urlopen(f"{server}/metrics") as response:  # noqa: S310 - of this machine
        return {line.split("{")[0].split(" ")[0] for line in response.read().decode().splitlines()}


def test_every_metric_of_the_dashboard_is_one_of_the_servers(server: str) -> None:
    serving_client.main(server)
    dashboard: dict[str, Any] = json.loads((DOCKER / "grafana/dashboards/equipoise.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [variable["query"]["query"] for variable in dashboard["templating"]["list"]]
    names = {name for query in asked for name in NAME.findall(query)} - {"equipoise_events_"}
    assert len(names) >= 12
    assert names <= metrics(server)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_compose_prometheus_and_grafana_fit_together() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"equipoise", "prometheus", "grafana"}
    build = services["equipoise"]["build"]
    assert (DOCKER / build["context"] / build["dockerfile"]).resolve() == DOCKER / "Dockerfile"
    mounts = [each.split(":") for service in services.values() for each in service["volumes"]]
    for host, inside, *_ in mounts:
        assert (DOCKER / host).exists() if host.startswith(".") else host in compose["volumes"], inside
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    scraped = yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"][0]
    assert (scraped["metrics_path"], scraped["static_configs"][0]["targets"]) == (
        "/metrics",
        ["equipoise:8000"],
    )
    provisioning = DOCKER / "grafana/provisioning"
    source = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((provisioning / "dashboards/equipoise.yaml").read_text())["providers"][0]
    assert ["./grafana/dashboards", provider["options"]["path"], "ro"] in mounts
    assert f'"uid": "{source["uid"]}"' in (DOCKER / "grafana/dashboards/equipoise.json").read_text()


def test_the_dockerfile_copies_files_that_there_are_and_starts_the_server() -> None:
    lines = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    assert all((ROOT / name).exists() for name in copied)
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in copied} <= set(ignored)
    (start,) = [json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD")]
    assert start[:3] == ["equipoise", "serve", "house_numbers:factory"]
    options = start[3::2]
    known = (ROOT / "src/equipoise/cli/app.py").read_text()
    for option in options:
        assert f"{option.removeprefix('--').replace('-', '_')}: Annotated" in known
    secrets = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["equipoise"]["secrets"]
    assert f"/run/secrets/{secrets[0]}" in start
