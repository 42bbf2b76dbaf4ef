"""`equipoise serve` in a process of its own: start, requests, stop by a signal, going on; its socket."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli.app import app
from equipoise.production.server.app import bound_socket
from tests.production.server.door import NPY, npy, picture
from tests.support.waiting import HANG

MODEL = """
import torch
from torch import nn

def load():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

def with_transform():
    return load(), lambda image: torch.full((6,), image.getpixel((0, 0))[0] / 255)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with served_model.py and the statistics of its model."""
    here = tmp_path_factory.mktemp("served")
    (here / "served_model.py").write_text(MODEL)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()
    held_out = [(torch.randn(50, 6), torch.randint(3, (50,))) for _ in range(4)]
    eq.rehearse(model, held_out, shifts=8, progress=False).save(here / "model.source.safetensors")
    return here


class Running:
    """`equipoise serve` on a free port, and a client of it."""

    def __init__(self, folder: Path, state: Path, *options: str, factory: str = "load") -> None:
        command = ["serve", f"served_model:{factory}", "--source", "model.source.safetensors"]
        command += ["--state", str(state), "--port", "0", "--latency-ms", str(1000 * HANG)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "equipoise", *command, *options],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline() for _ in range(4)]
        found = re.search(r"http://127\.0\.0\.1:\d+", self.lines[0])
        if not found:
            self.process.kill()
            pytest.fail("".join(self.lines) + self.process.communicate()[0])
        self.client = httpx.Client(base_url=found[0], timeout=HANG)

    def ask(self, batch: torch.Tensor) -> dict[str, Any]:
        response = self.client.post("/v1/predict?stream=a", content=npy(batch.numpy()), headers=NPY)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def stop(self, kind: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """The exit status, and the rest of the output."""
        self.client.close()
        self.process.send_signal(kind)
        output, _ = self.process.communicate(timeout=HANG)
        return self.process.returncode, output


@pytest.fixture
def batches() -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randn(16, 6) + 1 for _ in range(4)]


@pytest.fixture
def running() -> Iterator[list[Running]]:
    """Servers that the test starts; those that it left are killed."""
    started: list[Running] = []
    yield started
    for each in started:
        each.process.kill()
        each.process.wait()
        assert each.process.stdout is not None
        each.process.stdout.close()


def test_a_stopped_server_goes_on_as_if_it_had_never_stopped(
    folder: Path, tmp_path: Path, batches: list[torch.Tensor], running: list[Running]
) -> None:
    unbroken = Running(folder, tmp_path / "unbroken")
    running.append(unbroken)
    expected = [unbroken.ask(batch) for batch in batches[:2]]
    same = {"request": expected[0]["request"], "labels": [0] * 16}  # they correct the temperature
    assert unbroken.client.post("/v1/labels?stream=a", json=same).status_code == 200
    expected += [unbroken.ask(batch) for batch in batches[2:]]

    first = Running(folder, tmp_path / "state")
    running.append(first)
    answers = [first.ask(batch) for batch in batches[:2]]
    assert answers[0]["learned"]
    assert answers[0]["estimated_accuracy"]["low"] <= answers[0]["estimated_accuracy"]["value"]
    labels = {"request": answers[0]["request"], "labels": [0] * 16}
    taken = first.client.post("/v1/labels?stream=a", json=labels)
    assert taken.json() == {**taken.json(), "rows": 16, "right": answers[0]["classes"].count(0)}
    status, output = first.stop()
    assert status == 0, output
    assert "every stream is saved" in output

    second = Running(folder, tmp_path / "state")
    running.append(second)
    assert second.client.get("/v1/streams/a").json()["batches"] == 2
    answers += [second.ask(batch) for batch in batches[2:]]
    for ours, theirs in zip(answers, expected, strict=True):
        assert ours["probabilities"] == theirs["probabilities"]  # to the last bit
    late = {"request": answers[1]["request"], "labels": [1] * 16}
    assert second.client.post("/v1/labels?stream=a", json=late).status_code == 200
    assert second.stop(signal.SIGINT)[0] == 0
    assert unbroken.stop()[0] == 0


def test_the_first_lines_have_everything_to_try_it(
    folder: Path, tmp_path: Path, running: list[Running]
) -> None:
    (tmp_path / "token").write_text("t" * 32)
    options = ("--change-token-file", str(tmp_path / "token"))
    server = Running(folder, tmp_path / "state", *options, factory="with_transform")
    running.append(server)
    shown = "".join(server.lines)
    assert "served_model:with_transform with poise" in shown
    assert str(tmp_path / "state") in shown
    assert "image/png" in shown
    (tmp_path / "image.png").write_bytes(picture())
    curl = server.lines[-1].strip()
    answer = subprocess.run(["bash", "-c", curl], cwd=tmp_path, capture_output=True, check=True)  # noqa: S607
    assert len(json.loads(answer.stdout)["classes"]) == 1
    assert server.client.post("/v1/reset?stream=camera-1").status_code == 401
    assert server.client.get("/v1/streams", headers={"Host": "evil.example"}).status_code == 403
    assert server.stop()[0] == 0


REFUSED = {
    "off loopback without a token": (["--host", "::"], "expected --change-token-file"),
    "a token for reading alone": (["--read-token-file", "token"], "needs --change-token-file"),
    "a token file that is not there": (["--change-token-file", "missing"], "no token can be read"),
    "an address of another machine": (["--host", "192.0.2.1"], "cannot be used"),
    "a host that is none": (["--host", "no such host"], "no such address"),
    "a source that is not there": (["--source", "missing"], "there is no such file"),
    "a size beside a transform": (["--size", "8"], "leave out --size"),
    "an unknown method": (["--method", "guess"], "guess"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_start_that_cannot_be_is_one_line(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    options, message = REFUSED[name]
    given = {"--source": "model.source.safetensors", "--port": "0", "--state": str(tmp_path / "state")}
    given |= dict(zip(options[::2], options[1::2], strict=True))
    arguments = [part for pair in given.items() for part in pair]
    result = CliRunner().invoke(app, ["serve", "served_model:with_transform", *arguments])
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_without_statistics_a_start_says_which_commands_make_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    state = tmp_path / "kept state"
    arguments = ["serve", "served_model:load", "--port", "0", "--state", str(state), "--method", "dec"]
    file = "model.source.safetensors"
    for size in ([], ["--size", "8"]):
        result = CliRunner().invoke(app, [*arguments, *size])
        assert result.exit_code == 1
        given = " ".join(["--method", "dec", *size])
        assert f"    equipoise rehearse served_model:load HELD_OUT {given} --out {file}\n" in result.output
        again = f"    equipoise serve served_model:load {given} --source {file} --state '{state}'\n"
        assert again in result.output
        assert not state.exists()


def test_a_port_in_use_is_named_before_the_model_is_made(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        result = CliRunner().invoke(
            app, ["serve", "no_such_module:load", "--state", str(tmp_path / "state"), "--port", port]
        )
    assert result.exit_code == 1
    assert f"port {port} of 127.0.0.1 is in use" in result.output


def test_responses_are_sent_at_once_and_do_not_wait_for_acknowledgements() -> None:
    """asyncio sets TCP_NODELAY on a connection only if the listening socket names its protocol."""
    found: list[int] = []

    async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def connect() -> None:
        with bound_socket("127.0.0.1", 0) as bound:
            async with await asyncio.start_server(accepted, sock=bound):
                reader, writer = await asyncio.open_connection(*bound.getsockname())
                await reader.read()
                writer.close()
                await writer.wait_closed()

    asyncio.run(connect())
    assert found == [1]
