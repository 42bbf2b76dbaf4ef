"""A service over replicas, with the replicas in this process: routing, errors, retries and the end."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.errors import OptionError
from equipoise.production.server.errors import (
    BusyError,
    ClosedError,
    InputError,
    ReplicaLostError,
    StorageError,
    UnknownStreamError,
)
from equipoise.production.server.interface import Asked, LabelsTaken, Mode, ToActUpon
from equipoise.production.server.ray import service as ray_service
from equipoise.production.server.ray.folders import owner, replica_folder
from equipoise.production.server.ray.service import RayService, Replica, as_service_error, import_ray
from equipoise.production.server.store import FolderLock
from tests.support.waiting import HANG

from .door import FakeService, FakeStream

BATCH = np.zeros((2, 2), np.float32)
NAMES = [f"camera {number}" for number in range(12)]


class OnDisk(FakeService):
    """The service of a replica: it owns a folder, and its counts of batches are there after `close`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._owned = folder / "counts.json", FolderLock(folder / "lock")
        counts = json.loads(self._folder.read_text()) if self._folder.exists() else {}
        self.held_streams = {name: FakeStream(batches=count) for name, count in counts.items()}

    def set_mode(self, stream: str, mode: Mode) -> None:
        raise StorageError("the disk is full")

    def close(self) -> None:
        counts = {name: stream.batches for name, stream in self.held_streams.items()}
        self._folder.write_text(json.dumps(counts))
        self._owned.release()


class Replicas:
    """`RayReplicas` without Ray; `dies` has the calls that the process of a replica dies over."""

    last: "Replicas"

    def __init__(self, recipe: Any, folder: Path, replicas: int, address: str | None) -> None:
        Replicas.last = self
        self.services: list[OnDisk] = []
        self.dies: list[str] = []
        self.calls: list[tuple[int, str]] = []
        self.stopped = False
        self.replicas = [
            Replica(lambda own: self.made(recipe(own)), index, replica_folder(folder, index), 0)
            for index in range(replicas)
        ]

    def made(self, service: OnDisk) -> OnDisk:
        self.services.append(service)
        return service

    def __len__(self) -> int:
        return len(self.replicas)

    async def call(self, index: int, name: str, *args: Any) -> Any:
        self.calls.append((index, args[0] if name == "call" else name))
        if self.dies and self.dies[0] == self.calls[-1][1]:
            self.dies.pop(0)
            raise import_ray()[0].exceptions.ActorDiedError
        return await getattr(self.replicas[index], name)(*args)

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayService]:
    monkeypatch.setattr(ray_service, "RayReplicas", Replicas)
    made = RayService(OnDisk, tmp_path, replicas=3, timeout=HANG)
    yield made
    made.close()


def test_each_stream_is_at_its_owner_alone(service: RayService) -> None:
    for name in NAMES:
        for count in ("1", "2"):
            answer = service.submit(name, BATCH).result()
            assert (answer.stream, answer.request) == (name, f"{name}-{count}")
    for index, one in enumerate(Replicas.last.services):
        assert [*one.held_streams] == [name for name in NAMES if owner(name, 3) == index]
        assert {stream.batches for stream in one.held_streams.values()} == {2}
    assert [status.name for status in service.streams()] == sorted(NAMES)
    assert service.status(NAMES[5]).batches == 2


def test_every_call_reaches_the_owner(service: RayService) -> None:
    service.submit("gate", BATCH).result()
    own = Replicas.last.services[owner("gate", 3)].held_streams["gate"]
    assert service.label("gate", "gate-1", (0, 1)) == LabelsTaken("gate-1", 2, 0)
    assert own.labels == {"gate-1": [0, 1]}
    assert service.snapshot("gate") == "batch-1"
    assert service.rollback("gate", 1) == "batch-1"
    service.submit("gate", BATCH).result()
    assert [row["index"] for row in service.history("gate", since=1)] == [2]
    own.guard_holds = True
    service.release("gate")
    assert not own.guard_holds
    service.reset("gate")
    assert service.status("gate").snapshots == ()
    assert {index for index, name in Replicas.last.calls if name != "facts"} == {owner("gate", 3)}
    assert (service.method, service.ready) == ("poise", True)
    assert [facts.process for facts in service.replicas()] == [os.getpid()] * 3


def test_wishes_reach_the_owner(service: RayService) -> None:
    answer = service.submit("gate", BATCH, Asked(0.9, 0.95)).result()
    assert answer.sets == [[0], [0]]
    assert answer.decision == ToActUpon([True, True], 0.8, True)
    plain = service.submit("gate", BATCH).result()
    assert (plain.sets, plain.decision) == (None, None)


def test_a_replicas_copy_of_anothers_stream_is_not_listed(service: RayService) -> None:
    service.submit("gate", BATCH).result()
    for one in Replicas.last.services:
        one.held_streams.setdefault("gate", FakeStream(batches=100))
    assert [status.batches for status in service.streams()] == [1]


def test_refusals_are_those_of_the_service(service: RayService) -> None:
    with pytest.raises(InputError, match="expected rows of shape"):
        service.submit("gate", np.zeros(3)).result()
    with pytest.raises(UnknownStreamError):
        service.status("nobody")
    with pytest.raises(StorageError):
        service.set_mode("gate", "hold")


def test_a_question_is_asked_again_when_a_replica_dies_over_it(service: RayService) -> None:
    service.submit("gate", BATCH).result()
    Replicas.last.dies = ["status", "streams", "history"]
    assert service.status("gate").batches == 1
    assert len(service.streams()) == 1
    assert len(service.history("gate")) == 1
    assert not Replicas.last.dies
    Replicas.last.dies = ["status", "status"]
    with pytest.raises(ReplicaLostError):
        service.status("gate")


def test_a_batch_that_a_replica_dies_over_is_never_sent_twice(service: RayService) -> None:
    Replicas.last.dies = ["submit", "reset"]
    with pytest.raises(ReplicaLostError, match="try again"):
        service.submit("gate", BATCH).result()
    with pytest.raises(ReplicaLostError):
        service.reset("gate")
    assert sum(name in ("submit", "reset") for _, name in Replicas.last.calls) == 2
    assert service.submit("gate", BATCH).result().request == "gate-1"


def test_a_replica_that_does_not_answer_is_given_up(
    service: RayService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*args: Any) -> None:
        await asyncio.sleep(60)

    with monkeypatch.context() as patched:
        patched.setattr(service, "_timeout", 0.05)
        patched.setattr(Replicas.last, "call", never)
        with pytest.raises(ReplicaLostError, match=r"not answered within 0\.05 s"):
            service.submit("gate", BATCH).result(HANG)


def test_a_closed_service_has_saved_every_stream_and_refuses_requests(
    tmp_path: Path, service: RayService
) -> None:
    for name in NAMES:
        service.submit(name, BATCH).result()
    waiting = service.submit("gate", BATCH)
    service.close()
    service.close()
    assert waiting.result().request == "gate-1"
    assert Replicas.last.stopped
    assert not service.ready
    with pytest.raises(ClosedError):
        service.submit("gate", BATCH).result()
    with pytest.raises(ClosedError):
        service.status("gate")
    again = RayService(OnDisk, tmp_path, replicas=3)
    assert {status.name: status.batches for status in again.streams()} == dict.fromkeys([*NAMES, "gate"], 1)
    again.close()


def test_a_replica_that_cannot_save_is_reported_after_the_others_have(
    tmp_path: Path, service: RayService
) -> None:
    for name in NAMES:
        service.submit(name, BATCH).result()
    Replicas.last.dies = ["close"]  # the first
    with pytest.raises(ReplicaLostError):
        service.close()
    assert Replicas.last.stopped
    saved = [(replica_folder(tmp_path, index) / "counts.json").exists() for index in range(3)]
    assert saved == [False, True, True]


def test_a_folder_is_for_one_service_at_a_time(tmp_path: Path, service: RayService) -> None:
    with pytest.raises(StorageError, match="another process holds the lock"):
        RayService(OnDisk, tmp_path)


def test_a_start_that_fails_leaves_the_folder_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_service, "RayReplicas", Replicas)

    def broken(folder: Path) -> OnDisk:
        raise OptionError("no such model")

    for _ in range(2):
        with pytest.raises(OptionError, match="no such model"):
            RayService(broken, tmp_path)
    with pytest.raises(OptionError, match="replicas: expected at least 1, got 0"):
        RayService(OnDisk, tmp_path, replicas=0)


def test_a_service_that_has_stopped_by_itself_is_replaced_and_one_that_was_closed_is_not(
    tmp_path: Path,
) -> None:
    replica = Replica(OnDisk, 0, tmp_path, 0)
    replica.check_health()
    service = replica._service
    assert isinstance(service, OnDisk)
    service.ready = False
    with pytest.raises(ClosedError, match="replica 0 has stopped by itself"):
        replica.check_health()
    asyncio.run(replica.close())
    replica.check_health()
    with pytest.raises(ClosedError, match="replica 0 has saved its streams"):
        asyncio.run(replica.facts())


def test_a_successor_waits_until_its_predecessor_has_saved(tmp_path: Path) -> None:
    first = Replica(OnDisk, 0, tmp_path, 0)
    with pytest.raises(StorageError, match="another process holds the lock"):
        Replica(OnDisk, 0, tmp_path, 0.1)
    asyncio.run(first.submit("gate", BATCH))
    closing = threading.Timer(0.3, first._close)
    closing.start()
    second = Replica(OnDisk, 0, tmp_path, 10)
    assert asyncio.run(second.call("status", "gate")).batches == 1
    closing.join()
    asyncio.run(second.close())


# ---------------------------------------------------------------------- errors of Ray


def test_errors_of_ray_are_errors_of_a_service() -> None:
    ray, serve = import_ray()
    died, wrapped = ray.exceptions.ActorDiedError, ray.exceptions.RayTaskError
    gone = [
        died(),
        ray.exceptions.ActorUnavailableError("gone", None),
        serve.exceptions.DeploymentUnavailableError("x"),
    ]
    refused = UnknownStreamError("there is no stream 'x'")
    assert as_service_error(wrapped("f", "traceback", refused), 0) is refused
    for lost in gone:
        assert isinstance(as_service_error(lost, 3), ReplicaLostError)
        assert isinstance(as_service_error(wrapped("f", "traceback", lost), 3), ReplicaLostError)
    assert "replica 3" in str(as_service_error(died(), 3))
    full = serve.exceptions.BackPressureError(num_queued_requests=9, max_queued_requests=9)
    assert isinstance(as_service_error(full, 0), BusyError)
    bug = wrapped("f", "traceback", ZeroDivisionError())
    assert as_service_error(bug, 0) is bug


def test_a_machine_without_ray_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"pip install 'equipoise\[ray\]'"):
        RayService(OnDisk, tmp_path)


def test_a_client_outside_of_the_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"ray://head:10001: expected a process on a node of the cluster"):
        RayService(OnDisk, tmp_path, address="ray://head:10001")
