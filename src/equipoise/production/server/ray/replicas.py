"""Processes on Ray Serve, one deployment each, that are made anew when they die."""

import logging
import math
from hashlib import blake2b
from pathlib import Path
from typing import Any

from equipoise.errors import OptionError
from equipoise.production.server.ray.folders import replica_folder, spread_streams
from equipoise.production.server.ray.modules import import_ray
from equipoise.production.server.ray.replica import Replica, ServiceRecipe

_AT_ONCE = 10_000
"""Requests that a replica takes at once: its service has a queue with a limit of its own."""

_WAITING = 256
"""Requests that wait for a replica that is being replaced; more are refused."""

_HANDOVER = 30.0
"""Seconds that a replica has to save its streams and end, and that its successor waits for it."""


class RayReplicas:
    """Replicas of a service: applications of Ray Serve with one process each, named after the state folder.

    An application of the same name that a killed driver left on a cluster is stopped first; its streams are
    saved as it ends.
    """

    def __init__(self, recipe: ServiceRecipe, folder: Path, replicas: int, address: str | None) -> None:
        self._ray, self._serve = import_ray()
        self._connects = not self._ray.is_initialized()
        self._starts = self._connects and address is None
        if self._connects:
            self._connect(replicas, address)
        self._serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
        self._prefix = f"equipoise-{blake2b(str(folder.resolve()).encode(), digest_size=4).hexdigest()}-"
        self._delete_applications()
        spread_streams(folder, replicas, wait=_HANDOVER)
        deployment = self._serve.deployment(
            num_replicas=1,
            max_ongoing_requests=_AT_ONCE,
            max_queued_requests=_WAITING,
            health_check_period_s=1.0,
            graceful_shutdown_timeout_s=_HANDOVER,
            graceful_shutdown_wait_loop_s=0.1,
            ray_actor_options={"num_cpus": 1, "num_gpus": self._share_of_gpus(replicas)},
        )(Replica)
        targets = [
            self._serve.RunTarget(
                deployment.bind(recipe, index, replica_folder(folder.resolve(), index), _HANDOVER),
                name=f"{self._prefix}{index}",
                route_prefix=None,
            )
            for index in range(replicas)
        ]
        try:
            self._handles = self._serve.run_many(targets)
        except RuntimeError as error:
            why = self._failure() or str(error)
            self.stop()
            raise OptionError(f"the replicas do not start: {why.splitlines()[-1]}") from RuntimeError(why)

    def __len__(self) -> int:
        return len(self._handles)

    async def call(self, index: int, name: str, *args: Any) -> Any:
        """The result of a method of a replica; waits for a replica that is being replaced."""
        return await getattr(self._handles[index], name).remote(*args)

    def stop(self) -> None:
        """End the processes, and Ray if it was started here; of a cluster, other applications stay."""
        self._delete_applications()
        if self._starts:
            self._serve.shutdown()
        if self._connects:
            self._ray.shutdown()

    def _connect(self, replicas: int, address: str | None) -> None:
        if (address or "").startswith("ray://"):
            raise OptionError(
                f'{address}: expected a process on a node of the cluster, with the address "auto"'
            )
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        local = {} if address else {"num_cpus": replicas, "include_dashboard": False}
        try:
            self._ray.init(
                address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **local
            )
        except ConnectionError as error:
            raise OptionError(f"{address}: no Ray cluster answers: {error}") from error

    def _share_of_gpus(self, replicas: int) -> float:
        gpus = self._ray.cluster_resources().get("GPU", 0)
        return 1 / math.ceil(replicas / gpus) if gpus else 0

    def _failure(self) -> str:
        """The error, with its traceback, of the first replica that could not be made."""
        applications = self._serve.status().applications
        ours = (status for name, status in applications.items() if name.startswith(self._prefix))
        messages = (deployment.message for status in ours for deployment in status.deployments.values())
        return next((message.strip() for message in messages if message.strip()), "")

    def _delete_applications(self) -> None:
        for name in self._serve.status().applications:
            if name.startswith(self._prefix):
                self._serve.delete(name)
