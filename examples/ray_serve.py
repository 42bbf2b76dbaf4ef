"""Two cameras on two replicas of Ray Serve; the replica of one is killed, and the stream goes on.

Run it with `python examples/ray_serve.py`: it starts a Ray of its own on this machine, and takes about a
minute. On a node of a cluster two things change: `address="auto"`, and a folder that all nodes share.
"""

import os
import signal
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import equipoise as eq
from equipoise.production.server.errors import ReplicaLostError
from equipoise.production.server.interface import Prediction
from equipoise.production.server.limits import Limits
from equipoise.production.server.ray.service import RayService
from equipoise.production.server.service import Service

CLASSES = 4


def images(count: int, seed: int, brightness: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Small images with a bright column, whose place is the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    noise = 0.6 * torch.randn(count, 1, 8, 8, generator=generator)
    columns = nn.functional.one_hot(labels, CLASSES).float().repeat_interleave(2, 1)
    return noise + columns[:, None, None, :] + brightness, labels


def trained_model() -> nn.Module:
    """A small classifier, trained in a second: the same in every process."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, CLASSES)
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(100):
        inputs, labels = images(64, seed=step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model.eval()


def make_service(state_folder: Path) -> Service:
    """The service of a replica; Ray Serve calls this in the process of the replica."""
    adapter = eq.create("tent", trained_model(), learning_rate=1e-3)
    return Service(adapter, state_folder, limits=Limits(save_every=5))


def send(service: RayService, camera: str, seed: int) -> Prediction:
    """A batch of a camera whose images have become brighter; sent again if a process dies over it."""
    inputs = images(16, seed, brightness=1.0)[0].numpy()
    try:
        return service.submit(camera, inputs).result()
    except ReplicaLostError as error:
        print(f"{camera}: {error}")
        return send(service, camera, seed)


def show(service: RayService) -> None:
    """One line for each stream."""
    for status in service.streams():
        print(f"{status.name}: {status.batches} batches, {status.samples} images")


def main() -> None:
    """Serve two streams, kill the replica of one in mid-stream, and go on."""
    with (
        tempfile.TemporaryDirectory() as folder,
        RayService(make_service, Path(folder), replicas=2) as service,
    ):
        for seed in range(12):
            for camera in ("gate", "roof"):
                send(service, camera, seed)
        show(service)
        owner = service.replicas()[service.owner("gate")]
        print(f"killing replica {owner.index}, process {owner.process}, which owns gate")
        os.kill(owner.process, signal.SIGKILL)
        start = time.monotonic()
        send(service, "gate", 12)
        print(f"gate was answered again after {time.monotonic() - start:.1f} s, from its last saved state:")
        show(service)


if __name__ == "__main__":
    main()
